// The kernels of one instruction set, as a table: kernels.cpp is compiled once for each, library.cpp picks one.
#pragma once

#include <cstdint>

class Pool;

enum DType : int { FP32, BF16, FP16 };  // FP16: of scales alone

enum Code : int { INT8, INT4, FP8, INT8_BY_INT8 };  // the last of rows that are rounded to int8 too (integers.h)

// How codes stand for a matrix's numbers (quantised.h). group, outputs: how many inputs and how many outputs share a scale.
// groups: scales from one row of them to the next. zeros: an unsigned byte for each scale, or null, where all are `zero`.
// lows: what is added to code * scale in the place of -zero * scale, for each scale, or null. interleaved: rows are laid side by
// side (interleaved.h).
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

// A matrix and where its results go. weight: numbers of the type of the rows, or, where there are codes, those: a whole number
// of units (dots.h) a row. bias: of the type of the rows, or null. weight_stride, y_stride: numbers, or bytes of codes, from
// row to row, which is more than a row has where the weight is a rank's columns of a larger matrix.
struct Matrix {
    const void *weight, *bias;
    int64_t outputs;
    void* y;
    int64_t y_stride, weight_stride;
    const Codes* codes;
};

// Rows of numbers of one type. stride: numbers from row to row.
struct Rows {
    DType type;
    const void* at;
    int64_t count, width, stride;
};

// How a gate works on what it gates: by an activation, or as CLAMPED of activation.h, with its two numbers.
struct Gate {
    int activation;
    float alpha, limit;
};

// How logits of experts become picks and weights, as RoutingRule of core/ops/router.py has it. sigmoid: the scores, else those of
// a softmax. best: how many scores of a group tell how good it is. correction: a number an expert, or null.
struct Routing {
    int64_t active;
    int sigmoid, renormalise;
    float scale;
    int64_t groups, top_groups, best;
    const float* correction;
};

// The experts of a layer, whose matrices are all plain or all of one code; y of these is not looked at.
struct Expert {
    Matrix gate, up, down;
};
struct ExpertLayer {
    const Expert* experts;
    int64_t count;
    Gate gate;
};

// What each row picked: `active` experts with their weights.
struct Picks {
    int64_t active;
    const int64_t* ids;
    const float* weights;
};

// Which keys a query sees: those up to its own position, of these the last `reach_size`, of these the ones in its own chunk
// of so many, or all.
enum Reach : int { CAUSAL, WINDOW, CHUNKED, CROSS };

// How keys and values are stored as codes. k_scales, v_scales: bf16 numbers, in each page one for each vector [kv_heads,
// page_size], and as many numbers from page to page as `stride`; null where codes have none, and v_scales where the value is a
// part of the key. k_scale, v_scale: of the layer, 1 where vectors have scales.
struct PageCodes {
    Code code;
    void *k_scales, *v_scales;
    int64_t stride;
    float k_scale, v_scale;
};

// One layer's attention, and its pages: in each, K [kv_heads, page_size, k_dim] and V likewise. v: null where a value is
// the first v_dim numbers of its key. page_stride: numbers from page to page. softcap: 0 for none. sinks: one a head, of
// the type of all else, or null. codes: null where K and V are of that type too.
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

// The sequences of a step. starts: count + 1 numbers, the rows of each. lengths: positions it has, the step's included, or
// that the encoder gave it. pages: those of sequence s from offsets[s] on, the first of which begins with position firsts[s].
struct Sequences {
    int64_t count;
    const int32_t *starts, *lengths, *firsts, *offsets, *pages;
};

// Keys and values that the step adds. slots: page x page_size + offset of each row.
struct NewRows {
    int64_t count;
    const void *k, *v;
    int64_t k_stride, v_stride;
    const int64_t* slots;
};

// Heads to be rotated, and where the results go: row after row. stride: numbers from row to row.
struct Heads {
    const void* at;
    int64_t heads, dim, stride;
    void* to;
};

// The likeliest tokens of a distribution, likeliest first, with their log-probabilities, and that of one token by itself.
// ids, shares: room for as many as are asked for; count: how many there were.
struct Report {
    double own;
    int64_t count;
    int64_t* ids;
    double* shares;
};

// A row's settings, as engine/sampling has them. temperature: 0 for the largest logit. top_k: 0 for all. alternatives: of a
// report; -1 for none.
struct Settings {
    double temperature, top_p, min_p;
    int64_t top_k, alternatives;
    uint64_t seed, position, choice;
};

// What changes a row's logits: biases, tokens that are forbidden, a bit for each token that is allowed (or null), penalties
// of the tokens of prompt and output, with their counts in the output.
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

// How a token is chosen of a row of logits, and the choice. raw_top, top: the largest logit, as the model gave it and after
// the changes; NaN if there is one.
struct Sampling {
    const float* logits;
    Settings settings;
    Changes changes;
    int64_t token;  // before: -1, or a known token, of which only the raw report is wanted
    double raw_top, top;
    Report raw, processed;
};

struct Kernels {
    const char* name;
    // y = x W^T + b for each of `count` matrices, which are all plain or all of one code; y of type `out`.
    void (*products)(Pool&, const Rows& x, int count, const Matrix* matrices, DType out);
    // x += y where there is a y, then to = norm(x) * weight, `to` without gaps. from_one: 1 is added to the weight.
    void (*norms)(Pool&, const Rows& x, const void* y, int64_t y_stride, void* to, const void* weight, float eps, bool from_one);
    // y = act(x Wg^T + bg) * (x Wu^T + bu), to where the gate's results go.
    void (*gated_products)(Pool&, const Rows& x, const Matrix& gate, const Matrix& up, const Gate&);
    // The experts that rows pick by x W^T + b, which is of type `logits`, and their weights: each [rows, active].
    void (*route)(Pool&, const Rows& x, const Matrix& matrix, DType logits, const Routing&, float* weights, int64_t* picked);
    // to = the weighed sum of what each row's experts give it [rows, outputs], without gaps, added to `onto` if there is one.
    void (*experts)(Pool&, const ExpertLayer&, const Rows& x, const Picks&, const void* onto, int64_t onto_stride, void* to);
    // Writes new keys and values to their slots, then attends the rows of q [rows, heads, k_dim] -> to [rows, heads, v_dim].
    void (*attend)(Pool&, const AttentionLayer&, const Sequences&, const NewRows&, const Rows& q, void* to);
    // Rotates the entries [start, start + 2 half) of each head of `count` inputs (queries, keys) by cos and sin [rows, half].
    void (*rotate)(Pool&, DType type, int64_t rows, const Heads* inputs, int count, const float* cos, const float* sin,
                   int64_t start, int64_t half);
    // to = cos and sin of position x frequency, times `magnitude`: each [rows, half].
    void (*angles)(Pool&, const int64_t* positions, int64_t rows, const float* frequencies, int64_t half, float magnitude,
                   float* cos, float* sin);
    // to = the rows of a table of `entries` that have these numbers.
    void (*gather)(Pool&, const void* table, int64_t entries, int64_t row_bytes, const int64_t* numbers, int64_t count,
                   void* to);
    // The same of a table of codes, `width` numbers a row, as numbers of this type.
    void (*gather_codes)(Pool&, const Matrix& table, DType type, int64_t width, const int64_t* numbers, int64_t count, void* to);
    // A token for each of `count` rows of `vocabulary` logits.
    void (*sample)(Pool&, Sampling* rows, int count, int64_t vocabulary);
};

extern const Kernels plain, avx2, avx512, avx512_bf16, neon;
