// Products with codes of 4 bits whose rows were laid side by side, 16 outputs at a time (ops/matrix/settled.py): a line of
// the cache has 8 inputs of each, and each lane of a register is an output's.
//
// So a lane's sum is an output's, no lanes are added up, and a group's scales are those of a register's lanes: codes are
// looked up as whole numbers, which bf16 holds exactly, and the sum of a group is multiplied by its scale in fp32. What is added
// to each number of a group goes in by the sum of its x. No step depends on how many rows there are.
#pragma once

#include "nibbles.h"
#include "product.h"
#include "quantised.h"

#ifdef BF16_DOTS

namespace {

constexpr int64_t INTERLEAVED = LANES;                    // outputs side by side
constexpr int64_t LINE_INPUTS = 8, UNIT_LINES = UNIT / LINE_INPUTS;  // of a line; lines of a unit of inputs
constexpr int NIBBLE_MIDDLE = 8;
constexpr int INTERLEAVED_ROWS = 8;  // of a tile

inline bool interleaved(const Matrix& matrix) { return matrix.codes && matrix.codes->interleaved; }

// The k-th and the (k + 4)-th of each eight codes less NIBBLE_MIDDLE, as pairs of bf16.
inline U pairs_of_codes(U codes, int k) {
    constexpr auto numbers = [] {
        std::array<bf16, UNIT> own{};
        for (int i = 0; i < UNIT; ++i) own[i] = std::bit_cast<uint32_t>(float(i % 16 - NIBBLE_MIDDLE)) >> 16;
        return own;  // twice: five bits are looked at, of which the fifth is the next code's
    };
    static constexpr std::array<bf16, UNIT> NUMBERS = numbers();
    const __m512i table = _mm512_loadu_si512(NUMBERS.data());
    return reinterpret_cast<U>(_mm512_permutexvar_epi16(reinterpret_cast<__m512i>(codes >> 4 * k), table));
}

// INTERLEAVED outputs of a matrix, and how rows are packed for them: as pairs in the order of the codes, behind them the sum of
// each unit of inputs, in fp32.
struct InterleavedPanel {
    using Stored = bf16;
    using Number = bf16;
    static constexpr bool PACKS = true;
    static constexpr int64_t bytes(int64_t inputs) { return inputs / 2; }
    static int64_t stride(int64_t inputs) {
        const int64_t units = padded(inputs) / UNIT;
        return spread<Number>(padded(inputs) + padded(2 * units));
    }
    static void pack(const bf16* x, int64_t inputs, bf16* to) {
        ::pack(x, inputs, to);
        const U ones = U{} + 0x3f803f80u;
        const __m512i fours = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
        auto* sums = reinterpret_cast<float*>(to + padded(inputs));
        for (int64_t i = 0; i < inputs; i += UNIT) {
            const U unit = load_pairs(to + i);
            sums[i / UNIT] = sum(Pairs::add(F{}, unit, ones));
            put_unit(reinterpret_cast<U>(_mm512_shuffle_epi8(reinterpret_cast<__m512i>(unit), fours)), to + i);
        }
    }

    const Codes& own;
    const uint8_t *codes, *scales, *zeros;
    int64_t bytes_ahead;  // from a panel's codes to the next one's

    InterleavedPanel(const Matrix& matrix, int64_t output)
        : own(*matrix.codes), codes(static_cast<const uint8_t*>(matrix.weight) + output * matrix.weight_stride),
          scales(static_cast<const uint8_t*>(own.scales) + output * own.groups * own.scale_bytes()),
          zeros(own.zeros ? own.zeros + output * own.groups : nullptr), bytes_ahead(INTERLEAVED * matrix.weight_stride) {}

    // What a group's numbers are multiplied by, and what is added to code - NIBBLE_MIDDLE times that.
    TwoRegisters of_group(int64_t g) const {
        const int64_t first = g * INTERLEAVED, next = own.groups * INTERLEAVED;  // those of the next panel: memory is read in time
        const uint8_t* at = scales + first * own.scale_bytes();
        prefetch(at + next * own.scale_bytes());
        const F scale = scales_at(at, own.scale_type);
        if (!zeros) return {scale, scale * (NIBBLE_MIDDLE - own.zero)};
        prefetch(zeros + first + next);
        return {scale, scale * (float(NIBBLE_MIDDLE) - __builtin_convertvector(reinterpret_cast<I>(widened(zeros + first)), F))};
    }
};

// to[r] = x[r] . W for R rows and the outputs of a panel.
template <int R> inline void interleaved_tile(const bf16* x, int64_t x_stride, const InterleavedPanel& w, int64_t inputs, F* to) {
    const int64_t whole = padded(inputs);
    const uint8_t* codes = w.codes;
    F total[R] = {};
    for (int64_t i = 0, g = 0; i < whole; ++g) {
        const auto [scale, low] = w.of_group(g);
        F sum[R][2] = {};
        for (const int64_t end = std::min(i + w.own.group, whole); i < end; i += UNIT) {
#pragma GCC unroll 4
            for (int64_t line = 0; line < UNIT_LINES; ++line, codes += 64) {
                U own;
                std::memcpy(&own, codes, sizeof(own));
                prefetch(codes + w.bytes_ahead);
#pragma GCC unroll 4
                for (int k = 0; k < 4; ++k) {
                    const U unit = pairs_of_codes(own, k);
#pragma GCC unroll 8
                    for (int r = 0; r < R; ++r) {
                        uint32_t pair;
                        std::memcpy(&pair, x + r * x_stride + i + line * LINE_INPUTS + 2 * k, sizeof(pair));
                        sum[r][k % 2] = Pairs::add(sum[r][k % 2], U{} + pair, unit);
                    }
                }
            }
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                float of_x;
                std::memcpy(&of_x, x + r * x_stride + whole + i / UNIT * 2, sizeof(of_x));
                total[r] += low * of_x;
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) total[r] += (sum[r][0] + sum[r][1]) * scale;
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) to[r] = total[r];
}

// The outputs of a panel for a block of rows.
inline void multiply(const TileRows<bf16>& x, int64_t rows, const InterleavedPanel& panel, int64_t inputs, F* to) {
    const int64_t tiles = (rows + INTERLEAVED_ROWS - 1) / INTERLEAVED_ROWS;
    for (int64_t turn = 0, r = 0; turn < tiles; ++turn) {
        const int64_t own = (rows - r + tiles - turn - 1) / (tiles - turn);  // as even as they go
        [&]<int... R>(std::integer_sequence<int, R...>) {
            ((own == R + 1 ? interleaved_tile<R + 1>(x.at + r * x.stride, x.stride, panel, inputs, to + r) : void()), ...);
        }(std::make_integer_sequence<int, INTERLEAVED_ROWS>());
        r += own;
    }
}

// How a call is cut into items, as Cut of product.h, whole panels each.
struct InterleavedCut : Cut {
    InterleavedCut(const Rows& x, int64_t row_bytes) : Cut(x, sizeof(bf16), row_bytes) {
        outputs = (outputs + INTERLEAVED - 1) / INTERLEAVED * INTERLEAVED;
    }
};

// A block of rows of x, and the sums of a panel with each, their bias added.
struct InterleavedBlock {
    int64_t first, rows, inputs;
    PackedRows<InterleavedPanel> packed;
    F sums[MAX_ROWS];

    InterleavedBlock(const Rows& x, const Cut& cut, int64_t block)
        : first(block * cut.rows), rows(std::min(cut.rows, x.count - first)), inputs(x.width),
          packed(static_cast<const bf16*>(x.at) + first * x.stride, x.stride, rows, inputs, cut.call, block) {}

    const F* run(const Matrix& matrix, int64_t output) {
        multiply(packed, rows, InterleavedPanel(matrix, output), inputs, sums);
        if (matrix.bias) {
            const F bias = load(static_cast<const bf16*>(matrix.bias) + output);
            for (int64_t r = 0; r < rows; ++r) sums[r] += bias;
        }
        return sums;
    }
};

template <class Out> void interleaved_products(Pool& pool, const Rows& x, int count, const Matrix* matrices) {
    const InterleavedCut cut(x, InterleavedPanel::bytes(x.width));
    int64_t all = 0;
    for (int m = 0; m < count; ++m) all += cut.slices(matrices[m]);
    pool.run(int(cut.blocks * all), [&](int item) {
        InterleavedBlock block(x, cut, item / all);
        const Matrix* matrix = matrices;
        int64_t slice = item % all;
        for (; slice >= cut.slices(*matrix); ++matrix) slice -= cut.slices(*matrix);
        Out* y = static_cast<Out*>(matrix->y) + block.first * matrix->y_stride;
        for (int64_t o = slice * cut.outputs; o < std::min((slice + 1) * cut.outputs, matrix->outputs); o += INTERLEAVED) {
            const F* sums = block.run(*matrix, o);
            for (int64_t r = 0; r < block.rows; ++r) store(y + r * matrix->y_stride + o, sums[r]);
        }
    });
}

inline void interleaved_gated_products(Pool& pool, const Rows& x, const Matrix& gate, const Matrix& up, const Gate& by) {
    const InterleavedCut cut(x, 2 * InterleavedPanel::bytes(x.width));
    const int64_t all = cut.slices(gate);
    pool.run(int(cut.blocks * all), [&](int item) {
        InterleavedBlock block(x, cut, item / all);
        F gates[MAX_ROWS];
        bf16* y = static_cast<bf16*>(gate.y) + block.first * gate.y_stride;
        for (int64_t o = item % all * cut.outputs; o < std::min((item % all + 1) * cut.outputs, gate.outputs); o += INTERLEAVED) {
            std::copy_n(block.run(gate, o), block.rows, gates);
            const F* ups = block.run(up, o);
            for (int64_t r = 0; r < block.rows; ++r) store(y + r * gate.y_stride + o, gated(by, gates[r], ups[r]));
        }
    });
}

}  // namespace

#endif
