// Dot products of a few rows of x with a few rows of W. This is the tile from which matrix products and the scores of
// attention are computed. In attention, x is the queries and W the keys.
//
// The lanes of one register hold the partial sums of a dot product. At the end one tree adds the lanes. No step depends on
// the number of rows. A tile of R rows of x and 4 rows of W loads R + 4 registers for 4 R multiplications, which keeps the
// arithmetic units busy.
#pragma once

#include <algorithm>
#include <type_traits>

#include "lanes.h"

#ifdef BF16_DOTS
#include <immintrin.h>
#endif

namespace {

constexpr int TILE_COLUMNS = 4;                 // rows of W in a tile, as many as `sums` takes
constexpr int64_t UNIT = 2 * LANES;             // numbers in one load of bf16
constexpr int TILE_ROWS = REGISTERS == 32 ? 6 : 3;  // rows of x in a tile: their 4 R sums and the operands fill the registers

// -- the kinds of products ----------------------------------------------------------------------------------------------
//
// ROWS is the maximum number of rows of x in a tile. With HOLDS_X, a tile holds its rows of x in registers and reads those of
// W one after the other, instead of the reverse. It is for rows of W that take two registers each: four of them would leave
// too few registers for the sums.

// fp32 numbers.
struct Singles {
    using Number = float;
    static constexpr int ROWS = TILE_ROWS;
    static constexpr int64_t STEP = LANES;
    static constexpr bool HOLDS_X = false;
    static F at(const float* from) { return load(from); }
    static F w_at(const float* from) { return load(from); }
    static F add(F sum, F x, F w) { return sum + x * w; }
};

// Multiplies bf16 of W, widened while it is read, by fp32 of x, packed in the same order. It is for so few rows that storing
// W widened does not pay. It adds the same terms as Singles, in the same order.
struct Widening {
    using Number = float;
    static constexpr int ROWS = REGISTERS == 32 ? 4 : 3;
    static constexpr int64_t STEP = UNIT;
    static constexpr bool HOLDS_X = true;
    static TwoRegisters at(const float* from) { return {load(from), load(from + LANES)}; }
    static TwoRegisters w_at(const bf16* from) {
        const U pairs = load_pairs(from);
        return {evens(pairs), odds(pairs)};
    }
    static F add(F sum, TwoRegisters x, TwoRegisters w) { return sum + x.first * w.first + x.second * w.second; }
};

#ifdef BF16_DOTS
// Multiplies pairs of bf16 numbers and adds both products of a pair to one fp32 sum.
struct Pairs {
    using Number = bf16;
    static constexpr int ROWS = TILE_ROWS;
    static constexpr int64_t STEP = UNIT;
    static constexpr bool HOLDS_X = false;
    static U at(const bf16* from) { return load_pairs(from); }
    static U w_at(const bf16* from) { return load_pairs(from); }
    static F add(F sum, U x, U w) {
        return reinterpret_cast<F>(
            _mm512_dpbf16_ps(reinterpret_cast<__m512>(sum), reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(w)));
    }
};
template <class Stored> using DotsOf = std::conditional_t<std::is_same_v<Stored, bf16>, Pairs, Singles>;
#else
template <class Stored> using DotsOf = Singles;
#endif

constexpr int64_t padded(int64_t inputs) { return (inputs + UNIT - 1) / UNIT * UNIT; }

// Prefetch into the second-level cache. The processor's own prefetching stops at the end of a page. A core can have only a few
// loads into its first-level cache outstanding: 24 on Zen 4, which at their latency is 13 GB/s. The second-level cache brought
// 20 GB/s.
inline void prefetch(const void* from) { __builtin_prefetch(from, 0, 2); }
template <class Number> inline void prefetch(const Number* from, int64_t count) {
    for (int64_t i = 0; i < count; i += 64 / int64_t(sizeof(Number))) prefetch(from + i);
}

// Pack a row as a tile reads it, padded with zeros to a whole number of steps. Any order works as long as W and x have the
// same one.
template <class Number> inline void pack(const Number* from, int64_t inputs, Number* to) {
    std::memcpy(to, from, inputs * sizeof(Number));
    std::fill(to + inputs, to + padded(inputs), Number{});
}
inline void pack(const bf16* from, int64_t inputs, float* to) {
    auto widened = [](U pairs, float* to) { store(to, evens(pairs)), store(to + LANES, odds(pairs)); };
    int64_t i = 0;
    for (; i + UNIT <= inputs; i += UNIT) widened(load_pairs(from + i), to + i);
    if (i == inputs) return;
    bf16 rest[UNIT] = {};
    std::memcpy(rest, from + i, (inputs - i) * sizeof(bf16));
    widened(load_pairs(rest), to + i);
}

// Return the index at which `pack` puts the number with index `place` of a row.
template <class Stored, class Number> inline int64_t packed_place(int64_t place) {
    if constexpr (std::is_same_v<Stored, Number>) return place;
    return place / UNIT * UNIT + place % UNIT / 2 + place % 2 * LANES;
}

// Copy a row that is in the order of `pack` back to its own order.
inline void unpack(const float* from, int64_t width, float* to) { std::memcpy(to, from, width * sizeof(float)); }
inline void unpack(const float* from, int64_t width, bf16* to) {
    int64_t i = 0;
    for (; i + UNIT <= width; i += UNIT) {
        U pairs = rounded(load(from + i)) | (rounded(load(from + i + LANES)) << 16);
        std::memcpy(to + i, &pairs, sizeof(pairs));
    }
    for (int64_t rest = 0; i + rest < width; ++rest) to[i + rest] = narrow(from[packed_place<bf16, float>(i + rest)]);
}

// -- a tile -----------------------------------------------------------------------------------------------------------

// What a tile prefetches at each step: nothing.
struct NoFetch {
    void at(int64_t) {}
};

// Return x[r] . w[o] over `count` numbers (a whole number of steps) for R rows of x and 4 of W. It must be inlined: a call
// clears the upper halves of registers, and the sums would pass through memory.
template <class Dots, int R, class Number, class Weight, class Fetch = NoFetch>
[[gnu::always_inline]] inline SumsOfRows<R> dot_tile(const Number* x, int64_t x_stride, const Weight* const* w, int64_t count,
                                                     Fetch fetch = {}) {
    const Weight* const from[TILE_COLUMNS] = {w[0], w[1], w[2], w[3]};
    F sum[R][TILE_COLUMNS] = {};
    for (int64_t i = 0; i < count; i += Dots::STEP) {
        fetch.at(i);
        if constexpr (Dots::HOLDS_X) {
            decltype(Dots::at(x)) held[R];
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) held[r] = Dots::at(x + r * x_stride + i);
#pragma GCC unroll 8
            for (int o = 0; o < TILE_COLUMNS; ++o) {
                const auto other = Dots::w_at(from[o] + i);
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r) sum[r][o] = Dots::add(sum[r][o], held[r], other);
            }
        } else {
            decltype(Dots::w_at(*w)) held[TILE_COLUMNS];
#pragma GCC unroll 8
            for (int o = 0; o < TILE_COLUMNS; ++o) held[o] = Dots::w_at(from[o] + i);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                const auto own = Dots::at(x + r * x_stride + i);
#pragma GCC unroll 8
                for (int o = 0; o < TILE_COLUMNS; ++o) sum[r][o] = Dots::add(sum[r][o], own, held[o]);
            }
        }
    }
    return SumsOfRows<R>(sum);
}

// Return x . w over `count` numbers (a whole number of steps), before the lanes are added. These are the same lanes that
// dot_tile has for this pair of rows.
template <class Dots, class Number, class Weight>
[[gnu::always_inline]] inline F dot_lanes(const Number* x, const Weight* w, int64_t count) {
    F sum{};
    for (int64_t i = 0; i < count; i += Dots::STEP) sum = Dots::add(sum, Dots::at(x + i), Dots::w_at(w + i));
    return sum;
}

}  // namespace
