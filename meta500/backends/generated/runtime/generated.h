/* What the driver and the kernels of generated code share: ranges, threads, integer arithmetic. */
#ifndef META500_GENERATED_H
#define META500_GENERATED_H

#include <chrono>
#include <cstdint>
#include <cstring>

#if defined(_OPENMP)
#include <omp.h>
#endif

/* Compilers that forget that a vector is in a register load it again for every use; this reminds them. */
#if defined(__x86_64__) && defined(__GNUC__)
#define META500_KEEP(v) asm("" : "+v"(v))
#elif defined(__aarch64__) && defined(__GNUC__)
#define META500_KEEP(v) asm("" : "+w"(v))
#else
#define META500_KEEP(v) (void)(v)
#endif

/* Asks for a cache line that is read soon, written soon, or read a little later. */
#if defined(__GNUC__)
#define META500_PREFETCH(p) __builtin_prefetch(p)
#define META500_PREFETCH_WRITE(p) __builtin_prefetch(p, 1)
#define META500_PREFETCH_FAR(p) __builtin_prefetch(p, 0, 2)
#else
#define META500_PREFETCH(p) (void)(p)
#define META500_PREFETCH_WRITE(p) (void)(p)
#define META500_PREFETCH_FAR(p) (void)(p)
#endif

namespace meta500 {

/* Bounds of loops. */
inline long later(long a, long b) { return a > b ? a : b; }
inline long sooner(long a, long b) { return a < b ? a : b; }

/* The smallest whole number that is not less than a / b, for b > 0. */
inline long quotient_up(long a, long b) { return a >= 0 ? (a + b - 1) / b : -(-a / b); }

/* Where the part of a range of `size` begins: parts differ by one element at most. */
inline long share(long size, long part, long parts) { return size * part / parts; }

#if defined(_OPENMP)
inline int thread() { return omp_get_thread_num(); }
inline int team() { return omp_get_num_threads(); }
/* Wait for all threads of the team. */
inline void wait() {
#pragma omp barrier
}
#else
inline int thread() { return 0; }
inline int team() { return 1; }
inline void wait() {}
#endif

/* Zeros around `rows` rows of `width` elements, `pitch` apart from `origin` on, in a storage of `size` elements. */
template <typename T> void clear_around(T *storage, long size, long origin, long rows, long width, long pitch) {
    std::memset(storage, 0, origin * sizeof(T));
    T *end = storage + origin + width;
    for (long row = 1; row < rows; ++row, end += pitch) std::memset(end, 0, (pitch - width) * sizeof(T));
    std::memset(end, 0, (storage + size - end) * sizeof(T));
}

/* Some consecutive rows of a tensor, in a buffer that rolls along with a sweep. Rows before the first and after
   the last one of the tensor are zeros. */
template <typename T> class Rolling {
  public:
    Rolling(T *rows, long pitch, long height, long first)
        : rows_(rows), pitch_(pitch), height_(height), first_(first), end_(first) {}

    /* Keeps the rows from `first` on and makes room for those before `end`; returns where row 0 would be. */
    T *advance(long first, long end) {
        if (first > first_ && end_ > first)
            std::memmove(rows_, rows_ + (first - first_) * pitch_, (end_ - first) * pitch_ * sizeof(T));
        for (long row = later(first, end_); row < end; ++row)
            if (row < 0 || row >= height_) std::memset(rows_ + (row - first) * pitch_, 0, pitch_ * sizeof(T));
        first_ = first;
        end_ = later(end_, end);
        return rows_ - first * pitch_;
    }

  private:
    T *rows_;
    long pitch_, height_, first_, end_;
};

/* Adds the seconds that it lives to a sum. */
class Stopwatch {
  public:
    explicit Stopwatch(double &seconds) : seconds_(seconds), begin_(Clock::now()) {}
    ~Stopwatch() { seconds_ += std::chrono::duration<double>(Clock::now() - begin_).count(); }
    Stopwatch(const Stopwatch &) = delete;
    Stopwatch &operator=(const Stopwatch &) = delete;

  private:
    using Clock = std::chrono::steady_clock;
    double &seconds_;
    Clock::time_point begin_;
};

}  // namespace meta500

#endif
