// The random numbers and the memory of the runtime, for ctypes.
#include "runtime/buffers.h"
#include "runtime/random.h"

extern "C" {

void philox(const std::uint32_t *counter, const std::uint32_t *key, std::uint32_t *to) {
    const meta500::Philox words = meta500::philox({counter[0], counter[1], counter[2], counter[3]}, key[0], key[1]);
    to[0] = words.a, to[1] = words.b, to[2] = words.c, to[3] = words.d;
}

void uniform_float(float *to, std::int64_t n, std::uint64_t seed, std::uint64_t stream, std::uint64_t first) {
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) {
        to[i] = meta500::uniform<float>(seed, stream, first + std::uint64_t(i));
    }
}

void uniform_double(double *to, std::int64_t n, std::uint64_t seed, std::uint64_t stream, std::uint64_t first) {
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) {
        to[i] = meta500::uniform<double>(seed, stream, first + std::uint64_t(i));
    }
}

void fill_float(float *to, std::int64_t n, std::uint64_t seed, std::uint64_t stream, std::uint64_t first) {
    meta500::fill_uniform(to, n, seed, stream, first);
}

void fill_double(double *to, std::int64_t n, std::uint64_t seed, std::uint64_t stream, std::uint64_t first) {
    meta500::fill_uniform(to, n, seed, stream, first);
}

void *allocate(std::size_t bytes) { return meta500::allocate(bytes); }
void release(void *data, std::size_t bytes) { meta500::release(data, bytes); }
std::size_t available_memory() { return meta500::available_memory(); }

// Bytes that a buffer owns after having been moved about; -1 where something is wrong.
std::int64_t move_buffers(std::size_t bytes) {
    meta500::Buffer empty, first(bytes);
    if (empty || empty.bytes() != 0 || !first || first.bytes() != bytes) {
        return -1;
    }
    char *data = first.at<char>();
    data[bytes - 1] = 7;
    meta500::Buffer second(std::move(first));
    empty = std::move(second);
    if (second || first || empty.at<char>() != data || *empty.at<char>(bytes - 1) != 7) {
        return -1;
    }
    return std::int64_t(empty.bytes());
}

}  // extern "C"
