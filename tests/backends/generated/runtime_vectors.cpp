// Vector operations of the runtime for ctypes: NAME_float16(...) etc.; vectors come and go as arrays.
#include "runtime/vectors.h"

namespace {

using meta500::load;
using meta500::store;

template <class V, std::size_t... row>
V sums_of(const meta500::Lane<V> *rows, std::index_sequence<row...>) {
    return meta500::sums(load<V>(rows + row * meta500::Traits<V>::lanes)...);
}

// The sums of `count` rows; count is a constant of the template, so all are tried.
template <class V, int count = 1>
V sums_of(const meta500::Lane<V> *rows, int wanted) {
    if constexpr (count > meta500::Traits<V>::lanes) {
        return meta500::broadcast<V>(-1);
    } else {
        return wanted == count ? sums_of<V>(rows, std::make_index_sequence<count>())
                               : sums_of<V, count + 1>(rows, wanted);
    }
}

}  // namespace

#define OPERATIONS(T, LANES)                                                                                  \
    using T##LANES = meta500::Vector<T, LANES>;                                                               \
    static_assert(sizeof(T##LANES) == LANES * sizeof(T) && meta500::Traits<T##LANES>::lanes == LANES);        \
    extern "C" T sum_##T##LANES(const T *v) { return meta500::sum(load<T##LANES>(v)); }                       \
    extern "C" void sums_##T##LANES(const T *rows, int count, T *to) { store(to, sums_of<T##LANES>(rows, count)); } \
    extern "C" void even_##T##LANES(const T *a, const T *b, T *to) {                                          \
        store(to, meta500::even(load<T##LANES>(a), load<T##LANES>(b)));                                       \
    }                                                                                                         \
    extern "C" void odd_##T##LANES(const T *a, const T *b, T *to) {                                           \
        store(to, meta500::odd(load<T##LANES>(a), load<T##LANES>(b)));                                        \
    }                                                                                                         \
    extern "C" void interleave_low_##T##LANES(const T *a, const T *b, T *to) {                                \
        store(to, meta500::interleave_low(load<T##LANES>(a), load<T##LANES>(b)));                             \
    }                                                                                                         \
    extern "C" void interleave_high_##T##LANES(const T *a, const T *b, T *to) {                               \
        store(to, meta500::interleave_high(load<T##LANES>(a), load<T##LANES>(b)));                            \
    }                                                                                                         \
    extern "C" void shifted_up_##T##LANES(const T *v, T x, T *to) {                                           \
        store(to, meta500::shifted_up(load<T##LANES>(v), x));                                                 \
    }                                                                                                         \
    extern "C" void shifted_down_##T##LANES(const T *v, T x, T *to) {                                         \
        store(to, meta500::shifted_down(load<T##LANES>(v), x));                                               \
    }                                                                                                         \
    extern "C" void greater_##T##LANES(const T *a, const T *b, T *to) {                                       \
        const auto x = load<T##LANES>(a), y = load<T##LANES>(b);                                              \
        store(to, meta500::select(x > y, x, y));                                                              \
    }                                                                                                         \
    extern "C" void broadcast_##T##LANES(T x, T *to) { store(to, meta500::broadcast<T##LANES>(x)); }          \
    extern "C" void copy_##T##LANES(const T *from, T *to) { store(to, load<T##LANES>(from)); }                \
    extern "C" void first_##T##LANES(const T *from, long n, T *to) {                                          \
        store(to, meta500::first(load<T##LANES>(from), n));                                                   \
    }                                                                                                         \
    extern "C" void load_first_##T##LANES(const T *from, long n, T *to) {                                     \
        store(to, meta500::load_first<T##LANES>(from, n));                                                    \
    }                                                                                                         \
    extern "C" void store_first_##T##LANES(const T *from, long n, T *to) {                                    \
        meta500::store_first(to, load<T##LANES>(from), n);                                                    \
    }

OPERATIONS(float, 4)
OPERATIONS(float, 8)
OPERATIONS(float, 16)
OPERATIONS(double, 2)
OPERATIONS(double, 4)
OPERATIONS(double, 8)

extern "C" void store_narrow_double2(const double *v, float *to) {
    meta500::store_narrow(to, load<meta500::Vector<double, 2>>(v));
}
extern "C" void store_narrow_double4(const double *v, float *to) {
    meta500::store_narrow(to, load<meta500::Vector<double, 4>>(v));
}
