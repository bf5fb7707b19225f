/* The list of oneDNN primitives that a step executes in order, with the memory that they read and write.

   Layouts: a reorder stands only where two layouts differ. Weights are brought into their layout once; training
   updates them there.

   Memory: a Tensor holds a lease on a buffer of the pool. It ends while the list is built, when nothing that is
   built later reads the tensor; whatever is built after that may write into the same buffer. */
#ifndef META500_ONEDNN_PRIMITIVES_H
#define META500_ONEDNN_PRIMITIVES_H

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

/* What the operators are built with: primitives in their order, layouts, leases on memory, gradients. */
class Primitives : public Program, public Builder {
  protected:
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

}  // namespace meta500

#endif
