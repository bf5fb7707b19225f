/* A network of LibTorch tensors and calls of ATen, without the C++ frontend's modules. */
#ifndef META500_LIBTORCH_H
#define META500_LIBTORCH_H

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>

#include "program.h"

namespace meta500 {

class LibtorchProgram : public Program {
  public:
    std::string library() const override { return "LibTorch " META500_LIBTORCH_VERSION; }

    void prepare(bool training, int threads) override {
        at::set_num_threads(threads);
        for (std::size_t i = 0; i < weights.size(); ++i) {
            *tensors_[i] = view(weights[i]);
            tensors_[i]->set_requires_grad(training && weights[i].trained);
        }
        for (std::size_t i = 0; i < inputs.size(); ++i) {
            *fed_[i] = view(inputs[i]);
        }
    }

    void infer() override {
        const c10::InferenceMode guard;
        logits_ = forward().contiguous();
    }
    const float *logits() const override { return logits_.const_data_ptr<float>(); }
    std::size_t logits_count() const override { return std::size_t(logits_.numel()); }

    float train(float rate) override {
        for (at::Tensor *tensor : tensors_) {
            tensor->mutable_grad().reset();
        }
        const at::Tensor value = loss();
        value.backward();
        const at::NoGradGuard guard;
        for (at::Tensor *tensor : tensors_) {
            if (tensor->grad().defined()) {
                tensor->add_(tensor->grad(), -rate);
            }
        }
        return value.item<float>();
    }

    std::vector<float> weight(std::size_t index, bool gradient) override {
        at::Tensor found = gradient ? tensors_[index]->grad() : tensors_[index]->detach();
        if (!found.defined()) {  // the loss does not depend on it
            return std::vector<float>(weights[index].count());
        }
        found = found.contiguous();
        return {found.const_data_ptr<float>(), found.const_data_ptr<float>() + found.numel()};
    }

  protected:
    void add_weight(const char *name, bool trained, std::vector<std::int64_t> shape, at::Tensor &tensor) {
        weights.emplace_back(name, Type::float32, std::move(shape), trained);
        tensors_.push_back(&tensor);
    }
    void add_input(const char *name, Type type, std::vector<std::int64_t> shape, at::Tensor &tensor) {
        inputs.emplace_back(name, type, std::move(shape));
        fed_.push_back(&tensor);
    }
    virtual at::Tensor forward() const = 0;
    virtual at::Tensor loss() const = 0;

  private:
    std::vector<at::Tensor *> tensors_, fed_;
    at::Tensor logits_;

    static at::Tensor view(const Array &array) {
        return at::from_blob(array.memory.get(), array.shape, array.type == Type::float32 ? at::kFloat : at::kLong);
    }
};

}  // namespace meta500

#endif
