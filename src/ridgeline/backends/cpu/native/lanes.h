// A register of fp32 numbers in the compiler's own vector types, so that one source serves every instruction set. LANES is
// the number of fp32 numbers in a register, and REGISTERS the number of registers. setup.py compiles these files once for
// each instruction set, with its values.
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
// The same types for memory at any address.
typedef float F_in_memory __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t U_in_memory __attribute__((vector_size(4 * LANES), aligned(2), may_alias));

inline F load(const float* from) { return *reinterpret_cast<const F_in_memory*>(from); }
inline void store(float* to, F x) { *reinterpret_cast<F_in_memory*>(to) = x; }
inline F broadcast(float x) { return x - F{}; }  // x + 0 would turn -0 into 0, so the compiler would have to compute it
inline U bits(F x) { return reinterpret_cast<U>(x); }
inline F from_bits(U x) { return reinterpret_cast<F>(x); }
inline F where(I chosen, F x, F y) { return chosen ? x : y; }
inline F maximum(F x, F y) { return x > y ? x : y; }

// Two registers: one unit of numbers (dots.h), either in order, or first the numbers at even indices, then those at odd ones.
struct TwoRegisters {
    F first, second;
};

// 1.5 x 2^23. Added to a number, it leaves the nearest integer in the lowest bits (ties to even).
constexpr float LARGE = 12582912.0f;
inline int32_t nearest(float x) { return std::bit_cast<int32_t>(x + LARGE) - std::bit_cast<int32_t>(LARGE); }

// -- bf16: the upper half of an fp32 number ---------------------------------------------------------------------------

using bf16 = uint16_t;

// Load 2 x LANES numbers. Those at even indices are widened by a shift, the others by a mask. A sum of products may have its
// terms in any order, so kernels keep the even ones first and then the odd ones.
inline U load_pairs(const bf16* from) { return *reinterpret_cast<const U_in_memory*>(from); }
inline F evens(U pairs) { return from_bits(pairs << 16); }
inline F odds(U pairs) { return from_bits(pairs & 0xffff0000u); }

inline float widen(bf16 x) {
    uint32_t wide = uint32_t(x) << 16;
    float y;
    std::memcpy(&y, &wide, 4);
    return y;
}

// Round to nearest, ties to even; NaN stays NaN.
#ifdef BF16_DOTS
// This instruction of the processor turns numbers below the normal numbers of fp32 (2^-126) into 0.
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

// Widen LANES unsigned integers of 16 or 8 bits. For the general form, g++ 12 splits the vector first, and on aarch64
// converts one number at a time.
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

// Return the value that x has after it is stored as this type.
inline F stored_as(const float*, F x) { return x; }
inline F stored_as(const bf16*, F x) { return from_bits(rounded(x) << 16); }
inline float stored_as(const float*, float x) { return x; }
inline float stored_as(const bf16*, float x) { return widen(narrow(x)); }

// -- sums over the lanes ----------------------------------------------------------------------------------------------

typedef float F4 __attribute__((vector_size(16)));
typedef float F8 __attribute__((vector_size(32)));

// Shuffle two registers in groups of four lanes. Each four of the result are taken from the same four of a (indices 0 to 3)
// and b (4 to 7).
template <int FIRST, int SECOND, int THIRD, int FOURTH, class V> [[gnu::always_inline]] inline V by_fours(V a, V b) {
    constexpr int COUNT = sizeof(V) / sizeof(float), B = COUNT - 4;  // the offset of b's indices within the same group of four
    constexpr int P = FIRST + (FIRST > 3) * B, Q = SECOND + (SECOND > 3) * B, R = THIRD + (THIRD > 3) * B, S = FOURTH + (FOURTH > 3) * B;
    if constexpr (COUNT == 4) return __builtin_shufflevector(a, b, P, Q, R, S);
    if constexpr (COUNT == 8) return __builtin_shufflevector(a, b, P, Q, R, S, P + 4, Q + 4, R + 4, S + 4);
    if constexpr (COUNT == 16)
        return __builtin_shufflevector(a, b, P, Q, R, S, P + 4, Q + 4, R + 4, S + 4, P + 8, Q + 8, R + 8, S + 8, P + 12, Q + 12,
                                       R + 12, S + 12);
}

// Return in each group of four lanes the sums of that group of a, b, c and d.
template <class V> [[gnu::always_inline]] inline V sums_of_fours(V a, V b, V c, V d) {
    const V ab = by_fours<0, 4, 1, 5>(a, b) + by_fours<2, 6, 3, 7>(a, b);
    const V cd = by_fours<0, 4, 1, 5>(c, d) + by_fours<2, 6, 3, 7>(c, d);
    return by_fours<0, 1, 4, 5>(ab, cd) + by_fours<2, 3, 6, 7>(ab, cd);
}

// Return the sum of each of four registers. The order is always the same tree, so a sum does not depend on its neighbours.
[[gnu::always_inline]] inline F4 sums(F a, F b, F c, F d) {
#if LANES == 16
    auto halves = [](F x) __attribute__((always_inline)) {
        return __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) +
               __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
    };
    const F8 fours = sums_of_fours(halves(a), halves(b), halves(c), halves(d));
#else
    const F fours = sums_of_fours(a, b, c, d);
#endif
#if LANES == 4
    return fours;
#else
    return __builtin_shufflevector(fours, fours, 0, 1, 2, 3) + __builtin_shufflevector(fours, fours, 4, 5, 6, 7);
#endif
}

constexpr int SUMS = LANES / 4;  // the number of sets of four sums that fit into a register

// Return the sums of COUNT sets of four registers, one set after the other, by the same tree as `sums`. The rest of the
// result is undefined. Computing them together takes half the instructions, which share the units that add and multiply.
template <int COUNT> [[gnu::always_inline]] inline F sums_side_by_side(const F (*rows)[4]) {
    static_assert(COUNT <= SUMS);
#if LANES == 16
    if constexpr (COUNT == 1) {
        const F4 own = sums(rows[0][0], rows[0][1], rows[0][2], rows[0][3]);
        return __builtin_shufflevector(own, own, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3);
    } else {
        auto two = [](const F* a, const F* b) __attribute__((always_inline)) {  // the sums of a are in the lower half
            auto halves = [&](int o) __attribute__((always_inline)) {
                return __builtin_shufflevector(a[o], b[o], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
                       __builtin_shufflevector(a[o], b[o], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
            };
            return sums_of_fours(halves(0), halves(1), halves(2), halves(3));
        };
        const F first = two(rows[0], rows[1]), second = COUNT == 2 ? first : two(rows[2], rows[COUNT - 1]);
        return __builtin_shufflevector(first, second, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
               __builtin_shufflevector(first, second, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    }
#elif LANES == 8
    auto fours = [](const F* row) __attribute__((always_inline)) { return sums_of_fours(row[0], row[1], row[2], row[3]); };
    const F first = fours(rows[0]), second = COUNT == 1 ? first : fours(rows[1]);
    return __builtin_shufflevector(first, second, 0, 1, 2, 3, 8, 9, 10, 11) +
           __builtin_shufflevector(first, second, 4, 5, 6, 7, 12, 13, 14, 15);
#else
    return sums(rows[0][0], rows[0][1], rows[0][2], rows[0][3]);
#endif
}

// The sums of R sets of four registers, SUMS sets to a register. It must be inlined: its caller holds the sets in registers,
// and a call would store them all in memory.
template <int R> struct SumsOfRows {
    static constexpr int WHOLE = R / SUMS, REST = R % SUMS;  // full registers; sets in a last, partial one
    F at[WHOLE + (REST > 0)];

    [[gnu::always_inline]] explicit SumsOfRows(const F (&rows)[R][4]) {
#pragma GCC unroll 8
        for (int i = 0; i < WHOLE; ++i) at[i] = sums_side_by_side<SUMS>(rows + i * SUMS);
        if constexpr (REST > 0) at[WHOLE] = sums_side_by_side<REST>(rows + WHOLE * SUMS);
    }
    // Add the i-th sum of row r to to[4 r + i].
    [[gnu::always_inline]] void add_to(float* to) const {
#pragma GCC unroll 8
        for (int i = 0; i < WHOLE; ++i) store(to + i * LANES, load(to + i * LANES) + at[i]);
        each<WHOLE * SUMS>([&](int r, F4 sums) __attribute__((always_inline)) {
            F4 own;
            std::memcpy(&own, to + 4 * r, sizeof(own));
            own += sums;
            std::memcpy(to + 4 * r, &own, sizeof(own));
        });
    }
    // Call visit(r, the four sums of row r) for each row from FIRST on.
    template <int FIRST = 0, class Visit> [[gnu::always_inline]] void each(const Visit& visit) const {
        if constexpr (FIRST < R) {
            constexpr int LANE = FIRST % SUMS * 4;
            const F x = at[FIRST / SUMS];
            visit(FIRST, __builtin_shufflevector(x, x, LANE, LANE + 1, LANE + 2, LANE + 3));
            each<FIRST + 1>(visit);
        }
    }
};

inline float sum(F x) { return sums(x, x, x, x)[0]; }
// Return the largest lane. Each step compares lanes whose numbers differ in one bit.
inline float largest(F x) {
    for (int apart = 1; apart < LANES; apart *= 2) {
        I other;
        for (int lane = 0; lane < LANES; ++lane) other[lane] = lane ^ apart;
        x = maximum(x, __builtin_shuffle(x, other));
    }
    return x[0];
}

// Return the numbers of two registers in turns: four of the first, four of the second, and so on.
inline TwoRegisters by_turns(F a, F b) {
    I first;
    for (int lane = 0; lane < LANES; ++lane) first[lane] = lane / 8 * 4 + lane % 4 + (lane / 4 % 2) * LANES;
    return {__builtin_shuffle(a, b, first), LANES == 4 ? b : __builtin_shuffle(a, b, first + LANES / 2)};
}

// Transpose LANES registers: afterwards the i-th has the i-th lane of each.
inline void transpose(F (&x)[LANES]) {
#pragma GCC unroll 4
    for (int apart = 1; apart < LANES; apart *= 2) {
        I lower, upper;  // the lanes of both registers of a pair whose numbers differ in one bit
        for (int lane = 0; lane < LANES; ++lane) {
            lower[lane] = lane & apart ? lane - apart + LANES : lane;
            upper[lane] = lane & apart ? lane + LANES : lane + apart;
        }
#pragma GCC unroll 16
        for (int i = 0; i < LANES; ++i) {
            if (i & apart) continue;
            const F one = x[i], other = x[i + apart];
            x[i] = __builtin_shuffle(one, other, lower), x[i + apart] = __builtin_shuffle(one, other, upper);
        }
    }
}

// -- functions --------------------------------------------------------------------------------------------------------

// Return e^x for x up to 88, with a relative error of 1e-7. Below -87, where the normal numbers of fp32 end, the result is 0.
// NaN stays NaN.
inline F exponential(F x) {
    // x = n ln 2 + r, with an integer n. ln 2 is split into two parts. The first has so few bits that n times it is exact.
    const F least = broadcast(-87.0f), large = broadcast(LARGE);
    const F inside = least > x ? least : x;
    const F shifted = inside * 1.44269504f + large;
    const F n = shifted - large;
    const F r = (inside - n * 0.693359375f) - n * -2.12194440e-4f;
    // (e^r - 1 - r) / r^2 for |r| up to ln 2 / 2: the polynomial with the least relative error in e^r, 3e-9.
    F p = broadcast(0.001381453825f);
    p = p * r + 0.008368745446f;
    p = p * r + 0.04166838899f;
    p = p * r + 0.1666652113f;
    p = p * r + 0.4999999404f;
    const F e_r = (p * r) * r + r + 1.0f;
    const F two_n = from_bits((bits(shifted) << 23) + 0x3f800000u);
    return where(x < least, broadcast(0.0f), e_r * two_n);
}

// Return tanh x, with a relative error of 2e-7.
inline F tanh_of(F x) {
    const F size = from_bits(bits(x) & 0x7fffffffu), square = x * x;
    const F e = exponential(size * -2.0f);
    const F far = from_bits(bits((1.0f - e) / (1.0f + e)) | (bits(x) & 0x80000000u));
    // Near 0 the subtraction above cancels all digits, so use the Taylor series.
    F p = broadcast(62.0f / 2835);
    p = p * square - 17.0f / 315;
    p = p * square + 2.0f / 15;
    p = p * square - 1.0f / 3;
    return where(size < broadcast(0.25f), (p * square) * x + x, far);
}

}  // namespace
