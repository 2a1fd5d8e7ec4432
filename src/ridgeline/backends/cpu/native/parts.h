// How the attention of a layer is cut into items: by sequence, KV head, queries and, if these are few, blocks of keys.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels.h"

namespace {

constexpr int64_t BLOCK_KEYS = 128;
constexpr int64_t ITEM_ROWS = 72;      // heads x queries of an item, whose queries, scores and results stay in L2
constexpr int64_t FEW_ROWS = 16;       // up to this number of rows, an item may also be cut at blocks of keys
constexpr int64_t ITEMS_A_THREAD = 8;  // enough that all threads end at about the same time

// One item: `queries` queries of a sequence from `query` on, for the heads that share a KV head, over `blocks` blocks of keys
// from `block` on. [from, to) are the keys that any of these queries sees. kept: where the partial results go if other items
// compute other blocks of the same rows, or -1 if this item computes all of them.
struct Part {
    int64_t sequence, kv_head, query, queries, from, to, block, blocks, kept;
};

// The partial result of a block, or of all blocks up to one. Each row has its largest score, the sum of exponentials relative
// to it, and the values weighted by them, in the order of `pack`.
struct Partial {
    float *most, *total, *values;

    static int64_t numbers(int64_t rows, int64_t width) { return rows * (width + 2); }
    Partial(float* at, int64_t rows, int64_t width) : most(at + rows * width), total(most + rows), values(at) {}
};

// The items of a call, and the keys that their queries see.
class Parts {
  public:
    // width: the length of a value in partial results.
    Parts(const AttentionLayer& layer, const Sequences& sequences, int64_t width)
        : layer(layer), sequences(sequences), sharers(layer.heads / layer.kv_heads), width(width) {}

    int64_t queries_of(int64_t sequence) const { return sequences.starts[sequence + 1] - sequences.starts[sequence]; }
    // Return the position of a sequence's first query of the step.
    int64_t position(int64_t sequence) const { return sequences.lengths[sequence] - queries_of(sequence); }
    // Return the first key that the query at a position sees.
    int64_t first_seen(int64_t position) const {
        if (layer.reach == WINDOW) return std::max<int64_t>(0, position - layer.reach_size + 1);
        if (layer.reach == CHUNKED) return position / layer.reach_size * layer.reach_size;
        return 0;
    }

    // Fill `items` and their groups for this number of threads, and `merged`, the rows whose blocks are in several items.
    void cut(int64_t threads) {
        const int64_t wanted = threads == 1 ? 1 : threads * ITEMS_A_THREAD;
        int64_t queries = std::max<int64_t>(ITEM_ROWS / sharers, 1);
        while (queries > 1 && queries * sharers > FEW_ROWS && blocks_from(queries) < wanted) queries = (queries + 1) / 2;
        int64_t blocks = 0, rows = 0;  // rows: the maximum over the items
        for (int64_t s = 0; s < sequences.count; ++s)
            for (int64_t query = 0; query < queries_of(s); query += queries)
                for (int64_t head = 0; head < layer.kv_heads; ++head) {
                    items.push_back(part_of(s, head, query, std::min(queries, queries_of(s) - query)));
                    blocks += items.back().blocks;
                    rows = std::max(rows, items.back().queries * sharers);
                }
        if (rows > FEW_ROWS) return group(1);
        const int64_t most = std::max<int64_t>((blocks + wanted - 1) / wanted, 1);
        if (threads > 1) cut_at_blocks(most);
        group(most);
    }

    std::vector<Part> items, merged;
    std::vector<int64_t> groups;  // the first item of each group that is computed together; the last entry is the number of items
    int64_t kept_numbers = 0;  // the size of the partial results of `merged`, in numbers

  private:
    int64_t blocks_from(int64_t queries) const {
        int64_t count = 0;
        for (int64_t s = 0; s < sequences.count; ++s) count += (queries_of(s) + queries - 1) / queries;
        return count * layer.kv_heads;
    }

    Part part_of(int64_t s, int64_t head, int64_t query, int64_t queries) const {
        const int64_t first = position(s) + query, last = first + queries - 1;
        const int64_t from = first_seen(first), to = layer.reach == CROSS ? sequences.lengths[s] : last + 1;
        const int64_t block = from / BLOCK_KEYS;
        return {s, head, query, queries, from, to, block, (to + BLOCK_KEYS - 1) / BLOCK_KEYS - block, -1};
    }

    // Split items of more than `most` blocks of keys.
    void cut_at_blocks(int64_t most) {
        std::vector<Part> whole_parts;
        whole_parts.swap(items);
        for (Part part : whole_parts) {
            if (part.blocks > most) {
                part.kept = kept_numbers;
                merged.push_back(part);
                kept_numbers += part.blocks * Partial::numbers(part.queries * sharers, width);
            }
            for (int64_t block = 0; block < std::max<int64_t>(part.blocks, 1); block += most) {
                Part piece = part;
                piece.block += block, piece.blocks = std::min(most, part.blocks - block);
                if (part.kept >= 0) piece.kept += block * Partial::numbers(part.queries * sharers, width);
                items.push_back(piece);
            }
        }
    }

    // Group neighbouring items, up to `most` blocks of keys per group.
    void group(int64_t most) {
        int64_t blocks = most;
        for (size_t item = 0; item < items.size(); ++item) {
            blocks += std::max<int64_t>(items[item].blocks, 1);
            if (blocks <= most) continue;
            groups.push_back(item);
            blocks = std::max<int64_t>(items[item].blocks, 1);
        }
        groups.push_back(items.size());
    }

    const AttentionLayer& layer;
    const Sequences& sequences;
    const int64_t sharers, width;
};

}  // namespace
