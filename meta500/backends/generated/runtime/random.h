/* Random numbers that are a function of (seed, stream, index): the same in every order, on every number of threads.
 *
 * Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011). The seed is
 * the key; the stream (a node and a step, say) is the upper and a block's number the lower half of the counter.
 * Four numbers come from one block. Numbers 64 g to 64 g + 63 come from the blocks 16 g to 16 g + 15: first the first
 * words of all these blocks, then their second words, and so on, so that vectors of blocks give vectors of numbers. */
#ifndef META500_RANDOM_H
#define META500_RANDOM_H

#include <cstdint>

#include "vectors.h"

namespace meta500 {

/* 128 bits: a counter before, random words after. */
struct Philox {
    std::uint32_t a, b, c, d;
};

namespace detail {

template <int rounds>
META500_INLINE Philox philox_rounds(Philox x, std::uint32_t key0, std::uint32_t key1) {
    if constexpr (rounds == 0) {
        return x;
    } else {
        const std::uint64_t first = std::uint64_t(0xD2511F53u) * x.a;
        const std::uint64_t second = std::uint64_t(0xCD9E8D57u) * x.c;
        const Philox next = {std::uint32_t(second >> 32) ^ x.b ^ key0, std::uint32_t(second),
                             std::uint32_t(first >> 32) ^ x.d ^ key1, std::uint32_t(first)};
        return philox_rounds<rounds - 1>(next, key0 + 0x9E3779B9u, key1 + 0xBB67AE85u);
    }
}

}  // namespace detail

/* The ten rounds on a counter with a key of two words. */
META500_INLINE Philox philox(Philox counter, std::uint32_t key0, std::uint32_t key1) {
    return detail::philox_rounds<10>(counter, key0, key1);
}

namespace detail {

META500_INLINE Philox random_block(std::uint64_t seed, std::uint64_t stream, std::uint64_t block) {
    const Philox counter = {std::uint32_t(block), std::uint32_t(block >> 32), std::uint32_t(stream),
                            std::uint32_t(stream >> 32)};
    return philox(counter, std::uint32_t(seed), std::uint32_t(seed >> 32));
}

/* A multiple of 2^-24 in [0, 1). */
template <class T>
META500_INLINE T unit(std::uint32_t word) {
    return T(std::int32_t(word >> 8)) * T(0x1p-24);
}

}  // namespace detail

/* Number `index` of a stream, uniform in [0, 1): a multiple of 2^-24, the same in float and double. */
template <class T>
META500_INLINE T uniform(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
    const Philox words = detail::random_block(seed, stream, index / 64 * 16 + index % 16);
    const std::uint64_t which = index / 16 % 4;
    const std::uint32_t low = which == 0 ? words.a : words.b;
    const std::uint32_t high = which == 2 ? words.c : words.d;
    return detail::unit<T>(which < 2 ? low : high);
}

namespace detail {

/* Numbers lane, lane + 16, lane + 32 and lane + 48 of a group of 64, from one block. */
template <class T>
META500_INLINE void four(T *group, std::uint32_t lane, std::uint64_t seed, std::uint64_t stream, std::uint64_t block) {
    const Philox words = random_block(seed, stream, block + lane);
    group[lane] = unit<T>(words.a);
    group[lane + 16] = unit<T>(words.b);
    group[lane + 32] = unit<T>(words.c);
    group[lane + 48] = unit<T>(words.d);
}

}  // namespace detail

/* Numbers first, first + 1, ..., first + n - 1 of a stream; faster than one by one. */
template <class T>
inline void fill_uniform(T *to, std::int64_t n, std::uint64_t seed, std::uint64_t stream, std::uint64_t first = 0) {
    const std::int64_t to_group = std::int64_t((64 - first % 64) % 64);
    const std::int64_t head = to_group < n ? to_group : n;
    const std::int64_t groups = (n - head) / 64;
    for (std::int64_t i = 0; i < head; ++i) {
        to[i] = uniform<T>(seed, stream, first + std::uint64_t(i));
    }
    to += head;
    first += std::uint64_t(head);
    for (std::int64_t group = 0; group < groups; ++group) {
        const std::uint64_t block = first / 4 + 16 * std::uint64_t(group);
#pragma omp simd
        for (std::uint32_t lane = 0; lane < 16; ++lane) {
            detail::four(to + 64 * group, lane, seed, stream, block);
        }
    }
    for (std::int64_t i = 64 * groups; i < n - head; ++i) {
        to[i] = uniform<T>(seed, stream, first + std::uint64_t(i));
    }
}

}  // namespace meta500

#endif
