// The kernels of one instruction set, as a table. kernels.cpp is compiled once for each set, and library.cpp chooses one.
#pragma once

#include <cstdint>

class Pool;

enum DType : int { FP32, BF16, FP16 };  // FP16 is only for scales

enum Code : int { INT8, INT4, FP8, INT8_BY_INT8 };  // INT8_BY_INT8: rows are rounded to int8 too (integers.h)

// How codes represent the numbers of a matrix (quantised.h). group, outputs: the number of inputs and of outputs that share a
// scale. groups: the number of scales between two rows of scales. zeros: an unsigned byte for each scale, or null if all are
// `zero`. lows: for each scale, what is added to code * scale instead of -zero * scale; or null. interleaved: rows are
// interleaved (interleaved.h).
struct Codes {
    Code code;
    DType scale_type;
    int64_t group, outputs, groups;
    const void* scales;
    const uint8_t* zeros;
    const float* lows;
    float zero;
    int interleaved;

    int64_t scale_bytes() const { return scale_type == FP32 ? 4 : 2; }
};

// A matrix and the place of its results. weight: numbers of the same type as the rows, or codes, with a whole number of units
// (dots.h) per row. bias: of the same type as the rows, or null. weight_stride, y_stride: the distance between rows in
// numbers, or in bytes for codes. It is more than the length of a row if the weight is one rank's columns of a larger matrix.
struct Matrix {
    const void *weight, *bias;
    int64_t outputs;
    void* y;
    int64_t y_stride, weight_stride;
    const Codes* codes;
};

// Rows of numbers of one type. stride: the distance between rows, in numbers.
struct Rows {
    DType type;
    const void* at;
    int64_t count, width, stride;
};

// How a gate changes what it gates: by an activation, or by CLAMPED of activation.h with its two numbers.
struct Gate {
    int activation;
    float alpha, limit;
};

// How the router's logits become picks and weights, as in RoutingRule of core/ops/router.py. sigmoid: scores are sigmoids,
// otherwise a softmax. best: how many scores of a group rate the group. correction: one number per expert, or null.
struct Routing {
    int64_t active;
    int sigmoid, renormalise;
    float scale;
    int64_t groups, top_groups, best;
    const float* correction;
};

// The experts of a layer. Their matrices are all plain, or all of one kind of code. Their `y` is not used.
struct Expert {
    Matrix gate, up, down;
};
struct ExpertLayer {
    const Expert* experts;
    int64_t count;
    Gate gate;
};

// The picks of each row: `active` experts with their weights.
struct Picks {
    int64_t active;
    const int64_t* ids;
    const float* weights;
};

// The keys that a query sees: those up to its own position (CAUSAL), the last `reach_size` of these (WINDOW), those of these
// in its own chunk of `reach_size` (CHUNKED), or all keys (CROSS).
enum Reach : int { CAUSAL, WINDOW, CHUNKED, CROSS };

// How keys and values are stored as codes. k_scales, v_scales: bf16 numbers, in each page one per vector [kv_heads,
// page_size]. `stride` is their number from page to page. They are null if codes have no scales of their own; v_scales is
// also null if the value is a part of the key. k_scale, v_scale: the scales of the layer, 1 if vectors have scales.
struct PageCodes {
    Code code;
    void *k_scales, *v_scales;
    int64_t stride;
    float k_scale, v_scale;
};

// The attention of one layer and its pages. Each page holds K [kv_heads, page_size, k_dim] and V in the same layout. v: null
// if a value is the first v_dim numbers of its key. page_stride: the distance between pages, in numbers. softcap: 0 for none.
// sinks: one per head, of the layer's type, or null. codes: null if K and V have that type too.
struct AttentionLayer {
    DType type;
    Reach reach;
    int64_t reach_size, heads, kv_heads, k_dim, v_dim;
    float scale, softcap;
    const void* sinks;
    void *k, *v;
    int64_t page_stride, page_size;
    const PageCodes* codes;
};

// The sequences of a step. starts: count + 1 numbers, the first row of each sequence and the end. lengths: the number of
// positions, including those of this step; in cross-attention, that of the encoder's output. pages: those of sequence s begin
// at offsets[s], and the first of them begins with position firsts[s].
struct Sequences {
    int64_t count;
    const int32_t *starts, *lengths, *firsts, *offsets, *pages;
};

// The keys and values that the step adds. slots: page x page_size + offset of each row.
struct NewRows {
    int64_t count;
    const void *k, *v;
    int64_t k_stride, v_stride;
    const int64_t* slots;
};

// Heads to rotate, and the place of the results, row after row. stride: the distance between rows, in numbers.
struct Heads {
    const void* at;
    int64_t heads, dim, stride;
    void* to;
};

// The most likely tokens of a distribution, most likely first, with their log-probabilities, and the log-probability `own` of one
// token. ids, shares: memory for the requested number of tokens. count: the number found.
struct Report {
    double own;
    int64_t count;
    int64_t* ids;
    double* shares;
};

// The sampling parameters of a row, as in engine/sampling. temperature: 0 takes the largest logit. top_k: 0 for all tokens.
// alternatives: the number in a report, or -1 for no report.
struct Settings {
    double temperature, top_p, min_p;
    int64_t top_k, alternatives;
    uint64_t seed, position, choice;
};

// The changes of a row's logits: biases; forbidden tokens; a bit for each allowed token, or null; and penalties of the tokens
// of prompt and output, with their counts in the output.
struct Changes {
    const int64_t* biased;
    const float* biases;
    int64_t bias_count;
    const int64_t* forbidden;
    int64_t forbidden_count;
    const uint32_t* allowed;
    const int64_t* history;
    const float* counts;
    int64_t history_count;
    double repetition, frequency, presence;
};

// How a token is chosen from a row of logits, and the result. raw_top, top: the largest logit before and after the changes,
// or NaN if there is a NaN.
struct Sampling {
    const float* logits;
    Settings settings;
    Changes changes;
    int64_t token;  // input: -1, or a known token for which only the raw report is made
    double raw_top, top;
    Report raw, processed;
};

struct Kernels {
    const char* name;
    // y = x W^T + b for each of `count` matrices, which are all plain or all of one kind of code. y has the type `out`.
    void (*products)(Pool&, const Rows& x, int count, const Matrix* matrices, DType out);
    // x += y if y is given; then to = norm(x) * weight. The rows of `to` are contiguous. from_one: the factor is 1 + weight.
    void (*norms)(Pool&, const Rows& x, const void* y, int64_t y_stride, void* to, const void* weight, float eps, bool from_one);
    // y = act(x Wg^T + bg) * (x Wu^T + bu), written to the gate's y.
    void (*gated_products)(Pool&, const Rows& x, const Matrix& gate, const Matrix& up, const Gate&);
    // Compute the router's logits x W^T + b, of type `logits`, and from them the picked experts and their weights, both
    // [rows, active].
    void (*route)(Pool&, const Rows& x, const Matrix& matrix, DType logits, const Routing&, float* weights, int64_t* picked);
    // to = the weighted sum of the outputs of each row's experts [rows, outputs], contiguous, plus `onto` if given.
    void (*experts)(Pool&, const ExpertLayer&, const Rows& x, const Picks&, const void* onto, int64_t onto_stride, void* to);
    // Write new keys and values to their slots, then compute attention for the rows of q [rows, heads, k_dim] -> to [rows,
    // heads, v_dim].
    void (*attend)(Pool&, const AttentionLayer&, const Sequences&, const NewRows&, const Rows& q, void* to);
    // Rotate the entries [start, start + 2 half) of each head of `count` inputs (queries, keys) by cos and sin [rows, half].
    void (*rotate)(Pool&, DType type, int64_t rows, const Heads* inputs, int count, const float* cos, const float* sin,
                   int64_t start, int64_t half);
    // Compute cos and sin of position x frequency, times `magnitude`. Both are [rows, half].
    void (*angles)(Pool&, const int64_t* positions, int64_t rows, const float* frequencies, int64_t half, float magnitude,
                   float* cos, float* sin);
    // to = the rows of a table of `entries` rows at these indices.
    void (*gather)(Pool&, const void* table, int64_t entries, int64_t row_bytes, const int64_t* numbers, int64_t count,
                   void* to);
    // The same for a table of codes with `width` numbers per row, which are widened to this type.
    void (*gather_codes)(Pool&, const Matrix& table, DType type, int64_t width, const int64_t* numbers, int64_t count, void* to);
    // Sample a token for each of `count` rows of `vocabulary` logits.
    void (*sample)(Pool&, Sampling* rows, int count, int64_t vocabulary);
};

extern const Kernels plain, avx2, avx512, avx512_bf16, amx, neon;
extern const Kernels amx_emulated, amx_emulated_avx512;  // only for tests: plain and avx512_bf16 with emulated tiles
