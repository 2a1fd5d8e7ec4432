// All experts of a layer for the rows of a step: down(act(gate(x)) * up(x)) of each expert that a row picked, weighted and
// added. They match core/ops/experts.py in every rounding.
//
// Rows are sorted by expert, so the weights of a picked expert are read once, and those of the others never. The products are
// those of product.h. The outputs of a row's experts are added in the order of the experts. So the result is the same, bit
// for bit, alone and in any batch.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels.h"
#include "pool.h"
#include "product.h"
#include "scratch.h"
#include "tile_products.h"

namespace {

constexpr int64_t MAX_SHARED_OUTPUTS = 128;  // maximum outputs of an item with many rows, because each item reads all rows

// The rows sorted by the expert that they picked.
struct SortedPicks {
    // Some of the rows of one expert: [first, first + count) of all.
    struct Block {
        int64_t expert, first, count;
    };
    std::vector<int64_t> starts, rows;
    std::vector<float> weights;
    int64_t hit = 0, most = 0;  // the number of picked experts, and the rows of the one with the most

    SortedPicks(const Picks& picks, int64_t tokens, int64_t experts)
        : starts(experts + 1), rows(tokens * picks.active), weights(rows.size()) {
        const int64_t count = rows.size();
        for (int64_t i = 0; i < count; ++i) ++starts[picks.ids[i] + 1];
        for (int64_t e = 0; e < experts; ++e) {
            hit += starts[e + 1] > 0, most = std::max(most, starts[e + 1]);
            starts[e + 1] += starts[e];
        }
        std::vector<int64_t> next(starts.begin(), starts.end() - 1);
        for (int64_t i = 0; i < count; ++i) {
            const int64_t place = next[picks.ids[i]]++;
            rows[place] = i / picks.active, weights[place] = picks.weights[i];
        }
    }

    std::vector<Block> blocks(int64_t rows_of_each) const {
        std::vector<Block> found;
        for (int64_t e = 0; e + 1 < int64_t(starts.size()); ++e)
            for (int64_t first = starts[e]; first < starts[e + 1]; first += rows_of_each)
                found.push_back({e, first, std::min(rows_of_each, starts[e + 1] - first)});
        return found;
    }
};

// Runs experts whose matrices have this kind of panel.
template <class Panel> class RunExperts {
    using Stored = typename Panel::Stored;
    using Number = typename Panel::Number;
    using Traits = PanelTraits<Panel>;
    static constexpr int64_t HALF_OUTPUTS = Traits::HALF_OUTPUTS, PANEL = 2 * HALF_OUTPUTS;

  public:
    RunExperts(const ExpertLayer& layer, const Rows& x, const Picks& picks, const void* onto, int64_t onto_stride, void* to)
        : layer(layer), x(x), onto(static_cast<const Stored*>(onto)), onto_stride(onto_stride), out(static_cast<Stored*>(to)),
          width(layer.experts->gate.outputs), hidden(layer.experts->down.outputs),
          stride(Traits::PACKS_BLOCKS ? width : padded(width)), picks(picks, x.count, layer.count) {}

    void run(Pool& pool) {
        if (picks.rows.empty()) return;
        Scratch<Number> memory;
        gated_rows = memory.of(picks.rows.size() * stride);
        if (width < stride)
            for (size_t r = 0; r < picks.rows.size(); ++r) std::fill_n(gated_rows + (r + 1) * stride - UNIT, UNIT, Number{});
        blocks = picks.blocks(Traits::rows_of_block(x.width));
        outputs = of_item(2 * Panel::bytes(x.width));
        const int64_t slices = (width + outputs - 1) / outputs;
        pool.run(int(blocks.size() * slices), [&](int item) { gate(item / slices, item % slices * outputs); });
        blocks = picks.blocks(Traits::rows_of_block(width));
        Scratch<Number> packed_memory;
        if constexpr (Traits::PACKS_BLOCKS) pack_gated_blocks(pool, packed_memory);
        outputs = of_item(picks.hit * Panel::bytes(width));
        if (picks.most > STREAMED_ROWS)
            outputs = std::clamp(hidden / pool.threads() / 4 / PANEL * PANEL, outputs, std::max(outputs, MAX_SHARED_OUTPUTS));
        pool.run(int((hidden + outputs - 1) / outputs), [&](int item) { add_up(item * outputs); });
    }

  private:
    using Block = SortedPicks::Block;

    // row_bytes: the size of all rows of W that one output needs.
    static int64_t of_item(int64_t row_bytes) { return std::max<int64_t>(ITEM_BYTES / row_bytes / PANEL, 1) * PANEL; }

    // Return the rows of x of a block, packed in the scratch memory of the thread.
    TileRows<Number> packed(int64_t number) const {
        thread_local Scratch<Number> scratch;
        thread_local uint64_t held_call;
        thread_local int64_t held_block;
        const Block& block = blocks[number];
        const int64_t stride = Traits::PACKS_BLOCKS ? Panel::stride(x.width) : padded(x.width);
        const TileRows<Number> held{scratch.of(Traits::packed_rows(block.count) * stride), stride};
        if (held_call == call && held_block == number) return held;
        auto row_of = [&](int64_t r) { return static_cast<const Stored*>(x.at) + picks.rows[block.first + r] * x.stride; };
        pack_rows<Panel>(row_of, block.count, x.width, stride, scratch.held.get());
        held_call = call, held_block = number;
        return held;
    }

    // Pack the gated rows of all blocks, which the items of the last product share.
    void pack_gated_blocks(Pool& pool, Scratch<Number>& memory) {
        const int64_t packed_stride = Panel::stride(width);
        std::vector<int64_t> firsts{0};
        for (const Block& block : blocks) firsts.push_back(firsts.back() + Traits::packed_rows(block.count));
        Number* to = memory.of(firsts.back() * packed_stride);
        pool.run(int(blocks.size()), [&](int number) {
            auto row_of = [&](int64_t r) { return gated_rows + (blocks[number].first + r) * stride; };
            pack_rows<Panel>(row_of, blocks[number].count, width, packed_stride, to + firsts[number] * packed_stride);
        });
        for (size_t number = 0; number < blocks.size(); ++number)
            packed_blocks.push_back({to + firsts[number] * packed_stride, packed_stride});
    }

    // Compute act(gate(x)) * up(x) for a block of rows and the outputs of an item, packed for the next product.
    void gate(int64_t number, int64_t from) const {
        const Block& block = blocks[number];
        const Expert& expert = layer.experts[block.expert];
        const TileRows<Number> rows = packed(number);
        [[maybe_unused]] const typename Traits::InUse in_use;
        typename Traits::Sums sums(block.count);
        for (int64_t o = from; o < std::min(from + outputs, width); o += HALF_OUTPUTS) {
            const int64_t there = std::min<int64_t>(HALF_OUTPUTS, width - o);
            Panel panel(2, HALF_OUTPUTS * expert.gate.weight_stride);
            panel.fill(0, expert.gate, o, there), panel.fill(1, expert.up, o, there);
            multiply(rows, block.count, panel, x.width, sums.at);
            sums.add_bias(expert.gate, o, there, 0), sums.add_bias(expert.up, o, there, 1);
            sums.gate(layer.gate);
            for (int64_t r = 0; r < block.count; ++r)
                for (int64_t i = 0; i < there; ++i) keep(sums.of(r, i), block.first + r, o + i);
        }
    }

    // The value is rounded to the type of the rows, even if the product reads a wider type.
    void keep(float value, int64_t row, int64_t place) const {
        Number* to = gated_rows + row * stride + Panel::place(place, width);
        if constexpr (std::is_same_v<Number, float>)
            *to = stored_as(static_cast<const Stored*>(nullptr), value);
        else
            put(to, value);
    }

    // Compute the outputs of an item for all rows, and add `onto`.
    void add_up(int64_t from) const {
        thread_local Scratch<float> scratch;
        const int64_t count = std::min(outputs, hidden - from);
        float* totals = scratch.of(x.count * outputs);
        std::fill_n(totals, x.count * outputs, 0.0f);
        [[maybe_unused]] const typename Traits::InUse in_use;
        for (size_t number = 0; number < blocks.size(); ++number) add_block(number, from, count, totals);
        for (int64_t r = 0; r < x.count; ++r)
            for (int64_t o = 0; o < count; ++o) {
                const float own = stored_as(out, totals[r * outputs + o]);
                put(out + r * hidden + from + o, onto ? own + get(onto + r * onto_stride + from + o) : own);
            }
    }

    void add_block(size_t number, int64_t from, int64_t count, float* totals) const {
        const Block& block = blocks[number];
        const Matrix& down = layer.experts[block.expert].down;
        TileRows<Number> rows{gated_rows + block.first * stride, stride};
        if constexpr (Traits::PACKS_BLOCKS) rows = packed_blocks[number];
        typename Traits::Sums sums(block.count);
        for (int64_t o = 0; o < count; o += PANEL) {
            const int64_t there = std::min<int64_t>(PANEL, count - o);
            Panel panel(there > HALF_OUTPUTS ? 2 : 1, PANEL * down.weight_stride);
            if (o + PANEL >= count && number + 1 < blocks.size()) panel.ahead = apart(number, from + o, from);
            for (int half = 0; half < panel.halves; ++half)
                panel.fill(half, down, from + o + half * HALF_OUTPUTS, there - half * HALF_OUTPUTS);
            multiply(rows, block.count, panel, width, sums.at);
            sums.add_bias(down, from + o, there, 0);
            for (int64_t r = 0; r < block.count; ++r) {
                float* total = totals + picks.rows[block.first + r] * outputs + o;
                for (int64_t i = 0; i < there; ++i)
                    total[i] += picks.weights[block.first + r] * stored_as(out, sums.of(r, i));
            }
        }
    }

    // Return the distance from an output's row to that of another output in the next block's matrix.
    int64_t apart(size_t number, int64_t output, int64_t other) const {
        auto row = [&](size_t number, int64_t output) {
            const Matrix& down = layer.experts[blocks[number].expert].down;
            return reinterpret_cast<intptr_t>(down.weight) + output * down.weight_stride * Panel::NUMBER_BYTES;
        };
        return (row(number + 1, other) - row(number, output)) / Panel::NUMBER_BYTES;
    }

    const ExpertLayer& layer;
    const Rows& x;
    const Stored* onto;
    const int64_t onto_stride;
    Stored* out;
    const int64_t width, hidden, stride;  // stride: the distance between gated rows
    const SortedPicks picks;
    const uint64_t call = next_call();
    Number* gated_rows = nullptr;
    std::vector<Block> blocks;  // of the current products
    std::vector<TileRows<Number>> packed_blocks;  // the gated rows of each block, if blocks are packed
    int64_t outputs = 0;        // outputs of one of their items
};

}  // namespace
