// A register of fp32 numbers, by the compiler's own vector types: one source for every instruction set. LANES says how
// many numbers a register has, REGISTERS how many there are; each instruction set compiles these files with its own (see
// setup.py).
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#ifdef __aarch64__
#include <arm_neon.h>
#elif defined __x86_64__
#include <immintrin.h>
#endif

namespace {

typedef float F __attribute__((vector_size(4 * LANES)));
typedef uint32_t U __attribute__((vector_size(4 * LANES)));
typedef int32_t I __attribute__((vector_size(4 * LANES)));
// The same in memory, wherever it begins.
typedef float F_in_memory __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t U_in_memory __attribute__((vector_size(4 * LANES), aligned(2), may_alias));

inline F load(const float* from) { return *reinterpret_cast<const F_in_memory*>(from); }
inline void store(float* to, F x) { *reinterpret_cast<F_in_memory*>(to) = x; }
inline F broadcast(float x) { return x - F{}; }  // not x + 0, which turns -0 to 0 and so is computed
inline U bits(F x) { return reinterpret_cast<U>(x); }
inline F from_bits(U x) { return reinterpret_cast<F>(x); }
inline F where(I chosen, F x, F y) { return chosen ? x : y; }
inline F maximum(F x, F y) { return x > y ? x : y; }

// Two registers: a unit of numbers (dots.h) in their order, or those of even places, then those of odd ones.
struct TwoRegisters {
    F first, second;
};

// 1.5 x 2^23: added to a number, it leaves the nearest whole one, of two the even one, in the lowest bits.
constexpr float LARGE = 12582912.0f;
inline int32_t nearest(float x) { return std::bit_cast<int32_t>(x + LARGE) - std::bit_cast<int32_t>(LARGE); }

// -- bf16: the upper half of an fp32 number ---------------------------------------------------------------------------

using bf16 = uint16_t;

// 2 x LANES numbers, of which every other one widens by a shift, the rest by a mask: in a sum of products any order of
// its terms will do, so numbers are kept as evens, then odds.
inline U load_pairs(const bf16* from) { return *reinterpret_cast<const U_in_memory*>(from); }
inline F evens(U pairs) { return from_bits(pairs << 16); }
inline F odds(U pairs) { return from_bits(pairs & 0xffff0000u); }

inline float widen(bf16 x) {
    uint32_t wide = uint32_t(x) << 16;
    float y;
    std::memcpy(&y, &wide, 4);
    return y;
}

// To the nearest, ties to even; NaN stays NaN.
#ifdef BF16_DOTS
// The processor's own instruction, which takes what is below fp32's normal numbers (2^-126) for 0.
inline __m256i narrowed(F x) {
    return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(reinterpret_cast<__m512>(x)));
}
inline U rounded(F x) { return reinterpret_cast<U>(_mm512_maskz_cvtepu16_epi32(-1, narrowed(x))); }
#else
inline U rounded(F x) {
    U u = bits(x);
    U near = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    return x != x ? (u >> 16) | 0x40u : near;
}
#endif
inline bf16 narrow(float x) {
    uint32_t u;
    std::memcpy(&u, &x, 4);
    return x != x ? (u >> 16) | 0x40u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
}

typedef uint16_t H __attribute__((vector_size(2 * LANES)));
typedef uint16_t H_in_memory __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

// LANES integers of 16 or 8 bits, without a sign. g++ 12 takes them apart first, and for aarch64 converts one at
// a time.
inline U widened(const uint16_t* from) {
#if LANES == 16
    return reinterpret_cast<U>(_mm512_maskz_cvtepu16_epi32(-1, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
#elif LANES == 8
    return reinterpret_cast<U>(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#elif defined __aarch64__
    return vmovl_u16(vld1_u16(from));
#else
    return __builtin_convertvector(*reinterpret_cast<const H_in_memory*>(from), U);
#endif
}
inline U widened(const uint8_t* from) {
#if LANES == 16
    return reinterpret_cast<U>(_mm512_maskz_cvtepu8_epi32(-1, _mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#elif LANES == 8
    return reinterpret_cast<U>(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#else
    uint32_t four;
    std::memcpy(&four, from, 4);
    return U{four & 255, four >> 8 & 255, four >> 16 & 255, four >> 24};
#endif
}
inline F load(const bf16* from) { return from_bits(widened(from) << 16); }
inline void store(bf16* to, F x) {
#ifdef BF16_DOTS
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), narrowed(x));
#else
    *reinterpret_cast<H_in_memory*>(to) = __builtin_convertvector(rounded(x), H);
#endif
}
inline float get(const float* from) { return *from; }
inline float get(const bf16* from) { return widen(*from); }
inline void put(float* to, float x) { *to = x; }
inline void put(bf16* to, float x) { *to = narrow(x); }

// What a number of this type is after it has been stored.
inline F stored_as(const float*, F x) { return x; }
inline F stored_as(const bf16*, F x) { return from_bits(rounded(x) << 16); }
inline float stored_as(const float*, float x) { return x; }
inline float stored_as(const bf16*, float x) { return widen(narrow(x)); }

// -- lanes put in another order -----------------------------------------------------------------------------------------

// Two registers in memory's order -> the first, third, ... four numbers of them, and the second, fourth, ... four.
inline TwoRegisters by_fours(F a, F b) {
    I first;
    for (int lane = 0; lane < LANES; ++lane) first[lane] = lane / 4 * 8 + lane % 4;
    return {__builtin_shuffle(a, b, first), __builtin_shuffle(a, b, first + 4)};
}

// -- sums over the lanes ----------------------------------------------------------------------------------------------

typedef float F4 __attribute__((vector_size(16)));
typedef float F8 __attribute__((vector_size(32)));

// The sum of each of four registers. Always by the same tree, so that a sum does not depend on its neighbours.
inline F4 sums(F a, F b, F c, F d) {
#if LANES == 16
    auto halves = [](F x) {
        return __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) +
               __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
    };
    F8 a8 = halves(a), b8 = halves(b), c8 = halves(c), d8 = halves(d);
#elif LANES == 8
    F8 a8 = a, b8 = b, c8 = c, d8 = d;
#endif
#if LANES >= 8
    F8 ab = __builtin_shufflevector(a8, b8, 0, 8, 1, 9, 4, 12, 5, 13) +
            __builtin_shufflevector(a8, b8, 2, 10, 3, 11, 6, 14, 7, 15);
    F8 cd = __builtin_shufflevector(c8, d8, 0, 8, 1, 9, 4, 12, 5, 13) +
            __builtin_shufflevector(c8, d8, 2, 10, 3, 11, 6, 14, 7, 15);
    F8 abcd = __builtin_shufflevector(ab, cd, 0, 1, 8, 9, 4, 5, 12, 13) +
              __builtin_shufflevector(ab, cd, 2, 3, 10, 11, 6, 7, 14, 15);
    return __builtin_shufflevector(abcd, abcd, 0, 1, 2, 3) + __builtin_shufflevector(abcd, abcd, 4, 5, 6, 7);
#else
    F4 ab = __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
    F4 cd = __builtin_shufflevector(c, d, 0, 4, 1, 5) + __builtin_shufflevector(c, d, 2, 6, 3, 7);
    return __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
#endif
}
inline float sum(F x) { return sums(x, x, x, x)[0]; }
// The largest lane: of those whose number has another lowest bit, then another next to that, ...
inline float largest(F x) {
    for (int apart = 1; apart < LANES; apart *= 2) {
        I other;
        for (int lane = 0; lane < LANES; ++lane) other[lane] = lane ^ apart;
        x = maximum(x, __builtin_shuffle(x, other));
    }
    return x[0];
}

// -- functions --------------------------------------------------------------------------------------------------------

// e^x for x up to 88, to 1e-7 of itself; 0 below -87, where fp32 runs out of numbers; NaN stays NaN.
inline F exponential(F x) {
    // x = n ln 2 + r, with n whole. ln 2 in two parts, of which the first has few bits, so that n times it is exact.
    const F least = broadcast(-87.0f), large = broadcast(LARGE);
    const F inside = least > x ? least : x;
    const F shifted = inside * 1.44269504f + large;
    const F n = shifted - large;
    const F r = (inside - n * 0.693359375f) - n * -2.12194440e-4f;
    // (e^r - 1 - r) / r^2 for |r| up to ln 2 / 2: the polynomial of least relative error in e^r, 3e-9.
    F p = broadcast(0.001381453825f);
    p = p * r + 0.008368745446f;
    p = p * r + 0.04166838899f;
    p = p * r + 0.1666652113f;
    p = p * r + 0.4999999404f;
    const F e_r = (p * r) * r + r + 1.0f;
    const F two_n = from_bits((bits(shifted) << 23) + 0x3f800000u);
    return where(x < least, broadcast(0.0f), e_r * two_n);
}

// tanh x, to 2e-7 of itself.
inline F tanh_of(F x) {
    const F size = from_bits(bits(x) & 0x7fffffffu), square = x * x;
    const F e = exponential(size * -2.0f);
    const F far = from_bits(bits((1.0f - e) / (1.0f + e)) | (bits(x) & 0x80000000u));
    // Near 0 the difference has no digits left: the series.
    F p = broadcast(62.0f / 2835);
    p = p * square - 17.0f / 315;
    p = p * square + 2.0f / 15;
    p = p * square - 1.0f / 3;
    return where(size < broadcast(0.25f), (p * square) * x + x, far);
}

}  // namespace
