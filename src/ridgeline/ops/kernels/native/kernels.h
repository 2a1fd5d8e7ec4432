// The kernels of one instruction set, as a table: kernels.cpp is compiled once for each, library.cpp picks one.
#pragma once

#include <cstdint>

class Pool;

enum Number : int { FP32, BF16 };

// A matrix and where its results go. bias: of the type of the weight, or null. y_stride: numbers from row to row.
struct Matrix {
    const void *weight, *bias;
    int64_t outputs;
    void* y;
    int64_t y_stride;
};

// Rows of numbers of one type. stride: numbers from row to row.
struct Rows {
    Number type;
    const void* at;
    int64_t count, width, stride;
};

struct Kernels {
    const char* name;
    // y = x W^T + b for each of `count` matrices; y of type `out`.
    void (*products)(Pool&, const Rows& x, int count, const Matrix* matrices, Number out);
    // x += y where there is a y, then to = norm(x) * weight, `to` without gaps. from_one: 1 is added to the weight.
    void (*norms)(Pool&, const Rows& x, const void* y, int64_t y_stride, void* to, const void* weight, float eps, bool from_one);
    // y = act(x Wg^T + bg) * (x Wu^T + bu), to where the gate's results go.
    void (*gated_products)(Pool&, const Rows& x, const Matrix& gate, const Matrix& up, int activation);
};

extern const Kernels plain, avx2, avx512, avx512_bf16;
