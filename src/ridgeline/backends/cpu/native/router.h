// The experts that each row picks, and their weights. The reference is RoutingRule of core/ops/router.py. Of equal scores the
// lower index wins.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "activation.h"
#include "kernels.h"
#include "pool.h"
#include "product.h"
#include "scratch.h"

namespace {

constexpr int64_t ITEM_LOGITS = 4 << 10;
constexpr float NEVER_ZERO = 1e-20f;  // DeepSeek-V3 adds this to the sum by which weights are divided

// Return whether a number is picked before another. NaN comes first, as in torch.
inline bool before(float one, float other) { return one > other || (one != one && other == other); }

// Write the indices of the `most` largest of `count` values, in order.
inline void pick(const float* values, int64_t count, int64_t most, int64_t* to) {
    int64_t there = 0;
    for (int64_t index = 0; index < count; ++index) {
        if (there == most && !before(values[index], values[to[most - 1]])) continue;
        there = std::min(there + 1, most);
        int64_t place = there - 1;
        for (; place > 0 && before(values[index], values[to[place - 1]]); --place) to[place] = to[place - 1];
        to[place] = index;
    }
}

// Routes one row at a time.
class RowRouter {
  public:
    RowRouter(const Routing& rule, int64_t experts)
        : rule(rule), experts(experts), whole((experts + LANES - 1) / LANES * LANES), scores(numbers.of(2 * whole + rule.groups)),
          chosen_by(scores + whole), worth(chosen_by + whole), groups(indices.of(rule.top_groups)) {}

    template <class Logit> void route(const Logit* logits, float* weights, int64_t* picked) {
        for (int64_t e = 0; e < experts; ++e) scores[e] = get(logits + e);
        std::fill(scores + experts, scores + whole, -std::numeric_limits<float>::infinity());
        if (rule.sigmoid)
            for (int64_t e = 0; e < whole; e += LANES) store(scores + e, sigmoid(load(scores + e)));
        else
            softmax();
        for (int64_t e = 0; e < experts; ++e) chosen_by[e] = scores[e] + (rule.correction ? rule.correction[e] : 0.0f);
        if (rule.top_groups < rule.groups) stay_within_groups();
        pick(chosen_by, experts, rule.active, picked);
        weigh(picked, weights);
    }

  private:
    void softmax() {
        F most = load(scores), sums_F{};
        for (int64_t e = LANES; e < whole; e += LANES) most = maximum(load(scores + e), most);
        const float top = largest(most);
        for (int64_t e = 0; e < whole; e += LANES) {
            const F own = exponential(load(scores + e) - top);
            sums_F += own;
            store(scores + e, own);
        }
        const float total = sum(sums_F);
        for (int64_t e = 0; e < whole; e += LANES) store(scores + e, load(scores + e) / total);
    }

    // Make experts outside the best groups the last choice.
    void stay_within_groups() {
        const int64_t size = experts / rule.groups;
        for (int64_t group = 0; group < rule.groups; ++group) {
            int64_t best[2];
            const float* own = chosen_by + group * size;
            pick(own, size, rule.best, best);
            worth[group] = rule.best == 1 ? own[best[0]] : own[best[0]] + own[best[1]];
        }
        pick(worth, rule.groups, rule.top_groups, groups);
        for (int64_t group = 0; group < rule.groups; ++group)
            if (std::find(groups, groups + rule.top_groups, group) == groups + rule.top_groups)
                std::fill_n(chosen_by + group * size, size, -std::numeric_limits<float>::infinity());
    }

    void weigh(const int64_t* picked, float* weights) const {
        float total = NEVER_ZERO;
        for (int64_t k = 0; k < rule.active; ++k) total += weights[k] = scores[picked[k]];
        for (int64_t k = 0; k < rule.active; ++k) weights[k] = (rule.renormalise ? weights[k] / total : weights[k]) * rule.scale;
    }

    const Routing& rule;
    const int64_t experts, whole;  // whole: padded to whole registers
    Scratch<float> numbers;
    Scratch<int64_t> indices;
    float *scores, *chosen_by, *worth;
    int64_t* groups;
};

template <class Stored, class Logit>
void route(Pool& pool, const Rows& x, const Matrix& matrix, const Routing& rule, float* weights, int64_t* picked) {
    const int64_t experts = matrix.outputs;
    Scratch<Logit> memory;
    Logit* logits = memory.of(x.count * experts);
    Matrix own = matrix;
    own.y = logits, own.y_stride = experts;
    products<Panel<Stored>, Logit>(pool, x, 1, &own);
    const int64_t each = std::max<int64_t>(ITEM_LOGITS / experts, 1);
    pool.run(int((x.count + each - 1) / each), [&](int item) {
        RowRouter router(rule, experts);
        for (int64_t r = item * each; r < std::min((item + 1) * each, x.count); ++r)
            router.route(logits + r * experts, weights + r * rule.active, picked + r * rule.active);
    });
}

}  // namespace
