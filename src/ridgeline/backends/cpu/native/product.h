// y = x W^T + b for matrices as checkpoints store them: row-major, an output a row, mapped from the file.
//
// An output is a sum of dot products (dots.h) over BLOCK inputs each. No step of that depends on how many rows there are or
// on who computes them, so a row's result is the same, bit for bit, alone and in any batch. It needs no packed copy of the
// matrix either.
//
// Sums are fp32. bf16 is widened to fp32 on its way (x once a block of rows, W four outputs at a time) or, where the
// processor multiplies bf16, goes in as it is.
#pragma once

#include <atomic>
#include <utility>

#include "activation.h"
#include "dots.h"
#include "kernels.h"
#include "pool.h"
#include "scratch.h"

namespace {

#ifdef BF16_DOTS
constexpr int64_t BLOCK = 1024;                          // inputs: of bf16 pairs, half the steps
#else
constexpr int64_t BLOCK = 512;
#endif
constexpr int OUTPUTS = TILE_COLUMNS;                    // of a tile
constexpr int PANEL = 2 * OUTPUTS;                       // outputs for which a tile's rows of x are in the first cache, with W's
constexpr int64_t STREAMED_ROWS = LANES == 16 ? 16 : 8;  // for which W is widened as it comes
constexpr int64_t SHORT_BYTES = 8 << 10;                 // of a row of x that stays in the first cache while W passes
constexpr int64_t ROW_BYTES = 384 << 10;                 // of x at a time, so that they stay in a core's L2
constexpr int64_t MAX_ROWS = 128;                        // at a time
constexpr int64_t HALF = MAX_ROWS * OUTPUTS;             // sums of half a panel
constexpr int64_t ITEM_BYTES = 128 << 10;                // of W an item

// What a tile prefetches of W: into the second cache what stands so far ahead, at one step in so many, of which `turn` come
// before the first; what one tile asks for at once, the others' lines wait behind.
template <class Weight> struct FetchAhead {
    const Weight* const* w;
    int64_t ahead, turn, turns;

    [[gnu::always_inline]] void at(int64_t i) {
        if (turn-- > 0) return;
        for (int o = 0; o < OUTPUTS; ++o) prefetch(w[o] + i + ahead);
        turn = turns - 1;
    }
};

// And into the first cache what the next tile multiplies: it has 10 lines a step to wait for otherwise, of W and of x.
template <class Weight> struct FetchNext : FetchAhead<Weight> {
    const Weight* const* next;
    int64_t offset;

    [[gnu::always_inline]] void at(int64_t i) {
        FetchAhead<Weight>::at(i);
#pragma GCC unroll 8
        for (int o = 0; o < OUTPUTS; ++o) __builtin_prefetch(next[o] + offset + i, 0, 3);
    }
};

// to[r][o] += x[r] . w[o] for a panel, of which so many halves are there, and any number of rows; the sums of the second half
// are HALF behind those of the first. ahead: how far from w to prefetch, 0 for nothing; next: how far what is multiplied
// next stands.
template <class Dots, class Number, class Weight>
inline void tiles(const Number* x, int64_t x_stride, int64_t rows, const Weight* const* w, int halves, int64_t inputs,
                  int64_t ahead, int64_t next, float* to) {
    const int64_t count = (rows + Dots::ROWS - 1) / Dots::ROWS;
    int64_t r = 0;
    auto both = [&]<int R>(int64_t turn) {
        for (int half = 0; half < halves; ++half) {
            const Weight* const* own = w + half * OUTPUTS;
            const FetchAhead<Weight> far{own, ahead, turn, count};
            auto multiply = [&](auto fetch) __attribute__((always_inline)) {
                dot_tile<Dots, R>(x + r * x_stride, x_stride, own, inputs, fetch).add_to(to + half * HALF + r * OUTPUTS);
            };
            const bool last = half == halves - 1;
            if (!ahead)
                multiply(NoFetch());
            else if (!last && turn == 0)
                multiply(FetchNext<Weight>{far, own + OUTPUTS, 0});
            else if (last && turn == count - 1)
                multiply(FetchNext<Weight>{far, w, next});
            else
                multiply(far);
        }
    };
    for (int64_t turn = 0; turn < count; ++turn) {
        // As even as they go: a tile of one row or two has too few sums to keep the units busy.
        const int64_t own = (rows - r + count - turn - 1) / (count - turn);
        [&]<int... R>(std::integer_sequence<int, R...>) {
            ((own == R + 1 ? both.template operator()<R + 1>(turn) : void()), ...);
        }(std::make_integer_sequence<int, Dots::ROWS>());
        r += own;
    }
}

// to[o] += x . w[o] for one row of x and all inputs, one row of W after the other: memory is read in one piece, which the
// processor fetches ahead by itself, faster than it does four rows at a time that a tile asks for. x is read for each row of W,
// so it is a short one.
template <class Dots, class Number, class Weight>
inline void row_by_row(const Number* x, const Weight* const* w, int halves, int64_t inputs, float* to) {
    F sums[SHORT_BYTES / int64_t(sizeof(Number)) / BLOCK][1][OUTPUTS];
    for (int half = 0; half < halves; ++half) {
        for (int o = 0; o < OUTPUTS; ++o)
            for (int64_t i = 0; i < inputs; i += BLOCK)
                sums[i / BLOCK][0][o] = dot_lanes<Dots>(x + i, w[half * OUTPUTS + o] + i, std::min(BLOCK, inputs - i));
        for (int64_t i = 0; i < inputs; i += BLOCK) SumsOfRows<1>(sums[i / BLOCK]).add_to(to + half * HALF);
    }
}

// -- a block of rows --------------------------------------------------------------------------------------------------

// Rows of x as tiles read them.
template <class Number> struct TileRows {
    const Number* at;
    int64_t stride;
};

// Rows that begin a whole number of pages apart have their numbers of a place in the same few lines of the first cache, which
// holds eight: fewer than a tile and its panel have. So rows of W often stand; those of x are put half a page further apart.
constexpr int64_t PAGE = 4096;
template <class Number> constexpr int64_t spread(int64_t stride) {
    constexpr int64_t NUMBERS = PAGE / int64_t(sizeof(Number));
    return stride % NUMBERS ? stride : stride + NUMBERS / 2;
}

// Those of a call, for panels of a sort: where they are, or packed in the thread's scratch.
template <class Panel, class Number = typename Panel::Number> struct PackedRows : TileRows<Number> {
    using Stored = typename Panel::Stored;
    using TileRows<Number>::at, TileRows<Number>::stride;

    PackedRows(const Stored* x, int64_t x_stride, int64_t rows, int64_t inputs, uint64_t call, int64_t block) {
        if constexpr (!Panel::PACKS)
            if (inputs == padded(inputs) && (rows <= STREAMED_ROWS || x_stride == spread<Number>(x_stride))) {
                at = x, stride = x_stride;
                return;
            }
        thread_local Scratch<Number> scratch;
        thread_local uint64_t held_call;
        thread_local int64_t held_block;
        stride = Panel::stride(inputs);
        Number* to = scratch.of(rows * stride);
        at = to;
        if (held_call == call && held_block == block) return;
        for (int64_t r = 0; r < rows; ++r) Panel::pack(x + r * x_stride, inputs, to + r * stride);
        held_call = call, held_block = block;
    }
};

// A first line of each page of what a thread multiplies next: so the processor looks several pages up at once, where it would
// wait for one after the other.
inline void prefetch_pages(const void* from, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += PAGE) prefetch(static_cast<const char*>(from) + i);
}

// Up to 8 rows of W, from one matrix or two, and how far ahead of each the one stands that its place has next.
template <class Stored_> struct Panel {
    using Stored = Stored_;
    using Number = typename DotsOf<Stored>::Number;
    static constexpr bool PACKS = !std::is_same_v<Stored, Number>;
    static constexpr int64_t NUMBER_BYTES = sizeof(Stored);  // what strides of W count
    static constexpr int64_t bytes(int64_t inputs) { return inputs * sizeof(Stored); }
    static int64_t stride(int64_t inputs) { return spread<Number>(padded(inputs)); }  // numbers of a packed row of x
    static void pack(const Stored* x, int64_t inputs, Number* to) { ::pack(x, inputs, to); }
    static int64_t place(int64_t input, int64_t) { return packed_place<Stored, Number>(input); }  // where pack puts it

    const Stored* w[PANEL];
    int halves;
    int64_t ahead;

    Panel(int halves, int64_t ahead) : halves(halves), ahead(ahead) {}

    // Rows of a matrix from `first` on, `count` of at most 4, into one half.
    void fill(int half, const Matrix& matrix, int64_t first, int64_t count) {
        for (int64_t o = 0; o < OUTPUTS; ++o)  // what is missing is computed with the last one, and dropped
            w[half * OUTPUTS + o] =
                static_cast<const Stored*>(matrix.weight) + (first + std::min(o, count - 1)) * matrix.weight_stride;
        prefetch_pages(w[half * OUTPUTS] + ahead, OUTPUTS * matrix.weight_stride * sizeof(Stored));
    }
};

inline void clear_sums(int64_t rows, int halves, float* to) {
    for (int half = 0; half < halves; ++half) std::fill_n(to + half * HALF, rows * OUTPUTS, 0.0f);
}

// to[half][r][o] = x[r] . W[o] for a block of rows and the outputs of a panel.
template <class Stored, class Number = typename DotsOf<Stored>::Number>
inline void multiply(const TileRows<Number>& x, int64_t rows, const Panel<Stored>& panel, int64_t inputs, float* to) {
    using Dots = std::conditional_t<std::is_same_v<Stored, Number>, DotsOf<Stored>, Widening>;
    alignas(64) thread_local Number packed[PANEL][BLOCK];
    clear_sums(rows, panel.halves, to);
    // Its sum is one chain, which keeps up with memory where a register is wide.
    if (LANES == 16 && rows == 1 && inputs == padded(inputs) && inputs * int64_t(sizeof(Number)) <= SHORT_BYTES)
        return row_by_row<Dots>(x.at, panel.w, panel.halves, inputs, to);
    for (int64_t i = 0; i < inputs; i += BLOCK) {
        const int64_t count = std::min(BLOCK, inputs - i);
        const Stored* from[PANEL];
        for (int o = 0; o < panel.halves * OUTPUTS; ++o) from[o] = panel.w[o] + i;
        const int64_t next = i + BLOCK < inputs ? BLOCK : panel.ahead - i;
        if constexpr (std::is_same_v<Stored, Number>) {
            if (count == padded(count)) {
                tiles<DotsOf<Stored>>(x.at + i, x.stride, rows, from, panel.halves, count, panel.ahead, next, to);
                continue;
            }
        } else if (rows <= STREAMED_ROWS && count == padded(count)) {
            tiles<Widening>(x.at + i, x.stride, rows, from, panel.halves, count, panel.ahead, next, to);
            continue;
        }
        const Number* own[PANEL];
        for (int o = 0; o < panel.halves * OUTPUTS; ++o) {
            prefetch(from[o] + panel.ahead, count);
            pack(from[o], count, packed[o]), own[o] = packed[o];
        }
        tiles<DotsOf<Stored>>(x.at + i, x.stride, rows, own, panel.halves, padded(count), 0, 0, to);
    }
}

// -- the call ---------------------------------------------------------------------------------------------------------

inline uint64_t next_call() {
    static std::atomic<uint64_t> calls{0};
    return ++calls;
}

// Rows of a block at most. number_bytes: of a number as it is packed.
inline int64_t rows_of_block(int64_t inputs, int64_t number_bytes) {
    const int64_t fit = ROW_BYTES / (padded(inputs) * number_bytes) / TILE_ROWS * TILE_ROWS;
    return std::clamp(fit, int64_t(2 * TILE_ROWS), MAX_ROWS);
}

// Rows in blocks of at most so many, as even as they go: a block of a few rows has all of W to read too.
inline int64_t even_rows(int64_t rows, int64_t most) {
    const int64_t blocks = std::max<int64_t>((rows + most - 1) / most, 1);
    return std::max<int64_t>((rows + blocks - 1) / blocks, 1);
}

// How a call is cut into items: the rows into blocks, and for each block every matrix into slices of outputs.
struct Cut {
    int64_t rows, outputs, blocks;
    uint64_t call = next_call();

    // number_bytes: of x as it is packed. row_bytes: of all rows of W that one output takes.
    Cut(const Rows& x, int64_t number_bytes, int64_t row_bytes)
        : rows(even_rows(x.count, rows_of_block(x.width, number_bytes))),
          outputs(std::max<int64_t>(ITEM_BYTES / row_bytes / PANEL, 1) * PANEL), blocks((x.count + rows - 1) / rows) {}
    int64_t slices(const Matrix& matrix) const { return (matrix.outputs + outputs - 1) / outputs; }
};

// The sums of a panel and so many rows: of each half, row after row.
template <class Stored> struct Sums {
    int64_t rows;
    alignas(64) float at[2 * HALF + LANES];  // whole registers are read

    explicit Sums(int64_t rows) : rows(rows) {}

    float of(int64_t row, int64_t output) const { return at[output / OUTPUTS * HALF + row * OUTPUTS + output % OUTPUTS]; }

    // Add the bias of `count` outputs of a matrix to the sums from half `half` on.
    void add_bias(const Matrix& matrix, int64_t output, int64_t count, int half) {
        if (!matrix.bias) return;
        const auto* bias = static_cast<const Stored*>(matrix.bias) + output;
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t o = 0; o < count; ++o) at[(half + o / OUTPUTS) * HALF + r * OUTPUTS + o % OUTPUTS] += get(bias + o);
    }
    // act(first half) * second half of the panel, in the place of the first.
    void gate(const Gate& gate) {
        for (int64_t i = 0; i < rows * OUTPUTS; i += LANES)  // past the last row: whatever is there, dropped
            store(at + i, gated(gate, load(at + i), load(at + HALF + i)));
    }
};

// A block of rows of x, ready to be multiplied with panels of a sort.
template <class Panel, class Stored = typename Panel::Stored> struct Block : Sums<Stored> {
    using Sums<Stored>::rows, Sums<Stored>::at;
    int64_t first, inputs;
    PackedRows<Panel> packed;

    Block(const Rows& x, const Cut& cut, int64_t block)
        : Sums<Stored>(std::min(cut.rows, x.count - block * cut.rows)), first(block * cut.rows), inputs(x.width),
          packed(static_cast<const Stored*>(x.at) + first * x.stride, x.stride, rows, inputs, cut.call, block) {}

    void run(const Panel& panel) { multiply(packed, rows, panel, inputs, at); }
};

// The outputs of a block of rows until there is a line of memory of each: rows of y often begin whole pages apart, and lines that
// are written in parts would push each other out of the first cache.
template <class Out> struct Lines {
    static constexpr int64_t WIDTH = 64 / sizeof(Out);
    int64_t held = 0;  // outputs of each row
    alignas(64) Out at[(MAX_ROWS + SUMS) * WIDTH];

    // Add the first `count` of the outputs of HALVES halves of a panel.
    template <int HALVES, class Stored> void add(const Sums<Stored>& sums, int64_t count) {
        for (int64_t r = 0; r < sums.rows; r += SUMS) {  // past the last row: whatever is there, dropped
            alignas(64) Out stored[HALVES * LANES];
            const F half = load(sums.at + r * OUTPUTS);
            if constexpr (HALVES == 1) {
                store(stored, half);
            } else {
                const TwoRegisters both = by_turns(half, load(sums.at + HALF + r * OUTPUTS));
                store(stored, both.first), store(stored + LANES, both.second);
            }
            for (int64_t own = 0; own < SUMS; ++own)
                std::memcpy(at + (r + own) * WIDTH + held, stored + own * HALVES * OUTPUTS, HALVES * OUTPUTS * sizeof(Out));
        }
        held += count;
    }
    // Put them where a matrix has its outputs; `end`: the one behind them.
    template <class Panel> void put_out(const Block<Panel>& block, const Matrix& matrix, int64_t end) {
        Out* y = static_cast<Out*>(matrix.y) + block.first * matrix.y_stride + end - held;
        for (int64_t r = 0; r < block.rows; ++r, y += matrix.y_stride) {
            if (held == WIDTH)
                std::memcpy(y, at + r * WIDTH, WIDTH * sizeof(Out));
            else
                std::copy_n(at + r * WIDTH, held, y);
        }
        held = 0;
    }
};

template <class Panel, class Out> void products(Pool& pool, const Rows& x, int count, const Matrix* matrices) {
    const Cut cut(x, sizeof(typename Panel::Number), Panel::bytes(x.width));
    int64_t all = 0;
    for (int m = 0; m < count; ++m) all += cut.slices(matrices[m]);
    pool.run(int(cut.blocks * all), [&](int item) {
        Block<Panel> block(x, cut, item / all);
        Lines<Out> lines;
        const Matrix* matrix = matrices;
        int64_t slice = item % all;
        for (; slice >= cut.slices(*matrix); ++matrix) slice -= cut.slices(*matrix);
        const int64_t end = std::min((slice + 1) * cut.outputs, matrix->outputs);
        for (int64_t o = slice * cut.outputs; o < end; o += PANEL) {
            const int64_t there = std::min<int64_t>(PANEL, end - o);
            Panel panel(there > OUTPUTS ? 2 : 1, PANEL * matrix->weight_stride);
            for (int half = 0; half < panel.halves; ++half)
                panel.fill(half, *matrix, o + half * OUTPUTS, there - half * OUTPUTS);
            block.run(panel);
            block.add_bias(*matrix, o, there, 0);
            lines.template add<2>(block, there);
            if (lines.held == lines.WIDTH || o + there == end) lines.put_out(block, *matrix, o + there);
        }
    });
}

template <class Panel>
void gated_products(Pool& pool, const Rows& x, const Matrix& gate, const Matrix& up, const Gate& by) {
    const Cut cut(x, sizeof(typename Panel::Number), 2 * Panel::bytes(x.width));
    const int64_t all = cut.slices(gate);
    pool.run(int(cut.blocks * all), [&](int item) {
        Block<Panel> block(x, cut, item / all);
        Lines<typename Panel::Stored> lines;
        const int64_t end = std::min((item % all + 1) * cut.outputs, gate.outputs);
        for (int64_t o = item % all * cut.outputs; o < end; o += OUTPUTS) {
            const int64_t there = std::min<int64_t>(OUTPUTS, end - o);
            Panel panel(2, OUTPUTS * gate.weight_stride);
            panel.fill(0, gate, o, there), panel.fill(1, up, o, there);
            block.run(panel);
            block.add_bias(gate, o, there, 0), block.add_bias(up, o, there, 1);
            block.gate(by);
            lines.template add<1>(block, there);
            if (lines.held == lines.WIDTH || o + there == end) lines.put_out(block, gate, o + there);
        }
    });
}

}  // namespace
