// y = x W^T + b for matrices as checkpoints store them: row-major, one row per output, mapped from the file.
//
// An output is a sum of dot products (dots.h) over BLOCK inputs each. No step depends on the number of rows or on the thread
// that computes them, so the result of a row is the same, bit for bit, alone and in any batch. The matrix needs no packed
// copy.
//
// Sums are fp32. Processors that multiply bf16 read it as it is. On others it is widened to fp32: x once per block of rows, W
// four outputs at a time.
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
constexpr int64_t BLOCK = 1024;                          // inputs; with pairs of bf16 this takes half the steps
#else
constexpr int64_t BLOCK = 512;
#endif
constexpr int OUTPUTS = TILE_COLUMNS;                    // outputs of a tile
// outputs computed with the same rows of x, which stay in the first-level cache together with the rows of W
constexpr int PANEL = 2 * OUTPUTS;
constexpr int64_t STREAMED_ROWS = LANES == 16 ? 16 : 8;  // maximum number of rows for which W is widened while it is read
// maximum size of a row of x that stays in the first-level cache while W passes
constexpr int64_t SHORT_BYTES = 8 << 10;
constexpr int64_t ROW_BYTES = 384 << 10;                 // size of a block of x, which stays in a core's L2
constexpr int64_t MAX_ROWS = 128;                        // maximum number of rows of a block
constexpr int64_t HALF = MAX_ROWS * OUTPUTS;             // sums of half a panel
constexpr int64_t ITEM_BYTES = 128 << 10;                // bytes of W per item

// Prefetches W for a tile into the second-level cache, `ahead` numbers from what is multiplied, at one step of every `turns`.
// The first of them is after `turn` steps. Without these gaps, the lines of other tiles would wait behind those of one tile.
template <class Weight> struct FetchAhead {
    const Weight* const* w;
    int64_t ahead, turn, turns;

    [[gnu::always_inline]] void at(int64_t i) {
        if (turn-- > 0) return;
        for (int o = 0; o < OUTPUTS; ++o) prefetch(w[o] + i + ahead);
        turn = turns - 1;
    }
};

// Also prefetches the operands of the next tile into the first-level cache. Without it, each step would wait for 10 lines of
// W and x.
template <class Weight> struct FetchNext : FetchAhead<Weight> {
    const Weight* const* next;
    int64_t offset;

    [[gnu::always_inline]] void at(int64_t i) {
        FetchAhead<Weight>::at(i);
#pragma GCC unroll 8
        for (int o = 0; o < OUTPUTS; ++o) __builtin_prefetch(next[o] + offset + i, 0, 3);
    }
};

// to[r][o] += x[r] . w[o] for any number of rows and for a panel of which `halves` halves exist. The sums of the second half
// are HALF after those of the first. ahead: the distance from w to prefetch, or 0 for none. next: the distance to the data
// that is multiplied next.
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
        // Split the rows as evenly as possible. A tile of one or two rows has too few sums to keep the arithmetic units busy.
        const int64_t own = (rows - r + count - turn - 1) / (count - turn);
        [&]<int... R>(std::integer_sequence<int, R...>) {
            ((own == R + 1 ? both.template operator()<R + 1>(turn) : void()), ...);
        }(std::make_integer_sequence<int, Dots::ROWS>());
        r += own;
    }
}

// to[o] += x . w[o] for one row of x and all inputs, one row of W after the other. This reads memory as one stream. The
// processor prefetches one stream by itself, faster than the four that a tile reads. It reads x again for each row of W, so x
// must be short.
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

// The first-level cache has eight lines for addresses that are a multiple of a page apart, fewer than a tile and its panel
// need. Rows of W are often that far apart. So packed rows of x are half a page further apart.
constexpr int64_t PAGE = 4096;
template <class Number> constexpr int64_t spread(int64_t stride) {
    constexpr int64_t NUMBERS = PAGE / int64_t(sizeof(Number));
    return stride % NUMBERS ? stride : stride + NUMBERS / 2;
}

// What the calls below need to know of a kind of panel, besides its members. These are the values for panels of 8 outputs;
// tile_products.h has others.
template <class Panel> struct PanelTraits;

// Pack rows of x, of which row_of(r) is the r-th, for one kind of panel.
template <class Panel, class RowOf>
inline void pack_rows(const RowOf& row_of, int64_t rows, int64_t inputs, int64_t stride, typename Panel::Number* to) {
    if constexpr (PanelTraits<Panel>::PACKS_BLOCKS)
        Panel::pack_rows(row_of, rows, inputs, to);
    else
        for (int64_t r = 0; r < rows; ++r) Panel::pack(row_of(r), inputs, to + r * stride);
}

// The rows of x of a call, for one kind of panel: where they are, or packed in the scratch memory of the thread.
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
        Number* to = scratch.of(PanelTraits<Panel>::packed_rows(rows) * stride);
        at = to;
        if (held_call == call && held_block == block) return;
        pack_rows<Panel>([&](int64_t r) { return x + r * x_stride; }, rows, inputs, stride, to);
        held_call = call, held_block = block;
    }
};

// Prefetch the first line of each page that a thread multiplies next. The processor then looks up several pages at once,
// instead of waiting for one after the other.
inline void prefetch_pages(const void* from, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += PAGE) prefetch(static_cast<const char*>(from) + i);
}

// Up to 8 rows of W, from one matrix or two, and the distance from each to the row that comes next in its place.
template <class Stored_> struct Panel {
    using Stored = Stored_;
    using Number = typename DotsOf<Stored>::Number;
    static constexpr bool PACKS = !std::is_same_v<Stored, Number>;
    static constexpr int64_t NUMBER_BYTES = sizeof(Stored);  // the unit of W's strides
    static constexpr int64_t bytes(int64_t inputs) { return inputs * sizeof(Stored); }
    // the length of a packed row of x, in numbers
    static int64_t stride(int64_t inputs) { return spread<Number>(padded(inputs)); }
    static void pack(const Stored* x, int64_t inputs, Number* to) { ::pack(x, inputs, to); }
    // the index at which `pack` puts an input
    static int64_t place(int64_t input, int64_t) { return packed_place<Stored, Number>(input); }

    const Stored* w[PANEL];
    int halves;
    int64_t ahead;

    Panel(int halves, int64_t ahead) : halves(halves), ahead(ahead) {}

    // Set one half to `count` rows (at most 4) of a matrix, from `first` on.
    void fill(int half, const Matrix& matrix, int64_t first, int64_t count) {
        for (int64_t o = 0; o < OUTPUTS; ++o)  // missing rows repeat the last one; their results are dropped
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
    // The sum of a row is one chain of additions. With wide registers it keeps up with memory.
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

// Return the maximum number of rows of a block. number_bytes: the size of a packed number.
inline int64_t rows_of_block(int64_t inputs, int64_t number_bytes) {
    const int64_t fit = ROW_BYTES / (padded(inputs) * number_bytes) / TILE_ROWS * TILE_ROWS;
    return std::clamp(fit, int64_t(2 * TILE_ROWS), MAX_ROWS);
}

// Return the size of blocks of at most `most` rows, as equal as possible. Even a block of a few rows reads all of W.
inline int64_t even_rows(int64_t rows, int64_t most) {
    const int64_t blocks = std::max<int64_t>((rows + most - 1) / most, 1);
    return std::max<int64_t>((rows + blocks - 1) / blocks, 1);
}

// How a call is cut into items: the rows into blocks, and for each block every matrix into slices of outputs.
struct Cut {
    int64_t rows, outputs, blocks;
    uint64_t call = next_call();

    // rows: those of a block. row_bytes: the size of all rows of W that one output needs.
    Cut(const Rows& x, int64_t rows, int64_t row_bytes)
        : rows(rows), outputs(std::max<int64_t>(ITEM_BYTES / row_bytes / PANEL, 1) * PANEL), blocks((x.count + rows - 1) / rows) {}
    int64_t slices(const Matrix& matrix) const { return (matrix.outputs + outputs - 1) / outputs; }
};

// The sums of a panel for a number of rows: first one half, row after row, then the other.
template <class Stored> struct Sums {
    int64_t rows;
    alignas(64) float at[2 * HALF + LANES];  // reads are of whole registers

    explicit Sums(int64_t rows) : rows(rows) {}

    float of(int64_t row, int64_t output) const { return at[output / OUTPUTS * HALF + row * OUTPUTS + output % OUTPUTS]; }

    // Add the bias of `count` outputs of a matrix to the sums, from half `half` on.
    void add_bias(const Matrix& matrix, int64_t output, int64_t count, int half) {
        if (!matrix.bias) return;
        const auto* bias = static_cast<const Stored*>(matrix.bias) + output;
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t o = 0; o < count; ++o) at[(half + o / OUTPUTS) * HALF + r * OUTPUTS + o % OUTPUTS] += get(bias + o);
    }
    // Replace the first half of the panel by act(first half) * second half.
    void gate(const Gate& gate) {
        for (int64_t i = 0; i < rows * OUTPUTS; i += LANES)  // values after the last row are undefined and dropped
            store(at + i, gated(gate, load(at + i), load(at + HALF + i)));
    }
};

// A block of rows of x, ready to be multiplied with one kind of panel.
template <class Panel, class Sums = typename PanelTraits<Panel>::Sums> struct Block : Sums {
    using Stored = typename Panel::Stored;
    using Sums::rows, Sums::at;
    int64_t first, inputs;
    PackedRows<Panel> packed;
    [[no_unique_address]] typename PanelTraits<Panel>::InUse in_use;

    Block(const Rows& x, const Cut& cut, int64_t block)
        : Sums(std::min(cut.rows, x.count - block * cut.rows)), first(block * cut.rows), inputs(x.width),
          packed(static_cast<const Stored*>(x.at) + first * x.stride, x.stride, rows, inputs, cut.call, block) {}

    void run(const Panel& panel) { multiply(packed, rows, panel, inputs, at); }
};

// The outputs of a block of rows, collected until each row has a full cache line. Rows of y are often whole pages apart.
// Lines written in parts would evict each other from the first-level cache.
template <class Out> struct Lines {
    static constexpr int64_t WIDTH = 64 / sizeof(Out);
    int64_t held = 0;  // outputs collected for each row
    alignas(64) Out at[(MAX_ROWS + SUMS) * WIDTH];

    // Add the outputs from `output` on, `count` of them, of HALVES halves of a panel. end: the output after the item's last.
    template <int HALVES, class Block> void add(const Block& block, const Matrix& matrix, int64_t output, int64_t count, int64_t end) {
        collect<HALVES>(block, count);
        if (held == WIDTH || output + count == end) put_out(block, matrix, output + count);
    }

  private:
    template <int HALVES, class Sums> void collect(const Sums& sums, int64_t count) {
        for (int64_t r = 0; r < sums.rows; r += SUMS) {  // values after the last row are undefined and dropped
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
    // Write the outputs to their place in the matrix's results. `end` is the output after the last one.
    template <class Block> void put_out(const Block& block, const Matrix& matrix, int64_t end) {
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

template <class Panel> struct PanelTraits {
    using Sums = ::Sums<typename Panel::Stored>;
    template <class Out> using Lines = ::Lines<Out>;
    struct Cut : ::Cut {
        Cut(const Rows& x, int64_t row_bytes) : ::Cut(x, even_rows(x.count, rows_of_block(x.width)), row_bytes) {}
    };
    struct InUse {};  // what a thread has to set up for an item: nothing
    static constexpr int64_t HALF_OUTPUTS = OUTPUTS;   // outputs of half a panel
    static constexpr bool PACKS_BLOCKS = false;        // whether rows are packed together, not one by one
    static int64_t rows_of_block(int64_t inputs) { return ::rows_of_block(inputs, sizeof(typename Panel::Number)); }
    static int64_t packed_rows(int64_t rows) { return rows; }
};

template <class Panel, class Out> void products(Pool& pool, const Rows& x, int count, const Matrix* matrices) {
    using Traits = PanelTraits<Panel>;
    constexpr int64_t HALF_OUTPUTS = Traits::HALF_OUTPUTS, OUTPUTS = 2 * HALF_OUTPUTS;
    const typename Traits::Cut cut(x, Panel::bytes(x.width));
    int64_t all = 0;
    for (int m = 0; m < count; ++m) all += cut.slices(matrices[m]);
    pool.run(int(cut.blocks * all), [&](int item) {
        Block<Panel> block(x, cut, item / all);
        typename Traits::template Lines<Out> lines;
        const Matrix* matrix = matrices;
        int64_t slice = item % all;
        for (; slice >= cut.slices(*matrix); ++matrix) slice -= cut.slices(*matrix);
        const int64_t end = std::min((slice + 1) * cut.outputs, matrix->outputs);
        for (int64_t o = slice * cut.outputs; o < end; o += OUTPUTS) {
            const int64_t there = std::min<int64_t>(OUTPUTS, end - o);
            Panel panel(there > HALF_OUTPUTS ? 2 : 1, OUTPUTS * matrix->weight_stride);
            for (int half = 0; half < panel.halves; ++half)
                panel.fill(half, *matrix, o + half * HALF_OUTPUTS, there - half * HALF_OUTPUTS);
            block.run(panel);
            block.add_bias(*matrix, o, there, 0);
            lines.template add<2>(block, *matrix, o, there, end);
        }
    });
}

template <class Panel>
void gated_products(Pool& pool, const Rows& x, const Matrix& gate, const Matrix& up, const Gate& by) {
    using Traits = PanelTraits<Panel>;
    constexpr int64_t OUTPUTS = Traits::HALF_OUTPUTS;
    const typename Traits::Cut cut(x, 2 * Panel::bytes(x.width));
    const int64_t all = cut.slices(gate);
    pool.run(int(cut.blocks * all), [&](int item) {
        Block<Panel> block(x, cut, item / all);
        typename Traits::template Lines<typename Panel::Stored> lines;
        const int64_t end = std::min((item % all + 1) * cut.outputs, gate.outputs);
        for (int64_t o = item % all * cut.outputs; o < end; o += OUTPUTS) {
            const int64_t there = std::min<int64_t>(OUTPUTS, end - o);
            Panel panel(2, OUTPUTS * gate.weight_stride);
            panel.fill(0, gate, o, there), panel.fill(1, up, o, there);
            block.run(panel);
            block.add_bias(gate, o, there, 0), block.add_bias(up, o, there, 1);
            block.gate(by);
            lines.template add<1>(block, gate, o, there, end);
        }
    });
}

}  // namespace
