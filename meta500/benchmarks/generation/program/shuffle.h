/* The order of the samples in an epoch: a function of (samples, seed, epoch) alone.
 *
 * Fisher and Yates' shuffle of 0, 1, ..., samples - 1: for i from samples - 1 down to 1, elements i and j change
 * places, where j is the upper half of the 128-bit product of (i + 1) and a 64-bit random number. That number is
 * a + 2^32 b of the block (a, b, c, d) of Philox4x32-10 (random.h) with the seed as key, i as the lower and
 * epoch + 2^63 as the upper half of the counter. Epochs count from 0. */
#ifndef META500_SHUFFLE_H
#define META500_SHUFFLE_H

#include <cstdint>
#include <utility>
#include <vector>

#include "random.h"

namespace meta500 {

/* The upper half of a 128-bit product. */
inline std::uint64_t product_high(std::uint64_t a, std::uint64_t b) {
    __extension__ typedef unsigned __int128 Wide;
    return std::uint64_t(Wide(a) * b >> 64);
}

inline std::vector<long> sample_order(long samples, std::uint64_t seed, std::uint64_t epoch) {
    std::vector<long> order(static_cast<std::size_t>(samples));
    for (long i = 0; i < samples; ++i) {
        order[std::size_t(i)] = i;
    }
    const std::uint64_t stream = epoch | std::uint64_t(1) << 63;
    for (std::uint64_t i = std::uint64_t(samples) - 1; i > 0 && samples > 0; --i) {
        const Philox words = philox({std::uint32_t(i), std::uint32_t(i >> 32), std::uint32_t(stream),
                                     std::uint32_t(stream >> 32)},
                                    std::uint32_t(seed), std::uint32_t(seed >> 32));
        const std::uint64_t j = product_high(words.a | std::uint64_t(words.b) << 32, i + 1);
        std::swap(order[i], order[j]);
    }
    return order;
}

}  // namespace meta500

#endif
