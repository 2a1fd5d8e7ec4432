// Attention over pages of keys and values, for decode and prefill.
//
// The result of a query is merged from fixed blocks of key positions. Each block has its largest score, the sum of the
// exponentials relative to it, and the values weighted by them (Milakov and Gimelshein, arXiv:1805.02867; FlashAttention: Dao
// et al., arXiv:2205.14135). Blocks always lie at multiples of BLOCK_KEYS and are merged in the order of their positions.
// Within a block, keys that a query does not see have weight 0 exactly. So the result of a row is the same, bit for bit,
// alone and in any batch, with its prompt in any chunks, and with any number of threads.
//
// K and V are read in place, once for all rows of an item. These rows are the heads that share them, for as many queries as
// fit into a core's cache.
#pragma once

#include <limits>

#include "dots.h"
#include "kernels.h"
#include "parts.h"
#include "pool.h"
#include "scratch.h"
#include "values.h"

namespace {

constexpr int KEYS = TILE_COLUMNS;  // keys of a tile of scores
constexpr int MAX_TILE_ROWS = 6;   // rows of a tile of weighted values
constexpr int64_t GROUP = 8;        // keys whose values are weighted together, in place
constexpr float NOTHING = -std::numeric_limits<float>::infinity();

// -- scores -----------------------------------------------------------------------------------------------------------

// to[r][j] = scale q[r] . k[j] for R rows and 4 keys.
template <class Dots, int R, class Key, class Number = typename Dots::Number>
inline void score_tile(const Number* q, int64_t q_stride, const Key* const* k, int64_t dim, float scale, float* to) {
    const SumsOfRows<R> scores = dot_tile<Dots, R>(q, q_stride, k, dim);
    scores.each([&](int r, F4 own) __attribute__((always_inline)) {
        own *= scale;
        std::memcpy(to + r * BLOCK_KEYS, &own, sizeof(own));
    });
}

// The same for rows from `row` on, in tiles of at most R rows.
template <class Dots, int R = Dots::ROWS, class Key, class Number = typename Dots::Number>
inline void score_rows(const Number* q, int64_t row, int64_t rows, const Key* const* k, int64_t dim, float scale,
                       float* to) {
    for (; row + R <= rows; row += R)
        score_tile<Dots, R>(q + row * dim, dim, k, dim, scale, to + row * BLOCK_KEYS);
    if constexpr (R > 1)
        if (row < rows) score_rows<Dots, R - 1>(q, row, rows, k, dim, scale, to);
}

// The attention of one layer in one step. Stored is the type of queries and results, Kept that of keys and values (kept.h).
// Codes are multiplied without their scales. The scale of a key is applied to its score, and that of a value to its weight.
// So products are exact, even in bf16.
template <class Stored, class Kept> class Attend {
    using Dots = DotsOf<Stored>;
    using Number = typename Dots::Number;
    // How keys are read in place. If queries are packed in another type, keys are widened while they are read, and the sums
    // are the same.
    using DotsInPlace = std::conditional_t<is_coded<Kept>, WideningCodes<Stored, Kept>,
                                           std::conditional_t<std::is_same_v<Stored, Number>, Dots, Widening>>;
    using Values = ValuesOf<Stored, Kept>;
    using Weight = typename Values::Weight;
    using Register = typename Values::Register;
    static constexpr int64_t PAIR = Values::KEYS;
    static constexpr bool SCALED = is_scaled<Kept>();  // each vector has a scale
    // the distance between rows of weights, which replace scores
    static constexpr int64_t ROW = BLOCK_KEYS * sizeof(float) / sizeof(Weight);

  public:
    Attend(const AttentionLayer& layer, const Sequences& sequences, const Rows& q, void* to)
        : layer(layer), sequences(sequences), q(q), out(static_cast<Stored*>(to)), sharers(layer.heads / layer.kv_heads),
          dim(padded(layer.k_dim)), width(padded(layer.v_dim)), scale(layer.scale * (layer.codes ? layer.codes->k_scale : 1)),
          value_scale(layer.codes ? layer.codes->v_scale : 1), parts(layer, sequences, width) {}

    void run(Pool& pool) {
        parts.cut(pool.threads());
        thread_local Scratch<float> scratch;
        kept = scratch.of(parts.kept_numbers);
        pool.run(int(parts.groups.size() - 1), [&](int group) { attend(parts.groups[group], parts.groups[group + 1]); });
        pool.run(int(parts.merged.size()), [&](int item) { merge_kept(parts.merged[item]); });
    }

  private:
    // -- items --

    // A block of keys as an item sees it. The item sees [from, to) of the keys from position `start` on. Also the addresses
    // of keys and values, and the scales of both.
    struct Block {
        int64_t start, from, to;
        const Kept *keys[BLOCK_KEYS], *values[BLOCK_KEYS];
        float key_scales[SCALED ? BLOCK_KEYS : 1], value_scales[SCALED ? BLOCK_KEYS : 1];
    };

    // The memory of a thread for the rows that it is computing.
    struct Memory {
        Scratch<Number> q, key;
        Scratch<float> scores, results, block;
        Scratch<Register> panel;
        Block blocks[2];
    };
    static Memory& memory_of_thread() {
        thread_local Memory memory;
        Memory* own = &memory;
        asm("" : "+r"(own));  // otherwise the innermost loops get its address again and again
        return *own;
    }

    // Compute items [from, to) in order. While a block is computed, the next one is prefetched, even if it belongs to the
    // next item.
    void attend(int64_t from, int64_t to) const {
        Memory& memory = memory_of_thread();
        Block *block = &memory.blocks[0], *next = &memory.blocks[1];
        const Part* found = nullptr;  // the part whose first block is already in `block`
        for (int64_t item = from; item < to; ++item) {
            const Part &part = parts.items[item], *following = item + 1 < to ? &part + 1 : nullptr;
            const int64_t rows = part.queries * sharers, numbers = Partial::numbers(rows, width);
            pack_queries(part, memory.q.of(rows * dim));
            Partial results(memory.results.of(numbers), rows, width);
            begin(results, rows);
            if (part.blocks && found != &part) find(part, part.block, *block);
            for (int64_t b = 0; b < part.blocks; ++b) {
                const bool last = b + 1 == part.blocks;
                found = last && following && following->blocks ? following : nullptr;
                if (!last) find(part, part.block + b + 1, *next);
                if (found) find(*found, found->block, *next);
                Partial own(part.kept < 0 ? memory.block.of(numbers) : kept + part.kept + b * numbers, rows, width);
                attend_block(part, *block, last && !found ? *block : *next, memory, own);
                if (part.kept < 0) merge(results, own, rows);
                std::swap(block, next);
            }
            if (part.kept < 0) end(part, results);
        }
    }

    void merge_kept(const Part& part) const {
        thread_local Scratch<float> scratch;
        const int64_t rows = part.queries * sharers, numbers = Partial::numbers(rows, width);
        Partial results(scratch.of(numbers), rows, width);
        begin(results, rows);
        for (int64_t b = 0; b < part.blocks; ++b) merge(results, Partial(kept + part.kept + b * numbers, rows, width), rows);
        end(part, results);
    }

    // The rows are ordered by query, then by head.
    void pack_queries(const Part& part, Number* to) const {
        for (int64_t query = 0; query < part.queries; ++query) {
            const Stored* from = static_cast<const Stored*>(q.at) +
                                 (sequences.starts[part.sequence] + part.query + query) * q.stride +
                                 part.kv_head * sharers * layer.k_dim;
            for (int64_t head = 0; head < sharers; ++head, to += dim) pack(from + head * layer.k_dim, layer.k_dim, to);
        }
    }

    // next: the block that is read after this one, or this one again. While this block is computed, memory is prefetched: its
    // values during the scores, and the keys of `next` during the values.
    void attend_block(const Part& part, const Block& block, const Block& next, Memory& memory, Partial& own) const {
        const int64_t rows = part.queries * sharers;
        float* scores = memory.scores.of(rows * BLOCK_KEYS);
        score(part, block, memory, scores);
        for (int64_t query = 0, row = 0; query < part.queries; ++query) {
            const int64_t at = parts.position(part.sequence) + part.query + query;
            const int64_t first = layer.reach == CROSS ? block.from : std::max(parts.first_seen(at) - block.start, block.from);
            const int64_t stop = layer.reach == CROSS ? block.to : std::min(at + 1 - block.start, block.to);
            for (int64_t head = 0; head < sharers; ++head, ++row)
                exponentiate(scores + row * BLOCK_KEYS, block, first, stop, own.most[row], own.total[row]);
        }
        weigh(part, block, next, memory, scores, own.values);
    }

    // Tiles read a few keys before and after the requested ones. These get addresses that may be read, and weight 0.
    __attribute__((noinline)) void find(const Part& part, int64_t number, Block& block) const {
        const int64_t size = layer.page_size, first = sequences.firsts[part.sequence];
        const int32_t* pages = sequences.pages + sequences.offsets[part.sequence];
        const Kept *k = static_cast<const Kept*>(layer.k), *v = static_cast<const Kept*>(layer.v);
        block.start = number * BLOCK_KEYS;
        block.from = std::max<int64_t>(part.from - block.start, 0), block.to = std::min(part.to - block.start, BLOCK_KEYS);
        for (int64_t key = block.from; key < block.to;) {
            const int64_t entry = (block.start + key - first) / size, offset = (block.start + key - first) % size;
            const int64_t page = pages[entry] * layer.page_stride, slot = part.kv_head * size + offset;
            const int64_t stop = std::min(block.to, key + size - offset);
            if constexpr (SCALED) find_scales(pages[entry] * layer.codes->stride + slot, key, stop, block);
            const Kept *own_k = k + page + slot * layer.k_dim, *own_v = v ? v + page + slot * layer.v_dim : own_k;
            for (; key < stop; ++key, own_k += layer.k_dim, own_v += v ? layer.v_dim : layer.k_dim)
                block.keys[key] = own_k, block.values[key] = own_v;
        }
        auto borrow = [&](int64_t key, int64_t of) { block.keys[key] = block.keys[of], block.values[key] = block.values[of]; };
        for (int64_t key = block.from / KEYS * KEYS; key < block.from; ++key) borrow(key, block.from);
        for (int64_t key = block.to; key % KEYS; ++key) borrow(key, block.to - 1);
    }

    // Set the scales of keys [key, stop), which are contiguous from `slot` on. Other scales of the block are left as they
    // are: what is computed from them is overwritten.
    void find_scales(int64_t slot, int64_t key, int64_t stop, Block& block) const {
        const auto* of_keys = static_cast<const bf16*>(layer.codes->k_scales) + slot;
        const auto* of_values = layer.v ? static_cast<const bf16*>(layer.codes->v_scales) + slot : of_keys;
        for (; key < stop; ++key, ++of_keys, ++of_values)
            block.key_scales[key] = widen(*of_keys), block.value_scales[key] = widen(*of_values);
    }

    __attribute__((noinline)) void score(const Part& part, const Block& block, Memory& memory, float* scores) const {
        const int64_t rows = part.queries * sharers, at = parts.position(part.sequence) + part.query;
        const Number* queries = memory.q.of(rows * dim);
        constexpr bool IN_PLACE = !is_coded<Kept> || std::is_same_v<Number, float>;
        const int64_t most = is_coded<Kept> ? DotsInPlace::ROWS : std::is_same_v<Stored, Number> ? rows : TILE_ROWS;
        const bool in_place = dim == layer.k_dim && rows <= most;
        for (int64_t key = block.from / KEYS * KEYS; key < block.to; key += KEYS) {
            for (int64_t own = key; own < key + KEYS; ++own) prefetch(block.values[own], layer.v_dim);
            const int64_t row = layer.reach == CROSS ? 0 : std::max<int64_t>(block.start + key - at, 0) * sharers;
            if constexpr (IN_PLACE)
                if (in_place) {
                    score_rows<DotsInPlace>(queries, row, rows, block.keys + key, dim, scale, scores + key);
                    continue;
                }
            Number* packed = memory.key.of(KEYS * dim);
            const Number* own[KEYS];
            for (int j = 0; j < KEYS; ++j) {
                pack_key(block.keys[key + j], packed + j * dim);
                own[j] = packed + j * dim;
            }
            score_rows<Dots>(queries, row, rows, own, dim, scale, scores + key);
        }
    }

    void pack_key(const Kept* key, Number* to) const {
        if constexpr (is_coded<Kept>)
            pack_codes<Stored>(key, layer.k_dim, to);
        else
            pack(key, layer.k_dim, to);
    }

    // Replace the scores of a row, which sees [first, stop) of the block, by their weights.
    __attribute__((noinline)) void exponentiate(float* scores, const Block& block, int64_t first, int64_t stop, float& most,
                                          float& total) const {
        const int64_t begin = block.from / LANES * LANES, end = (block.to + LANES - 1) / LANES * LANES;
        if constexpr (SCALED)
            for (int64_t i = begin; i < end; i += LANES) store(scores + i, load(scores + i) * load(block.key_scales + i));
        if (layer.softcap > 0)
            for (int64_t i = begin; i < end; i += LANES)
                store(scores + i, tanh_of(load(scores + i) / layer.softcap) * layer.softcap);
        std::fill(scores + begin, scores + std::min(first, end), NOTHING);
        std::fill(scores + std::max(stop, begin), scores + end, NOTHING);
        F largest_of = broadcast(NOTHING);
        for (int64_t i = begin; i < end; i += LANES) largest_of = maximum(largest_of, load(scores + i));
        most = largest(largest_of);
        const float base = most == NOTHING ? 0.0f : most;
        F sum_of = {};
        auto* weights = reinterpret_cast<Weight*>(scores);
        for (int64_t i = begin; i < end; i += LANES) {
            F weight = exponential(load(scores + i) - base);
            sum_of += weight;
            // Keys with weight 0 may have no scale.
            if constexpr (SCALED) weight = where(weight == 0.0f, weight, weight * load(block.value_scales + i));
            store(weights + i, weight);
        }
        total = sum(sum_of);
    }

    // values[row] = the sum of the block's values, weighted by the row's weights.
    __attribute__((noinline)) void weigh(const Part& part, const Block& block, const Block& next, Memory& memory,
                                         const float* scores, float* values) const {
        const int64_t seen = parts.position(part.sequence) + part.query + 1 - block.start;
        const Weighing own{reinterpret_cast<const Weight*>(scores), values, part.queries * sharers, width,
                           block.from / PAIR * PAIR, (block.to + PAIR - 1) / PAIR * PAIR,
                           layer.reach == CROSS ? BLOCK_KEYS : seen, sharers};
        if (own.rows <= MAX_TILE_ROWS && width == layer.v_dim)
            weigh_in_place<MAX_TILE_ROWS>(own, block.values, next);
        else
            weigh_packed(own, block.values, next, memory);
    }

    // The operands of a weighted sum of values. seen: how many keys of the block its first row sees.
    struct Weighing {
        const Weight* weights;
        float* values;
        int64_t rows, width, from, to, seen, sharers;

        // Return the end of the keys that the last of these rows sees.
        int64_t stop(int64_t row, int64_t count) const {
            if (seen >= to) return to;  // most rows do; this saves a division
            return std::min(to, (seen + (row + count - 1) / sharers + PAIR - 1) / PAIR * PAIR);
        }
        template <int R, int C, class At>
        void tile(int64_t row, int64_t column, int64_t first, int64_t end, const At& at) const {
            weigh_tile<Values, R, C>(weights + row * ROW, ROW, first, end, first == from, at, values + row * width + column,
                                     width);
        }
        // Run tiles of at most R rows.
        template <int R, int C, class At> void tiles(int64_t row, int64_t column, const At& at) const {
            for (; row + R <= rows; row += R) tile<R, C>(row, column, from, stop(row, R), at);
            if constexpr (R > 1)
                if (row < rows) tiles<R - 1, C>(row, column, at);
        }
    };

    template <int R> static void weigh_in_place(const Weighing& own, const Kept* const* v, const Block& next) {
        if constexpr (R > 1)
            if (own.rows < R) return weigh_in_place<R - 1>(own, v, next);
        constexpr int C = units_of<R>();
        const int64_t stop = own.stop(0, R), turns = (stop - own.from + GROUP - 1) / GROUP;
        int64_t ahead = next.from;
        const int64_t share = (next.to - ahead + turns - 1) / std::max<int64_t>(turns, 1);
        for (int64_t key = own.from; key < stop; key += GROUP) {  // this reads memory in its own order
            const int64_t end = std::min(key + GROUP, stop);
            int64_t column = 0;
            auto at = [&](int64_t key, int c, auto& a, auto& b) { Values::read(v + key, column + c * UNIT, a, b); };
            for (const int64_t last = std::min(ahead + share, next.to); ahead < last; ++ahead) prefetch(next.keys[ahead], own.width);
            for (; column + C * UNIT <= own.width; column += C * UNIT) own.template tile<R, C>(0, column, key, end, at);
            for (; column < own.width; column += UNIT) own.template tile<R, 1>(0, column, key, end, at);
        }
    }

    // For many rows, which share the work of packing values.
    void weigh_packed(const Weighing& own, const Kept* const* v, const Block& next, Memory& memory) const {
        constexpr int C = units_of<MAX_TILE_ROWS>();
        auto* panel = memory.panel.of(BLOCK_KEYS / PAIR * C * 2);
        for (int64_t column = 0; column < width; column += C * UNIT) {
            const int units = int(std::min<int64_t>(C, (width - column) / UNIT));
            if (column == 0)
                for (int64_t key = next.from; key < next.to; ++key) prefetch(next.keys[key], width);
            for (int64_t key = own.from; key < own.to; key += PAIR)
                for (int c = 0; c < units; ++c) {
                    auto* to = panel + (key / PAIR * units + c) * 2;
                    read_unit(v + key, column + c * UNIT, to[0], to[1]);
                }
            auto at = [&](int64_t key, int c, auto& a, auto& b) {
                const auto* from = panel + (key / PAIR * units + c) * 2;
                a = from[0], b = from[1];
            };
            if (units == C)
                own.template tiles<MAX_TILE_ROWS, C>(0, column, at);
            else
                own.template tiles<MAX_TILE_ROWS, 1>(0, column, at);
        }
    }

    // Read a unit of columns of PAIR values, padded with zeros at the end.
    void read_unit(const Kept* const* v, int64_t column, Register& a, Register& b) const {
        if (column + UNIT <= layer.v_dim) return Values::read(v, column, a, b);
        Kept rest[PAIR][UNIT] = {};
        const Kept* own[PAIR];
        for (int64_t j = 0; j < PAIR; ++j) {
            std::memcpy(rest[j], v[j] + column, (layer.v_dim - column) * sizeof(Kept));
            own[j] = rest[j];
        }
        Values::read(own, 0, a, b);
    }

    // -- results --

    static void begin(Partial& results, int64_t rows) {
        std::fill(results.values, results.most, 0.0f);
        std::fill(results.most, results.total, NOTHING);
        std::fill(results.total, results.total + rows, 0.0f);
    }

    // All merges use one function, so that all of them round alike.
    __attribute__((noinline)) void merge(Partial& results, const Partial& own, int64_t rows) const {
        for (int64_t row = 0; row < rows; ++row) {
            if (own.total[row] == 0) continue;  // the row sees nothing of the block
            const float most = std::max(results.most[row], own.most[row]);
            const F factors = exponential(F{results.most[row] - most, own.most[row] - most});
            const F before = broadcast(factors[0]), now = broadcast(factors[1]);
            results.most[row] = most;
            results.total[row] = results.total[row] * factors[0] + own.total[row] * factors[1];
            float *to = results.values + row * width, *from = own.values + row * width;
            for (int64_t i = 0; i < width; i += LANES) store(to + i, load(to + i) * before + load(from + i) * now);
        }
    }

    // Divide the results of the part's rows by their sums and write them to their place.
    __attribute__((noinline)) void end(const Part& part, Partial& results) const {
        for (int64_t row = 0; row < part.queries * sharers; ++row) {
            const int64_t head = part.kv_head * sharers + row % sharers;
            const int64_t query = sequences.starts[part.sequence] + part.query + row / sharers;
            float share = 1.0f, total = results.total[row];
            if (layer.sinks) {
                const float sink = get(static_cast<const Stored*>(layer.sinks) + head);
                const float most = std::max(results.most[row], sink);
                const F factors = exponential(F{results.most[row] - most, sink - most});
                share = factors[0], total = total * share + factors[1];
            }
            share = total == 0 ? 0.0f : share / total * value_scale;
            float* values = results.values + row * width;
            for (int64_t i = 0; i < width; i += LANES) store(values + i, load(values + i) * share);
            unpack(values, layer.v_dim, out + (query * layer.heads + head) * layer.v_dim);
        }
    }

    const AttentionLayer& layer;
    const Sequences& sequences;
    const Rows& q;
    Stored* out;
    const int64_t sharers, dim, width;
    const float scale, value_scale;  // of scores; of results
    Parts parts;
    float* kept = nullptr;
};

// Write new rows of K and V into their slots.
template <class Stored, class Kept> void write_kv(Pool& pool, const AttentionLayer& layer, const NewRows& rows) {
    constexpr int64_t ROWS_AN_ITEM = 16;
    auto write = [&](const Stored* from, int64_t dim, float by, Kept* to, bf16* scale) {
        if constexpr (is_coded<Kept>) {
            thread_local Scratch<float> wide;
            write_codes(from, dim, wide.of(dim), by, to, scale);
        } else {
            std::memcpy(to, from, dim * sizeof(Stored));
        }
    };
    auto put_row = [&](const void* from, int64_t stride, void* to, int64_t dim, void* scales, float by, int64_t row) {
        const int64_t page = rows.slots[row] / layer.page_size, offset = rows.slots[row] % layer.page_size;
        const Stored* own = static_cast<const Stored*>(from) + row * stride;
        Kept* slot = static_cast<Kept*>(to) + page * layer.page_stride + offset * dim;
        bf16* scale = scales ? static_cast<bf16*>(scales) + page * layer.codes->stride + offset : nullptr;
        for (int64_t head = 0; head < layer.kv_heads; ++head)
            write(own + head * dim, dim, by, slot + head * layer.page_size * dim, scale + (scale ? head * layer.page_size : 0));
    };
    const PageCodes none{INT8, nullptr, nullptr, 0, 1, 1}, &codes = layer.codes ? *layer.codes : none;
    pool.run(int((rows.count + ROWS_AN_ITEM - 1) / ROWS_AN_ITEM), [&](int item) {
        const int64_t end = std::min(rows.count, (item + 1) * ROWS_AN_ITEM);
        for (int64_t row = item * ROWS_AN_ITEM; row < end; ++row) {
            put_row(rows.k, rows.k_stride, layer.k, layer.k_dim, codes.k_scales, codes.k_scale, row);
            if (layer.v) put_row(rows.v, rows.v_stride, layer.v, layer.v_dim, codes.v_scales, codes.v_scale, row);
        }
    });
}

}  // namespace
