// Integer products: rows of x are rounded to int8, each with its own scale (its largest magnitude becomes 127), and
// multiplied with bytes that have one scale per output. The sums are integers, so their order does not matter.
//
// y = scale of x * scale of W * (sum of x * byte - zero * sum of x), with sums in 32 bits. These are large enough for
// MAX_INTEGERS (operands.py) inputs.
#pragma once

#include <cmath>

#include "product.h"
#include "quantised.h"

namespace {

constexpr int64_t INTEGER_STEP = 64;  // the length of a packed row of x is a multiple of this, in bytes

// What follows a packed row of x.
struct RowScale {
    float scale;
    int32_t sum;
};

typedef int8_t B __attribute__((vector_size(LANES)));
typedef int8_t B_in_memory __attribute__((vector_size(LANES), aligned(1), may_alias));

// Round a row and pad it with zeros. The scale and the sum of integers do not depend on the order of computation.
template <class Stored> inline void round_row(const Stored* x, int64_t inputs, int8_t* to, int64_t whole) {
    const int64_t full = inputs / LANES * LANES;
    F most{}, nothing{};  // `nothing` is 0 for numbers, and NaN if one is infinite or NaN
    for (int64_t i = 0; i < full; i += LANES) {
        const F own = load(x + i);
        most = maximum(most, from_bits(bits(own) & 0x7fffffffu)), nothing = nothing + own * 0.0f;
    }
    float size = largest(most), none = sum(nothing);
    for (int64_t i = full; i < inputs; ++i) size = std::max(size, std::fabs(get(x + i))), none += 0 * get(x + i);
    RowScale row{size / 127 + none, 0};
    const float by = row.scale > 0 ? 1 / row.scale : 0;
    const F least = broadcast(-127.0f), greatest = broadcast(127.0f), large = broadcast(LARGE);
    I added{};
    for (int64_t i = 0; i < full; i += LANES) {
        const F multiple = load(x + i) * by, low = maximum(multiple, least), inside = where(low > greatest, greatest, low);
        const I near = reinterpret_cast<I>(inside + large) - reinterpret_cast<I>(large);
        *reinterpret_cast<B_in_memory*>(to + i) = __builtin_convertvector(near, B);
        added += near;
    }
    for (int lane = 0; lane < LANES; ++lane) row.sum += added[lane];
    for (int64_t i = full; i < inputs; ++i) {
        to[i] = int8_t(nearest(std::clamp(get(x + i) * by, -127.0f, 127.0f)));
        row.sum += to[i];
    }
    std::fill(to + inputs, to + whole, int8_t(0));
    std::memcpy(to + whole, &row, sizeof(row));
}

// to[r][o] = the sum of x[r] * w[o] over bytes, for R rows and half a panel. count: bytes of W, a multiple of half of
// INTEGER_STEP. After them x is zero.
using IntegerTile = void (*)(const int8_t* x, int64_t x_stride, const uint8_t* const* w, int64_t count, int32_t (*to)[OUTPUTS]);

template <int R>
inline void integer_tile(const int8_t* x, int64_t x_stride, const uint8_t* const* w, int64_t count, int32_t (*to)[OUTPUTS]) {
    for (int r = 0; r < R; ++r)
        for (int o = 0; o < OUTPUTS; ++o) {
            int32_t sum = 0;
            for (int64_t i = 0; i < count; ++i) sum += int32_t(x[r * x_stride + i]) * w[o][i];
            to[r][o] = sum;
        }
}

#if LANES == 16
// The same by the instruction that adds four products at a time (VNNI). Some processors with AVX-512 lack it.
template <int R>
__attribute__((target("avx512vnni"))) void integer_tile_vnni(const int8_t* x, int64_t x_stride, const uint8_t* const* w, int64_t count,
                                                             int32_t (*to)[OUTPUTS]) {
    __m512i sum[R][OUTPUTS] = {};
    for (int64_t i = 0; i < count; i += INTEGER_STEP) {
        const __mmask64 there = count - i < INTEGER_STEP ? (uint64_t(1) << (count - i)) - 1 : ~uint64_t(0);
        __m512i rows[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) rows[r] = _mm512_loadu_si512(x + r * x_stride + i);
#pragma GCC unroll 8
        for (int o = 0; o < OUTPUTS; ++o) {
            const __m512i own = _mm512_maskz_loadu_epi8(there, w[o] + i);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) sum[r][o] = _mm512_dpbusd_epi32(sum[r][o], own, rows[r]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
        for (int o = 0; o < OUTPUTS; ++o) {
            const I lanes = reinterpret_cast<I>(sum[r][o]);
            to[r][o] = 0;
            for (int lane = 0; lane < LANES; ++lane) to[r][o] += lanes[lane];
        }
}
#endif

constexpr int INTEGER_ROWS = 4;  // rows of a tile

// Return the fastest tile of `rows` rows on this processor. All of them give the same integers.
inline IntegerTile integer_tile_of(int64_t rows) {
#if LANES == 16
    static constexpr IntegerTile vnni[] = {integer_tile_vnni<1>, integer_tile_vnni<2>, integer_tile_vnni<3>, integer_tile_vnni<4>};
    if (__builtin_cpu_supports("avx512vnni")) return vnni[rows - 1];
#endif
    static constexpr IntegerTile any[] = {integer_tile<1>, integer_tile<2>, integer_tile<3>, integer_tile<4>};
    return any[rows - 1];
}

// Up to 8 rows of bytes of W, with the scale and the zero of each.
template <class Stored_> struct IntegerPanel {
    using Stored = Stored_;
    using Number = int8_t;
    static constexpr bool PACKS = true;
    static constexpr int64_t bytes(int64_t inputs) { return inputs; }
    static int64_t whole(int64_t inputs) { return (inputs + INTEGER_STEP - 1) / INTEGER_STEP * INTEGER_STEP; }
    static int64_t stride(int64_t inputs) { return whole(inputs) + INTEGER_STEP; }  // including the RowScale
    static void pack(const Stored* x, int64_t inputs, int8_t* to) { round_row(x, inputs, to, whole(inputs)); }

    const uint8_t* w[PANEL];
    float scales[PANEL], zeros[PANEL];
    int halves;
    int64_t ahead;

    IntegerPanel(int halves, int64_t ahead) : halves(halves), ahead(ahead) {}

    void fill(int half, const Matrix& matrix, int64_t first, int64_t count) {
        for (int64_t o = 0; o < OUTPUTS; ++o) {
            const int64_t output = first + std::min(o, count - 1), place = half * OUTPUTS + o;
            w[place] = static_cast<const uint8_t*>(matrix.weight) + output * matrix.weight_stride;
            float scale[LANES] = {}, low[LANES];
            widen_scales(*matrix.codes, output, 1, scale, low);
            scales[place] = scale[0];
            zeros[place] = matrix.codes->zeros ? float(matrix.codes->zeros[output / matrix.codes->outputs]) : matrix.codes->zero;
        }
    }
};

// The `multiply` of product.h for integers.
template <class Stored>
inline void multiply(const TileRows<int8_t>& x, int64_t rows, const IntegerPanel<Stored>& panel, int64_t inputs, float* to) {
    const int64_t count = (inputs + 31) / 32 * 32, whole = IntegerPanel<Stored>::whole(inputs);
    for (int half = 0; half < panel.halves; ++half) {
        const int64_t first = half * OUTPUTS;
        for (int o = 0; o < OUTPUTS; ++o) prefetch(panel.w[first + o] + panel.ahead, count);
        for (int64_t r = 0; r < rows; r += INTEGER_ROWS) {
            const int64_t there = std::min<int64_t>(INTEGER_ROWS, rows - r);
            int32_t sums[INTEGER_ROWS][OUTPUTS];
            integer_tile_of(there)(x.at + r * x.stride, x.stride, panel.w + first, count, sums);
            for (int64_t i = 0; i < there; ++i) {
                RowScale row;
                std::memcpy(&row, x.at + (r + i) * x.stride + whole, sizeof(row));
                for (int o = 0; o < OUTPUTS; ++o) {
                    const int32_t sum = sums[i][o] - int32_t(panel.zeros[first + o]) * row.sum;
                    to[half * HALF + (r + i) * OUTPUTS + o] = row.scale * panel.scales[first + o] * float(sum);
                }
            }
        }
    }
}

}  // namespace
