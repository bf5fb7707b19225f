/* What the driver and the kernels of generated code share: ranges, threads, integer arithmetic. */
#ifndef META500_GENERATED_H
#define META500_GENERATED_H

#include <chrono>
#include <cstdint>

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
