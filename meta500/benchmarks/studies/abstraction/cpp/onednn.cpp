/* A network of oneDNN primitives. What is built here is a list of primitives with their memory, which a step
   executes in order.

   Layouts: convolutions, transposed convolutions and inner products choose the layouts of their operands
   (format_tag::any); everything else takes its operands as they come. A reorder stands only where two layouts
   differ. Weights are brought into their layout once; training updates them there.

   Memory: a Tensor holds a lease on a buffer of the pool. It ends while the list is built, when nothing that is
   built later reads the tensor; whatever is built after that may write into the same buffer. */
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <omp.h>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <oneapi/dnnl/dnnl.hpp>

#include "onednn.h"

namespace meta500 {

using dnnl::algorithm;
using dnnl::memory;
using dnnl::prop_kind;
using Desc = memory::desc;
using Tag = memory::format_tag;

/* Memory of the network with the right to its buffer. */
struct Tensor {
    memory data;
    std::shared_ptr<void> lease;
    Desc desc() const { return data.get_desc(); }
};

namespace {

class OnednnProgram final : public Program, public Builder {
  public:
    OnednnProgram() {
        weights = network_weights();
        inputs = network_inputs();
    }

    std::string library() const override {
        const dnnl_version_t *version = dnnl_version();
        return "oneDNN " + std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
               std::to_string(version->patch);
    }

    void prepare(bool training, int threads) override {
        omp_set_num_threads(threads);
        training_ = training;
        weights_.resize(weights.size());
        if (training) {
            build_training(*this);
            while (!derivatives_.empty()) {
                const auto derive = std::move(derivatives_.back());
                derivatives_.pop_back();
                derive();
            }
            gradients_.clear();
        } else {
            build_inference(*this);
        }
        stream_.wait();
    }

    void infer() override { run(); }
    const float *logits() const override { return static_cast<const float *>(logits_.data.get_data_handle()); }
    std::size_t logits_count() const override { return logits_.desc().get_size() / sizeof(float); }

    float train(float rate) override {
        if (!updates_built_) {
            build_updates(rate);
        }
        run();
        return loss_;
    }

    std::vector<float> weight(std::size_t index, bool gradient) override {
        const Weight &found = weights_[index];
        std::vector<float> values(weights[index].count());
        const memory &source = gradient ? found.gradient : found.kept;
        if (source) {
            memory plain(found.plain, engine_, values.data());
            dnnl::reorder(source, plain).execute(stream_, const_cast<memory &>(source), plain);
            stream_.wait();
        } else if (!gradient) {
            std::copy_n(weights[index].floats(), values.size(), values.begin());
        }
        return values;
    }

    Value input(std::size_t index) override {
        const Array &array = inputs[index];
        return value({memory(plain(array.shape), engine_, array.memory.get()), array.memory}, array.shape, false);
    }

    Value convolution(const Value &x, int w, int b, const Windows &at, std::int64_t groups, const Dims &shape,
                      const Activation &after) override {
        return windowed<dnnl::convolution_forward, dnnl::convolution_backward_data,
                        dnnl::convolution_backward_weights>(
            algorithm::convolution_direct, x, w, b, at, grouped(weights[std::size_t(w)].shape, groups, false), shape,
            after);
    }

    Value transposed_convolution(const Value &x, int w, int b, const Windows &at, std::int64_t groups,
                                 const Dims &shape, const Activation &after) override {
        return windowed<dnnl::deconvolution_forward, dnnl::deconvolution_backward_data,
                        dnnl::deconvolution_backward_weights>(
            algorithm::deconvolution_direct, x, w, b, at, grouped(weights[std::size_t(w)].shape, groups, true), shape,
            after);
    }

    Value inner_product(const Value &x, int w, int b, const Dims &shape, const Activation &after) override {
        using Forward = dnnl::inner_product_forward;
        Dims extents = x.tensor->desc().get_dims();
        extents[0] = weights[std::size_t(w)].shape[0];
        const Desc plain_weights = plain(extents);
        const Forward::primitive_desc made(engine_, kind(), any(x.tensor->desc()), any(plain_weights), bias_desc(b),
                                           any(shape), followed(after));
        Value y = value(made.dst_desc(), shape, x.differentiable || is_trained(w));
        add(Forward(made), {{DNNL_ARG_SRC, laid_out(*x.tensor, made.src_desc()).data},
                            {DNNL_ARG_WEIGHTS, weights_for(w, plain_weights, made.weights_desc())},
                            {DNNL_ARG_BIAS, bias(b)},
                            {DNNL_ARG_DST, y.tensor->data}});
        derive(y, [=, this](const Tensor &dy) {
            if (x.differentiable) {
                using Data = dnnl::inner_product_backward_data;
                const Data::primitive_desc back(engine_, any(x.tensor->desc()), any(plain_weights), any(dy.desc()),
                                                made);
                const Tensor dx = tensor(back.diff_src_desc());
                add(Data(back), {{DNNL_ARG_DIFF_DST, laid_out(dy, back.diff_dst_desc()).data},
                                 {DNNL_ARG_WEIGHTS, laid_out(kept(w), back.weights_desc()).data},
                                 {DNNL_ARG_DIFF_SRC, dx.data}});
                add_gradient(x, dx);
            }
            if (is_trained(w)) {
                using Weights = dnnl::inner_product_backward_weights;
                const Weights::primitive_desc back(engine_, any(x.tensor->desc()), any(plain_weights), bias_desc(b),
                                                   any(dy.desc()), made);
                weight_gradients(Weights(back), back, x, w, b, dy);
            }
        });
        return y;
    }

    Value batch_normalization(const Value &x, int scale, int shift, int mean, int variance, float epsilon,
                              float momentum, bool with_relu, bool in_place) override {
        using Forward = dnnl::batch_normalization_forward;
        using dnnl::normalization_flags;
        auto flags = normalization_flags::use_scale | normalization_flags::use_shift;
        if (!training_) {
            flags |= normalization_flags::use_global_stats;
        }
        if (with_relu) {
            flags |= normalization_flags::fuse_norm_relu;
        }
        const Desc layout = x.tensor->desc();
        const Forward::primitive_desc made(engine_, kind(), layout, layout, epsilon, flags);
        Value y = in_place ? value(*x.tensor, x.shape, x.differentiable)
                           : value(made.dst_desc(), x.shape, x.differentiable || is_trained(scale));
        const memory gamma = vector_of(scale), beta = vector_of(shift);
        memory centre = vector_of(mean), spread = vector_of(variance), workspace;
        Tensor notes;
        if (training_) {
            centre = own(made.mean_desc());
            spread = own(made.variance_desc());
            if (with_relu) {
                notes = tensor(made.workspace_desc());
                workspace = notes.data;
            }
        }
        add(Forward(made), {{DNNL_ARG_SRC, x.tensor->data},
                            {DNNL_ARG_MEAN, centre},
                            {DNNL_ARG_VARIANCE, spread},
                            {DNNL_ARG_SCALE, gamma},
                            {DNNL_ARG_SHIFT, beta},
                            {DNNL_ARG_WORKSPACE, workspace},
                            {DNNL_ARG_DST, y.tensor->data}});
        if (training_) {
            follow(mean, centre, momentum);
            follow(variance, spread, momentum);
        }
        derive(y, [=, this](const Tensor &dy) {
            using Backward = dnnl::batch_normalization_backward;
            const Backward::primitive_desc back(engine_, prop_kind::backward, layout, layout, layout, epsilon, flags,
                                                made);
            const Tensor dx = tensor(back.diff_src_desc());
            const memory d_gamma = own(gamma.get_desc()), d_beta = own(beta.get_desc());
            add(Backward(back), {{DNNL_ARG_SRC, x.tensor->data},
                                 {DNNL_ARG_MEAN, centre},
                                 {DNNL_ARG_VARIANCE, spread},
                                 {DNNL_ARG_SCALE, gamma},
                                 {DNNL_ARG_WORKSPACE, notes.data},
                                 {DNNL_ARG_DIFF_DST, laid_out(dy, back.diff_dst_desc()).data},
                                 {DNNL_ARG_DIFF_SRC, dx.data},
                                 {DNNL_ARG_DIFF_SCALE, d_gamma},
                                 {DNNL_ARG_DIFF_SHIFT, d_beta}});
            add_gradient(x, dx);
            add_weight_gradient(scale, d_gamma);
            add_weight_gradient(shift, d_beta);
        });
        return y;
    }

    Value elementwise(const Value &x, const Activation &function, bool in_place) override {
        using Forward = dnnl::eltwise_forward;
        const algorithm chosen = algorithm_of(function, training_);
        const Desc layout = x.tensor->desc();
        const Forward::primitive_desc made(engine_, kind(), chosen, layout, layout, function.alpha, function.beta);
        Value y = in_place ? value(*x.tensor, x.shape, x.differentiable)
                           : value(made.dst_desc(), x.shape, x.differentiable);
        add(Forward(made), {{DNNL_ARG_SRC, x.tensor->data}, {DNNL_ARG_DST, y.tensor->data}});
        Value of = x;
        of.reset();
        derive(y, [=, this](const Tensor &dy) {
            using Backward = dnnl::eltwise_backward;
            const Tensor wanted = laid_out(dy, layout);
            const Backward::primitive_desc back(engine_, chosen, layout, layout, layout, function.alpha, function.beta,
                                                made);
            const Tensor dx = tensor(back.diff_src_desc());
            add(Backward(back),
                {{DNNL_ARG_DST, y.tensor->data}, {DNNL_ARG_DIFF_DST, wanted.data}, {DNNL_ARG_DIFF_SRC, dx.data}});
            add_gradient(of, dx);
        });
        return y;
    }

    Value pooling(const Value &x, Pooling way, const Windows &at, const Dims &shape) override {
        const algorithm chosen = way == Pooling::max              ? algorithm::pooling_max
                                 : way == Pooling::average_inside ? algorithm::pooling_avg_exclude_padding
                                                                  : algorithm::pooling_avg_include_padding;
        using Forward = dnnl::pooling_forward;
        const Dims dilations = less_one(at.dilations);
        const Forward::primitive_desc made(engine_, kind(), chosen, x.tensor->desc(), any(shape), at.strides, at.kernel,
                                           dilations, at.begins, at.ends);
        Value y = value(made.dst_desc(), shape, x.differentiable);
        Tensor notes;
        if (training_ && chosen == algorithm::pooling_max) {
            notes = tensor(made.workspace_desc());
        }
        add(Forward(made),
            {{DNNL_ARG_SRC, x.tensor->data}, {DNNL_ARG_WORKSPACE, notes.data}, {DNNL_ARG_DST, y.tensor->data}});
        const Desc layout = x.tensor->desc();
        Value of = x;
        of.reset();  // the derivative does not need what was pooled
        derive(y, [=, this](const Tensor &dy) {
            using Backward = dnnl::pooling_backward;
            const Backward::primitive_desc back(engine_, chosen, layout, made.dst_desc(), at.strides, at.kernel,
                                                dilations, at.begins, at.ends, made);
            const Tensor dx = tensor(back.diff_src_desc());
            add(Backward(back), {{DNNL_ARG_DIFF_DST, laid_out(dy, back.diff_dst_desc()).data},
                                 {DNNL_ARG_WORKSPACE, notes.data},
                                 {DNNL_ARG_DIFF_SRC, dx.data}});
            add_gradient(of, dx);
        });
        return y;
    }

    Value addition(const Value &a, const Value &b, const Activation &after) override {
        const Desc layout = a.tensor->desc();
        const Tensor other = laid_out(*b.tensor, layout);
        const dnnl::binary::primitive_desc made(engine_, algorithm::binary_add, layout, layout, layout,
                                                followed(after));
        Value y = value(made.dst_desc(), a.shape, a.differentiable || b.differentiable);
        add(dnnl::binary(made), {{DNNL_ARG_SRC_0, a.tensor->data}, {DNNL_ARG_SRC_1, other.data},
                                 {DNNL_ARG_DST, y.tensor->data}});
        Value first = a, second = b;
        first.reset();
        second.reset();
        derive(y, [=, this](const Tensor &dy) {
            add_gradient(first, dy);
            add_gradient(second, dy);
        });
        return y;
    }

    Value concatenation(const std::vector<Value> &parts, int axis, const Dims &shape) override {
        std::vector<Desc> layouts;
        bool differentiable = false;
        for (const Value &part : parts) {
            layouts.push_back(part.tensor->desc());
            differentiable = differentiable || part.differentiable;
        }
        const dnnl::concat::primitive_desc made(engine_, axis, layouts);
        Value y = value(made.dst_desc(), shape, differentiable);
        std::unordered_map<int, memory> arguments{{DNNL_ARG_DST, y.tensor->data}};
        std::vector<Value> sources = parts;
        for (std::size_t i = 0; i < parts.size(); ++i) {
            arguments[DNNL_ARG_MULTIPLE_SRC + int(i)] = parts[i].tensor->data;
            sources[i].reset();
        }
        add(dnnl::concat(made), arguments);
        derive(y, [=, this](const Tensor &dy) {
            Dims begin(shape.size(), 0);
            for (std::size_t i = 0; i < sources.size(); ++i) {
                const Dims extents = layouts[i].get_dims();
                if (sources[i].differentiable) {
                    add_gradient(sources[i], section(dy, extents, begin, layouts[i]));
                }
                begin[std::size_t(axis)] += extents[std::size_t(axis)];
            }
        });
        return y;
    }

    Value slice(const Value &x, const Dims &begins, const Dims &shape) override {
        require_constant(x, "Slice");
        return value(section(*x.tensor, shape, begins, any(shape)), shape, false);
    }

    Value softmax(const Value &x, int axis) override {
        const Desc layout = x.tensor->desc();
        const dnnl::softmax_forward::primitive_desc made(engine_, kind(), algorithm::softmax_accurate, layout, layout,
                                                         axis);
        Value y = value(made.dst_desc(), x.shape, false);
        require_constant(x, "Softmax");
        add(dnnl::softmax_forward(made), {{DNNL_ARG_SRC, x.tensor->data}, {DNNL_ARG_DST, y.tensor->data}});
        return y;
    }

    Value local_response_normalization(const Value &x, std::int64_t size, float alpha, float beta, float k) override {
        const Desc layout = x.tensor->desc();
        const dnnl::lrn_forward::primitive_desc made(engine_, prop_kind::forward_inference,
                                                     algorithm::lrn_across_channels, layout, layout, size, alpha, beta,
                                                     k);
        Value y = value(made.dst_desc(), x.shape, false);
        require_constant(x, "LRN");
        add(dnnl::lrn_forward(made), {{DNNL_ARG_SRC, x.tensor->data}, {DNNL_ARG_DST, y.tensor->data}});
        return y;
    }

    Value matrix_product(const Value &x, int matrix, bool from_left, const Dims &shape) override {
        const Dims extents = weights[std::size_t(matrix)].shape;
        const Desc wide = plain({1, 1, extents[0], extents[1]});
        const Desc turned({1, 1, extents[1], extents[0]}, memory::data_type::f32, Tag::abdc);
        float *numbers = weights[std::size_t(matrix)].floats();
        const memory constant(wide, engine_, numbers), transposed(turned, engine_, numbers);
        Value y = value(plain(shape), shape, x.differentiable);
        multiply(*x.tensor, constant, from_left, *y.tensor);
        Value of = x;
        of.reset();
        const Dims source = x.tensor->desc().get_dims();
        derive(y, [=, this](const Tensor &dy) {
            const Tensor dx = tensor(plain(source));
            multiply(dy, transposed, from_left, dx);
            add_gradient(of, dx);
        });
        return y;
    }

    Value flattened(const Value &x, const Dims &shape) override {
        Value y = x;
        y.shape = shape;
        return y;
    }

    void finish(const Value &logits) override {
        logits_ = laid_out(*logits.tensor, plain(logits.tensor->desc().get_dims()));
    }

    /* oneDNN has no losses: the logarithm of softmax is its, the choice of the labels and the gradient are loops. */
    void cross_entropy(const Value &scores, std::size_t label, std::int64_t ignored) override {
        const Desc layout = plain(scores.shape);
        const Desc whole = plain(scores.tensor->desc().get_dims());
        const Tensor source = laid_out(*scores.tensor, whole);
        const Tensor logarithms = tensor(layout), d_scores = tensor(whole);
        const memory flat(layout, engine_, source.data.get_data_handle());
        const dnnl::softmax_forward::primitive_desc made(engine_, prop_kind::forward_training,
                                                         algorithm::softmax_log, layout, layout, 1);
        add(dnnl::softmax_forward(made), {{DNNL_ARG_SRC, flat}, {DNNL_ARG_DST, logarithms.data}});
        const std::int64_t batch = scores.shape[0], classes = scores.shape[1];
        std::int64_t places = 1;
        for (std::size_t axis = 2; axis < scores.shape.size(); ++axis) {
            places *= scores.shape[axis];
        }
        const auto *log_p = static_cast<const float *>(logarithms.data.get_data_handle());
        auto *gradient = static_cast<float *>(d_scores.data.get_data_handle());
        const std::int64_t *labels = inputs[label].integers();
        steps_.push_back([=, this] {
            stream_.wait();
            double total = 0;
            std::int64_t count = 0, wrong = 0;
#pragma omp parallel for reduction(+ : total, count, wrong)
            for (std::int64_t i = 0; i < batch * places; ++i) {
                if (labels[i] == ignored) {
                    continue;
                }
                if (labels[i] < 0 || labels[i] >= classes) {
                    ++wrong;
                    continue;
                }
                total -= log_p[(i / places * classes + labels[i]) * places + i % places];
                ++count;
            }
            if (wrong != 0) {
                throw std::runtime_error("a label is no class");
            }
            loss_ = float(total / double(count));
#pragma omp parallel for
            for (std::int64_t row = 0; row < batch * classes; ++row) {
                for (std::int64_t place = 0; place < places; ++place) {
                    const std::int64_t chosen = labels[row / classes * places + place], i = row * places + place;
                    const float own = chosen == row % classes ? 1.0f : 0.0f;
                    gradient[i] = chosen == ignored ? 0.0f : (std::exp(log_p[i]) - own) / float(count);
                }
            }
        });
        add_gradient(scores, d_scores);
    }

  private:
    // A convolution, or a transposed one: Forward, Data and Weights are the primitives of its three passes.
    template <class Forward, class Data, class Weights>
    Value windowed(algorithm method, const Value &x, int w, int b, const Windows &at, const Desc &plain_weights,
                   const Dims &shape, const Activation &after) {
        const Dims dilations = less_one(at.dilations);
        const typename Forward::primitive_desc made(engine_, kind(), method, any(x.tensor->desc()),
                                           any(plain_weights), bias_desc(b), any(shape), at.strides, dilations,
                                           at.begins, at.ends, followed(after));
        Value y = value(made.dst_desc(), shape, x.differentiable || is_trained(w));
        add(Forward(made), {{DNNL_ARG_SRC, laid_out(*x.tensor, made.src_desc()).data},
                            {DNNL_ARG_WEIGHTS, weights_for(w, plain_weights, made.weights_desc())},
                            {DNNL_ARG_BIAS, bias(b)},
                            {DNNL_ARG_DST, y.tensor->data}});
        derive(y, [=, this](const Tensor &dy) {
            if (x.differentiable) {
                const typename Data::primitive_desc back(engine_, method, any(x.tensor->desc()),
                                                any(plain_weights), any(dy.desc()), at.strides, dilations, at.begins,
                                                at.ends, made);
                const Tensor dx = tensor(back.diff_src_desc());
                add(Data(back), {{DNNL_ARG_DIFF_DST, laid_out(dy, back.diff_dst_desc()).data},
                                 {DNNL_ARG_WEIGHTS, laid_out(kept(w), back.weights_desc()).data},
                                 {DNNL_ARG_DIFF_SRC, dx.data}});
                add_gradient(x, dx);
            }
            if (is_trained(w)) {
                const typename Weights::primitive_desc back(engine_, method, any(x.tensor->desc()),
                                                   any(plain_weights), bias_desc(b), any(dy.desc()), at.strides,
                                                   dilations, at.begins, at.ends, made);
                weight_gradients(Weights(back), back, x, w, b, dy);
            }
        });
        return y;
    }

    struct Weight {
        Desc plain;       // the layout of the file, in the dimensions of the primitive
        memory kept;      // what the primitives read, and training updates
        memory gradient;  // of the last step, in the layout of `kept`
    };
    struct Buffer {
        std::unique_ptr<void, void (*)(void *)> memory;
        std::size_t size;
        bool free;
    };

    dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
    dnnl::stream stream_{engine_};
    bool training_ = false, updates_built_ = false;
    int next_ = 0;
    float loss_ = 0;
    Tensor logits_;
    std::vector<Weight> weights_;
    std::vector<std::function<void()>> steps_, derivatives_;
    std::map<int, Tensor> gradients_;
    std::vector<std::shared_ptr<Buffer>> pool_;
    std::vector<std::unique_ptr<void, void (*)(void *)>> owned_;

    void run() {
        for (const auto &step : steps_) {
            step();
        }
        stream_.wait();
    }
    prop_kind kind() const { return training_ ? prop_kind::forward_training : prop_kind::forward_inference; }

    static Desc plain(const Dims &dims) {
        static const Tag tags[] = {Tag::undef, Tag::a, Tag::ab, Tag::abc, Tag::abcd, Tag::abcde};
        if (dims.empty() || dims.size() > 5) {
            throw std::runtime_error("values have 1 to 5 dimensions");
        }
        return {dims, memory::data_type::f32, tags[dims.size()]};
    }
    static Desc any(const Dims &dims) { return {dims, memory::data_type::f32, Tag::any}; }
    static Desc any(const Desc &desc) { return any(desc.get_dims()); }
    static Dims less_one(Dims dilations) {
        for (auto &dilation : dilations) {
            --dilation;
        }
        return dilations;
    }

    /* Weights of a convolution as oneDNN has them, (groups, M, C, k...), over the bytes of ONNX's. */
    static Desc grouped(const Dims &shape, std::int64_t groups, bool transposed) {
        Dims dims = shape;
        if (groups > 1) {
            dims[0] /= groups;
            dims.insert(dims.begin(), groups);
        }
        const std::size_t first = groups > 1 ? 1 : 0;
        Dims strides(dims.size(), 1);
        for (std::size_t axis = dims.size() - 1; axis > 0; --axis) {
            strides[axis - 1] = strides[axis] * dims[axis];
        }
        if (transposed) {
            std::swap(dims[first], dims[first + 1]);
            std::swap(strides[first], strides[first + 1]);
        }
        return {dims, memory::data_type::f32, strides};
    }

    /* The library's name of a function; with a derivative that is computed from its result. */
    static algorithm algorithm_of(const Activation &function, bool from_result) {
        switch (function.kind) {
            case Activation::rectifier:
                return from_result ? algorithm::eltwise_relu_use_dst_for_bwd : algorithm::eltwise_relu;
            case Activation::limits:
                return from_result ? algorithm::eltwise_clip_v2_use_dst_for_bwd : algorithm::eltwise_clip_v2;
            case Activation::hyperbolic_tangent:
                return from_result ? algorithm::eltwise_tanh_use_dst_for_bwd : algorithm::eltwise_tanh;
            case Activation::logistic:
                return from_result ? algorithm::eltwise_logistic_use_dst_for_bwd : algorithm::eltwise_logistic;
            default: throw std::runtime_error("no elementwise function");
        }
    }

    static dnnl::primitive_attr followed(const Activation &after) {
        dnnl::primitive_attr attributes;
        if (after.kind != Activation::nothing) {
            dnnl::post_ops chain;
            chain.append_eltwise(algorithm_of(after, false), after.alpha, after.beta);
            attributes.set_post_ops(chain);
        }
        return attributes;
    }

    void require_constant(const Value &x, const char *operation) const {
        if (x.differentiable) {
            throw std::runtime_error(std::string(operation) + " has no derivative here");
        }
    }

    /* A buffer of the pool: the smallest that is free and large enough, or a new one. */
    Tensor tensor(const Desc &desc) {
        const std::size_t size = std::max<std::size_t>(desc.get_size(), 64);
        std::shared_ptr<Buffer> found;
        for (const auto &buffer : pool_) {
            if (buffer->free && buffer->size >= size && (found == nullptr || buffer->size < found->size)) {
                found = buffer;
            }
        }
        if (found == nullptr) {
            found = std::make_shared<Buffer>(Buffer{allocate(size), size, false});
            pool_.push_back(found);
        }
        found->free = false;
        return {memory(desc, engine_, found->memory.get()),
                std::shared_ptr<void>(found->memory.get(), [found](void *) { found->free = true; })};
    }
    /* Memory that nothing else shares. */
    memory own(const Desc &desc) {
        owned_.push_back(allocate(std::max<std::size_t>(desc.get_size(), 64)));
        return memory(desc, engine_, owned_.back().get());
    }
    static std::unique_ptr<void, void (*)(void *)> allocate(std::size_t size) {
        void *place = std::aligned_alloc(64, (size + 63) / 64 * 64);
        if (place == nullptr) {
            throw std::bad_alloc();
        }
        return {place, std::free};
    }

    Value value(const Tensor &tensor, const Dims &shape, bool differentiable) {
        return {next_++, std::make_shared<const Tensor>(tensor), shape, training_ && differentiable};
    }
    Value value(const Desc &desc, const Dims &shape, bool differentiable) {
        return value(tensor(desc), shape, differentiable);
    }

    void add(const dnnl::primitive &primitive, std::unordered_map<int, memory> arguments) {
        for (auto at = arguments.begin(); at != arguments.end();) {
            at = at->second ? std::next(at) : arguments.erase(at);  // an optional one that is not there
        }
        steps_.push_back([this, primitive, arguments] { primitive.execute(stream_, arguments); });
    }
    void reorder(const memory &from, const memory &to) {
        add(dnnl::reorder(from, to), {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
    }
    /* The same tensor in another layout: itself, or a reorder into a new buffer. */
    Tensor laid_out(const Tensor &from, const Desc &wanted) {
        if (from.desc() == wanted) {
            return from;
        }
        Tensor to = tensor(wanted);
        reorder(from.data, to.data);
        return to;
    }
    /* A part of a tensor, in a buffer of its own. */
    Tensor section(const Tensor &from, const Dims &extents, const Dims &begins, const Desc &layout) {
        Tensor source = from;
        Desc part = source.desc().submemory_desc(extents, begins, true);
        if (!part) {  // the part begins inside of a block of channels
            source = laid_out(from, plain(from.desc().get_dims()));
            part = source.desc().submemory_desc(extents, begins);
        }
        const bool free_choice = layout.get_format_kind() == memory::format_kind::any;
        Tensor to = tensor(free_choice ? plain(extents) : layout);
        reorder(memory(part, engine_, source.data.get_data_handle()), to.data);
        return to;
    }
    void multiply(const Tensor &x, const memory &constant, bool from_left, const Tensor &y) {
        const Tensor operand = laid_out(x, plain(x.desc().get_dims()));
        const memory &left = from_left ? constant : operand.data, &right = from_left ? operand.data : constant;
        const dnnl::matmul::primitive_desc made(engine_, left.get_desc(), right.get_desc(), plain(y.desc().get_dims()));
        add(dnnl::matmul(made), {{DNNL_ARG_SRC, left}, {DNNL_ARG_WEIGHTS, right}, {DNNL_ARG_DST, y.data}});
    }

    // -- weights -------------------------------------------------------------------------------------------

    bool is_trained(int index) const { return training_ && index != none && weights[std::size_t(index)].trained; }
    Desc bias_desc(int index) const { return index == none ? Desc() : plain(weights[std::size_t(index)].shape); }
    memory bias(int index) { return index == none ? memory() : vector_of(index); }
    Tensor kept(int index) const { return {weights_[std::size_t(index)].kept, nullptr}; }

    /* A weight of one dimension; its only layout is the file's. */
    memory vector_of(int index) {
        Weight &weight = weights_[std::size_t(index)];
        if (!weight.kept) {
            weight.plain = plain(weights[std::size_t(index)].shape);
            weight.kept = memory(weight.plain, engine_, weights[std::size_t(index)].memory.get());
        }
        return weight.kept;
    }
    memory weights_for(int index, const Desc &from_file, const Desc &wanted) {
        Weight &weight = weights_[std::size_t(index)];
        if (!weight.kept) {
            weight.plain = from_file;
            memory file(from_file, engine_, weights[std::size_t(index)].memory.get());
            const bool as_it_is = from_file == wanted;
            weight.kept = as_it_is ? file : own(wanted);
            if (!as_it_is) {
                dnnl::reorder(file, weight.kept).execute(stream_, file, weight.kept);
                stream_.wait();
                weights[std::size_t(index)].memory.reset();
            }
        }
        return laid_out(kept(index), wanted).data;
    }
    /* The running statistic moves towards that of the batch. */
    void follow(int index, const memory &batch, float momentum) {
        auto *running = weights[std::size_t(index)].floats();
        const std::size_t count = weights[std::size_t(index)].count();
        const auto *now = static_cast<const float *>(batch.get_data_handle());
        steps_.push_back([=, this] {
            stream_.wait();
            for (std::size_t i = 0; i < count; ++i) {
                running[i] = momentum * running[i] + (1 - momentum) * now[i];
            }
        });
    }

    // -- gradients -----------------------------------------------------------------------------------------

    /* What is to be built for the gradient of y, once it is complete. */
    void derive(const Value &y, std::function<void(const Tensor &)> build) {
        if (!y.differentiable) {
            return;
        }
        derivatives_.push_back([this, id = y.id, build = std::move(build)] {
            const auto found = gradients_.find(id);
            if (found != gradients_.end()) {  // else the loss does not depend on it
                const Tensor gradient = found->second;
                gradients_.erase(found);
                build(gradient);
            }
        });
    }
    void add_gradient(const Value &x, const Tensor &gradient) {
        if (!x.differentiable) {
            return;
        }
        const auto found = gradients_.find(x.id);
        gradients_[x.id] = found == gradients_.end() ? gradient : sum(found->second, gradient);
    }
    Tensor sum(const Tensor &a, const Tensor &b) {
        const Tensor other = laid_out(b, a.desc()), total = tensor(a.desc());
        const dnnl::sum::primitive_desc made(engine_, a.desc(), {1.0f, 1.0f}, {a.desc(), a.desc()});
        add(dnnl::sum(made), {{DNNL_ARG_MULTIPLE_SRC, a.data},
                              {DNNL_ARG_MULTIPLE_SRC + 1, other.data},
                              {DNNL_ARG_DST, total.data}});
        return total;
    }
    template <class Made>
    void weight_gradients(const dnnl::primitive &primitive, const Made &back, const Value &x, int w, int b,
                          const Tensor &dy) {
        const bool as_it_is = back.diff_weights_desc() == weights_[std::size_t(w)].kept.get_desc();
        const Tensor passing = as_it_is ? Tensor() : tensor(back.diff_weights_desc());
        const memory d_weights = as_it_is ? own(back.diff_weights_desc()) : passing.data;
        const memory d_bias = b == none ? memory() : own(bias_desc(b));
        add(primitive, {{DNNL_ARG_SRC, laid_out(*x.tensor, back.src_desc()).data},
                        {DNNL_ARG_DIFF_DST, laid_out(dy, back.diff_dst_desc()).data},
                        {DNNL_ARG_DIFF_WEIGHTS, d_weights},
                        {DNNL_ARG_DIFF_BIAS, d_bias}});
        add_weight_gradient(w, d_weights);
        if (b != none) {
            add_weight_gradient(b, d_bias);
        }
    }
    void add_weight_gradient(int index, const memory &gradient) {
        if (!is_trained(index)) {
            return;
        }
        Weight &weight = weights_[std::size_t(index)];
        memory found = gradient;
        if (found.get_desc() != weight.kept.get_desc()) {
            found = own(weight.kept.get_desc());
            reorder(gradient, found);
        }
        if (weight.gradient) {  // the weight has several uses
            const memory total = own(found.get_desc());
            const dnnl::sum::primitive_desc made(engine_, found.get_desc(), {1.0f, 1.0f},
                                                 {found.get_desc(), found.get_desc()});
            add(dnnl::sum(made), {{DNNL_ARG_MULTIPLE_SRC, weight.gradient},
                                  {DNNL_ARG_MULTIPLE_SRC + 1, found},
                                  {DNNL_ARG_DST, total}});
            found = total;
        }
        weight.gradient = found;
    }
    /* w <- w - rate * gradient, behind all gradients. */
    void build_updates(float rate) {
        for (const Weight &weight : weights_) {
            if (weight.gradient) {
                const Desc layout = weight.kept.get_desc();
                const dnnl::sum::primitive_desc made(engine_, layout, {1.0f, -rate}, {layout, layout});
                add(dnnl::sum(made), {{DNNL_ARG_MULTIPLE_SRC, weight.kept},
                                      {DNNL_ARG_MULTIPLE_SRC + 1, weight.gradient},
                                      {DNNL_ARG_DST, weight.kept}});
            }
        }
        updates_built_ = true;
    }
};

}  // namespace

std::unique_ptr<Program> make_program() { return std::make_unique<OnednnProgram>(); }

}  // namespace meta500
