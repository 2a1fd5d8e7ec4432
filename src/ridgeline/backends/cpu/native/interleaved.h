// Products with integers of 8 or 4 bits whose rows are interleaved (core/ops/matrix/interleaved.py), 16 outputs at a time, by
// the instruction that adds four products of bytes to a 32-bit sum (VNNI).
//
// Rows of x are rounded to int8. Either every 32 inputs have a scale of their own, like ggml's q8_0 (ggml-common.h), or the
// whole row has one. Each lane of a register belongs to one output: a cache line holds some inputs of each, no lanes need to
// be added, and the scales of a group match the lanes of a register. Sums of 32 inputs are integers. They are multiplied by
// both scales and added in fp32. No step depends on the number of rows. Tiles (tiles.h) give the same integers, so rows whose
// number is large enough for them have the same results.
#pragma once

#include <cstddef>

#include <optional>

#include "product.h"
#include "quantised.h"
#include "tiles.h"

#ifdef BF16_DOTS

namespace {

constexpr int64_t INTERLEAVED = LANES;   // interleaved outputs
constexpr int64_t LANE_BYTES = 4;        // bytes of each output in a line
constexpr int64_t INTEGER_BLOCK = 1024;  // inputs of a panel that stay in the first-level cache while rows pass
constexpr int64_t FEW_TO_FETCH_FOR = 4;  // up to this number of rows, memory is slower than arithmetic, so codes are prefetched

inline bool interleaved(const Matrix& matrix) { return matrix.codes && matrix.codes->interleaved; }

// A line of codes as registers with four unsigned inputs of each output, to which OFFSET - zero is added. `ordered` gives the
// order in which eight inputs of x are multiplied with them. ROWS is the number of rows whose sums fill the other registers.
template <class Coded> struct Fours;

template <> struct Fours<Bytes> {
    static constexpr int COUNT = 1, OFFSET = 128, ROWS = 12;  // their zero is 128
    static __m256i ordered(__m256i x) { return x; }
    U at[COUNT];
    Fours(U line, U) : at{line} {}
};

template <> struct Fours<HalfBytes> {
    static constexpr int COUNT = 2, OFFSET = 16, ROWS = 8;  // zeros are up to 16, as in GPTQ
    // The low halves of four bytes are the inputs at even indices, the high halves those at odd ones.
    static __m256i ordered(__m256i x) {
        return _mm256_shuffle_epi8(x, _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15)));
    }
    U at[COUNT];
    Fours(U line, U above) : at{(line & 0x0f0f0f0fu) + above, (line >> 4 & 0x0f0f0f0fu) + above} {}
};

// Write the bytes of a unit of codes in the order in which they are multiplied, and return them.
template <class Coded> inline const uint8_t* unpack_unit(const uint8_t* codes, U above, uint8_t* to) {
    for (int64_t line = 0; line < UNIT * Coded::BITS / 8 / LANE_BYTES; ++line) {
        U own;
        std::memcpy(&own, codes + line * 64, sizeof(own));
        const Fours<Coded> fours(own, above);
        for (int k = 0; k < fours.COUNT; ++k) std::memcpy(to + (line * fours.COUNT + k) * 64, fours.at + k, 64);
    }
    return to;
}

// What follows a packed row of x, for each unit of inputs: the scale, and the sum of its integers times -OFFSET. If the whole row
// has one scale, the offset is that of all units of its INTEGER_BLOCK so far, since their products are added as integers.
struct UnitOfRow {
    float scale;
    int32_t offset;
};

// Return the largest magnitude of a unit, as the bits of fp32. The bits of infinity and NaN are larger than all others.
template <class Stored> inline uint32_t size_of_unit(const Stored* x) {
    auto larger = [](U a, U b) { return a > b ? a : b; };
    U most = larger(bits(load(x)) & 0x7fffffffu, bits(load(x + LANES)) & 0x7fffffffu);
    for (int apart = LANES / 2; apart > 0; apart /= 2) {
        I other;
        for (int lane = 0; lane < LANES; ++lane) other[lane] = lane ^ apart;
        most = larger(most, __builtin_shuffle(most, other));
    }
    return most[0];
}

// Round a unit of inputs to integers, in the order in which they are multiplied. A magnitude of `size` becomes 127.
template <class Coded, class Stored> inline UnitOfRow round_unit(const Stored* x, uint32_t size, int8_t* to) {
    const float scale = std::bit_cast<float>(size) / 127;    // for smaller scales the integers are 0; if a number is infinite or NaN, the scale makes the result infinite or NaN
    const float by = scale > 1e-30f ? 1 / scale : 0;
    auto bytes = [&](F own) { return _mm512_maskz_cvtsepi32_epi8(-1, _mm512_maskz_cvtps_epi32(-1, reinterpret_cast<__m512>(own * by))); };
    const __m256i own = _mm256_set_m128i(bytes(load(x + LANES)), bytes(load(x)));
    const __m256i sums = _mm256_sad_epu8(_mm256_xor_si256(own, _mm256_set1_epi8(-128)), _mm256_setzero_si256());
    const __m128i two = _mm_add_epi64(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    const int32_t sum = int32_t(_mm_extract_epi64(two, 0) + _mm_extract_epi64(two, 1)) - 128 * int32_t(UNIT);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), Fours<Coded>::ordered(own));
    return {scale, -Fours<Coded>::OFFSET * sum};
}

// The codes of INTERLEAVED outputs of a matrix.
template <class Coded> struct InterleavedCodes {
    const Codes& own;
    const uint8_t *codes, *scales, *zeros;
    int64_t bytes_ahead;  // the distance to the next outputs' codes

    InterleavedCodes(const Matrix& matrix, int64_t output)
        : own(*matrix.codes), codes(static_cast<const uint8_t*>(matrix.weight) + output * matrix.weight_stride),
          scales(static_cast<const uint8_t*>(own.scales) + output * own.groups * own.scale_bytes()),
          zeros(own.zeros ? own.zeros + output * own.groups : nullptr), bytes_ahead(INTERLEAVED * matrix.weight_stride) {}

    static constexpr int64_t bytes(int64_t inputs) { return inputs * Coded::BITS / 8; }  // of one output

    // Return how many inputs, from i to at most `end`, have one scale of x, and so are added as integers.
    template <class Panel> static int64_t inputs_of_scale(int64_t i, int64_t end) { return Panel::BY_ROW ? end - i : UNIT; }

    // Return the factors of a group's sums. Also prefetch those of the next outputs, so that they arrive in time.
    F scale(int64_t g) const {
        const uint8_t* at = scales + g * INTERLEAVED * own.scale_bytes();
        prefetch(at + own.groups * INTERLEAVED * own.scale_bytes());
        return scales_at(at, own.scale_type);
    }
    // Return OFFSET - zero of a group in each byte of a lane.
    U above(int64_t g) const {
        constexpr uint32_t OFFSET = Fours<Coded>::OFFSET;
        if (!zeros) return (U{} + (OFFSET - uint32_t(own.zero))) * 0x01010101u;
        const uint8_t* at = zeros + g * INTERLEAVED;
        prefetch(at + own.groups * INTERLEAVED);
        return (OFFSET - widened(at)) * 0x01010101u;
    }
};

// How rows are packed for interleaved codes: integers, followed by the UnitOfRow of each unit. BY_ROW: all units of a row
// have the row's scale (W8A8).
template <class Stored_, class Coded_, bool BY_ROW_ = false> struct InterleavedPanel {
    using Stored = Stored_;
    using Coded = Coded_;
    static constexpr bool BY_ROW = BY_ROW_;
    using Number = int8_t;
    static constexpr int TILE_DEPTH = BY_ROW ? 64 : 32;  // inputs of a row in a tile
    static constexpr bool PACKS = true;
    static int64_t stride(int64_t inputs) {
        const int64_t whole = padded(inputs) + padded(inputs) / UNIT * sizeof(UnitOfRow);
        return spread<Number>((whole + 63) / 64 * 64);
    }
    static void pack(const Stored* x, int64_t inputs, int8_t* to) {
        Stored rest[UNIT] = {};
        const int64_t full = inputs / UNIT * UNIT;
        std::copy_n(x + full, inputs - full, rest);
        auto each = [&](auto&& visit) {
            for (int64_t i = 0; i < inputs; i += UNIT) visit(i < full ? x + i : rest, i);
        };
        uint32_t of_row = 0;
        if (BY_ROW) each([&](const Stored* unit, int64_t) { of_row = std::max(of_row, size_of_unit(unit)); });
        auto* units = reinterpret_cast<UnitOfRow*>(to + padded(inputs));
        each([&](const Stored* unit, int64_t i) {
            UnitOfRow& own = *units++ = round_unit<Coded>(unit, BY_ROW ? of_row : size_of_unit(unit), to + i);
            if (BY_ROW && i % INTEGER_BLOCK) own.offset += (&own - 1)->offset;
        });
    }
};

// Tiles read whole tiles of rows.
template <class Stored, class Coded, bool BY_ROW> struct PanelTraits<InterleavedPanel<Stored, Coded, BY_ROW>> {
    static constexpr bool PACKS_BLOCKS = false;
    static int64_t packed_rows(int64_t rows) { return whole_tiles(rows); }
};

// Return the index of the last unit of `count` inputs from i on.
inline int64_t last_unit(int64_t i, int64_t count) { return (i + count) / UNIT - 1; }

// to[r] += x[r] . W for R rows, over `count` inputs from `first` on. whole: the offset of the units' data in a row. ahead:
// the distance from the codes to prefetch, or 0 for none.
template <class Panel, int R, class Coded = typename Panel::Coded>
inline void interleaved_tile(const int8_t* x, int64_t x_stride, int64_t whole, const InterleavedCodes<Coded>& w, int64_t first,
                             int64_t count, int64_t ahead, F* to) {
    using Own = Fours<Coded>;
    constexpr int64_t LINES = w.bytes(UNIT) / LANE_BYTES;
    const uint8_t* codes = w.codes + w.bytes(first) * INTERLEAVED;
    F total[R];
    for (int r = 0; r < R; ++r) total[r] = to[r];
    for (int64_t i = first, g = first / w.own.group; i < first + count; ++g) {
        const F scale = w.scale(g);
        const U above = w.above(g);
        F of_group[R] = {};
        const int64_t end = std::min((g + 1) * w.own.group, first + count);
        for (const int64_t step = w.template inputs_of_scale<Panel>(i, end); i < end;) {
            const int8_t* unit = x + whole + last_unit(i, step) * int64_t(sizeof(UnitOfRow));
            __m512i sum[R];
#pragma GCC unroll 12
            for (int r = 0; r < R; ++r) {
                int32_t offset;
                std::memcpy(&offset, unit + r * x_stride + offsetof(UnitOfRow, offset), sizeof(offset));
                sum[r] = _mm512_set1_epi32(offset);
            }
            for (const int64_t last = i + step; i < last; i += UNIT) {
                // Each unit of a row with one scale has a chain of its own, because one chain would wait for each instruction.
                __m512i chain[R];
#pragma GCC unroll 12
                for (int r = 0; r < R; ++r) chain[r] = Panel::BY_ROW ? _mm512_setzero_si512() : sum[r];
#pragma GCC unroll 8
                for (int64_t line = 0; line < LINES; ++line, codes += 64) {
                    U own;
                    std::memcpy(&own, codes, sizeof(own));
                    if (ahead) prefetch(codes + ahead);
                    const Own fours(own, above);
#pragma GCC unroll 2
                    for (int k = 0; k < Own::COUNT; ++k)
#pragma GCC unroll 12
                        for (int r = 0; r < R; ++r) {
                            int32_t four;
                            std::memcpy(&four, x + r * x_stride + i + (line * Own::COUNT + k) * 4, sizeof(four));
                            chain[r] = _mm512_dpbusd_epi32(chain[r], reinterpret_cast<__m512i>(fours.at[k]), _mm512_set1_epi32(four));
                        }
                }
#pragma GCC unroll 12
                for (int r = 0; r < R; ++r) sum[r] = Panel::BY_ROW ? _mm512_add_epi32(sum[r], chain[r]) : chain[r];
            }
#pragma GCC unroll 12
            for (int r = 0; r < R; ++r) {
                float own;
                std::memcpy(&own, unit + r * x_stride, sizeof(own));
                of_group[r] += __builtin_convertvector(reinterpret_cast<I>(sum[r]), F) * own;
            }
        }
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) total[r] += of_group[r] * scale;
    }
    for (int r = 0; r < R; ++r) to[r] = total[r];
}

#ifdef TILES

constexpr int64_t LEAST_TILE_ROWS = TILE_SIDE;  // with fewer rows, tiles are not filled, and memory is slower than arithmetic
inline bool fill_tiles(int64_t rows) { return rows >= LEAST_TILE_ROWS; }

// The same for any number of rows, by tiles, including the steps that round.
template <class Panel, class Coded = typename Panel::Coded>
inline void interleaved_tiles(const TileRows<int8_t>& x, int64_t rows, int64_t whole, const InterleavedCodes<Coded>& w, int64_t first,
                              int64_t count, F* to) {
    constexpr int DEPTH = Panel::TILE_DEPTH, TILES_AT_ONCE = 4;
    alignas(64) int32_t sums[TILES_AT_ONCE * TILE_SIDE][TILE_SIDE];
    alignas(64) uint8_t unpacked[UNIT * INTERLEAVED];
    F of_group[MAX_ROWS];
    for (int64_t i = first, g = first / w.own.group; i < first + count; ++g) {
        const F scale = w.scale(g);
        const U above = w.above(g);
        std::fill_n(of_group, rows, F{});
        const int64_t end = std::min((g + 1) * w.own.group, first + count);
        for (const int64_t step = w.template inputs_of_scale<Panel>(i, end); i < end; i += step) {
            const uint8_t* codes = w.codes + w.bytes(i) * INTERLEAVED;
            prefetch(codes + w.bytes_ahead, w.bytes(step) * INTERLEAVED);
            if constexpr (Fours<Coded>::COUNT > 1) codes = unpack_unit<Coded>(codes, above, unpacked);
            for (int64_t r = 0; r < rows; r += TILES_AT_ONCE * TILE_SIDE) {
                const int64_t there = std::min(rows - r, int64_t(TILES_AT_ONCE * TILE_SIDE));
                const auto multiply = there > 48   ? multiply_bytes<4, DEPTH>
                                      : there > 32 ? multiply_bytes<3, DEPTH>
                                      : there > 16 ? multiply_bytes<2, DEPTH>
                                                   : multiply_bytes<1, DEPTH>;
                multiply(x.at + r * x.stride + i, x.stride, codes, step, sums);
                for (int64_t own = 0; own < there; ++own) {
                    UnitOfRow unit;
                    std::memcpy(&unit, x.at + (r + own) * x.stride + whole + last_unit(i, step) * sizeof(unit), sizeof(unit));
                    I integers;
                    std::memcpy(&integers, sums[own], sizeof(integers));
                    of_group[r + own] += __builtin_convertvector(integers + unit.offset, F) * unit.scale;
                }
            }
        }
        for (int64_t r = 0; r < rows; ++r) to[r] += of_group[r] * scale;
    }
}

#endif

// Multiply a block of rows with INTERLEAVED outputs.
template <class Panel, class Coded = typename Panel::Coded>
inline void multiply(const TileRows<int8_t>& x, int64_t rows, const InterleavedCodes<Coded>& w, int64_t inputs, F* to) {
    constexpr int ROWS = Fours<Coded>::ROWS;
    const int64_t whole = padded(inputs), tiles = (rows + ROWS - 1) / ROWS;
    std::fill_n(to, rows, F{});
    for (int64_t i = 0; i < whole; i += INTEGER_BLOCK) {
        const int64_t count = std::min(INTEGER_BLOCK, whole - i);
#ifdef TILES
        if (fill_tiles(rows)) {
            interleaved_tiles<Panel>(x, rows, whole, w, i, count, to);
            continue;
        }
#endif
        int64_t ahead = rows <= FEW_TO_FETCH_FOR ? PAGE : w.bytes_ahead;
        for (int64_t turn = 0, r = 0; turn < tiles; ++turn, ahead = 0) {
            const int64_t own = (rows - r + tiles - turn - 1) / (tiles - turn);  // as evenly as possible
            [&]<int... R>(std::integer_sequence<int, R...>) {
                ((own == R + 1 ? interleaved_tile<Panel, R + 1>(x.at + r * x.stride, x.stride, whole, w, i, count, ahead, to + r)
                               : void()),
                 ...);
            }(std::make_integer_sequence<int, ROWS>());
            r += own;
        }
    }
}

// How a call is cut into items: like Cut of product.h, in whole panels.
struct InterleavedCut : Cut {
    InterleavedCut(const Rows& x, int64_t row_bytes) : Cut(x, even_rows(x.count, rows_of_block(x.width, 1)), row_bytes) {
        outputs = (outputs + INTERLEAVED - 1) / INTERLEAVED * INTERLEAVED;
    }
};

// A block of rows of x, and their sums with a panel, including the bias.
template <class Panel> struct InterleavedBlock {
    using Stored = typename Panel::Stored;
    int64_t first, rows, inputs;
    PackedRows<Panel> packed;
    F sums[MAX_ROWS];
#ifdef TILES
    std::optional<TilesInUse> in_use;
#endif

    InterleavedBlock(const Rows& x, const Cut& cut, int64_t block)
        : first(block * cut.rows), rows(std::min(cut.rows, x.count - first)), inputs(x.width),
          packed(static_cast<const Stored*>(x.at) + first * x.stride, x.stride, rows, inputs, cut.call, block) {
#ifdef TILES
        if (fill_tiles(rows)) in_use.emplace(Panel::TILE_DEPTH);
#endif
    }

    const F* run(const Matrix& matrix, int64_t output) {
        multiply<Panel>(packed, rows, InterleavedCodes<typename Panel::Coded>(matrix, output), inputs, sums);
        if (matrix.bias) {
            const F bias = load(static_cast<const Stored*>(matrix.bias) + output);
            for (int64_t r = 0; r < rows; ++r) sums[r] += bias;
        }
        return sums;
    }
};

template <class Panel, class Out> void interleaved_products(Pool& pool, const Rows& x, int count, const Matrix* matrices) {
    const InterleavedCut cut(x, InterleavedCodes<typename Panel::Coded>::bytes(x.width));
    int64_t all = 0;
    for (int m = 0; m < count; ++m) all += cut.slices(matrices[m]);
    pool.run(int(cut.blocks * all), [&](int item) {
        InterleavedBlock<Panel> block(x, cut, item / all);
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

template <class Panel>
void interleaved_gated_products(Pool& pool, const Rows& x, const Matrix& gate, const Matrix& up, const Gate& by) {
    using Stored = typename Panel::Stored;
    const InterleavedCut cut(x, 2 * InterleavedCodes<typename Panel::Coded>::bytes(x.width));
    const int64_t all = cut.slices(gate);
    pool.run(int(cut.blocks * all), [&](int item) {
        InterleavedBlock<Panel> block(x, cut, item / all);
        F gates[MAX_ROWS];
        Stored* y = static_cast<Stored*>(gate.y) + block.first * gate.y_stride;
        for (int64_t o = item % all * cut.outputs; o < std::min((item % all + 1) * cut.outputs, gate.outputs); o += INTERLEAVED) {
            std::copy_n(block.run(gate, o), block.rows, gates);
            const F* ups = block.run(up, o);
            for (int64_t r = 0; r < block.rows; ++r) store(y + r * gate.y_stride + o, gated(by, gates[r], ups[r]));
        }
    });
}

}  // namespace

#endif
