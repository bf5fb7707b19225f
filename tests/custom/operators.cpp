/* Operators of the tests: one file, so one compilation. */
#include "meta500.h"

/* y = a * x + b, b optional. */
META500_FORWARD(Affine) {
    const double a = call.number("a");
    call.with_dtype([&](auto zero) {
        using T = decltype(zero);
        auto x = call.input<T>(0);
        auto b = call.raw.n_inputs > 1 ? call.input<T>(1) : decltype(x){nullptr, nullptr, 0, 0};
        auto y = call.output<T>(0);
        if (b) call.same_shape(0, 1);
#pragma omp parallel for
        for (int64_t i = 0; i < x.size; ++i) y[i] = static_cast<T>(a) * x[i] + (b ? b[i] : T(0));
    });
}

META500_BACKWARD(Affine) {
    const double a = call.number("a");
    call.with_dtype([&](auto zero) {
        using T = decltype(zero);
        auto d_y = call.output_gradient<T>(0);
        if (auto d_x = call.input_gradient<T>(0))
            for (int64_t i = 0; i < d_x.size; ++i) d_x[i] = static_cast<T>(a) * d_y[i];
        if (call.raw.n_inputs > 1)
            if (auto d_b = call.input_gradient<T>(1))
                for (int64_t i = 0; i < d_b.size; ++i) d_b[i] = d_y[i];
    });
}

/* A gradient that is wrong on purpose. */
META500_FORWARD(WrongGradient) {
    auto x = call.input<double>(0);
    auto y = call.output<double>(0);
    for (int64_t i = 0; i < x.size; ++i) y[i] = x[i] * x[i];
}

META500_BACKWARD(WrongGradient) {
    auto x = call.input<double>(0);
    auto d_x = call.input_gradient<double>(0);
    for (int64_t i = 0; i < x.size; ++i) d_x[i] = 2.001 * x[i] * call.output_gradient<double>(0)[i];
}

/* Two outputs, the second of another type and size: sum of each row, and its number of positive elements. */
META500_SHAPES(RowSums) {
    auto shape = call.input_shape(0);
    if (shape.size() != 2) throw meta500::Error("x must have rank 2, has " + std::to_string(shape.size()));
    call.set_output(0, call.input_dtype(0), {shape[0]});
    call.set_output(1, META500_INT64, {shape[0], 1});
}

META500_FORWARD(RowSums) {
    call.with_dtype([&](auto zero) {
        using T = decltype(zero);
        auto x = call.input<T>(0);
        auto sums = call.output<T>(0);
        auto counts = call.output<int64_t>(1);
        for (int64_t i = 0; i < x.dim(0); ++i) {
            sums[i] = 0;
            counts[i] = 0;
            for (int64_t j = 0; j < x.dim(1); ++j) {
                sums[i] += x[i * x.dim(1) + j];
                counts[i] += x[i * x.dim(1) + j] > 0;
            }
        }
    });
}

META500_BACKWARD(RowSums) {
    call.with_dtype([&](auto zero) {
        using T = decltype(zero);
        auto d_x = call.input_gradient<T>(0);
        auto d_sums = call.output_gradient<T>(0);
        for (int64_t i = 0; i < d_x.size; ++i) d_x[i] = d_sums[i / d_x.dim(1)];
    });
}

/* How many threads a parallel region gets. */
META500_FORWARD(Threads) {
    auto y = call.output<int64_t>(0);
    for (int64_t i = 0; i < y.size; ++i) y[i] = 0;
#pragma omp parallel
#pragma omp single
    y[0] = omp_get_num_threads();
}

/* Every kind of attribute, as numbers: sums of lists, lengths of texts. */
META500_FORWARD(Kinds) {
    auto y = call.output<double>(0);
    double sums = 0, lengths = 0;
    for (double value : call.numbers("floats")) sums += value;
    for (int64_t value : call.integers("ints")) sums += static_cast<double>(value);
    for (const std::string &value : call.texts("strings")) lengths += static_cast<double>(value.size());
    const double found[] = {call.number("f"), static_cast<double>(call.integer("i")),
                            static_cast<double>(call.text("s").size()), sums, lengths,
                            call.has("absent") ? 1.0 : 0.0};
    for (int64_t i = 0; i < y.size; ++i) y[i] = found[i];
}

META500_FORWARD(WrongAttribute) { call.output<double>(0)[0] = call.number("scale"); }

META500_FORWARD(WrongDtype) { call.output<float>(0)[0] = call.input<float>(0)[0]; }

META500_FORWARD(ThrowsInt) { throw 7; }

/* Plain C interface without the macros: a code without a message. */
extern "C" int32_t Plain_forward(const meta500_call *call) { return call->n_inputs == 1 ? 3 : 0; }

/* Leaves the last element as it was. */
META500_FORWARD(Unwritten) {
    auto x = call.input<double>(0);
    for (int64_t i = 0; i + 1 < x.size; ++i) call.output<double>(0)[i] = x[i];
}

/* A type that cannot be. */
META500_SHAPES(BadShapes) { call.set_output(0, META500_FLOAT, {-1}); }
META500_FORWARD(BadShapes) {}
