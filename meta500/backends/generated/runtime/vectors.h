/* Vectors of the compiler's vector extensions: Vector<float, 4 | 8 | 16> and Vector<double, 2 | 4 | 8>.
 *
 * Arithmetic, comparisons and shifts are the operators of the language, lane by lane, and a number beside a vector
 * stands for a vector of that number. Widths that the processor lacks compile to slow code: choose one that it has.
 *
 * Sums over lanes have one order, whatever the compiler and processor: a lane is added to the one half of the vector
 * further, then the halves to each other, down to a single lane. */
#ifndef META500_VECTORS_H
#define META500_VECTORS_H

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#define META500_INLINE inline __attribute__((always_inline))

/* Passing 64-byte vectors by value concerns no ABI here: everything is inlined. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

namespace meta500 {

/* What a type of numbers or vectors consists of: `lane` (float or double), `lanes`, `bits` (unsigned integers of the
 * same size), and `unaligned` (how it lies in memory: at any address that suits a lane, among other types). */
template <class T>
struct Traits;

template <>
struct Traits<float> {
    using lane = float;
    using bits = std::uint32_t;
    static constexpr int lanes = 1;
};

template <>
struct Traits<double> {
    using lane = double;
    using bits = std::uint64_t;
    static constexpr int lanes = 1;
};

namespace detail {

template <class T, int lanes>
struct VectorOf;

#define META500_VECTOR(LANE, LANES, BITS)                                                                      \
    template <>                                                                                                \
    struct VectorOf<LANE, LANES> {                                                                             \
        typedef LANE type __attribute__((vector_size(LANES * sizeof(LANE))));                                  \
        typedef BITS bits __attribute__((vector_size(LANES * sizeof(LANE))));                                  \
        typedef LANE unaligned __attribute__((vector_size(LANES * sizeof(LANE)), aligned(sizeof(LANE)), may_alias)); \
    };

META500_VECTOR(float, 4, std::uint32_t)
META500_VECTOR(float, 8, std::uint32_t)
META500_VECTOR(float, 16, std::uint32_t)
META500_VECTOR(double, 2, std::uint64_t)
META500_VECTOR(double, 4, std::uint64_t)
META500_VECTOR(double, 8, std::uint64_t)
#undef META500_VECTOR

}  // namespace detail

/* A vector, e.g. `using vec = meta500::Vector<float, 16>;`. */
template <class T, int lanes>
using Vector = typename detail::VectorOf<T, lanes>::type;

#define META500_TRAITS(LANE, LANES)                                        \
    template <>                                                            \
    struct Traits<Vector<LANE, LANES>> : detail::VectorOf<LANE, LANES> {   \
        using lane = LANE;                                                 \
        static constexpr int lanes = LANES;                                \
    };

META500_TRAITS(float, 4)
META500_TRAITS(float, 8)
META500_TRAITS(float, 16)
META500_TRAITS(double, 2)
META500_TRAITS(double, 4)
META500_TRAITS(double, 8)
#undef META500_TRAITS

template <class V>
using Lane = typename Traits<V>::lane;
template <class V>
using Bits = typename Traits<V>::bits;

/* The same bits as another type of the same size. */
template <class To, class From>
META500_INLINE To bit_cast(From x) {
    static_assert(sizeof(To) == sizeof(From), "bit_cast between types of different sizes");
    To y;
    __builtin_memcpy(&y, &x, sizeof(To));
    return y;
}

/* A number, or a vector of that number in every lane. */
template <class V>
META500_INLINE V broadcast(Lane<V> x) {
    if constexpr (Traits<V>::lanes == 1) {
        return x;
    } else {
        return x - V{};  // x - 0 is x for every x, -0 and NaN included
    }
}

/* `a` where the condition (a comparison) holds, else `b`. Both are computed. */
template <class C, class V>
META500_INLINE V select(C condition, V a, V b) {
    return condition ? a : b;
}

/* From and to memory, at any address that suits a lane. */
template <class V>
META500_INLINE V load(const Lane<V> *from) {
    if constexpr (Traits<V>::lanes == 1) {
        return *from;
    } else {
        return *reinterpret_cast<const typename Traits<V>::unaligned *>(from);
    }
}

template <class V>
META500_INLINE void store(Lane<V> *to, V v) {
    if constexpr (Traits<V>::lanes == 1) {
        *to = v;
    } else {
        *reinterpret_cast<typename Traits<V>::unaligned *>(to) = v;
    }
}

/* Doubles to memory as floats, at any address that suits a float. */
template <class V>
META500_INLINE void store_narrow(float *to, V v) {
    typedef float narrow __attribute__((vector_size(Traits<V>::lanes * sizeof(float)), aligned(sizeof(float)), may_alias));
    *reinterpret_cast<narrow *>(to) = __builtin_convertvector(v, narrow);
}

/* As many whole numbers as the vector has lanes, converted; those beyond 2^24 (float) or 2^53 are rounded. */
template <class V, class I>
META500_INLINE V load_converted(const I *from) {
    typedef I Whole __attribute__((vector_size(sizeof(I) * Traits<V>::lanes)));
    Whole numbers;
    __builtin_memcpy(&numbers, from, sizeof(numbers));
    return __builtin_convertvector(numbers, V);
}

/* To memory as whole numbers: fractions are cut off. */
template <class V, class I>
META500_INLINE void store_converted(I *to, V v) {
    typedef I Whole __attribute__((vector_size(sizeof(I) * Traits<V>::lanes)));
    const Whole numbers = __builtin_convertvector(v, Whole);
    __builtin_memcpy(to, &numbers, sizeof(numbers));
}

namespace detail {

/* n numbers, n < 2 step, in blocks of `step`, step / 2, ..., 1: faster than a call of memcpy. */
template <int step, class T>
META500_INLINE void copy_fewer(T *to, const T *from, std::ptrdiff_t n) {
    if constexpr (step > 0) {
        if (n & step) {
            __builtin_memcpy(to, from, step * sizeof(T));
            to += step;
            from += step;
        }
        copy_fewer<step / 2>(to, from, n);
    }
}

template <class V, std::size_t... lane>
META500_INLINE Bits<V> lane_numbers(std::index_sequence<lane...>) {
    return Bits<V>{lane...};
}

}  // namespace detail

/* The first n lanes (0 <= n; all if there are fewer) of memory, zeros in the others; no more is read. Where more may
 * be read, first(load(from), n) is faster. */
template <class V>
META500_INLINE V load_first(const Lane<V> *from, std::ptrdiff_t n) {
    constexpr int lanes = Traits<V>::lanes;
    if (n >= lanes) {
        return load<V>(from);
    }
    Lane<V> part[lanes] = {};
    detail::copy_fewer<lanes / 2>(part, from, n);
    return load<V>(part);
}

/* The first n lanes to memory; no more is written. */
template <class V>
META500_INLINE void store_first(Lane<V> *to, V v, std::ptrdiff_t n) {
    constexpr int lanes = Traits<V>::lanes;
    if (n >= lanes) {
        return store<V>(to, v);
    }
    Lane<V> part[lanes];
    store<V>(part, v);
    detail::copy_fewer<lanes / 2>(to, part, n);
}

/* The first n lanes (0 <= n) of a vector, zeros in the others. */
template <class V>
META500_INLINE V first(V v, std::ptrdiff_t n) {
    constexpr int lanes = Traits<V>::lanes;
    const int kept = n < lanes ? static_cast<int>(n) : lanes;
    const Bits<V> numbers = detail::lane_numbers<V>(std::make_index_sequence<lanes>());
    return select(numbers < static_cast<Bits<Lane<V>>>(kept), v, V{});
}

namespace detail {

/* Lane i becomes lane Pattern::at(i, lanes) of a, then b, counted through. */
template <class Pattern, class V, std::size_t... lane>
META500_INLINE V shuffle_lanes(V a, V b, std::index_sequence<lane...>) {
    constexpr int lanes = Traits<V>::lanes;
#if defined(__clang__)
    return __builtin_shufflevector(a, b, Pattern::at(static_cast<int>(lane), lanes)...);
#else
    return __builtin_shuffle(a, b, Bits<V>{Pattern::at(static_cast<int>(lane), lanes)...});
#endif
}

struct Even {
    static constexpr int at(int i, int) { return 2 * i; }
};
struct Odd {
    static constexpr int at(int i, int) { return 2 * i + 1; }
};
struct EvenOverlapping {
    static constexpr int at(int i, int lanes) { return 2 * i < lanes ? 2 * i : 2 * i + 1; }
};
struct Low {
    static constexpr int at(int i, int lanes) { return i / 2 + i % 2 * lanes; }
};
struct High {
    static constexpr int at(int i, int lanes) { return i / 2 + i % 2 * lanes + lanes / 2; }
};
/* Blocks of `step` lanes in pairs: the first block of each pair of a, then that of b; or the second ones. */
template <int step>
struct First {
    static constexpr int at(int i, int lanes) { return i & step ? i - step + lanes : i; }
};
template <int step>
struct Second {
    static constexpr int at(int i, int lanes) { return i & step ? i + lanes : i + step; }
};
/* Every lane one place up, below them the first lane of b; one place down, above them that lane. */
struct Up {
    static constexpr int at(int i, int lanes) { return i == 0 ? lanes : i - 1; }
};
struct Down {
    static constexpr int at(int i, int) { return i + 1; }
};
template <int step>
struct Partner {
    static constexpr int at(int i, int) { return i ^ step; }
};

}  // namespace detail

template <class Pattern, class V>
META500_INLINE V shuffle(V a, V b) {
    return detail::shuffle_lanes<Pattern>(a, b, std::make_index_sequence<Traits<V>::lanes>());
}

/* Elements 0, 2, 4, ... of a and then b; elements 1, 3, 5, ... */
template <class V>
META500_INLINE V even(V a, V b) {
    return shuffle<detail::Even>(a, b);
}

template <class V>
META500_INLINE V odd(V a, V b) {
    return shuffle<detail::Odd>(a, b);
}

/* As even, where b begins with the last element of a: nothing is read behind the last element that is used. */
template <class V>
META500_INLINE V even_overlapping(V a, V b) {
    return shuffle<detail::EvenOverlapping>(a, b);
}

/* a[0], b[0], a[1], b[1], ... of the lower halves; of the upper halves. They undo even and odd. */
template <class V>
META500_INLINE V interleave_low(V a, V b) {
    return shuffle<detail::Low>(a, b);
}

template <class V>
META500_INLINE V interleave_high(V a, V b) {
    return shuffle<detail::High>(a, b);
}

/* first, v[0], v[1], ...: the last lane goes. */
template <class V>
META500_INLINE V shifted_up(V v, Lane<V> first) {
    return shuffle<detail::Up>(v, broadcast<V>(first));
}

/* v[1], v[2], ..., last: the first lane goes. */
template <class V>
META500_INLINE V shifted_down(V v, Lane<V> last) {
    return shuffle<detail::Down>(v, broadcast<V>(last));
}

namespace detail {

template <int step, class V>
META500_INLINE Lane<V> sum_steps(V v) {
    if constexpr (step == 0) {
        return v[0];
    } else {
        return sum_steps<step / 2>(v + shuffle<Partner<step>>(v, v));
    }
}

/* The sums of v[first], v[first + step], ... in the lanes first, first + step, ... , repeated up to `step`. */
template <int step, int first, int count, class V>
META500_INLINE V sums_from(const V (&v)[count]) {
    constexpr int lanes = Traits<V>::lanes;
    if constexpr (first >= count) {
        return V{};
    } else if constexpr (step == lanes) {
        return v[first];
    } else {
        const V a = sums_from<2 * step, first>(v);
        const V b = sums_from<2 * step, first + step>(v);
        return shuffle<First<step>>(a, b) + shuffle<Second<step>>(a, b);
    }
}

}  // namespace detail

/* The sum of all lanes. */
template <class V>
META500_INLINE Lane<V> sum(V v) {
    return detail::sum_steps<Traits<V>::lanes / 2>(v);
}

/* The sums of up to as many vectors as they have lanes: lane i is sum(v_i), bit by bit; zero where none is given. */
template <class V, class... Vs>
META500_INLINE V sums(V v, Vs... more) {
    static_assert(1 + sizeof...(more) <= static_cast<std::size_t>(Traits<V>::lanes), "more sums than lanes");
    const V all[1 + sizeof...(more)] = {v, more...};
    return detail::sums_from<1, 0>(all);
}

}  // namespace meta500

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#endif
