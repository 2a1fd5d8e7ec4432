"""The mixes of GGUF files: the llama.cpp type that each matrix gets.

The sizes of the types are those of the blocks in ggml-common.h. The choice for each matrix is `llama_tensor_get_type`
of llama-quant.cpp, without an importance matrix.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ridgeline.core.models.common.model import Model, WeightChoice
from ridgeline.core.models.common.parameter_breakdown import layer_of, layers_of
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.number_formats import WeightFormat
from ridgeline.core.ops.weight_slot import WeightSlot


def _type(name: str, bits: int, numbers: int, nbytes: int) -> WeightFormat:
    """Return a GGUF type that stores `numbers` weights in `nbytes` bytes; bits beyond `bits` each are scales."""
    return WeightFormat(name, bits, (1, numbers), 8 * nbytes - bits * numbers)


F32 = WeightFormat("f32", 32, (None, None), 0)
Q2_K, Q3_K, Q4_K = _type("q2_k", 2, 256, 84), _type("q3_k", 3, 256, 110), _type("q4_k", 4, 256, 144)
Q5_K, Q6_K = _type("q5_k", 5, 256, 176), _type("q6_k", 6, 256, 210)
Q4_0, Q4_1 = _type("q4_0", 4, 32, 18), _type("q4_1", 4, 32, 20)
Q5_0, Q5_1, Q8_0 = _type("q5_0", 5, 32, 22), _type("q5_1", 5, 32, 24), _type("q8_0", 8, 32, 34)

# The substitute types of rows that do not divide into blocks of 256.
_NARROW_ROWS = {Q2_K: Q4_0, Q3_K: Q4_0, Q4_K: Q5_0, Q5_K: Q5_1, Q6_K: Q8_0}
# The part of a layer that a matrix is, by the last segment of its path in the checkpoints of some family.
_PARTS = {
    "v_proj": "v", "k_proj": "k", "qkv_proj": "qkv", "c_attn": "qkv", "o_proj": "out",
    "down_proj": "down", "w2": "down",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _MixLayer:
    """The properties of a layer on which the choice of a matrix's type depends."""

    number: int
    """The index of a layer in its model."""
    count: int
    """The number of layers of a model."""
    grouped: bool
    """Whether four query heads or more share a KV head."""

    @property
    def sensitive(self) -> bool:
        """Whether the M mixes store some matrices of this layer in a wider type.

        These are the first and the last eighth of the layers, and every third layer between.
        """
        eighth = self.count // 8
        first, last = self.number < eighth, self.number >= 7 * self.count // 8
        return first or last or (self.number - eighth) % 3 == 2


Rule = Callable[[_MixLayer], WeightFormat]
"""A function that chooses the GGUF type of a matrix, given the properties of its layer."""


@dataclass(frozen=True, slots=True)
class Mix:
    """A mix of GGUF types: a base type, and rules for some matrices."""

    base: WeightFormat
    """The GGUF type of all matrices without a rule."""
    rules: Mapping[str, Rule] = field(default_factory=dict)
    """The rules that choose other GGUF types for some matrices, keyed by their place in a layer.

    The keys are v, k, qkv, out and down.
    """
    raised: bool = False
    """Whether the attention output is stored in q5_k if the model is a mixture of eight experts."""


def _always(stored: WeightFormat) -> Rule:
    """Return a rule that chooses one GGUF type in every layer."""
    return lambda _: stored


def _first(share: int, stored: WeightFormat, other: WeightFormat) -> Rule:
    """Return a rule that chooses `stored` in the first 1/`share` of the layers and `other` in the rest."""
    return lambda layer: stored if layer.number < layer.count // share else other


def _sensitive(stored: WeightFormat, other: WeightFormat) -> Rule:
    """Return a rule that chooses `stored` in the outer and every third layer, and `other` in the rest."""
    return lambda layer: stored if layer.sensitive else other


MIXES: Mapping[str, Mix] = MappingProxyType(
    {
        "q2_k": Mix(
            Q2_K,
            {"v": lambda layer: Q4_K if layer.grouped else Q3_K, "down": _always(Q3_K), "out": _always(Q3_K)},
            raised=True,
        ),
        "q3_k_s": Mix(Q3_K, raised=True),
        "q3_k_m": Mix(
            Q3_K,
            {
                "v": lambda layer: Q5_K if layer.number < 2 else Q4_K,
                "qkv": _always(Q4_K), "down": _first(16, Q5_K, Q4_K), "out": _always(Q4_K),
            },
            raised=True,
        ),
        "q3_k_l": Mix(Q3_K, {"v": _always(Q5_K), "qkv": _always(Q4_K), "down": _always(Q5_K), "out": _always(Q5_K)}),
        "q4_0": Mix(Q4_0),
        "q4_1": Mix(Q4_1),
        "q4_k_s": Mix(
            Q4_K, {"v": lambda layer: Q5_K if layer.number < 4 else Q4_K, "down": _first(8, Q5_K, Q4_K)}, raised=True
        ),
        "q4_k_m": Mix(
            Q4_K, {"v": _sensitive(Q6_K, Q4_K), "qkv": _always(Q5_K), "down": _sensitive(Q6_K, Q4_K)}, raised=True
        ),
        "q5_0": Mix(Q5_0),
        "q5_1": Mix(Q5_1),
        "q5_k_s": Mix(Q5_K),
        "q5_k_m": Mix(Q5_K, {"v": _sensitive(Q6_K, Q5_K), "qkv": _always(Q6_K), "down": _sensitive(Q6_K, Q5_K)}),
        "q6_k": Mix(Q6_K),
        "q8_0": Mix(Q8_0),
    }
)  # fmt: skip
"""The quantisation mixes of llama.cpp by name, as `q4_k_m`."""


def mix(name: str, model: Model) -> WeightChoice:
    """Return the function that chooses the GGUF type of each weight of a model, for the mix called `name`."""
    chosen, layers = MIXES[name], sum(layers_of(model))
    _, attention = model.ops_of(Attention)[0]
    sharing = attention.heads // attention.spec.heads
    eight = any(op.experts is not None and op.experts.count == 8 for _, op in model.ops())

    def choose(place: WeightSlot) -> WeightFormat | None:
        if place.kind == "router":
            return F32
        if place.kind == "head" or (place.kind == "embedding" and model.tied):
            whole = chosen.base is Q8_0 or place.inputs % (chosen.base.block[1] or 1)
            return _fitting(Q8_0 if whole else Q6_K, place.inputs)
        stored, part = chosen.base, _part(place.name)
        number = layer_of(place.name)
        if number is not None and part in chosen.rules:
            stored = chosen.rules[part](_MixLayer(number, layers, sharing >= 4))
        if part == "v" and layers == 80 and sharing > 1 and stored in (Q3_K, Q4_K):
            stored = Q5_K  # 70B models: the value matrix has an eighth of the query matrix's size
        if eight and part in ("k", "v"):
            stored = Q8_0
        if eight and part == "out":
            stored = Q5_K if chosen.raised else chosen.base
        return _fitting(stored, place.inputs)

    return choose


def _part(name: str) -> str:
    """Return the place in a layer (v, k, qkv, out or down) of the matrix with this name; "" if no rule uses it."""
    last = name.rpartition(".")[2]
    if last == "c_proj":  # GPT-2 uses this name for both
        return "out" if ".attn." in name else "down"
    return _PARTS.get(last, "")


def _fitting(stored: WeightFormat, inputs: int) -> WeightFormat | None:
    """Return a GGUF type, or its substitute if rows of `inputs` numbers do not divide into its blocks.

    Return None if they do not divide into those of the substitute either.
    """
    if inputs % (stored.block[1] or 1) == 0:
        return stored
    instead = _NARROW_ROWS.get(stored)
    return None if instead is None or inputs % (instead.block[1] or 1) else instead
