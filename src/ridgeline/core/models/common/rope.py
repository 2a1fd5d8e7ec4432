"""The rotary embedding of a config, in the old spelling (rope_theta + rope_scaling) and the new (rope_parameters)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.windows import LAYER_TYPES
from ridgeline.core.ops.rotary import LinearScaling, Llama3Scaling, LongRope, Rope, Scaling, Yarn

_ALWAYS = {
    "rope_type", "type", "rope_theta", "partial_rotary_factor", "original_max_position_embeddings",
    "mrope_section", "mrope_interleaved",  # axes of images and video; text has the same position on all of them
}  # fmt: skip
_NUMBERS = {
    "default": set[str](),
    "mrope": set(),
    "linear": {"factor"},
    "dynamic": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor"},
    "yarn": {
        "factor",
        "beta_fast",
        "beta_slow",
        "attention_factor",
        "truncate",
        "finetuned",
        "mscale",
        "mscale_all_dim",
    },
    "longrope": {"factor", "short_factor", "long_factor", "attention_factor"},
}


@dataclass(frozen=True, slots=True)
class RopeDefaults:
    """The settings of a family's rotary embedding that a config may leave out."""

    theta: float = 10_000.0
    """The default base of the rotary frequencies in a model family."""
    share: float = 1.0
    """The share of a head's entries that are rotated by position."""
    partial: bool = False
    """Whether the rotated share of a head may be below 1."""
    interleaved: bool = False
    """Whether the pairs that are rotated together are neighbouring entries of a head."""
    spelt: Mapping[str, str] = field(default_factory=dict)
    """The usual name of a rope scaling, by its name in the family's configs."""
    original_context: int | None = None
    """The context length before longrope scaling; None for `max_position_embeddings`."""
    section: Mapping[str, Any] = field(default_factory=dict)
    """The rope settings of a config that has no section about the rotary embedding."""
    further: frozenset[str] = frozenset()
    """The names of rope settings that the family's code reads itself."""


LLAMA = RopeDefaults()
"""The default settings of Llama's rotary embedding."""


def read_rope(fields: Fields, head_dim: int, unstated: RopeDefaults = LLAMA) -> Rope:
    """Read the rotary embedding that all layers of a model share, from its config.

    Raises:
        ModelRefused: If the scaling is not supported, or a number is invalid.
    """
    fields.require("use_rope", True)
    return _read(fields, rope_section(fields, unstated), head_dim, unstated)


def rope_section(fields: Fields, unstated: RopeDefaults = LLAMA) -> Fields:
    """Return the config's section about the shared rotary embedding, or the family's default section."""
    old = fields.section("rope_scaling")
    # transformers 5 keeps base and scaling together, under a new name.
    new = fields.section("rope_parameters")
    stated = old if old.values else new
    return stated if stated.values or not unstated.section else Fields(unstated.section, fields.source)


def read_ropes(fields: Fields, head_dim: int, theta: float, local_theta: float) -> tuple[Rope, Rope]:
    """Read the rotary embeddings of layers with full attention and of layers with a sliding window (Gemma 3).

    `rope_scaling`, the old spelling, applies to full attention only. `theta` and `local_theta` are the default bases.
    """
    old, (full, local) = fields.section("rope_scaling"), rope_sections(fields)
    return (
        _read(fields, old if old.values else full, head_dim, RopeDefaults(theta)),
        read_own_rope(fields, local, head_dim, local_theta),
    )


def rope_sections(fields: Fields) -> tuple[Fields, Fields]:
    """Return the sections of `rope_parameters` for full attention and for sliding windows.

    Raises:
        ModelRefused: If it has settings outside these sections, which transformers ignores.
    """
    both = fields.section("rope_parameters")
    for name in sorted(both.values.keys() - set(LAYER_TYPES)):
        both.require_off(name)
    return both.section("full_attention"), both.section("sliding_attention")


def read_own_rope(fields: Fields, section: Fields, head_dim: int, theta: float) -> Rope:
    """Read the rotary embedding of some of the layers from their own section; `theta` is the default base."""
    shared = {"max_position_embeddings": fields.values.get("max_position_embeddings")}
    return _read(Fields(shared, fields.source), section, head_dim, RopeDefaults(theta))


def _read(fields: Fields, section: Fields, head_dim: int, unstated: RopeDefaults) -> Rope:
    # The section overrides the top of the config.
    """Read a rotary embedding; what its section states overrides the top of the config."""
    fields.ignore("rope_theta", "partial_rotary_factor", "original_max_position_embeddings")
    holder = section if section.has("rope_theta") else fields
    theta = holder.positive("rope_theta", unstated.theta)
    holder = section if section.has("partial_rotary_factor") else fields
    share = holder.positive("partial_rotary_factor", unstated.share)
    if share > 1 or (share < 1 and not unstated.partial):
        raise fields.refuse(f"partial_rotary_factor {share:g} is not supported; {'at most ' * unstated.partial}1 is")
    dim = int(head_dim * share)
    if dim < 2 or dim % 2:
        raise fields.refuse(f"the rotary dimension is {dim} of head_dim {head_dim}; it must be even and at least 2")
    rope = Rope(dim, theta, _scaling(fields, section, dim, unstated), unstated.interleaved)
    if not _finite(rope):
        raise fields.refuse(
            f"rope_theta {theta:g} and the rope scaling give frequencies that are not finite; correct them"
        )
    return rope


def _finite(rope: Rope) -> bool:
    """Return whether all frequencies of a rotary embedding are finite."""
    try:
        return bool(torch.isfinite(rope.frequencies()).all())
    except (ArithmeticError, ValueError):
        return False


def _scaling(fields: Fields, section: Fields, dim: int, unstated: RopeDefaults) -> Scaling | None:
    """Read the scaling of a rotary embedding from its section; None without scaling."""
    kind = section.text("rope_type", section.text("type", "default"))
    kind = unstated.spelt.get(kind, kind)
    if kind not in _NUMBERS:
        raise fields.refuse(f"rope scaling {kind!r} is not supported; {', '.join(_NUMBERS)} are")
    for name in section.values.keys() - _NUMBERS[kind] - _ALWAYS - unstated.further:
        section.require_off(name)
    match kind:
        case "default" | "mrope":
            return None
        case "dynamic":  # scales only beyond the context, which no sequence exceeds
            section.positive("factor")
            return None
        case "linear":
            return LinearScaling(section.positive("factor"))
        case "longrope":
            return _longrope(fields, section, dim, unstated.original_context)
        case "yarn":
            return _yarn(section, _original_context(fields, section))
    return Llama3Scaling(
        section.positive("factor"),
        section.positive("low_freq_factor"),
        section.positive("high_freq_factor"),
        _original_context(fields, section),
    )


def _original_context(fields: Fields, section: Fields, unstated: int | None = None) -> int:
    """Return the context length before rope scaling; the top of the config overrides the section."""
    holder = fields if fields.has("original_max_position_embeddings") else section
    return holder.count("original_max_position_embeddings", unstated or fields.context())


def _yarn(section: Fields, original: int) -> Yarn:
    """Read YaRN scaling (arXiv:2309.00071) for a context of `original` positions before scaling."""
    factor = section.positive("factor")
    attention = section.positive("attention_factor") if section.has("attention_factor") else None
    scales = [section.positive(name) if section.value(name) else 0.0 for name in ("mscale", "mscale_all_dim")]
    if attention is None and all(scales):
        own, all_dim = (0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0 for scale in scales)
        attention = own / all_dim
    return Yarn(
        factor,
        original,
        section.positive("beta_fast", 32.0),
        section.positive("beta_slow", 1.0),
        attention,
        section.flag("truncate", True),
    )


def _longrope(fields: Fields, section: Fields, dim: int, unstated: int | None) -> LongRope:
    """Read LongRoPE scaling, with the long factors if the context is longer than the original one, else the short ones.

    The KV cache stores rotated keys, so that a sequence cannot switch from one to the other as it grows.
    """
    original, context = _original_context(fields, section, unstated), fields.context()
    factors = {name: tuple(section.positives(name)) for name in ("short_factor", "long_factor")}
    for name, numbers in factors.items():
        if len(numbers) != dim // 2:
            raise fields.refuse(
                f"{name} has {len(numbers)} numbers; partial_rotary_factor x head_dim is {dim}, which needs {dim // 2}"
            )
    stretched = section.positive("factor") if section.has("factor") else context / original
    magnitude = 1.0
    if section.has("attention_factor"):
        magnitude = section.positive("attention_factor")
    elif stretched > 1:
        if original == 1:
            raise fields.refuse("original_max_position_embeddings is 1, so attention_factor must be given")
        magnitude = math.sqrt(1 + math.log(stretched) / math.log(original))
    return LongRope(factors["long_factor" if context > original else "short_factor"], magnitude)


def read_rotary_layers(fields: Fields) -> tuple[bool, ...]:
    """Return for each layer whether it rotates by position: from `no_rope_layers` (1: yes), else all but every n-th."""
    listed, every = fields.integers("no_rope_layers"), fields.count("no_rope_layer_interval", 4)
    if not listed:
        return tuple((layer + 1) % every != 0 for layer in range(fields.layers))
    if len(listed) < fields.layers:
        raise fields.refuse(f"no_rope_layers must list 0 or 1 for each of {fields.layers} layers")
    return tuple(map(bool, listed[: fields.layers]))
