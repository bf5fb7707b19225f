/* What a network is built of: values and the oneDNN primitives between them. The builder itself is onednn.cpp, so
   that a generated network compiles without the headers of the library. */
#ifndef META500_ONEDNN_H
#define META500_ONEDNN_H

#include <cstdint>
#include <memory>
#include <vector>

#include "program.h"

namespace meta500 {

using Dims = std::vector<std::int64_t>;

struct Tensor;  // memory of the library, with the right to its buffer

/* A value of the graph. Its tensor may have other dimensions than `shape`: flattening is no work. */
struct Value {
    int id = -1;
    std::shared_ptr<const Tensor> tensor;
    Dims shape;
    bool differentiable = false;
    /* Give its memory up: what is built later may write there, unless a derivative needs it. */
    void reset() { tensor.reset(); }
};

struct Windows {
    Dims kernel, strides, dilations, begins, ends;
};

enum class Pooling { max, average_inside, average_with_padding };

/* What follows a primitive within it, or an elementwise primitive of its own. */
struct Activation {
    enum Kind { nothing, rectifier, limits, hyperbolic_tangent, logistic } kind = nothing;
    float alpha = 0, beta = 0;
    static Activation relu(float slope = 0) { return {rectifier, slope, 0}; }
    static Activation clip(float low, float high) { return {limits, low, high}; }
    static Activation tanh() { return {hyperbolic_tangent, 0, 0}; }
    static Activation sigmoid() { return {logistic, 0, 0}; }
};

constexpr int none = -1;  // a weight that is not there

/* Builds the primitives in the order in which they run. Weights are given by their place in the file. */
class Builder {
  public:
    virtual ~Builder() = default;

    virtual Value input(std::size_t index) = 0;
    /* Conv: weights (M, C / groups, k...) and bias (M) or none. */
    virtual Value convolution(const Value &x, int weight, int bias, const Windows &at, std::int64_t groups,
                              const Dims &shape, const Activation &after = {}) = 0;
    /* ConvTranspose: weights (C, M / groups, k...). */
    virtual Value transposed_convolution(const Value &x, int weight, int bias, const Windows &at, std::int64_t groups,
                                         const Dims &shape, const Activation &after = {}) = 0;
    /* Gemm as x W^T + b: weights (M, K); x may have more dimensions of product K after the first. */
    virtual Value inner_product(const Value &x, int weight, int bias, const Dims &shape,
                                const Activation &after = {}) = 0;
    /* BatchNormalization: in inference with the running statistics, in training with those of the batch, towards
       which the running ones (of the population, as ONNX has it) move by 1 - momentum. */
    virtual Value batch_normalization(const Value &x, int scale, int shift, int mean, int variance, float epsilon,
                                      float momentum, bool with_relu, bool in_place) = 0;
    /* An elementwise function as a primitive of its own; its derivative is taken from its result. */
    virtual Value elementwise(const Value &x, const Activation &function, bool in_place) = 0;
    virtual Value pooling(const Value &x, Pooling kind, const Windows &at, const Dims &shape) = 0;
    /* Add of two values of one shape. */
    virtual Value addition(const Value &a, const Value &b, const Activation &after = {}) = 0;
    virtual Value concatenation(const std::vector<Value> &parts, int axis, const Dims &shape) = 0;
    /* Slice with steps of 1: `shape` from `begins` on. */
    virtual Value slice(const Value &x, const Dims &begins, const Dims &shape) = 0;
    virtual Value softmax(const Value &x, int axis) = 0;
    virtual Value local_response_normalization(const Value &x, std::int64_t size, float alpha, float beta,
                                               float k) = 0;
    /* MatMul of the last two of four dimensions with a constant matrix: matrix x, or x matrix. */
    virtual Value matrix_product(const Value &x, int matrix, bool from_left, const Dims &shape) = 0;
    /* Flatten to (N, everything else). */
    virtual Value flattened(const Value &x, const Dims &shape) = 0;
    virtual void finish(const Value &logits) = 0;
    /* SoftmaxCrossEntropyLoss, the mean over all labels but `ignored`; scores (N, C, ...). */
    virtual void cross_entropy(const Value &scores, std::size_t label, std::int64_t ignored) = 0;
};

// The generated source defines these.
std::vector<Array> network_weights();
std::vector<Array> network_inputs();
void build_inference(Builder &net);
void build_training(Builder &net);

}  // namespace meta500

#endif
