// The kernels of the instruction set NAME, for which setup.py compiles this file.
#include "kernels.h"

#include "attention.h"
#include "coded.h"
#include "experts.h"
#include "gather.h"
#include "integers.h"
#include "interleaved.h"
#include "norm.h"
#include "product.h"
#include "rotary.h"
#include "router.h"
#include "sample.h"
#include "tile_products.h"

namespace {

// The kind of panel of plain matrices.
#ifdef TILES
template <class Stored> using PlainPanel = std::conditional_t<std::is_same_v<Stored, bf16>, TilePanel, Panel<Stored>>;
#else
template <class Stored> using PlainPanel = Panel<Stored>;
#endif

// Call call.operator()<P>() with the kind of panel P for rows of type Stored and this matrix.
template <class Stored, class Call> void with_panels(const Matrix& matrix, Call&& call) {
    if (!matrix.codes) return call.template operator()<PlainPanel<Stored>>();
    switch (matrix.codes->code) {
    case INT8: return call.template operator()<CodedPanel<Stored, Bytes>>();
    case INT4: return call.template operator()<CodedPanel<Stored, HalfBytes>>();
    case FP8: return call.template operator()<CodedPanel<Stored, Fp8>>();
    case INT8_BY_INT8: break;
    }
}

// The same, including integer products, which need a whole row of x to round it.
template <class Stored, class Call> void with_all_panels(const Matrix& matrix, Call&& call) {
    if (matrix.codes && matrix.codes->code == INT8_BY_INT8) return call.template operator()<IntegerPanel<Stored>>();
    with_panels<Stored>(matrix, call);
}

#ifdef BF16_DOTS
// The same for an interleaved matrix.
template <class Call> void with_interleaved_panels(const Rows& x, const Matrix& matrix, Call&& call) {
    auto of_type = [&]<class Stored>() {
        if (matrix.codes->code == INT4) return call.template operator()<InterleavedPanel<Stored, HalfBytes>>();
        if (matrix.codes->code == INT8) return call.template operator()<InterleavedPanel<Stored, Bytes>>();
        call.template operator()<InterleavedPanel<Stored, Bytes, true>>();
    };
    (x.type == FP32 ? of_type.template operator()<float>() : of_type.template operator()<bf16>());
}
#endif

void products_of(Pool& pool, const Rows& x, int count, const Matrix* matrices, DType out) {
#ifdef BF16_DOTS
    if (interleaved(*matrices))
        return with_interleaved_panels(x, *matrices, [&]<class Panel>() {
            (x.type == FP32 || out == FP32 ? interleaved_products<Panel, float>
                                           : interleaved_products<Panel, typename Panel::Stored>)(pool, x, count, matrices);
        });
#endif
    auto run = [&]<class Panel>() {
        (x.type == FP32 || out == FP32 ? products<Panel, float> : products<Panel, typename Panel::Stored>)(pool, x, count, matrices);
    };
    (x.type == FP32 ? with_all_panels<float>(*matrices, run) : with_all_panels<bf16>(*matrices, run));
}

void norms_of(Pool& pool, const Rows& x, const void* y, int64_t y_stride, void* to, const void* weight, float eps,
              bool from_one) {
    (x.type == FP32 ? norms<float> : norms<bf16>)(pool, x, y, y_stride, to, weight, eps, from_one);
}

void gated_products_of(Pool& pool, const Rows& x, const Matrix& gate, const Matrix& up, const Gate& by) {
#ifdef BF16_DOTS
    if (interleaved(gate))
        return with_interleaved_panels(x, gate, [&]<class Panel>() { interleaved_gated_products<Panel>(pool, x, gate, up, by); });
#endif
    auto run = [&]<class Panel>() { gated_products<Panel>(pool, x, gate, up, by); };
    (x.type == FP32 ? with_all_panels<float>(gate, run) : with_all_panels<bf16>(gate, run));
}

void route_of(Pool& pool, const Rows& x, const Matrix& matrix, DType logits, const Routing& rule, float* weights,
              int64_t* picked) {
    if (x.type == FP32)
        route<float, float>(pool, x, matrix, rule, weights, picked);
    else if (logits == FP32)
        route<bf16, float>(pool, x, matrix, rule, weights, picked);
    else
        route<bf16, bf16>(pool, x, matrix, rule, weights, picked);
}

void experts_of(Pool& pool, const ExpertLayer& layer, const Rows& x, const Picks& picks, const void* onto,
                int64_t onto_stride, void* to) {
    auto run = [&]<class Panel>() { RunExperts<Panel>(layer, x, picks, onto, onto_stride, to).run(pool); };
    (x.type == FP32 ? with_panels<float>(layer.experts->gate, run) : with_panels<bf16>(layer.experts->gate, run));
}

void attend_of(Pool& pool, const AttentionLayer& layer, const Sequences& sequences, const NewRows& rows, const Rows& q,
               void* to) {
    auto run = [&]<class Stored, class Kept>() {
        write_kv<Stored, Kept>(pool, layer, rows);
        Attend<Stored, Kept>(layer, sequences, q, to).run(pool);
    };
    auto of_type = [&]<class Stored>() {
        if (!layer.codes) return run.template operator()<Stored, Stored>();
        if (layer.codes->code == INT8) return run.template operator()<Stored, Int8>();
        run.template operator()<Stored, E4m3>();
    };
    (layer.type == FP32 ? of_type.template operator()<float>() : of_type.template operator()<bf16>());
}

void rotate_of(Pool& pool, DType type, int64_t rows, const Heads* inputs, int count, const float* cos, const float* sin,
               int64_t start, int64_t half) {
    (type == FP32 ? rotate<float> : rotate<bf16>)(pool, rows, inputs, count, cos, sin, start, half);
}

template <class Stored>
void gather_codes_as(Pool& pool, const Matrix& table, int64_t width, const int64_t* numbers, int64_t count, void* to) {
    Stored* own = static_cast<Stored*>(to);
    switch (table.codes->code) {
    case INT8:
    case INT8_BY_INT8: return gather_codes<Stored, Bytes>(pool, table, width, numbers, count, own);
    case INT4: return gather_codes<Stored, HalfBytes>(pool, table, width, numbers, count, own);
    case FP8: return gather_codes<Stored, Fp8>(pool, table, width, numbers, count, own);
    }
}

void gather_codes_of(Pool& pool, const Matrix& table, DType type, int64_t width, const int64_t* numbers, int64_t count, void* to) {
    (type == FP32 ? gather_codes_as<float> : gather_codes_as<bf16>)(pool, table, width, numbers, count, to);
}

}  // namespace

extern const Kernels NAME = {NAME_IN_QUOTES, products_of, norms_of, gated_products_of, route_of, experts_of, attend_of,
                             rotate_of, angles, gather, gather_codes_of, sample};
