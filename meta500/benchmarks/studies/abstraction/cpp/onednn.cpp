/* A network of oneDNN primitives: what each operator, and its derivative, adds to the list.

   Convolutions, transposed convolutions and inner products choose the layouts of their operands
   (format_tag::any); everything else takes its operands as they come. */
#include "onednn_primitives.h"

namespace meta500 {

namespace {

class OnednnProgram final : public Primitives {
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
};

}  // namespace

std::unique_ptr<Program> make_program() { return std::make_unique<OnednnProgram>(); }

}  // namespace meta500
