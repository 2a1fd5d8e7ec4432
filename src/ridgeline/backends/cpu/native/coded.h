// Products with matrices of codes (quantised.h). For few rows, codes are widened in registers. For more rows, they are first
// widened into memory, like bf16 for the tiles of product.h.
#pragma once

#include "nibbles.h"
#include "product.h"
#include "quantised.h"

namespace {

constexpr int64_t CODED_ROWS = REGISTERS == 32 ? 4 : 1;  // maximum number of rows for which codes are widened in registers

// The codes of half a panel: four outputs of a matrix, and for each group of inputs the scale and what is added to its
// numbers.
struct CodedRows {
    const uint8_t* codes[OUTPUTS];
    const float *scales, *low;
    int64_t step, group;  // step: the distance between the scales of two outputs, in numbers
};

// Up to 8 rows of codes of W, from one matrix or two.
template <class Stored_, class Coded> struct CodedPanel {
    using Stored = Stored_;
    using Number = typename DotsOf<Stored>::Number;
    // Whether rows are packed line by line (nibbles.h).
    static constexpr bool BY_LINES = Coded::BITS == 4 && std::is_same_v<Number, bf16>;
    static constexpr bool PACKS = !std::is_same_v<Stored, Number> || std::is_same_v<Number, float> || BY_LINES;
    static constexpr int64_t NUMBER_BYTES = 1;
    static constexpr int64_t bytes(int64_t inputs) { return inputs * Coded::BITS / 8; }
    static int64_t stride(int64_t inputs) { return padded(inputs); }
    static void pack(const Stored* x, int64_t inputs, Number* to) {
        if constexpr (BY_LINES) {
            const int64_t lines = inputs / LINE * LINE;
            for (int64_t i = 0; i < lines; i += LINE) pack_line(x + i, to + i);
            ::pack(x + lines, inputs - lines, to + lines);
        } else if constexpr (std::is_same_v<Stored, float>) {
            pack_by_pairs(x, inputs, to);
        } else {
            ::pack(x, inputs, to);
        }
    }
    // Return the index at which `pack` puts an input of a row of `inputs` numbers.
    static int64_t place(int64_t input, int64_t inputs) {
        if constexpr (BY_LINES) {
            const int64_t line = input / LINE * LINE;
            return line + LINE <= inputs ? line + place_in_line(input - line) : input;
        } else {
            (void)inputs;
            return std::is_same_v<Number, float> ? packed_place<bf16, float>(input) : input;
        }
    }

    CodedRows w[2];
    int halves;
    int64_t ahead;

    CodedPanel(int halves, int64_t ahead) : halves(halves), ahead(ahead) {}

    void fill(int half, const Matrix& matrix, int64_t first, int64_t count) {
        thread_local Scratch<float> scratch[2];
        const Codes& codes = *matrix.codes;
        const int64_t there = std::min<int64_t>(count, OUTPUTS), groups = codes.groups;
        // The scales of neighbouring outputs are contiguous, and a few groups do not fill a register. For groups of half a
        // unit, one more scale is read than exists.
        const bool at_once = codes.outputs == 1 && codes.group >= UNIT;
        const int64_t step = at_once ? groups : (groups + LANES - 1) / LANES * LANES, room = OUTPUTS * step + LANES;
        float *scales = scratch[half].of(2 * room), *low = scales + room;
        CodedRows& rows = w[half] = {{}, scales, low, step, codes.group};
        // Missing outputs repeat the last one's codes with undefined scales; their results are dropped.
        for (int64_t o = 0; o < OUTPUTS; ++o)
            rows.codes[o] = static_cast<const uint8_t*>(matrix.weight) + (first + std::min(o, there - 1)) * matrix.weight_stride;
        if (at_once && groups > 1) {  // prefetch those of the next panel: the processor does not predict such short pieces
            const int64_t next = (first + PANEL) * groups, numbers = there * groups;
            prefetch(static_cast<const uint8_t*>(codes.scales) + next * codes.scale_bytes(), numbers * codes.scale_bytes());
            if (codes.zeros) prefetch(codes.zeros + next, numbers);
        }
        if (at_once) return widen_scales(codes, first * groups, there * groups, Coded::FACTOR, scales, low);
        for (int64_t o = 0; o < there; ++o) widen_scales(codes, first + o, Coded::FACTOR, scales + o * step, low + o * step);
    }
};

// -- codes in registers -----------------------------------------------------------------------------------------------------

// How codes that are widened in registers are multiplied. The terms are the same as those of the tiles for codes widened into
// memory.
#ifdef BF16_DOTS
template <class Number> using CodedDots = std::conditional_t<std::is_same_v<Number, bf16>, Pairs, Widening>;
#else
template <class Number> using CodedDots = Widening;
#endif

// to[r][o] += x[r] . w[o] for R rows and a block of half a panel. first: the index of the block's first input.
template <class Panel, class Coded, int R, class Number = typename Panel::Number>
inline void coded_tile(const Number* x, int64_t x_stride, const CodedRows& w, int64_t first, int64_t count, int64_t ahead,
                       float* to) {
    using Dots = CodedDots<Number>;
    using Numbers = NumbersOf<Coded, Number>;
    constexpr int64_t UNIT_BYTES = UNIT * Coded::BITS / 8;
    const uint8_t* codes[OUTPUTS];
    for (int o = 0; o < OUTPUTS; ++o) codes[o] = w.codes[o] + first / UNIT * UNIT_BYTES;
    F sum[R][OUTPUTS] = {};
    int64_t i = 0, at = 0;  // in numbers, in bytes
#ifdef BF16_DOTS
    if constexpr (Panel::BY_LINES) {
        auto add_lines = [&]<bool WHOLE>() __attribute__((always_inline)) {
            LineGroups groups(w.group, first);
            for (; i + LINE <= count; i += LINE, at += LINE_BYTES, groups.next()) {
                U held[R][LINE_UNITS];
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
                    for (int k = 0; k < LINE_UNITS; ++k) held[r][k] = Dots::at(x + r * x_stride + i + k * UNIT);
#pragma GCC unroll 8
                for (int o = 0; o < OUTPUTS; ++o) {
                    const Nibbles<WHOLE> line(codes[o] + at, w.scales + o * w.step, w.low + o * w.step, groups);
                    prefetch(codes[o] + at + ahead);
#pragma GCC unroll 4
                    for (int k = 0; k < LINE_UNITS; ++k) {
                        const U unit = line.unit(k);
#pragma GCC unroll 8
                        for (int r = 0; r < R; ++r) sum[r][o] = Dots::add(sum[r][o], held[r][k], unit);
                    }
                }
            }
        };
        if (w.group % LINE)
            add_lines.template operator()<false>();
        else
            add_lines.template operator()<true>();
    }
#endif
    const int64_t group = (first + i) / w.group;
    const float *scales = w.scales + group, *low = w.low + group;
    for (int64_t end = (group + 1) * w.group - first; i < count; end += w.group, ++scales, ++low) {
        auto numbers_of = [&](int o) { return Numbers(broadcast(scales[o * w.step]), broadcast(low[o * w.step])); };
        const Numbers numbers[OUTPUTS] = {numbers_of(0), numbers_of(1), numbers_of(2), numbers_of(3)};
        for (const int64_t last = std::min(count, end); i < last; i += UNIT, at += UNIT_BYTES) {
            decltype(Dots::at(x)) held[R];
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) held[r] = Dots::at(x + r * x_stride + i);
#pragma GCC unroll 8
            for (int o = 0; o < OUTPUTS; ++o) {
                const auto unit = numbers[o](codes[o] + at);
                prefetch(codes[o] + at + ahead);
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r) sum[r][o] = Dots::add(sum[r][o], held[r], unit);
            }
        }
    }
    SumsOfRows<R>(sum).add_to(to);
}

// -- codes widened into memory ----------------------------------------------------------------------------------------------

// Widen a block of the o-th row of half a panel, in the order in which x is packed.
template <class Panel, class Coded, class Number = typename Panel::Number>
inline void lay_out(const CodedRows& w, int o, int64_t first, int64_t count, int64_t ahead, Number* to) {
    const uint8_t* codes = w.codes[o] + first / UNIT * UNIT * Coded::BITS / 8;
    const float *scales = w.scales + o * w.step, *low = w.low + o * w.step;
    for (int64_t at = 0; at < count * Coded::BITS / 8; at += 64) prefetch(codes + ahead + at);
    int64_t i = 0;
#ifdef BF16_DOTS
    if constexpr (Panel::BY_LINES) {
        if (w.group >= UNIT) {
            LineGroups groups(w.group, first);
            for (; i + LINE <= count; i += LINE, groups.next()) {
                const Nibbles<false> line(codes + i / 2, scales, low, groups);
                for (int k = 0; k < LINE_UNITS; ++k) put_unit(line.unit(k), to + i + k * UNIT);
            }
        }
    }
#endif
    widen_codes<Coded>(codes + i * Coded::BITS / 8, scales, low, w.group, first + i, padded(count - i), to + i);
#ifdef BF16_DOTS
    if constexpr (Panel::BY_LINES)
        for (; i + LINE <= count; i += LINE) pack_line(to + i, to + i);
#endif
}

// The `multiply` of product.h for codes.
template <class Stored, class Coded, class Number = typename DotsOf<Stored>::Number>
inline void multiply(const TileRows<Number>& x, int64_t rows, const CodedPanel<Stored, Coded>& panel, int64_t inputs, float* to) {
    using Panel = CodedPanel<Stored, Coded>;
    alignas(64) thread_local Number laid_out[PANEL][BLOCK];
    // Groups smaller than a unit are always widened into memory.
    const bool in_registers = rows <= CODED_ROWS && panel.w[0].group >= UNIT && (panel.halves == 1 || panel.w[1].group >= UNIT);
    clear_sums(rows, panel.halves, to);
    for (int64_t i = 0; i < inputs; i += BLOCK) {
        const int64_t count = std::min(BLOCK, inputs - i);
        if (in_registers) {
            const auto tile = rows == 1   ? coded_tile<Panel, Coded, 1>
                              : rows == 2 ? coded_tile<Panel, Coded, 2>
                              : rows == 3 ? coded_tile<Panel, Coded, 3>
                                          : coded_tile<Panel, Coded, 4>;
            for (int half = 0; half < panel.halves; ++half)
                tile(x.at + i, x.stride, panel.w[half], i, count, panel.ahead, to + half * HALF);
            continue;
        }
        const Number* own[PANEL];
        for (int o = 0; o < panel.halves * OUTPUTS; ++o) {
            lay_out<Panel, Coded>(panel.w[o / OUTPUTS], o % OUTPUTS, i, count, panel.ahead, laid_out[o]);
            own[o] = laid_out[o];
        }
        tiles<DotsOf<Stored>>(x.at + i, x.stride, rows, own, panel.halves, padded(count), 0, 0, to);
    }
}

}  // namespace
