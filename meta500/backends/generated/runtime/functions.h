/* Elementary functions of float, double and vectors of them (vectors.h), without branches, so that loops over them
 * can be vectorised (`#pragma omp simd`).
 *
 * Write them with their namespace, meta500::exp(x): the global ::exp of the C library is for double.
 *
 * Errors, in units in the last place of the exact result, over all arguments, subnormal ones and results included:
 * at most 2 (erf of double: 3). Infinities have their limits; NaN propagates, through maximum, minimum and relu too.
 * They rely on nothing that -fno-math-errno, -fno-trapping-math or the contraction to fused multiply-adds change, but
 * are wrong under -ffast-math.
 *
 * Coefficients are minimax polynomials for the relative error (Remez exchange, 50 digits). */
#ifndef META500_FUNCTIONS_H
#define META500_FUNCTIONS_H

#include <cmath>
#include <limits>

#include "vectors.h"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

namespace meta500 {
namespace detail {

/* IEEE 754 binary formats. Adding `magic`, 1.5 * 2^mantissa, to a small number rounds it to a whole one, half to
 * even, which then is the lower part of the bits. */
template <class T>
struct Format;

template <>
struct Format<float> {
    static constexpr int mantissa = 23;
    static constexpr std::uint32_t bias = 127;
    static constexpr std::uint32_t sign = 0x80000000u;
    static constexpr std::uint32_t one = 0x3f800000u;        // 1
    static constexpr std::uint32_t sqrt_half = 0x3f3504f3u;  // sqrt(1/2)
    static constexpr std::uint32_t magic_bits = 0x4b400000u;
    static constexpr float magic = 0x1.8p23f;
    static constexpr float whole = 0x1p23f;  // from here on all numbers are whole
    static constexpr float smallest_normal = 0x1p-126f;
    // Products of ln2_high with exponents are exact.
    static constexpr float log2e = 0x1.715476p0f, ln2_high = 0x1.62e4p-1f, ln2_low = 0x1.7f7d1cp-20f;
    // exp is 0 below the first and infinite above the last; it is a normal number from the second on.
    static constexpr float exp_first = -104.0f, exp_first_normal = -87.0f, exp_last = 89.0f;
};

template <>
struct Format<double> {
    static constexpr int mantissa = 52;
    static constexpr std::uint64_t bias = 1023;
    static constexpr std::uint64_t sign = 0x8000000000000000u;
    static constexpr std::uint64_t one = 0x3ff0000000000000u;
    static constexpr std::uint64_t sqrt_half = 0x3fe6a09e667f3bcdu;
    static constexpr std::uint64_t magic_bits = 0x4338000000000000u;
    static constexpr double magic = 0x1.8p52;
    static constexpr double whole = 0x1p52;
    static constexpr double smallest_normal = 0x1p-1022;
    static constexpr double log2e = 0x1.71547652b82fep0, ln2_high = 0x1.62e42feep-1, ln2_low = 0x1.a39ef35793c76p-33;
    static constexpr double exp_first = -746.0, exp_first_normal = -708.0, exp_last = 710.0;
};

template <class T>
using FormatOf = Format<Lane<T>>;

template <class T>
constexpr bool is_float = std::is_same_v<Lane<T>, float>;

/* c0 + x (c1 + x (c2 + ...)). */
template <class T>
META500_INLINE T polynomial(T, Lane<T> c) {
    return broadcast<T>(c);
}

template <class T, class... C>
META500_INLINE T polynomial(T x, Lane<T> c, C... more) {
    return x * polynomial(x, more...) + c;
}

template <class T>
META500_INLINE T magnitude(T x) {
    return bit_cast<T>(bit_cast<Bits<T>>(x) & ~FormatOf<T>::sign);
}

/* x, which is not negative, with the sign of y. */
template <class T>
META500_INLINE T with_sign(T x, T y) {
    return bit_cast<T>(bit_cast<Bits<T>>(x) | (bit_cast<Bits<T>>(y) & FormatOf<T>::sign));
}

/* f(x) lane by lane, for what the language has no operator. */
template <class T, class F>
META500_INLINE T lanewise(T x, F f) {
    if constexpr (Traits<T>::lanes == 1) {
        return f(x);
    } else {
        T y = x;
        for (int i = 0; i < Traits<T>::lanes; ++i) {
            y[i] = f(x[i]);
        }
        return y;
    }
}

/* p and n of e^x = p 2^n; n is the lower part of the bits of `shifted`. */
template <class T>
struct Exponential {
    T p;
    T shifted;
};

template <class T>
META500_INLINE Exponential<T> exponential(T x) {
    using F = FormatOf<T>;
    // x = n ln 2 + r
    const T shifted = x * F::log2e + F::magic;
    const T n = shifted - F::magic;
    const T r = (x - n * F::ln2_high) - n * F::ln2_low;
    T q;
    if constexpr (is_float<T>) {
        q = polynomial(r, 0.5f, 0.16666533f, 0.04166725f, 0.008367544f, 0.0013863122f);
    } else {
        q = polynomial(r, 0.5, 0.16666666666666682, 0.04166666666666641, 0.008333333333318399,
                       0.0013888888889034506, 0.00019841269893686848, 2.480158702384831e-05, 2.7557237090489615e-06,
                       2.75575269455936e-07, 2.51113786424199e-08, 2.083844721534851e-09);
    }
    return {(r * r * q + r) + Lane<T>(1), shifted};
}

/* e^x where that is a normal number and x is not NaN; anything elsewhere. */
template <class T>
META500_INLINE T normal_exp(T x) {
    using B = Bits<T>;
    const Exponential<T> e = exponential(x);
    return bit_cast<T>(bit_cast<B>(e.p) + (bit_cast<B>(e.shifted) << FormatOf<T>::mantissa));
}

}  // namespace detail

/* e^x. */
template <class T>
META500_INLINE T exp(T x) {
    using F = detail::FormatOf<T>;
    using B = Bits<T>;
    x = select(x < F::exp_first, broadcast<T>(F::exp_first), x);
    x = select(x > F::exp_last, broadcast<T>(F::exp_last), x);
    const detail::Exponential<T> e = detail::exponential(x);
    // 2^n as two factors: n reaches beyond the exponents of normal numbers. Each exponent has its bias already.
    const B twice = bit_cast<B>(e.shifted) - (F::magic_bits - 2 * F::bias);
    const B half = twice >> 1;
    return e.p * bit_cast<T>(half << F::mantissa) * bit_cast<T>((twice - half) << F::mantissa);
}

/* e^x for x <= 0 (as in softmax), faster than exp: 0 where it would be no normal number. */
template <class T>
META500_INLINE T exp_nonpositive(T x) {
    using F = detail::FormatOf<T>;
    using B = Bits<T>;
    const detail::Exponential<T> e = detail::exponential(x);
    const B biased = bit_cast<B>(e.shifted) - (F::magic_bits - F::bias);
    return select(x < F::exp_first_normal, T{}, e.p * bit_cast<T>(biased << F::mantissa));
}

namespace detail {

/* k ln 2 + log(1 + f) for sqrt(1/2) <= 1 + f <= sqrt(2) and whole k. */
template <class T>
META500_INLINE T log_of(T k, T f) {
    using F = FormatOf<T>;
    const T half_square = f * f * Lane<T>(0.5);
    if constexpr (is_float<T>) {
        const T p = polynomial(f, 0.3333333f, -0.2500082f, 0.20001228f, -0.1662336f, 0.14201719f, -0.13160118f,
                               0.12761809f, -0.07634947f);
        return k * F::ln2_high + (f - (half_square - (f * f * (f * p) + k * F::ln2_low)));
    } else {
        // With s = f / (2 + f), log(1 + f) = 2 atanh(s) = 2 s + s z P(z), z = s^2, and 2 s = f - s f.
        const T s = f / (f + Lane<T>(2));
        const T z = s * s;
        const T p = z * polynomial(z, 0.6666666666666735, 0.39999999999411057, 0.28571428743275484,
                                   0.22222198474461463, 0.18183569824243068, 0.15313901012279138,
                                   0.14797530537282982);
        return k * F::ln2_high + (f - (half_square - (s * (half_square + p) + k * F::ln2_low)));
    }
}

/* For positive normal x: k and bits of m with x = m 2^k and sqrt(1/2) <= m < sqrt(2). */
template <class T>
struct Split {
    T k;
    T m;
};

template <class T>
META500_INLINE Split<T> split(T x) {
    using F = FormatOf<T>;
    using B = Bits<T>;
    const B bits = bit_cast<B>(x);
    const B biased = (bits + (F::one - F::sqrt_half)) >> F::mantissa;
    const T m = bit_cast<T>(bits - (biased << F::mantissa) + F::one);
    // The whole number `biased` as the lowest bits of 2^mantissa + biased.
    const T k = bit_cast<T>(biased | bit_cast<Bits<Lane<T>>>(F::whole)) - (F::whole + Lane<T>(F::bias));
    return {k, m};
}

}  // namespace detail

/* The natural logarithm: -inf at 0, NaN below. */
template <class T>
META500_INLINE T log(T x) {
    using F = detail::FormatOf<T>;
    constexpr Lane<T> infinity = std::numeric_limits<Lane<T>>::infinity();
    const auto subnormal = x < F::smallest_normal;
    const detail::Split<T> parts = detail::split(select(subnormal, x * F::whole, x));
    const T k = select(subnormal, parts.k - Lane<T>(F::mantissa), parts.k);
    T y = detail::log_of(k, parts.m - Lane<T>(1));
    y = select(x > Lane<T>(0), y, broadcast<T>(std::numeric_limits<Lane<T>>::quiet_NaN()));
    y = select(x == Lane<T>(0), broadcast<T>(-infinity), y);
    return select(x == infinity, x, y);
}

/* log(1 + x), precise for small x: -inf at -1, NaN below. */
template <class T>
META500_INLINE T log1p(T x) {
    using F = detail::FormatOf<T>;
    using B = Bits<T>;
    constexpr Lane<T> infinity = std::numeric_limits<Lane<T>>::infinity();
    const T one = broadcast<T>(1);
    const T u = x + one;
    // u + lost = 1 + x; the larger of the two went in whole.
    const T lost = select(x > one, one - (u - x), x - (u - one));
    const detail::Split<T> parts = detail::split(u);
    const T scale = bit_cast<T>(bit_cast<B>(parts.m) - bit_cast<B>(u) + F::one);  // 2^-k
    const T f = parts.m - one;
    T y = detail::log_of(parts.k, select(x > F::whole, f, lost * scale + f));
    y = select(x > Lane<T>(-1), y, broadcast<T>(std::numeric_limits<Lane<T>>::quiet_NaN()));
    y = select(x == Lane<T>(-1), broadcast<T>(-infinity), y);
    y = select(x == infinity, x, y);
    return select(u == one, x, y);
}

/* The larger and the smaller of two; NaN if one of them is. */
template <class T>
META500_INLINE T maximum(T a, T b) {
    return select(a != a, a, select(a > b, a, b));
}

template <class T>
META500_INLINE T minimum(T a, T b) {
    return select(a != a, a, select(a < b, a, b));
}

/* max(x, 0). */
template <class T>
META500_INLINE T relu(T x) {
    return select(x < Lane<T>(0), T{}, x);
}

template <class T>
META500_INLINE T abs(T x) {
    return detail::magnitude(x);
}

/* 1, 0 or -1; NaN of NaN. */
template <class T>
META500_INLINE T sign(T x) {
    const T one = broadcast<T>(1);
    return select(x > Lane<T>(0), one, select(x < Lane<T>(0), -one, x));
}

template <class T>
META500_INLINE T sqrt(T x) {
    return detail::lanewise(x, [](Lane<T> v) { return std::sqrt(v); });
}

template <class T>
META500_INLINE T floor(T x) {
    return detail::lanewise(x, [](Lane<T> v) { return std::floor(v); });
}

template <class T>
META500_INLINE T ceil(T x) {
    return detail::lanewise(x, [](Lane<T> v) { return std::ceil(v); });
}

/* To the nearest whole number, halves to the even one. */
template <class T>
META500_INLINE T round(T x) {
    return detail::lanewise(x, [](Lane<T> v) { return std::nearbyint(v); });
}

/* The remainder of a / b with the sign of a. */
template <class T>
META500_INLINE T fmod(T a, T b) {
    T y = a;
    if constexpr (Traits<T>::lanes == 1) {
        y = std::fmod(a, b);
    } else {
        for (int i = 0; i < Traits<T>::lanes; ++i) {
            y[i] = std::fmod(a[i], b[i]);
        }
    }
    return y;
}

/* 1 / (1 + e^-x). */
template <class T>
META500_INLINE T sigmoid(T x) {
    const T one = broadcast<T>(1);
    const T e = exp(-detail::magnitude(x));
    const auto negative = x < Lane<T>(0);
    const T y = select(negative, e, one) / (e + one);
    return select(negative, e - e * y, y);  // e / (1 + e) = e - e (e / (1 + e)) loses less to rounding
}

template <class T>
META500_INLINE T tanh(T x) {
    const T a = detail::magnitude(x);
    const T z = x * x;
    T p;
    if constexpr (detail::is_float<T>) {
        p = detail::polynomial(z, -0.3333332f, 0.13332602f, -0.053853855f, 0.021077754f, -0.0062824697f);
    } else {
        p = detail::polynomial(z, -0.333333333333333, 0.13333333333326833, -0.0539682539638785, 0.021869488389101334,
                               -0.008863232652767398, 0.0035920925323912603, -0.0014555459833697061,
                               0.0005884570468559447, -0.0002334127242352205, 8.33600649309762e-05,
                               -1.9521025950766657e-05);
    }
    const T small = a * z * p + a;
    const T one = broadcast<T>(1);
    const T c = select(a > Lane<T>(20), broadcast<T>(20), a);  // tanh is 1 from there on
    const T large = one - Lane<T>(2) / (detail::normal_exp(c + c) + one);
    return detail::with_sign(select(a > Lane<T>(0.55), large, small), x);
}

/* log(1 + e^x). */
template <class T>
META500_INLINE T softplus(T x) {
    const T e = exp(-detail::magnitude(x));  // 0 to 1
    // 1 + e = (1 + f) 2^k
    const auto above = e > Lane<T>(0.41421356237309503);
    const T f = select(above, e * Lane<T>(0.5) - Lane<T>(0.5), e);
    const T k = select(above, broadcast<T>(1), T{});
    return relu(x) + detail::log_of(k, f);
}

/* The error function. */
template <class T>
META500_INLINE T erf(T x) {
    const T a = detail::magnitude(x);
    const T one = broadcast<T>(1);
    const T z = x * x;
    if constexpr (detail::is_float<T>) {
        const T p = detail::polynomial(z, 0.12837917f, -0.37612626f, 0.112835854f, -0.026853813f, 0.0051883277f,
                                       -0.0008010192f, 7.853852e-05f);
        // erfc(a) = e^q, for a from 1 to 4; erf is 1 from there on.
        const T c = select(a > 4.0f, broadcast<T>(4), a);
        const T q = detail::polynomial(c, 5.8143323e-05f, -1.1290021f, -0.6342881f, -0.10734775f, 0.024581693f,
                                       -0.00399066f, 0.00040188732f, -1.8653871e-05f);
        return select(a > 1.0f, detail::with_sign(one - detail::normal_exp(q), x), x * p + x);
    } else {
        const T p = detail::polynomial(
            z, 0.1283791670955126, -0.37612638903183726, 0.11283791670954088, -0.02686617064496402,
            0.005223977624030424, -0.0008548326951822116, 0.0001205533061959782, -1.4925597292226289e-05,
            1.6461280017867103e-06, -1.6356550343137926e-07, 1.4733917326175766e-08, -1.1888110714490465e-09,
            7.936800513369733e-11, -3.261875120530165e-12);
        // erfc(c) = e^(-c^2) q(t), t = 1 / (1 + c / 2), for c from 1.25 to 6; erf is 1 from there on.
        const T c = select(a > 6.0, broadcast<T>(6), a);
        const T t = one / (c * 0.5 + one);
        const T q = detail::polynomial(
            t, -2.1359914452112836e-06, 0.28215964438381436, 0.28119366559885917, 0.2544107782714566,
            0.13337012512571844, 0.25627330578764257, -0.5070623132776357, 1.006904885037589, -1.6549306197359743,
            1.6195134091837686, -0.9202344860723531, 0.2864653764393791, -0.03805816819687306);
        return select(a > 1.25, detail::with_sign(one - detail::normal_exp(-(c * c)) * q, x), x * p + x);
    }
}

/* x^y as in the C library. */
template <class T>
META500_INLINE T pow(T x, T y) {
    T z = x;
    if constexpr (Traits<T>::lanes == 1) {
        z = std::pow(x, y);
    } else {
        for (int i = 0; i < Traits<T>::lanes; ++i) {
            z[i] = std::pow(x[i], y[i]);
        }
    }
    return z;
}

}  // namespace meta500

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#endif
