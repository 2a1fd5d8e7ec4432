// Sums of weighted values, the second kind of tile in attention.
#pragma once

#include "kept.h"

namespace {

// Values of one key at a time, as fp32.
template <class Stored> struct Wide {
    using Weight = float;
    using Register = F;
    static constexpr int64_t KEYS = 1;
    // Read a unit of columns of KEYS values.
    static void read(const Stored* const* v, int64_t column, F& a, F& b) {
        if constexpr (std::is_same_v<Stored, float>) {
            a = load(*v + column), b = load(*v + column + LANES);
        } else {
            U pairs = load_pairs(*v + column);
            a = evens(pairs), b = odds(pairs);
        }
    }
    static F weight(const float* w) { return broadcast(*w); }
    static F add(F sum, F w, F v) { return sum + w * v; }
};

#ifdef BF16_DOTS
// Values of two keys at a time, their columns in turns, as the processor multiplies pairs of bf16. So weights are bf16 too.
struct Woven {
    using Weight = bf16;
    using Register = U;
    static constexpr int64_t KEYS = 2;
    static void read(const bf16* const* v, int64_t column, U& a, U& b) {
        U first = load_pairs(v[0] + column), second = load_pairs(v[1] + column);
        a = (first & 0xffffu) | (second << 16), b = (first >> 16) | (second & 0xffff0000u);
    }
    static U weight(const bf16* w) {
        uint32_t pair;
        std::memcpy(&pair, w, 4);
        return U{} + pair;
    }
    static F add(F sum, U w, U v) { return Pairs::add(sum, w, v); }
};
// The same for codes.
template <class Kept> struct WovenCodes : Woven {
    static void read(const Kept* const* v, int64_t column, U& a, U& b) {
        const TwoRegisters first = by_pairs(v[0] + column), second = by_pairs(v[1] + column);
        a = halves(first.first, second.first), b = halves(first.second, second.second);
    }
};
#endif

// Codes of one key at a time, as fp32, in the order in which values of type Stored are read.
template <class Stored, class Kept> struct WideCodes : Wide<Stored> {
    static void read(const Kept* const* v, int64_t column, F& a, F& b) {
        const TwoRegisters own = std::is_same_v<Stored, float> ? in_order(*v + column) : by_pairs(*v + column);
        a = own.first, b = own.second;
    }
};

template <class Stored, class Kept> auto values_of() {
#ifdef BF16_DOTS
    if constexpr (std::is_same_v<Stored, bf16>) {
        if constexpr (is_coded<Kept>)
            return WovenCodes<Kept>{};
        else
            return Woven{};
    } else
#endif
    if constexpr (is_coded<Kept>)
        return WideCodes<Stored, Kept>{};
    else
        return Wide<Stored>{};
}
// How attention of type Stored reads values of type Kept.
template <class Stored, class Kept> using ValuesOf = decltype(values_of<Stored, Kept>());

// Return the number of units of columns of a tile of R rows whose sums and operands fill the registers.
template <int R> constexpr int units_of() {
    if (REGISTERS == 32) return R <= 2 ? 4 : 2;
    return R == 1 ? 4 : R <= 3 ? 2 : 1;
}

// o[r] = the sum over keys [from, to) of weights[r][key] x values, for R rows and C units of columns. If these keys are not
// the first, the sum is added to o[r]. at(key, c, a, b) reads the c-th unit of a key's values.
template <class Values, int R, int C, class At>
inline void weigh_tile(const typename Values::Weight* weights, int64_t w_stride, int64_t from, int64_t to, bool first,
                       const At& at, float* o, int64_t o_stride) {
    F sum[R][C][2] = {};
    if (!first) {
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
            for (int c = 0; c < C; ++c)
                for (int half = 0; half < 2; ++half) sum[r][c][half] = load(o + r * o_stride + c * UNIT + half * LANES);
    }
    for (int64_t key = from; key < to; key += Values::KEYS) {
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) {
            typename Values::Register a, b;
            at(key, c, a, b);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                auto w = Values::weight(weights + r * w_stride + key);
                sum[r][c][0] = Values::add(sum[r][c][0], w, a);
                sum[r][c][1] = Values::add(sum[r][c][1], w, b);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) {
            store(o + r * o_stride + c * UNIT, sum[r][c][0]);
            store(o + r * o_stride + c * UNIT + LANES, sum[r][c][1]);
        }
}

}  // namespace
