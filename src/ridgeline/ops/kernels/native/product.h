// y = x W^T + b for matrices as checkpoints store them: row-major, an output a row, mapped from the file.
//
// An output is a sum over the inputs that is kept in the lanes of one register for BLOCK inputs at a time; then the lanes
// are added by one tree. No step of that depends on how many rows there are or on who computes them, so a row's result is
// the same, bit for bit, alone and in any batch. It needs no packed copy of the matrix either: a tile of R rows and 4
// outputs loads R + 4 registers for 4 R multiplications, which keeps the units busy.
//
// Sums are fp32. bf16 is widened to fp32 on its way (x once a block of rows, W four outputs at a time) or, where the
// processor multiplies bf16, goes in as it is.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <memory>

#include "kernels.h"
#include "lanes.h"
#include "pool.h"

#ifdef BF16_DOTS
#include <immintrin.h>
#endif

namespace {

constexpr int64_t BLOCK = 512;             // inputs
constexpr int OUTPUTS = 4;                 // of a tile: as many as `sums` takes
constexpr int PANEL = 2 * OUTPUTS;         // outputs for which a tile's rows of x are in the first cache, with W's
constexpr int ROWS = LANES == 16 ? 6 : 3;  // of a tile: its 4 R sums and what they are made of fill the registers
constexpr int64_t PASSING_ROWS = 8;        // for which W is widened as it comes
constexpr int64_t ROW_BYTES = 384 << 10;   // of x at a time, so that they stay in a core's L2
constexpr int64_t MOST_ROWS = 96;          // at a time
constexpr int64_t ITEM_BYTES = 128 << 10;  // of W an item

// -- what is multiplied with what -------------------------------------------------------------------------------------

// fp32 numbers.
struct Singles {
    using Number = float;
    static constexpr int64_t STEP = LANES;
    static F at(const float* from) { return load(from); }
    static F w_at(const float* from) { return load(from); }
    static F add(F sum, F x, F w) { return sum + x * w; }
};

// bf16 of W, widened as it comes, with fp32 of x that were laid out in the same order: for so few rows that keeping it
// widened does not pay. Adds what Singles would, in the same order.
struct Widening {
    using Number = float;
    static constexpr int64_t STEP = 2 * LANES;
    struct Pair {
        F evens, odds;
    };
    static Pair at(const float* from) { return {load(from), load(from + LANES)}; }
    static Pair w_at(const bf16* from) {
        const U pairs = load_pairs(from);
        return {evens(pairs), odds(pairs)};
    }
    static F add(F sum, Pair x, Pair w) { return sum + x.evens * w.evens + x.odds * w.odds; }
};

#ifdef BF16_DOTS
// Pairs of bf16 numbers, both products of a pair added to one fp32 sum.
struct Pairs {
    using Number = bf16;
    static constexpr int64_t STEP = 2 * LANES;
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

constexpr int64_t whole(int64_t inputs) { return (inputs + 2 * LANES - 1) / (2 * LANES) * (2 * LANES); }

// Bring a stretch of memory nearer: the processor's own guesses end at a page's end.
template <class Number> inline void fetch(const Number* from, int64_t count) {
    for (int64_t i = 0; i < count; i += 64 / int64_t(sizeof(Number))) __builtin_prefetch(from + i);
}

// A row as a tile reads it, filled up with zeros to a whole number of steps; any order will do that is W's and x's alike.
template <class Number> inline void lay_out(const Number* from, int64_t inputs, Number* to) {
    std::memcpy(to, from, inputs * sizeof(Number));
    std::fill(to + inputs, to + whole(inputs), Number{});
}
inline void lay_out(const bf16* from, int64_t inputs, float* to) {
    auto widened = [](U pairs, float* to) { store(to, evens(pairs)), store(to + LANES, odds(pairs)); };
    int64_t i = 0;
    for (; i + 2 * LANES <= inputs; i += 2 * LANES) widened(load_pairs(from + i), to + i);
    if (i == inputs) return;
    bf16 rest[2 * LANES] = {};
    std::memcpy(rest, from + i, (inputs - i) * sizeof(bf16));
    widened(load_pairs(rest), to + i);
}

// to[r][o] += x[r] . w[o] over `inputs`, a whole number of steps, for R rows and 4 outputs. What stands `ahead` in W is
// fetched on the way, if anything.
template <class Dots, int R, bool FETCH, class Number, class Weight>
inline void tile(const Number* x, int64_t x_stride, const Weight* const* w, int64_t inputs, int64_t ahead, float* to) {
    const Weight *w0 = w[0], *w1 = w[1], *w2 = w[2], *w3 = w[3];
    F sum[R][OUTPUTS] = {};
    for (int64_t i = 0; i < inputs; i += Dots::STEP) {
        if constexpr (FETCH) {
            __builtin_prefetch(w0 + i + ahead), __builtin_prefetch(w1 + i + ahead);
            __builtin_prefetch(w2 + i + ahead), __builtin_prefetch(w3 + i + ahead);
        }
        auto a = Dots::w_at(w0 + i), b = Dots::w_at(w1 + i), c = Dots::w_at(w2 + i), d = Dots::w_at(w3 + i);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            auto own = Dots::at(x + r * x_stride + i);
            sum[r][0] = Dots::add(sum[r][0], own, a);
            sum[r][1] = Dots::add(sum[r][1], own, b);
            sum[r][2] = Dots::add(sum[r][2], own, c);
            sum[r][3] = Dots::add(sum[r][3], own, d);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
        F4 added = sums(sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
        for (int o = 0; o < OUTPUTS; ++o) to[r * PANEL + o] += added[o];
    }
}

// The same for a panel, of which so many halves are there, and any number of rows.
template <class Dots, class Number, class Weight>
inline void tiles(const Number* x, int64_t x_stride, int64_t rows, const Weight* const* w, int halves, int64_t inputs,
                  int64_t ahead, float* to) {
    auto both = [&]<int R>(int64_t r) {
        for (int half = 0; half < halves * OUTPUTS; half += OUTPUTS) {
            const auto own = ahead && r == 0 ? tile<Dots, R, true, Number, Weight> : tile<Dots, R, false, Number, Weight>;
            own(x + r * x_stride, x_stride, w + half, inputs, ahead, to + r * PANEL + half);
        }
    };
    // The last four go by twos: one row alone has too few sums to keep the units busy.
    int64_t r = 0;
    for (; r + ROWS <= rows && (ROWS > 4 || r + 4 != rows); r += ROWS) both.template operator()<ROWS>(r);
    for (; r + 2 <= rows; r += 2) both.template operator()<2>(r);
    for (; r < rows; ++r) both.template operator()<1>(r);
}

// -- a block of rows --------------------------------------------------------------------------------------------------

// Memory of a thread that lasts from call to call.
template <class Number> struct Scratch {
    Number* of(int64_t numbers) {
        if (numbers > size) {
            held.reset(static_cast<Number*>(std::aligned_alloc(64, (numbers * sizeof(Number) + 63) / 64 * 64)));
            size = numbers;
        }
        return held.get();
    }
    struct Free {
        void operator()(Number* p) const { std::free(p); }
    };
    std::unique_ptr<Number, Free> held;
    int64_t size = 0;
};

// Rows of x as tiles read them: where they are, or laid out in the thread's scratch.
template <class Stored, class Number> struct Laid {
    const Number* at;
    int64_t stride;

    Laid(const Stored* x, int64_t x_stride, int64_t rows, int64_t inputs, uint64_t call, int64_t block) {
        if constexpr (std::is_same_v<Stored, Number>)
            if (inputs == whole(inputs)) {
                at = x, stride = x_stride;
                return;
            }
        thread_local Scratch<Number> scratch;
        thread_local uint64_t held_call;
        thread_local int64_t held_block;
        stride = whole(inputs);
        Number* to = scratch.of(rows * stride);
        at = to;
        if (held_call == call && held_block == block) return;
        for (int64_t r = 0; r < rows; ++r) lay_out(x + r * x_stride, inputs, to + r * stride);
        held_call = call, held_block = block;
    }
};

// Up to 8 rows of W, from one matrix or two, and how far ahead of each the one stands that its place has next.
template <class Stored> struct Panel {
    const Stored* w[PANEL];
    int halves;
    int64_t ahead;

    // Rows of a matrix from `first` on, `count` of at most 4, into one half.
    void fill(int half, const Matrix& matrix, int64_t first, int64_t count) {
        for (int64_t o = 0; o < OUTPUTS; ++o)  // what is missing is computed with the last one, and dropped
            w[half * OUTPUTS + o] =
                static_cast<const Stored*>(matrix.weight) + (first + std::min(o, count - 1)) * matrix.weight_stride;
    }
};

// to[r][o] = x[r] . W[o] for a block of rows and the outputs of a panel.
template <class Stored, class Number = typename DotsOf<Stored>::Number>
inline void multiply(const Laid<Stored, Number>& x, int64_t rows, const Panel<Stored>& panel, int64_t inputs, float* to) {
    alignas(64) thread_local Number laid[PANEL][BLOCK];
    std::fill(to, to + rows * PANEL, 0.0f);
    for (int64_t i = 0; i < inputs; i += BLOCK) {
        const int64_t count = std::min(BLOCK, inputs - i);
        const Stored* from[PANEL];
        for (int o = 0; o < panel.halves * OUTPUTS; ++o) from[o] = panel.w[o] + i;
        if constexpr (std::is_same_v<Stored, Number>) {
            if (count == whole(count)) {
                tiles<DotsOf<Stored>>(x.at + i, x.stride, rows, from, panel.halves, count, panel.ahead, to);
                continue;
            }
        } else if (rows <= PASSING_ROWS && count == whole(count)) {
            tiles<Widening>(x.at + i, x.stride, rows, from, panel.halves, count, panel.ahead, to);
            continue;
        }
        const Number* own[PANEL];
        for (int o = 0; o < panel.halves * OUTPUTS; ++o) {
            fetch(from[o] + panel.ahead, count);
            lay_out(from[o], count, laid[o]), own[o] = laid[o];
        }
        tiles<DotsOf<Stored>>(x.at + i, x.stride, rows, own, panel.halves, whole(count), 0, to);
    }
}

// -- activations ------------------------------------------------------------------------------------------------------

enum Activation : int { NONE, SILU, GELU, GELU_TANH, RELU, RELU2 };

// erf of each lane.
inline F error_function(F x) {
    for (int lane = 0; lane < LANES; ++lane) x[lane] = std::erf(x[lane]);
    return x;
}

inline F activated(int activation, F x) {
    switch (activation) {
        case SILU: return x / (exponential(-x) + 1.0f);
        case GELU: return x * 0.5f * (error_function(x * 0.70710678118654752f) + 1.0f);
        case GELU_TANH: return x * 0.5f * (tangent((x + x * x * x * 0.044715f) * 0.79788456080286536f) + 1.0f);
        case RELU: return where(x > 0.0f, x, F{});
        case RELU2: return where(x > 0.0f, x * x, F{});
        default: return x;
    }
}

// -- the call ---------------------------------------------------------------------------------------------------------

inline uint64_t next_call() {
    static std::atomic<uint64_t> calls{0};
    return ++calls;
}

// How a call is cut into items: the rows into blocks, and for each block every matrix into stretches of outputs.
struct Cut {
    int64_t rows, outputs, blocks;
    uint64_t call = next_call();

    // number_bytes: of x as it is laid out. row_bytes: of all rows of W that one output takes.
    Cut(const Rows& x, int64_t number_bytes, int64_t row_bytes) {
        rows = std::clamp(ROW_BYTES / (whole(x.width) * number_bytes) / ROWS * ROWS, int64_t(2 * ROWS), MOST_ROWS);
        outputs = std::max<int64_t>(ITEM_BYTES / row_bytes / PANEL, 1) * PANEL;
        blocks = (x.count + rows - 1) / rows;
    }
    int64_t stretches(const Matrix& matrix) const { return (matrix.outputs + outputs - 1) / outputs; }
};

// A block of rows of x, ready to be multiplied, and the sums of a panel.
template <class Stored> struct Block {
    int64_t first, rows, inputs;
    Laid<Stored, typename DotsOf<Stored>::Number> laid;
    alignas(64) float sums[(MOST_ROWS + LANES / OUTPUTS) * PANEL];

    Block(const Rows& x, const Cut& cut, int64_t block)
        : first(block * cut.rows), rows(std::min(cut.rows, x.count - first)), inputs(x.width),
          laid(static_cast<const Stored*>(x.at) + first * x.stride, x.stride, rows, inputs, cut.call, block) {}

    void run(const Panel<Stored>& panel) { multiply<Stored>(laid, rows, panel, inputs, sums); }

    // Add the bias of `count` outputs to the sums that begin at `place` of a panel.
    void add_bias(const Matrix& matrix, int64_t output, int64_t count, int place) {
        if (!matrix.bias) return;
        const auto* bias = static_cast<const Stored*>(matrix.bias) + output;
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t o = 0; o < count; ++o) sums[r * PANEL + place + o] += get(bias + o);
    }
    // The first half of the panel becomes act(first) * second.
    void gate(int activation) {
        constexpr int EACH = LANES / OUTPUTS;  // rows a register
        for (int64_t r = 0; r < rows; r += EACH) {
            float first[LANES], second[LANES];
            for (int i = 0; i < LANES; ++i) {  // past the last row: whatever is there, dropped
                const float* sum = sums + (r + i / OUTPUTS) * PANEL + i % OUTPUTS;
                first[i] = sum[0], second[i] = sum[OUTPUTS];
            }
            store(first, activated(activation, load(first)) * load(second));
            for (int i = 0; i < LANES; ++i) sums[(r + i / OUTPUTS) * PANEL + i % OUTPUTS] = first[i];
        }
    }
    // Put the first `count` sums of each row where the matrix has its outputs.
    template <class Out> void put_out(const Matrix& matrix, int64_t output, int64_t count) const {
        Out* y = static_cast<Out*>(matrix.y) + first * matrix.y_stride + output;
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t o = 0; o < count; ++o) put(y + r * matrix.y_stride + o, sums[r * PANEL + o]);
    }
};

template <class Stored, class Out> void products(Pool& pool, const Rows& x, int count, const Matrix* matrices) {
    const Cut cut(x, sizeof(typename DotsOf<Stored>::Number), x.width * sizeof(Stored));
    int64_t all = 0;
    for (int m = 0; m < count; ++m) all += cut.stretches(matrices[m]);
    pool.run(int(cut.blocks * all), [&](int item) {
        Block<Stored> block(x, cut, item / all);
        const Matrix* matrix = matrices;
        int64_t stretch = item % all;
        for (; stretch >= cut.stretches(*matrix); ++matrix) stretch -= cut.stretches(*matrix);
        const int64_t end = std::min((stretch + 1) * cut.outputs, matrix->outputs);
        for (int64_t o = stretch * cut.outputs; o < end; o += PANEL) {
            const int64_t there = std::min<int64_t>(PANEL, end - o);
            Panel<Stored> panel{{}, there > OUTPUTS ? 2 : 1, PANEL * matrix->weight_stride};
            for (int half = 0; half < panel.halves; ++half)
                panel.fill(half, *matrix, o + half * OUTPUTS, there - half * OUTPUTS);
            block.run(panel);
            block.add_bias(*matrix, o, there, 0);
            block.template put_out<Out>(*matrix, o, there);
        }
    });
}

template <class Stored>
void gated_products(Pool& pool, const Rows& x, const Matrix& gate, const Matrix& up, int activation) {
    const Cut cut(x, sizeof(typename DotsOf<Stored>::Number), 2 * x.width * sizeof(Stored));
    const int64_t all = cut.stretches(gate);
    pool.run(int(cut.blocks * all), [&](int item) {
        Block<Stored> block(x, cut, item / all);
        const int64_t end = std::min((item % all + 1) * cut.outputs, gate.outputs);
        for (int64_t o = item % all * cut.outputs; o < end; o += OUTPUTS) {
            const int64_t there = std::min<int64_t>(OUTPUTS, end - o);
            Panel<Stored> panel{{}, 2, OUTPUTS * gate.weight_stride};
            panel.fill(0, gate, o, there), panel.fill(1, up, o, there);
            block.run(panel);
            block.add_bias(gate, o, there, 0), block.add_bias(up, o, there, OUTPUTS);
            block.gate(activation);
            block.template put_out<Stored>(gate, o, there);
        }
    });
}

}  // namespace
