// AMX: eight registers of up to 16 rows of 64 bytes, called tiles, and the instructions that add the product of two tiles to a
// third ("Intel Advanced Matrix Extensions" in Intel's Architecture Instruction Set Extensions Programming Reference). With
// EMULATED_TILES, plain C++ computes what the reference specifies, so that the kernels can be tested on any processor.
//
// This file knows nothing of vector registers (lanes.h).
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#ifdef EMULATED_TILES
#include <cstdlib>
#endif

namespace {

constexpr int TILE_SIDE = 16;        // rows of a tile, and 32-bit numbers in each
constexpr int64_t TILE_BYTES = 64;   // of a row
constexpr int64_t TILE_INPUTS = 32;  // bf16 inputs of a row
constexpr int FIRST_OPERAND = 4;     // tiles 0 to 3 hold sums, 4 and 5 the first operands of products, 6 and 7 the second ones

// Return a number of rows or columns, rounded up to whole tiles.
constexpr int64_t whole_tiles(int64_t count) { return (count + TILE_SIDE - 1) / TILE_SIDE * TILE_SIDE; }

// The shapes of all tiles: `depth` bytes of a row are multiplied, so the first operands have `depth` bytes in a row, and the
// second ones have depth / 4 rows. The layout is that of the instruction LDTILECFG.
struct alignas(64) TileShapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};

    explicit constexpr TileShapes(int depth) {
        for (int tile = 0; tile < 8; ++tile) row_bytes[tile] = TILE_BYTES, rows[tile] = TILE_SIDE;
        for (int tile = FIRST_OPERAND; tile < FIRST_OPERAND + 2; ++tile)
            row_bytes[tile] = depth, rows[tile + 2] = depth / 4;
    }
};
static_assert(sizeof(TileShapes) == 64);

// Products of bf16 turn numbers below the normal numbers of fp32 into 0, in operands and in results.
inline float without_subnormals(float x) { return std::fabs(x) < FLT_MIN ? std::copysign(0.0f, x) : x; }

#ifdef EMULATED_TILES

struct EmulatedTiles {
    TileShapes shapes{0};
    bool configured = false;
    alignas(64) uint8_t at[8][TILE_SIDE][TILE_BYTES];
};
// A processor raises an exception where this aborts: tiles that are not configured, or whose shapes do not fit.
inline void require(bool valid) {
    if (!valid) std::abort();
}
inline EmulatedTiles& tiles_of_thread() {
    thread_local EmulatedTiles tiles;
    return tiles;
}
inline EmulatedTiles& emulated_tiles() {
    require(tiles_of_thread().configured);
    return tiles_of_thread();
}
// Return the tiles for a product, after the checks of the instruction.
template <int SUM, int FIRST, int SECOND> inline EmulatedTiles& tiles_of_product() {
    static_assert(SUM != FIRST && SUM != SECOND && FIRST != SECOND);
    EmulatedTiles& tiles = emulated_tiles();
    const TileShapes& shapes = tiles.shapes;
    require(shapes.row_bytes[FIRST] > 0 && shapes.rows[FIRST] == shapes.rows[SUM] && shapes.row_bytes[SECOND] == shapes.row_bytes[SUM] &&
            shapes.rows[SECOND] * 4 == shapes.row_bytes[FIRST]);
    return tiles;
}

inline void configure_tiles(const TileShapes& shapes) {
    EmulatedTiles& tiles = tiles_of_thread();
    tiles.shapes = shapes, tiles.configured = true;
    std::memset(tiles.at, 0, sizeof(tiles.at));
}
inline void release_tiles() { tiles_of_thread().configured = false; }

template <int TILE> inline void zero_tile() { std::memset(emulated_tiles().at[TILE], 0, sizeof(emulated_tiles().at[TILE])); }
template <int TILE> inline void load_tile(const void* from, int64_t stride) {
    EmulatedTiles& tiles = emulated_tiles();
    zero_tile<TILE>();
    for (int row = 0; row < tiles.shapes.rows[TILE]; ++row)
        std::memcpy(tiles.at[TILE][row], static_cast<const uint8_t*>(from) + row * stride, tiles.shapes.row_bytes[TILE]);
}
template <int TILE> inline void store_tile(void* to, int64_t stride) {
    const EmulatedTiles& tiles = emulated_tiles();
    for (int row = 0; row < tiles.shapes.rows[TILE]; ++row)
        std::memcpy(static_cast<uint8_t*>(to) + row * stride, tiles.at[TILE][row], tiles.shapes.row_bytes[TILE]);
}

inline float tile_number(const uint8_t* bf16) {
    uint32_t wide = 0;
    std::memcpy(reinterpret_cast<uint8_t*>(&wide) + 2, bf16, 2);
    float x;
    std::memcpy(&x, &wide, 4);
    return without_subnormals(x);
}

// TDPBF16PS. The instruction adds the products of numbers at even places in one chain and those at odd places in another, both
// from 0 on, then one chain to the other, and that to the sum. Each step rounds to nearest.
template <int SUM, int FIRST, int SECOND> inline void add_bf16_products() {
    EmulatedTiles& tiles = tiles_of_product<SUM, FIRST, SECOND>();
    const int pairs = tiles.shapes.row_bytes[FIRST] / 4;
    for (int row = 0; row < tiles.shapes.rows[FIRST]; ++row)
        for (int column = 0; column < TILE_SIDE; ++column) {
            float chains[2] = {};
            for (int pair = 0; pair < pairs; ++pair)
                for (int odd = 0; odd < 2; ++odd)
                    chains[odd] = without_subnormals(std::fma(tile_number(tiles.at[FIRST][row] + 4 * pair + 2 * odd),
                                                              tile_number(tiles.at[SECOND][pair] + 4 * column + 2 * odd), chains[odd]));
            float sum;
            std::memcpy(&sum, tiles.at[SUM][row] + 4 * column, 4);
            sum = without_subnormals(without_subnormals(sum) + without_subnormals(chains[0] + chains[1]));
            std::memcpy(tiles.at[SUM][row] + 4 * column, &sum, 4);
        }
}

// TDPBSUD: signed bytes by unsigned ones, summed in 32 bits.
template <int SUM, int FIRST, int SECOND> inline void add_byte_products() {
    EmulatedTiles& tiles = tiles_of_product<SUM, FIRST, SECOND>();
    for (int row = 0; row < tiles.shapes.rows[FIRST]; ++row)
        for (int column = 0; column < TILE_SIDE; ++column) {
            uint32_t sum;  // unsigned, because it may wrap around
            std::memcpy(&sum, tiles.at[SUM][row] + 4 * column, 4);
            for (int i = 0; i < tiles.shapes.row_bytes[FIRST]; ++i)
                sum += int8_t(tiles.at[FIRST][row][i]) * int32_t(tiles.at[SECOND][i / 4][4 * column + i % 4]);
            std::memcpy(tiles.at[SUM][row] + 4 * column, &sum, 4);
        }
}

#else

// The compiler's own functions for tiles are macros that take only literal numbers of tiles.
inline void configure_tiles(const TileShapes& shapes) { asm volatile("ldtilecfg %0" ::"m"(shapes)); }
inline void release_tiles() { asm volatile("tilerelease"); }

template <int TILE> inline void zero_tile() { asm volatile("tilezero %%tmm%c0" ::"i"(TILE)); }
template <int TILE> inline void load_tile(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(TILE) : "memory");
}
template <int TILE> inline void store_tile(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(TILE) : "memory");
}
template <int SUM, int FIRST, int SECOND> inline void add_bf16_products() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUM), "i"(FIRST), "i"(SECOND));
}
template <int SUM, int FIRST, int SECOND> inline void add_byte_products() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUM), "i"(FIRST), "i"(SECOND));
}

#endif

// to[r][o] = the sum of x[r] * code of o over `count` bytes of each, for COUNT x 16 rows and 16 outputs. DEPTH: bytes of a row of
// x in a tile. The codes are in lines: four inputs of each output, then the next four. If count is not a multiple of DEPTH, the
// codes that are missing count as 0. x may have any bytes there.
template <int COUNT, int DEPTH>
inline void multiply_bytes(const int8_t* x, int64_t x_stride, const uint8_t* codes, int64_t count, int32_t (*to)[TILE_SIDE]) {
    constexpr int64_t CODES = DEPTH * TILE_SIDE;  // bytes of a tile of codes
    zero_tile<0>(), zero_tile<1>(), zero_tile<2>(), zero_tile<3>();
    for (int64_t i = 0; i < count; i += DEPTH, codes += CODES) {
        alignas(64) uint8_t last[CODES];
        if (count - i < DEPTH) {
            const int64_t there = (count - i) * TILE_SIDE;
            std::memcpy(last, codes, there), std::memset(last + there, 0, CODES - there);
            load_tile<6>(last, TILE_BYTES);
        } else {
            load_tile<6>(codes, TILE_BYTES);
        }
        const auto rows = [&](int tile) { return x + tile * TILE_SIDE * x_stride + i; };
        load_tile<4>(rows(0), x_stride), add_byte_products<0, 4, 6>();
        if constexpr (COUNT > 1) load_tile<5>(rows(1), x_stride), add_byte_products<1, 5, 6>();
        if constexpr (COUNT > 2) load_tile<4>(rows(2), x_stride), add_byte_products<2, 4, 6>();
        if constexpr (COUNT > 3) load_tile<5>(rows(3), x_stride), add_byte_products<3, 5, 6>();
    }
    store_tile<0>(to, TILE_BYTES);
    if constexpr (COUNT > 1) store_tile<1>(to + TILE_SIDE, TILE_BYTES);
    if constexpr (COUNT > 2) store_tile<2>(to + 2 * TILE_SIDE, TILE_BYTES);
    if constexpr (COUNT > 3) store_tile<3>(to + 3 * TILE_SIDE, TILE_BYTES);
}

// The tiles of a thread while it computes an item. Their contents would slow down later switches between threads.
class TilesInUse {
  public:
    explicit TilesInUse(int depth) { configure_tiles(TileShapes(depth)); }
    ~TilesInUse() { release_tiles(); }
    TilesInUse(const TilesInUse&) = delete;
};

}  // namespace
