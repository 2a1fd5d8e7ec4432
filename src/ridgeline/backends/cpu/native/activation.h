// The activations of gated products.
#pragma once

#include <cmath>

#include "kernels.h"
#include "lanes.h"

namespace {

enum Activation : int { NONE, SILU, GELU, GELU_TANH, RELU, RELU2, TANH, CLAMPED, QUICK_GELU };

// Return erf of each lane.
inline F error_function(F x) {
    for (int lane = 0; lane < LANES; ++lane) x[lane] = std::erf(x[lane]);
    return x;
}

// 1 / (1 + e^-x), and x times that. The result is 0 if the exponential overflows fp32.
inline F sigmoid(F x) { return where(x < -88.0f, F{}, 1.0f / (exponential(-x) + 1.0f)); }
inline F silu(F x) { return where(x < -88.0f, F{}, x / (exponential(-x) + 1.0f)); }

inline F activated(int activation, F x) {
    switch (activation) {
        case SILU: return silu(x);
        case GELU: return x * 0.5f * (error_function(x * 0.70710678118654752f) + 1.0f);
        case GELU_TANH: return x * 0.5f * (tanh_of((x + x * x * x * 0.044715f) * 0.79788456080286536f) + 1.0f);
        case RELU: return where(x > 0.0f, x, F{});
        case RELU2: return where(x > 0.0f, x * x, F{});
        case TANH: return tanh_of(x);
        case QUICK_GELU: return x * sigmoid(x * 1.702f);
        default: return x;
    }
}

// Return `up` after the gate.
inline F gated(const Gate& by, F gate, F up) {
    if (by.activation != CLAMPED) return activated(by.activation, gate) * up;
    const F most = broadcast(by.limit);
    gate = where(gate > most, most, gate);
    up = where(up > most, most, where(up < -most, -most, up));
    return (up + 1.0f) * gate * sigmoid(gate * by.alpha);
}

}  // namespace
