/* The interface between meta500 and operators written in C or C++.
 *
 * An operator Name is up to three functions, each of which gets one meta500_call and returns 0, or another number
 * after writing what went wrong into call->message:
 *
 *     int32_t Name_forward(const meta500_call *call);    computes the outputs; required
 *     int32_t Name_backward(const meta500_call *call);   computes the gradients of the inputs
 *     int32_t Name_shapes(const meta500_call *call);     writes dtype, rank and shape of the outputs
 *
 * In C++ the macros META500_FORWARD(Name), META500_BACKWARD(Name) and META500_SHAPES(Name) define them around a
 * body that sees `call` as a meta500::Call and may throw: exceptions become messages. (Not out of an OpenMP region,
 * which no exception may leave.)
 *
 * All tensors are contiguous in row-major order and allocated by the caller. Inputs must not be written to. */
#ifndef META500_H
#define META500_H

#include <stdint.h>

#define META500_ABI 1
#define META500_MAX_RANK 16

/* Element types, with ONNX's numbers. */
enum {
    META500_FLOAT = 1, META500_UINT8 = 2, META500_INT8 = 3, META500_UINT16 = 4, META500_INT16 = 5,
    META500_INT32 = 6, META500_INT64 = 7, META500_BOOL = 9, META500_FLOAT16 = 10, META500_DOUBLE = 11,
    META500_UINT32 = 12, META500_UINT64 = 13, META500_BFLOAT16 = 16
};

/* Kinds of attributes, with ONNX's numbers. */
enum {
    META500_ATTRIBUTE_FLOAT = 1, META500_ATTRIBUTE_INT = 2, META500_ATTRIBUTE_STRING = 3,
    META500_ATTRIBUTE_FLOATS = 6, META500_ATTRIBUTE_INTS = 7, META500_ATTRIBUTE_STRINGS = 8
};

typedef struct {
    void *data;     /* NULL: an optional input that is missing, or a gradient that nobody wants */
    int64_t *shape; /* rank numbers */
    int32_t dtype;
    int32_t rank;
} meta500_tensor;

/* A number or a text is a list of one. */
typedef struct {
    const char *name;
    const int64_t *ints;
    const double *floats;
    const char *const *strings; /* UTF-8 */
    int64_t count;
    int32_t kind;
} meta500_attribute;

typedef struct {
    int32_t abi;     /* META500_ABI of the caller */
    int32_t threads; /* how many to use; 0: the library decides */
    int32_t n_inputs, n_outputs, n_attributes;
    const meta500_tensor *inputs;
    meta500_tensor *outputs;               /* forward: not initialised; backward: what forward computed */
    const meta500_attribute *attributes;   /* all that have a value, defaults included */
    const meta500_tensor *output_gradients; /* backward: one per output, zeros where the loss depends on none */
    meta500_tensor *input_gradients;        /* backward: one per input, zeros at first; data NULL: not wanted */
    char *message;
    int64_t message_size;
} meta500_call;

#ifdef __cplusplus

#include <cstdio>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>
#ifdef _OPENMP
#include <omp.h>
#endif

namespace meta500 {

/* What an operator refuses; the text reaches the user. */
struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

template <class T> struct dtype_of;
template <> struct dtype_of<float> { static constexpr int32_t value = META500_FLOAT; };
template <> struct dtype_of<double> { static constexpr int32_t value = META500_DOUBLE; };
template <> struct dtype_of<uint8_t> { static constexpr int32_t value = META500_UINT8; };
template <> struct dtype_of<int8_t> { static constexpr int32_t value = META500_INT8; };
template <> struct dtype_of<uint16_t> { static constexpr int32_t value = META500_UINT16; };
template <> struct dtype_of<int16_t> { static constexpr int32_t value = META500_INT16; };
template <> struct dtype_of<uint32_t> { static constexpr int32_t value = META500_UINT32; };
template <> struct dtype_of<int32_t> { static constexpr int32_t value = META500_INT32; };
template <> struct dtype_of<uint64_t> { static constexpr int32_t value = META500_UINT64; };
template <> struct dtype_of<int64_t> { static constexpr int32_t value = META500_INT64; };
template <> struct dtype_of<bool> { static constexpr int32_t value = META500_BOOL; };

inline const char *dtype_name(int32_t dtype) {
    switch (dtype) {
    case META500_FLOAT: return "float32";
    case META500_DOUBLE: return "float64";
    case META500_FLOAT16: return "float16";
    case META500_BFLOAT16: return "bfloat16";
    case META500_UINT8: return "uint8";
    case META500_INT8: return "int8";
    case META500_UINT16: return "uint16";
    case META500_INT16: return "int16";
    case META500_UINT32: return "uint32";
    case META500_INT32: return "int32";
    case META500_UINT64: return "uint64";
    case META500_INT64: return "int64";
    case META500_BOOL: return "bool";
    default: return "an unknown dtype";
    }
}

inline std::string shape_text(const std::vector<int64_t> &shape) {
    std::string text = "[";
    for (size_t axis = 0; axis < shape.size(); ++axis) text += (axis ? ", " : "") + std::to_string(shape[axis]);
    return text + "]";
}

/* A tensor whose element type is known: data[0] to data[size - 1]; false where data is NULL. */
template <class T> struct Tensor {
    T *data;
    const int64_t *shape;
    int32_t rank;
    int64_t size;
    explicit operator bool() const { return data != nullptr; }
    T &operator[](int64_t i) const { return data[i]; }
    int64_t dim(int32_t axis) const {
        if (axis < -rank || axis >= rank)
            throw Error("axis " + std::to_string(axis) + " of a tensor of rank " + std::to_string(rank));
        return shape[axis < 0 ? axis + rank : axis];
    }
};

class Call {
  public:
    explicit Call(const meta500_call *call) : raw(*call) {}

    const meta500_call &raw;

    template <class T> Tensor<const T> input(int32_t i) const {
        return view<const T>(raw.inputs, i, raw.n_inputs, "input");
    }
    template <class T> Tensor<T> output(int32_t i) const {
        return view<T>(raw.outputs, i, raw.n_outputs, "output");
    }
    template <class T> Tensor<const T> output_gradient(int32_t i) const {
        return view<const T>(raw.output_gradients, i, raw.n_outputs, "gradient of output");
    }
    template <class T> Tensor<T> input_gradient(int32_t i) const {
        return view<T>(raw.input_gradients, i, raw.n_inputs, "gradient of input");
    }

    /* Attributes by name; they throw where there is none of this name and kind, unless has(name). */
    bool has(const char *name) const { return find(name) != nullptr; }
    double number(const char *name) const {
        const meta500_attribute &a = get(name);
        if (a.kind == META500_ATTRIBUTE_INT) return static_cast<double>(a.ints[0]);
        return of_kind(a, META500_ATTRIBUTE_FLOAT, "a float").floats[0];
    }
    int64_t integer(const char *name) const {
        return of_kind(get(name), META500_ATTRIBUTE_INT, "an int").ints[0];
    }
    std::string text(const char *name) const {
        return of_kind(get(name), META500_ATTRIBUTE_STRING, "a string").strings[0];
    }
    std::vector<double> numbers(const char *name) const {
        const meta500_attribute &a = of_kind(get(name), META500_ATTRIBUTE_FLOATS, "a list of floats");
        return std::vector<double>(a.floats, a.floats + a.count);
    }
    std::vector<int64_t> integers(const char *name) const {
        const meta500_attribute &a = of_kind(get(name), META500_ATTRIBUTE_INTS, "a list of ints");
        return std::vector<int64_t>(a.ints, a.ints + a.count);
    }
    std::vector<std::string> texts(const char *name) const {
        const meta500_attribute &a = of_kind(get(name), META500_ATTRIBUTE_STRINGS, "a list of strings");
        return std::vector<std::string>(a.strings, a.strings + a.count);
    }

    /* Call f(T()) with T float or double, the element type of input i. */
    template <class F> void with_dtype(F f, int32_t i = 0) const {
        const int32_t dtype = tensor(raw.inputs, i, raw.n_inputs, "input").dtype;
        if (dtype == META500_FLOAT) f(float());
        else if (dtype == META500_DOUBLE) f(double());
        else throw Error("input " + std::to_string(i) + " is " + dtype_name(dtype) + ", not float32 or float64");
    }

    /* Throw unless inputs i and j have the same shape. */
    void same_shape(int32_t i, int32_t j) const {
        if (input_shape(i) != input_shape(j))
            throw Error("input " + std::to_string(i) + " has shape " + shape_text(input_shape(i)) + ", input " +
                        std::to_string(j) + " has " + shape_text(input_shape(j)));
    }

    /* In META500_SHAPES: the type of output i. */
    void set_output(int32_t i, int32_t dtype, const std::vector<int64_t> &shape) const {
        if (i < 0 || i >= raw.n_outputs) throw Error("there is no output " + std::to_string(i));
        if (shape.size() > META500_MAX_RANK) throw Error("an output has more than 16 dimensions");
        meta500_tensor &out = raw.outputs[i];
        out.dtype = dtype;
        out.rank = static_cast<int32_t>(shape.size());
        for (size_t axis = 0; axis < shape.size(); ++axis) out.shape[axis] = shape[axis];
    }
    int32_t input_dtype(int32_t i) const { return tensor(raw.inputs, i, raw.n_inputs, "input").dtype; }
    std::vector<int64_t> input_shape(int32_t i) const {
        const meta500_tensor &t = tensor(raw.inputs, i, raw.n_inputs, "input");
        return std::vector<int64_t>(t.shape, t.shape + t.rank);
    }

  private:
    template <class P> static P &tensor(P *list, int32_t i, int32_t count, const char *what) {
        if (i < 0 || i >= count) throw Error(std::string("there is no ") + what + " " + std::to_string(i));
        return list[i];
    }
    template <class T, class P> static Tensor<T> view(P *list, int32_t i, int32_t count, const char *what) {
        const meta500_tensor &t = tensor(list, i, count, what);
        if (t.data == nullptr) return Tensor<T>{nullptr, t.shape, t.rank, 0};
        if (t.dtype != dtype_of<typename std::remove_const<T>::type>::value)
            throw Error(std::string(what) + " " + std::to_string(i) + " is " + dtype_name(t.dtype) + ", not " +
                        dtype_name(dtype_of<typename std::remove_const<T>::type>::value));
        int64_t size = 1;
        for (int32_t axis = 0; axis < t.rank; ++axis) size *= t.shape[axis];
        return Tensor<T>{static_cast<T *>(t.data), t.shape, t.rank, size};
    }
    const meta500_attribute *find(const char *name) const {
        for (int32_t i = 0; i < raw.n_attributes; ++i)
            if (std::strcmp(raw.attributes[i].name, name) == 0) return &raw.attributes[i];
        return nullptr;
    }
    const meta500_attribute &get(const char *name) const {
        const meta500_attribute *found = find(name);
        if (found == nullptr) throw Error(std::string("there is no attribute '") + name + "'");
        return *found;
    }
    static const meta500_attribute &of_kind(const meta500_attribute &a, int32_t kind, const char *what) {
        if (a.kind != kind) throw Error(std::string("attribute '") + a.name + "' is not " + what);
        return a;
    }
};

inline int32_t fail(const meta500_call *call, const char *text) {
    if (call->message != nullptr && call->message_size > 0)
        std::snprintf(call->message, static_cast<size_t>(call->message_size), "%s", text);
    return 1;
}

/* Run a body with the wished number of threads; what it throws becomes the message. */
inline int32_t guarded(const meta500_call *call, void (*body)(const Call &)) noexcept {
    if (call->abi != META500_ABI) return fail(call, "the library was built for another version of meta500.h");
#ifdef _OPENMP
    const int before = omp_get_max_threads();
    if (call->threads > 0) omp_set_num_threads(call->threads);
#endif
    int32_t code = 0;
    try {
        body(Call(call));
    } catch (const std::exception &error) {
        code = fail(call, error.what());
    } catch (...) {
        code = fail(call, "something was thrown that is no std::exception");
    }
#ifdef _OPENMP
    omp_set_num_threads(before);
#endif
    return code;
}

} // namespace meta500

#define META500_FUNCTION(function)                                                                            \
    static void function##_body(const meta500::Call &call);                                                   \
    extern "C" int32_t function(const meta500_call *call) { return meta500::guarded(call, function##_body); } \
    static void function##_body([[maybe_unused]] const meta500::Call &call)
#define META500_FORWARD(name) META500_FUNCTION(name##_forward)
#define META500_BACKWARD(name) META500_FUNCTION(name##_backward)
#define META500_SHAPES(name) META500_FUNCTION(name##_shapes)

#endif /* __cplusplus */
#endif /* META500_H */
