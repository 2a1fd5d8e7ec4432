"""The recipe of NVIDIA ModelOpt: one algorithm for all modules except the excluded ones, or one algorithm per module.

ModelOpt writes hf_quant_config.json (`quant_algo`, `kv_cache_quant_algo`, `exclude_modules`, `quantized_layers`), and
newer versions also config.json (`ignore`, `kv_cache_scheme`). The tensors are those of its export: `weight`,
`weight_scale`, `weight_scale_2`, `input_scale`, `pre_quant_scale`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.recipes.compressed_tensors import kv_scheme, stated_kv
from ridgeline.core.models.common.recipes.module_names import Matcher, globs, names_listed
from ridgeline.core.models.common.recipes.recipe import INPUT_SCALES, LINEAR, PLAIN, Recipe
from ridgeline.core.ops.number_formats import MXFP4, NVFP4, KVFormat, WeightFormat
from ridgeline.core.ops.weight_slot import WeightSlot

MIXED = "MIXED_PRECISION"
"""The name that ModelOpt gives to a config with an algorithm for each module."""
_MAX_GROUP = 1 << 20
_EXPERT = re.compile(r"\.experts\.\d+(?=\.|$)")
_INT4 = WeightFormat("int4 g128", 4, (1, 128), 16, input_bits=16)
# matrix_bits: a 32-bit scale of the inputs, and for NVFP4 a second 32-bit scale of the weights.
ALGORITHMS: Mapping[str, WeightFormat] = MappingProxyType(
    {
        "FP8": WeightFormat(
            "fp8 tensor", 8, (None, None), 32, activations="fp8", matrix_bits=32, code="fp8", layout="fp8"
        ),
        "FP8_PER_CHANNEL_PER_TOKEN": WeightFormat(
            "fp8 channel", 8, (1, None), 32, activations="fp8", code="fp8", layout="fp8"
        ),
        "FP8_BLOCK_SCALES": WeightFormat("fp8 128x128", 8, (128, 128), 32, activations="fp8"),
        "FP8_PB_WO": WeightFormat("fp8 128x128", 8, (128, 128), 32),
        "MXFP8": WeightFormat("mxfp8", 8, (1, 32), 8, activations="fp8"),
        "NVFP4": NVFP4,
        "NVFP4_AWQ": replace(NVFP4, input_bits=16),
        "W4A8_NVFP4_FP8": replace(NVFP4, activations="fp8"),
        "W4A16_NVFP4": replace(NVFP4, activations=None, matrix_bits=32),
        "MXFP4": MXFP4,
        "W4A8_MXFP4_FP8": replace(MXFP4, activations="fp8"),
        "W4A16_AWQ": _INT4,
        "INT4_AWQ": _INT4,
        "W4A8_AWQ": replace(_INT4, activations="fp8"),
        "W8A16": WeightFormat("int8 channel", 8, (1, None), 16),
        "W8A8_SQ_PER_CHANNEL": WeightFormat("int8 channel", 8, (1, None), 32, activations="int8", input_bits=16),
    }
)
"""The weight format of each algorithm of ModelOpt."""


def read(section: Fields) -> Recipe:
    """Read the recipe of a `quantization_config` of ModelOpt, or of hf_quant_config.json.

    Raises:
        ModelRefused: If the algorithm of the weights is missing or unknown, that of the KV cache is unknown, no layer
            is listed in a mixed config, or the experts of a layer have different formats.
    """
    section = section.section("quantization") if section.has("quantization") else section
    section.ignore("config_groups", "has_zero_point", "pre_quant_scale")  # the algorithm's name implies these
    kv = _kv(section)
    if not section.has("quant_algo") and not section.has("quantized_layers"):
        if "quant_algo" not in section.values:  # null means unquantised weights
            raise section.refuse("quant_algo is missing; add it, because it says how the weights are stored")
        return replace(PLAIN, kv=kv)
    algorithm = section.text("quant_algo", MIXED).upper()
    excluded = globs([*names_listed(section, "exclude_modules"), *names_listed(section, "ignore")])
    if algorithm == MIXED:
        return replace(_mixed(section, excluded), kv=kv)
    stored = _format(section, algorithm)

    def choose(place: WeightSlot) -> WeightFormat | None:
        return stored if place.kind in LINEAR and not place.is_named(excluded) else None

    return Recipe(f"modelopt {stored.name}", stored.bits, lambda _: choose, kv, ignored_tensors=INPUT_SCALES)


def _mixed(section: Fields, excluded: Matcher) -> Recipe:
    """Return the recipe of a ModelOpt config that lists an algorithm for each module.

    A listed module is one matrix, or holds several (all experts of a layer). All other matrices are in the model's
    dtype.
    """
    listed = section.section("quantized_layers")
    by_name: dict[str, WeightFormat] = {}
    for module in listed.values:
        own = listed.section(module)
        stored = _format(own, own.text("quant_algo").upper())
        # Experts are priced as one op, so that all experts of a layer need the same format.
        if by_name.setdefault(_EXPERT.sub(".experts.0", module), stored) != stored:
            raise listed.refuse(
                f"{module} is stored in another format than other experts of its layer, which is not supported"
            )
    if not by_name:
        raise section.refuse(f"quantized_layers is empty, but quant_algo is {MIXED}; list the quantized layers")
    commonest = max(set(by_name.values()), key=list(by_name.values()).count)

    def choose(place: WeightSlot) -> WeightFormat | None:
        if place.is_named(excluded):
            return None
        modules = (around for name in (place.name, *place.spellings) for around in _modules_around(name))
        return next((by_name[module] for module in modules if module in by_name), None)

    return Recipe(
        f"modelopt {commonest.name} mixed",
        commonest.bits,
        lambda _: choose,
        ignored_tensors=INPUT_SCALES,
        listed=tuple(by_name),
    )


def _modules_around(name: str) -> Iterator[str]:
    """Yield a module's name and the names of the modules around it, innermost first."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def _format(section: Fields, algorithm: str) -> WeightFormat:
    """Return the weight format of a ModelOpt algorithm, with the group size that the config states."""
    if algorithm not in ALGORITHMS:
        raise section.refuse(f"quant_algo {algorithm!r} is not supported; {', '.join(ALGORITHMS)} and {MIXED} are")
    stored = ALGORITHMS[algorithm]
    high, usual = stored.block
    section.ignore("group_size", "awq_block_size")
    if high != 1 or usual is None:
        return stored
    group = section.count("group_size" if section.has("group_size") else "awq_block_size", usual, most=_MAX_GROUP)
    if group == usual:
        return stored
    return replace(stored, name=f"{stored.name.partition(' ')[0]} g{group}", block=(1, group))


def _kv(section: Fields) -> KVFormat | None:
    """Return the KV format of a ModelOpt scheme or algorithm name; None for the model's dtype."""
    scheme = section.value("kv_cache_scheme")
    section.ignore("kv_cache_quant_algo")  # unused next to a scheme
    if scheme and not isinstance(scheme, str):
        return kv_scheme(section.section("kv_cache_scheme"))
    name = "kv_cache_scheme" if scheme else "kv_cache_quant_algo"
    if not section.value(name):
        return None
    algorithm = section.text(name).upper()
    if algorithm not in ("FP8", "INT8", "NVFP4"):
        raise section.refuse(f"{name} {algorithm!r} is not supported; FP8, INT8 and NVFP4 are")
    return stated_kv(algorithm.lower())
