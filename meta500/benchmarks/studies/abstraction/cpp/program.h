/* What a program of one network is made of: its arrays in host memory, and its two kinds of step. */
#ifndef META500_PROGRAM_H
#define META500_PROGRAM_H

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

namespace meta500 {

enum class Type { float32, int64 };

/* A contiguous array in host memory, aligned to 64 bytes; what it holds is undefined until it is filled. */
struct Array {
    std::string name;
    Type type;
    std::vector<std::int64_t> shape;
    bool trained;
    std::shared_ptr<void> memory;

    Array(std::string name_, Type type_, std::vector<std::int64_t> shape_, bool trained_ = false)
        : name(std::move(name_)), type(type_), shape(std::move(shape_)), trained(trained_) {
        const std::size_t size = (bytes() + 63) / 64 * 64;
        void *place = std::aligned_alloc(64, size == 0 ? 64 : size);
        if (place == nullptr) {
            throw std::bad_alloc();
        }
        memory = std::shared_ptr<void>(place, std::free);
    }
    std::size_t count() const {
        std::size_t product = 1;
        for (const std::int64_t extent : shape) {
            product *= std::size_t(extent);
        }
        return product;
    }
    std::size_t bytes() const { return count() * (type == Type::float32 ? 4 : 8); }
    float *floats() const { return static_cast<float *>(memory.get()); }
    std::int64_t *integers() const { return static_cast<std::int64_t *>(memory.get()); }
};

/* One network on one library. The arrays exist before prepare(), which is called once they are filled. */
class Program {
  public:
    virtual ~Program() = default;

    std::vector<Array> weights;  // in the order of the file of weights
    std::vector<Array> inputs;   // in the order of the file of inputs

    /* Name and version of the library that runs the network. */
    virtual std::string library() const = 0;
    virtual void prepare(bool training, int threads) = 0;
    /* One inference, from the inputs to the logits in host memory. */
    virtual void infer() = 0;
    /* The logits of the last inference, contiguous; their number is given by logits_count(). */
    virtual const float *logits() const = 0;
    virtual std::size_t logits_count() const = 0;
    /* Forward in training form, loss, backward, and w <- w - rate * gradient; the loss before the update. */
    virtual float train(float rate) = 0;
    /* Weight `index` as it is now, or the gradient of the last training step, contiguous in its shape. */
    virtual std::vector<float> weight(std::size_t index, bool gradient) = 0;
};

/* The network of this program; defined by the generated source. */
std::unique_ptr<Program> make_program();

}  // namespace meta500

#endif
