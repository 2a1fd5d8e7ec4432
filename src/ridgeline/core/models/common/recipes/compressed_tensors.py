"""The recipe of compressed-tensors (LLM Compressor): groups of modules, each with a quantisation scheme.

A scheme states bits, scales and activations. The fields are those of compressed_tensors' QuantizationConfig and
QuantizationArgs, the tensors those of its compressors: `weight_packed` or `weight`, `weight_scale`,
`weight_zero_point`, `weight_g_idx`, `weight_shape`.
"""

from dataclasses import dataclass, replace

from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.recipes.module_names import Matcher, is_or_matches, names_listed
from ridgeline.core.models.common.recipes.recipe import INPUT_SCALES, LINEAR, Recipe
from ridgeline.core.ops.number_formats import KVFormat, WeightFormat, kv_format_named
from ridgeline.core.ops.weight_slot import WeightSlot, WeightSlotKind

_LAYOUTS = (
    "dense", "naive-quantized", "float-quantized", "int-quantized", "pack-quantized", "nvfp4-pack-quantized",
    "mxfp4-pack-quantized", "mixed-precision",
)  # fmt: skip
_PACKED = "pack-quantized"
_CLASSES: dict[str, frozenset[WeightSlotKind]] = {"Linear": LINEAR, "Embedding": frozenset({"embedding"})}
_MAX_GROUP = 1 << 20
_SCALE_BITS = 16  # in the model's dtype, unless `scale_dtype` says otherwise


@dataclass(frozen=True, slots=True)
class _Group:
    """A group of modules that are stored in one format, selected by name and by class."""

    stored: WeightFormat
    """The weight format of a group of modules."""
    named: Matcher
    """The matcher of the module names that a group of one format lists."""
    kinds: frozenset[WeightSlotKind]
    """The kinds of weights that a group of one format selects by class."""


def read(section: Fields) -> Recipe:
    """Read the recipe of a `quantization_config` of compressed-tensors.

    Raises:
        ModelRefused: If a scheme is unknown.
    """
    section.require_off("format", *_LAYOUTS)
    section.require_off("transform_config")
    section.section("sparsity_config").require_off("format", "dense")
    section.ignore("quantization_status", "global_compression_ratio")
    listed = section.section("config_groups")
    layout = section.text("format", "")
    groups = [group for name in listed.values if (group := _group(listed.section(name), layout)) is not None]
    if not groups:
        raise section.refuse("config_groups does not say how any weights are stored")
    ignored = is_or_matches(section, names_listed(section, "ignore"))

    def choose(place: WeightSlot) -> WeightFormat | None:
        if place.kind == "router" or place.is_named(ignored):
            return None
        by_name = next((group.stored for group in groups if place.is_named(group.named)), None)
        return by_name or next((group.stored for group in groups if place.kind in group.kinds), None)

    formats = list(dict.fromkeys(group.stored for group in groups))
    name = " and ".join(dict.fromkeys(map(_called, formats)))
    narrowest = min(stored.bits for stored in formats)
    return Recipe(f"compressed-tensors {name}", narrowest, lambda _: choose, _kv(section), ignored_tensors=INPUT_SCALES)


def _called(stored: WeightFormat) -> str:
    """Return the usual name of a format: w8a8 for int8 weights and activations."""
    return stored.name.replace("int8", "w8a8") if stored.kind == "w8a8" else stored.name


def _group(group: Fields, layout: str) -> _Group | None:
    """Read a group of modules with one scheme from the config; None if it quantises outputs but no weights."""
    if not group.has("weights"):
        return None
    targets = names_listed(group, "targets")
    kinds: frozenset[WeightSlotKind] = frozenset().union(*(_CLASSES.get(target, frozenset()) for target in targets))
    named = is_or_matches(group, [target for target in targets if target not in _CLASSES])
    own = group.text("format", layout)
    return _Group(_format(group.section("weights"), group.section("input_activations"), own), named, kinds)


def _format(weights: Fields, inputs: Fields, layout: str) -> WeightFormat:
    """Return the weight format of a quantisation scheme, for these input activations and this tensor `layout`."""
    number, bits = _number(weights), weights.count("num_bits", most=8)
    if number not in (f"int{bits}", "fp4", "fp8"):
        kind = weights.text("type", "int")
        raise weights.refuse(
            f"{bits}-bit weights of type {kind!r} are not supported; int, and float of 4 or 8 bits, are"
        )
    block, shape = _block(weights)
    known = {("fp4", 16): "nvfp4", ("fp4", 32): "mxfp4"}.get((number, block[1] or 0))
    symmetric, packed, ordered = weights.flag("symmetric", True), layout == _PACKED, weights.value("actorder")
    runs = _runs(number, block, layout)
    return WeightFormat(
        known or f"{number} {shape}",
        bits,
        block,
        _scale_bits(weights, small=known is not None),
        zero_bits=0 if symmetric else bits if packed else 8,
        activations=_activations(inputs),
        input_bits=32 if ordered in ("group", True) else 0,
        # Packed integers store their shape, two 64-bit numbers; NVFP4 a scale of its weights and one of its inputs.
        matrix_bits=128 if packed else 64 if known == "nvfp4" else 0,
        code=number if runs else "",
        layout=runs,
        ordered=ordered in ("group", True),
    )


def _runs(number: str, block: tuple[int | None, int | None], layout: str) -> str:
    """Return the checkpoint layout in which matrices of a scheme can run; "" if they are only priced."""
    match number, layout:
        case (("int4" | "int8"), "pack-quantized") if block[0] == 1:
            return layout
        case "int8", "int-quantized" | "naive-quantized":
            return "int-quantized"
        case "fp8", "float-quantized" | "naive-quantized":
            return "fp8"
    return ""


def _number(scheme: Fields, kind: str = "int") -> str:
    """Return the name of a scheme's number type, as `int4` or `fp8`; `kind` is the type if the scheme states none."""
    kind = scheme.text("type", kind)
    return f"{'fp' if kind == 'float' else kind}{scheme.count('num_bits', 8, most=16)}"


def _block(weights: Fields) -> tuple[tuple[int | None, int | None], str]:
    """Return the numbers of outputs and inputs that share a scale (None for all), and the name of this block."""
    size = weights.value("group_size")
    unstated = "tensor" if size is None else "channel" if size == -1 else "group"
    match weights.text("strategy", unstated):
        case "tensor":
            return (None, None), "tensor"
        case "channel":
            return (1, None), "channel"
        case "group" | "tensor_group":
            group = weights.count("group_size", most=_MAX_GROUP)
            return (1, group), f"g{group}"
        case "block":
            stated = weights.value("block_structure")
            if isinstance(stated, str):
                stated = [int(part) if part.isdecimal() else 0 for part in stated.split("x")]
            match stated:
                case [int(high), int(wide)] if high > 0 and wide > 0:
                    return (high, wide), f"{high}x{wide}"
            raise weights.refuse(f"block_structure is {stated!r}; it must be two sizes, outputs and inputs")
        case other:
            raise weights.refuse(
                f"strategy {other!r} is not supported; tensor, channel, group, tensor_group and block are"
            )


def _scale_bits(weights: Fields, *, small: bool) -> int:
    """Return the bits of a scale; by default 8 if they are `small`, as in NVFP4 and MXFP4, else 16."""
    stated = weights.text("scale_dtype", "").removeprefix("torch.")
    by_name = {"float8_e4m3fn": 8, "uint8": 8, "float16": 16, "bfloat16": 16, "float32": 32}
    if stated and stated not in by_name:
        raise weights.refuse(f"scale_dtype {stated!r} is not supported; {', '.join(by_name)} are")
    return by_name[stated] if stated else 8 if small else _SCALE_BITS


def _activations(inputs: Fields) -> str | None:
    """Return the format to which a product's inputs are quantised; None if they are not."""
    if not inputs.values:
        return None
    number = _number(inputs)
    if number in ("int16", "fp16"):
        return None
    if number not in ("int8", "fp8", "int4", "fp4"):
        raise inputs.refuse(f"activations in {number} are not supported; int8, fp8, int4 and fp4 are")
    return number


def _kv(section: Fields) -> KVFormat | None:
    """Return the format of keys and values if the checkpoint has scales for them, else None."""
    scheme = section.section("kv_cache_scheme")
    return kv_scheme(scheme) if scheme.values else None


def kv_scheme(scheme: Fields) -> KVFormat:
    """Return the KV format of a `kv_cache_scheme`: fp8 or int8, with a scale for a layer's keys and one for its values.

    Raises:
        ModelRefused: If the scheme is another format.
    """
    number = _number(scheme, "float")
    if number not in ("fp8", "int8"):
        raise scheme.refuse(f"keys and values in {number} are not supported; fp8 and int8 are")
    return stated_kv(number)


def stated_kv(name: str) -> KVFormat:
    """Return the KV format with this name for a checkpoint that contains its scales.

    Only fp8 scales are read, so only fp8 runs.
    """
    known = kv_format_named(name)
    return replace(known, code="fp8" if name == "fp8" else "", scales_in_checkpoint=True)
