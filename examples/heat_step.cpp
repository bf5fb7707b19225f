/* HeatStep: one explicit step of the heat equation on a periodic grid, y = u + rate * laplace(u) for u (N, H, W). */
#include "meta500.h"

template <class T>
static void step(meta500::Tensor<const T> u, meta500::Tensor<T> y, T rate) {
    const int64_t n = u.dim(0), height = u.dim(1), width = u.dim(2);
#pragma omp parallel for collapse(2)
    for (int64_t image = 0; image < n; ++image)
        for (int64_t row = 0; row < height; ++row) {
            const T *here = u.data + (image * height + row) * width;
            const T *above = u.data + (image * height + (row + height - 1) % height) * width;
            const T *below = u.data + (image * height + (row + 1) % height) * width;
            T *out = y.data + (image * height + row) * width;
            for (int64_t column = 0; column < width; ++column) {
                const T left = here[(column + width - 1) % width], right = here[(column + 1) % width];
                out[column] = here[column] + rate * (above[column] + below[column] + left + right - 4 * here[column]);
            }
        }
}

META500_FORWARD(HeatStep) {
    const double rate = call.number("rate");
    if (rate < 0 || rate > 0.25) throw meta500::Error("rate must be from 0 to 0.25, got " + std::to_string(rate));
    call.with_dtype([&](auto zero) {
        using T = decltype(zero);
        step(call.input<T>(0), call.output<T>(0), static_cast<T>(rate));
    });
}

/* The stencil is symmetric, so its adjoint is the same stencil. */
META500_BACKWARD(HeatStep) {
    call.with_dtype([&](auto zero) {
        using T = decltype(zero);
        if (auto d_u = call.input_gradient<T>(0))
            step(call.output_gradient<T>(0), d_u, static_cast<T>(call.number("rate")));
    });
}
