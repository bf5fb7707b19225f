// Loops over the functions of the runtime, for ctypes: name_float, name_double, and name_vector_float etc.
#include "runtime/functions.h"

#ifndef LANES
#define LANES 4  // of float; double has half as many
#endif

#define UNARY(NAME)                                                                          \
    extern "C" void NAME##_float(const float *x, float *y, long n) {                         \
        _Pragma("omp simd") for (long i = 0; i < n; ++i) y[i] = meta500::NAME(x[i]);         \
    }                                                                                        \
    extern "C" void NAME##_double(const double *x, double *y, long n) {                      \
        _Pragma("omp simd") for (long i = 0; i < n; ++i) y[i] = meta500::NAME(x[i]);         \
    }                                                                                        \
    extern "C" void NAME##_vector_float(const float *x, float *y, long n) {                  \
        using vec = meta500::Vector<float, LANES>;                                           \
        for (long i = 0; i < n; i += LANES)                                                  \
            meta500::store_first<vec>(y + i, meta500::NAME(meta500::load_first<vec>(x + i, n - i)), n - i); \
    }                                                                                        \
    extern "C" void NAME##_vector_double(const double *x, double *y, long n) {               \
        using vec = meta500::Vector<double, LANES / 2>;                                      \
        for (long i = 0; i < n; i += LANES / 2)                                              \
            meta500::store_first<vec>(y + i, meta500::NAME(meta500::load_first<vec>(x + i, n - i)), n - i); \
    }

#define BINARY(NAME)                                                                         \
    extern "C" void NAME##_float(const float *a, const float *b, float *y, long n) {         \
        _Pragma("omp simd") for (long i = 0; i < n; ++i) y[i] = meta500::NAME(a[i], b[i]);   \
    }                                                                                        \
    extern "C" void NAME##_double(const double *a, const double *b, double *y, long n) {     \
        _Pragma("omp simd") for (long i = 0; i < n; ++i) y[i] = meta500::NAME(a[i], b[i]);   \
    }                                                                                        \
    extern "C" void NAME##_vector_float(const float *a, const float *b, float *y, long n) {  \
        using vec = meta500::Vector<float, LANES>;                                           \
        for (long i = 0; i < n; i += LANES)                                                  \
            meta500::store_first<vec>(y + i,                                                 \
                                      meta500::NAME(meta500::load_first<vec>(a + i, n - i),  \
                                                    meta500::load_first<vec>(b + i, n - i)), \
                                      n - i);                                                \
    }                                                                                        \
    extern "C" void NAME##_vector_double(const double *a, const double *b, double *y, long n) { \
        using vec = meta500::Vector<double, LANES / 2>;                                      \
        for (long i = 0; i < n; i += LANES / 2)                                              \
            meta500::store_first<vec>(y + i,                                                 \
                                      meta500::NAME(meta500::load_first<vec>(a + i, n - i),  \
                                                    meta500::load_first<vec>(b + i, n - i)), \
                                      n - i);                                                \
    }

UNARY(exp)
UNARY(exp_nonpositive)
UNARY(log)
UNARY(log1p)
UNARY(tanh)
UNARY(sigmoid)
UNARY(softplus)
UNARY(erf)
UNARY(sqrt)
UNARY(relu)
UNARY(abs)
UNARY(sign)
UNARY(floor)
UNARY(ceil)
UNARY(round)
BINARY(maximum)
BINARY(minimum)
BINARY(fmod)
BINARY(pow)
