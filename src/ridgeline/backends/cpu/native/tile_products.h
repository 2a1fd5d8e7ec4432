// Products of bf16 by tiles (tiles.h). W stays as checkpoints store it, because 32 inputs of 16 of its rows are a tile. Rows of
// x are packed once per block, as the second operand of a product: [pair of inputs][row][2].
//
// The sum of an output is a chain over its inputs, 32 at a time. The same chain results if W is read in another way. 32 x 16
// inputs of one row of W are a contiguous kilobyte. If row i of a tile is its i-th piece of 32, and column i of the other tile
// the i-th piece of x, then the diagonal of their product has the terms of the chain. So one row of x is multiplied while memory
// is read as one stream, and its result is the same, bit for bit, as in any batch. Only a zero may have another sign.
#pragma once

#include "product.h"
#include "tiles.h"

#ifdef TILES

namespace {

constexpr int64_t TILE_NUMBERS = TILE_SIDE * TILE_INPUTS;  // bf16 numbers of a tile
// Inputs of a panel of W that pass by all rows before the next ones; also those of a diagonal. They fit in the first-level cache,
// unless rows of W are a multiple of 4 KB apart.
constexpr int64_t TILE_BLOCK = TILE_NUMBERS;
// Maximum number of rows for diagonals. Each of them takes a tile for a kilobyte of W, which should take less time than memory
// needs for the kilobyte; this was never measured.
constexpr int64_t DIAGONAL_ROWS = 4;
constexpr int64_t TILE_HALF = TILE_SIDE * MAX_ROWS;  // sums of half a panel
constexpr int64_t TILE_ROW_BYTES = 1 << 20;          // size of a block of x: processors with tiles have 2 MB of L2 per core

// Write 16 rows of 32 numbers, of which row_at(i) is the i-th, as the second operand of a product.
template <class RowAt> inline void pack_tile(const RowAt& row_at, bf16* to) {
    for (int row = 0; row < TILE_SIDE; row += LANES)
        for (int pair = 0; pair < TILE_SIDE; pair += LANES) {
            F pairs[LANES];
            for (int i = 0; i < LANES; ++i) std::memcpy(pairs + i, row_at(row + i) + 2 * pair, sizeof(F));
            transpose(pairs);
            for (int i = 0; i < LANES; ++i) std::memcpy(to + 2 * ((pair + i) * TILE_SIDE + row), pairs + i, sizeof(F));
        }
}

// Up to 32 rows of W, from one matrix or two.
struct TilePanel {
    using Stored = bf16;
    using Number = bf16;
    static constexpr bool PACKS = true;
    static constexpr int64_t NUMBER_BYTES = sizeof(bf16);
    static constexpr int64_t bytes(int64_t inputs) { return inputs * int64_t(sizeof(bf16)); }
    static int64_t stride(int64_t inputs) { return (inputs + TILE_BLOCK - 1) / TILE_BLOCK * TILE_BLOCK; }
    static int64_t place(int64_t input, int64_t) { return input; }

    // Pack rows of x, of which row_of(r) is the r-th. A few rows are packed one after the other, in pieces of 32 inputs, for
    // products by diagonals. For others, the layout is [32 inputs][16 rows].
    template <class RowOf> static void pack_rows(const RowOf& row_of, int64_t rows, int64_t inputs, bf16* to) {
        static constexpr bf16 zeros[TILE_INPUTS] = {};
        bf16 last[TILE_SIDE][TILE_INPUTS];
        // Return 32 inputs of row r, padded with zeros. slot: the place in the tile.
        auto piece = [&](int64_t r, int64_t input, int slot) -> const bf16* {
            if (r >= rows || input >= inputs) return zeros;
            if (input + TILE_INPUTS <= inputs) return row_of(r) + input;
            std::copy_n(row_of(r) + input, inputs - input, last[slot]);
            std::fill(last[slot] + (inputs - input), last[slot] + TILE_INPUTS, bf16(0));
            return last[slot];
        };
        if (rows <= DIAGONAL_ROWS) {
            for (int64_t r = 0; r < rows; ++r)
                for (int64_t first = 0; first < inputs; first += TILE_BLOCK, to += TILE_NUMBERS)
                    pack_tile([&](int i) { return piece(r, first + i * TILE_INPUTS, i); }, to);
            return;
        }
        for (int64_t input = 0; input < inputs; input += TILE_INPUTS)
            for (int64_t r = 0; r < rows; r += TILE_SIDE, to += TILE_NUMBERS)
                pack_tile([&](int i) { return piece(r + i, input, i); }, to);
    }

    const bf16* w[2];
    int64_t strides[2], outputs[2];
    int halves;
    int64_t ahead;

    TilePanel(int halves, int64_t ahead) : halves(halves), ahead(ahead) {}

    void fill(int half, const Matrix& matrix, int64_t first, int64_t count) {
        w[half] = static_cast<const bf16*>(matrix.weight) + first * matrix.weight_stride;
        strides[half] = matrix.weight_stride, outputs[half] = std::min<int64_t>(count, TILE_SIDE);
        prefetch_pages(w[half] + ahead, TILE_SIDE * matrix.weight_stride * sizeof(bf16));
    }
};

// Load 32 inputs of half a panel, padded with zeros.
template <int TILE> inline void load_outputs(const TilePanel& panel, int half, int64_t input, int64_t inputs) {
    const bf16* from = panel.w[half] + input;
    if (panel.outputs[half] == TILE_SIDE && input + TILE_INPUTS <= inputs)
        return load_tile<TILE>(from, panel.strides[half] * sizeof(bf16));
    alignas(64) bf16 staged[TILE_SIDE][TILE_INPUTS] = {};
    for (int64_t o = 0; o < panel.outputs[half]; ++o)
        std::copy_n(from + o * panel.strides[half], std::min(TILE_INPUTS, inputs - input), staged[o]);
    load_tile<TILE>(staged, TILE_BYTES);
}

// Prefetch the part of the next panel that corresponds to 32 inputs of this one. All parts together read rows of W one after
// the other, as one stream.
inline void prefetch_next(const TilePanel& panel, int half, int64_t input, int64_t inputs) {
    const int64_t place = input * TILE_SIDE;
    prefetch(panel.w[half] + panel.ahead + place / inputs * panel.strides[half] + place % inputs, TILE_NUMBERS);
}

// Add the products of `end - first` inputs to the sums of 16 or 32 rows and of a panel. x: the rows' first tile. x_step: the
// distance to the tile of the next inputs. The sums are outputs x rows.
template <int HALVES, int TILES_OF_X>
inline void multiply_tiles(const bf16* x, int64_t x_step, const TilePanel& panel, int64_t first, int64_t end, int64_t inputs,
                           bool fetch, float* to) {
    constexpr int64_t STRIDE = MAX_ROWS * sizeof(float);
    if (first == 0) {
        zero_tile<0>(), zero_tile<1>(), zero_tile<2>(), zero_tile<3>();
    } else {
        load_tile<0>(to, STRIDE);
        if constexpr (TILES_OF_X == 2) load_tile<1>(to + TILE_SIDE, STRIDE);
        if constexpr (HALVES == 2) load_tile<2>(to + TILE_HALF, STRIDE);
        if constexpr (HALVES == 2 && TILES_OF_X == 2) load_tile<3>(to + TILE_HALF + TILE_SIDE, STRIDE);
    }
    for (int64_t input = first; input < end; input += TILE_INPUTS) {
        const bf16* own = x + input / TILE_INPUTS * x_step;
        load_outputs<4>(panel, 0, input, inputs);
        load_tile<6>(own, TILE_BYTES);
        add_bf16_products<0, 4, 6>();
        if constexpr (TILES_OF_X == 2) load_tile<7>(own + TILE_NUMBERS, TILE_BYTES), add_bf16_products<1, 4, 7>();
        if constexpr (HALVES == 2) load_outputs<5>(panel, 1, input, inputs), add_bf16_products<2, 5, 6>();
        if constexpr (HALVES == 2 && TILES_OF_X == 2) add_bf16_products<3, 5, 7>();
        if (fetch)
            for (int half = 0; half < HALVES; ++half) prefetch_next(panel, half, input, inputs);
    }
    store_tile<0>(to, STRIDE);
    if constexpr (TILES_OF_X == 2) store_tile<1>(to + TILE_SIDE, STRIDE);
    if constexpr (HALVES == 2) store_tile<2>(to + TILE_HALF, STRIDE);
    if constexpr (HALVES == 2 && TILES_OF_X == 2) store_tile<3>(to + TILE_HALF + TILE_SIDE, STRIDE);
}

// The same sums for a few rows, by diagonals.
inline void multiply_by_diagonals(const TileRows<bf16>& x, int64_t rows, const TilePanel& panel, int64_t inputs, float* to) {
    thread_local Scratch<float> scratch;
    const int64_t pieces = x.stride / TILE_INPUTS;
    float* terms = scratch.of(rows * pieces * TILE_SIDE);  // [row][piece][output]
    alignas(64) float products[TILE_SIDE * TILE_SIDE];
    alignas(64) bf16 last[TILE_BLOCK];
    for (int half = 0; half < panel.halves; ++half) {
        for (int64_t o = 0; o < panel.outputs[half]; ++o)
            for (int64_t first = 0; first < inputs; first += TILE_BLOCK) {
                const bf16* from = panel.w[half] + o * panel.strides[half] + first;
                prefetch(from + PAGE / int64_t(sizeof(bf16)), TILE_BLOCK);
                if (const int64_t left = inputs - first; left < TILE_BLOCK) {
                    std::fill(std::copy_n(from, left, last), last + TILE_BLOCK, bf16(0));
                    from = last;
                }
                load_tile<4>(from, TILE_BYTES);
                for (int64_t r = 0; r < rows; ++r) {
                    load_tile<6>(x.at + r * x.stride + first, TILE_BYTES);
                    zero_tile<0>();
                    add_bf16_products<0, 4, 6>();
                    store_tile<0>(products, TILE_BYTES);
                    float* own = terms + (r * pieces + first / TILE_INPUTS) * TILE_SIDE + o;
                    for (int i = 0; i < TILE_SIDE; ++i) own[i * TILE_SIDE] = products[i * (TILE_SIDE + 1)];
                }
            }
        for (int64_t r = 0; r < rows; ++r) {
            float sums[TILE_SIDE] = {};
            const float* own = terms + r * pieces * TILE_SIDE;
            for (int64_t input = 0; input < inputs; input += TILE_INPUTS, own += TILE_SIDE)
                for (int o = 0; o < TILE_SIDE; ++o) sums[o] = without_subnormals(sums[o] + own[o]);
            for (int64_t o = 0; o < panel.outputs[half]; ++o) to[half * TILE_HALF + o * MAX_ROWS + r] = sums[o];
        }
    }
}

// The `multiply` of product.h for tiles.
inline void multiply(const TileRows<bf16>& x, int64_t rows, const TilePanel& panel, int64_t inputs, float* to) {
    if (rows <= DIAGONAL_ROWS) return multiply_by_diagonals(x, rows, panel, inputs, to);
    const int64_t tiles = whole_tiles(rows) / TILE_SIDE;
    const int64_t block = tiles <= 2 ? inputs : TILE_BLOCK;  // W passes by two tiles of rows only once
    for (int64_t first = 0; first < inputs; first += block)
        for (int64_t tile = 0; tile < tiles; tile += 2) {
            const bool two = tile + 1 < tiles;
            const auto own = panel.halves == 2 ? (two ? multiply_tiles<2, 2> : multiply_tiles<2, 1>)
                                               : (two ? multiply_tiles<1, 2> : multiply_tiles<1, 1>);
            own(x.at + tile * TILE_NUMBERS, tiles * TILE_NUMBERS, panel, first, std::min(first + block, inputs), inputs,
                tile == 0, to + tile * TILE_SIDE);
        }
}

// The sums of a panel for a number of rows: output after output, each with its rows.
struct TileSums {
    int64_t rows;
    alignas(64) float at[2 * TILE_HALF];

    explicit TileSums(int64_t rows) : rows(rows) {}

    float of(int64_t row, int64_t output) const { return at[output * MAX_ROWS + row]; }

    void add_bias(const Matrix& matrix, int64_t output, int64_t count, int half) {
        if (!matrix.bias) return;
        for (int64_t o = 0; o < count; ++o) {
            const float bias = get(static_cast<const bf16*>(matrix.bias) + output + o);
            float* own = at + half * TILE_HALF + o * MAX_ROWS;
            for (int64_t r = 0; r < rows; ++r) own[r] += bias;
        }
    }
    void gate(const Gate& gate) {
        for (int64_t o = 0; o < TILE_SIDE; ++o)
            for (int64_t r = o * MAX_ROWS; r < o * MAX_ROWS + rows; r += LANES)  // values after the last row are dropped
                store(at + r, gated(gate, load(at + r), load(at + TILE_HALF + r)));
    }
};

// Writes outputs to their place as rows. A panel has a whole cache line of each row, so nothing is collected.
template <class Out> struct TileLines {
    template <int HALVES, class Block> void add(const Block& block, const Matrix& matrix, int64_t output, int64_t count, int64_t) {
        Out* y = static_cast<Out*>(matrix.y) + block.first * matrix.y_stride + output;
        for (int64_t r = 0; r < block.rows; r += LANES)
            for (int64_t o = 0; o < std::min<int64_t>(count, HALVES * TILE_SIDE); o += LANES) {
                F own[LANES];
                for (int i = 0; i < LANES; ++i) own[i] = load(block.at + (o + i) * MAX_ROWS + r);
                transpose(own);
                for (int64_t row = r; row < std::min(r + LANES, block.rows); ++row)
                    put_row(own[row - r], std::min<int64_t>(count - o, LANES), y + row * matrix.y_stride + o);
            }
    }

  private:
    static void put_row(F numbers, int64_t count, Out* to) {
        if (count == LANES) return store(to, numbers);
        Out whole[LANES];
        store(whole, numbers);
        std::copy_n(whole, count, to);
    }
};

// How a call is cut into items: like Cut of product.h, in whole tiles.
struct TileCut : Cut {
    TileCut(const Rows& x, int64_t row_bytes) : Cut(x, even_tiles(x.count, rows_of_tile_block(x.width)), row_bytes) {
        // With many rows, two tiles of outputs keep the units busy. With few, memory is the limit, and all threads need items.
        const int64_t unit = x.count > 2 * TILE_SIDE ? 2 * TILE_SIDE : TILE_SIDE;
        outputs = (outputs + unit - 1) / unit * unit;
    }

    static int64_t rows_of_tile_block(int64_t inputs) {
        return std::clamp(TILE_ROW_BYTES / TilePanel::bytes(TilePanel::stride(inputs)) / (2 * TILE_SIDE) * 2 * TILE_SIDE,
                          int64_t(2 * TILE_SIDE), MAX_ROWS);
    }

  private:
    static int64_t even_tiles(int64_t rows, int64_t most) {
        const int64_t even = even_rows(rows, most);
        return even <= DIAGONAL_ROWS ? even : whole_tiles(even);
    }
};

template <> struct PanelTraits<TilePanel> {
    using Sums = TileSums;
    template <class Out> using Lines = TileLines<Out>;
    using Cut = TileCut;
    struct InUse : TilesInUse {
        InUse() : TilesInUse(TILE_BYTES) {}
    };
    static constexpr int64_t HALF_OUTPUTS = TILE_SIDE;
    static constexpr bool PACKS_BLOCKS = true;
    static int64_t rows_of_block(int64_t inputs) { return TileCut::rows_of_tile_block(inputs); }
    // Return the number of rows for which packed ones take memory.
    static int64_t packed_rows(int64_t rows) { return rows <= DIAGONAL_ROWS ? rows : whole_tiles(rows); }
};

}  // namespace

#endif
