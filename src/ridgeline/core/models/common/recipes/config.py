"""The recipe of a config's `quantization_config`, or of an option that quantises plain weights.

The formats follow the loader of each method: transformers' integrations (finegrained_fp8, fbgemm_fp8, mxfp4,
bitsandbytes), AutoAWQ's WQLinear_GEMM and exclude_layers_to_not_quantize, GPTQModel's TorchQuantLinear.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.recipes import compressed_tensors, modelopt
from ridgeline.core.models.common.recipes.module_names import (
    Matcher,
    begins_or_ends,
    contains,
    matches,
    names_listed,
    pattern,
)
from ridgeline.core.models.common.recipes.recipe import (
    BLOCKS,
    INPUT_SCALES,
    LINEAR,
    PLAIN,
    WITH_HEAD,
    Recipe,
    recipe_named,
    recipe_names,
    runnable_format_names,
    stored_in,
)
from ridgeline.core.ops.matrix.gguf_matrix import BLOCKS as GGUF_BLOCKS
from ridgeline.core.ops.number_formats import FORMATS, MXFP4, KVFormat, WeightFormat, format_of
from ridgeline.core.ops.weight_slot import WeightSlot

SECTIONS = ("quantization_config", "compression_config")
"""The sections of a config that may state how its weights are quantised."""
_TEXT = "text_config"
_MAX_BITS, _MAX_GROUP = 8, 1 << 20
_MODELOPT = "modelopt"

# Keys about how weights were quantised or how a library loads them, which do not change how they are stored.
_ELSEWHERE = (
    "quant_method", "meta", "provider", "producer", "dataset", "tokenizer", "backend", "model_name_or_path", "sym",
    "model_file_base_name", "damp_percent", "damp_auto_increment", "static_groups", "true_sequential", "desc_act",
    "use_exllama", "disable_exllama", "exllama_config", "use_cuda_fp16", "max_input_length", "batch_size", "format",
    "cache_block_outputs", "model_seqlen", "block_name_to_quantize", "module_name_preceding_first_block", "version",
    "pad_token_id", "pack_dtype", "checkpoint_format", "do_fuse", "fuse_max_seq_len", "modules_to_fuse", "zero_point",
    "bnb_4bit_compute_dtype", "bnb_4bit_quant_storage", "llm_int8_threshold", "llm_int8_has_fp16_weight", "scale_fmt",
    "llm_int8_enable_fp32_cpu_offload", "activation_scale_ub", "dequantize",
)  # fmt: skip


def read_recipe(fields: Fields) -> Recipe:
    """Return the storage formats of a config's checkpoint; a multimodal config may state them for its text model alone.

    Raises:
        ModelRefused: If the method or a key is unknown; the message names it.
    """
    name = _section_of(fields)
    if name is None:
        return read_recipe(fields.section(_TEXT)) if fields.has(_TEXT) else PLAIN
    section, method = fields.section(name), method_of(fields)
    if method not in METHODS:
        raise section.refuse(
            f"weights quantized by {method or 'an unnamed method'!r} are not supported; {', '.join(METHODS)} are "
            "(to price the model, give the unquantized config and --weights fp8, int8, int4 or q4_k_m)"
        )
    recipe = METHODS[method](section)
    section.ignore(*_ELSEWHERE)
    return replace(recipe, unread=tuple(f"{name}.{key}" for key in section.unread()))


def method_of(fields: Fields) -> str:
    """Return the quantisation method that the top of a config names; "" if it has none, or names none.

    Three tools leave it out because another key implies it: compressed-tensors, the first version of bitsandbytes, and
    ModelOpt. Some versions of ModelOpt append the format to the method's name (`modelopt_fp4`).
    """
    name = _section_of(fields)
    if name is None:
        return ""
    section = fields.section(name)
    method = section.text("quant_method", "").lower()
    if method:
        return _MODELOPT if method.startswith(f"{_MODELOPT}_") else method
    if name == "compression_config":
        return "compressed-tensors"
    if section.value("load_in_4bit") is True or section.value("load_in_8bit") is True:
        return "bitsandbytes"
    producer = section.value("producer")
    return _MODELOPT if isinstance(producer, dict) and producer.get("name") == _MODELOPT else ""


def _section_of(fields: Fields) -> str | None:
    """Return the name of the section at the top of a config that states how weights are stored."""
    return next((name for name in SECTIONS if fields.has(name)), None)


def _named(method: str, stored: WeightFormat) -> str:
    """Return a recipe's display name: method and format, as `awq int4 g128`, or one if it includes the other."""
    return stored.name if stored.name.startswith(method) else f"{method} {stored.name}"


def _uniform(method: str, stored: WeightFormat, kept: Matcher, *, head: bool = False) -> Recipe:
    """Return the recipe of one weight format for the matrices of blocks, except those that `kept` matches.

    With `head`, the head is in the format too.
    """
    kinds = LINEAR if head else BLOCKS
    unread = INPUT_SCALES if stored.code == "fp8" else ()
    return Recipe(_named(method, stored), stored.bits, lambda _: stored_in(stored, kinds, kept), ignored_tensors=unread)


def _unconverted(section: Fields, *names: str) -> Matcher:
    """Return a matcher of the modules that these lists of a config exclude from conversion."""
    return begins_or_ends(section, [entry for name in names for entry in names_listed(section, name)])


def _fp8(section: Fields) -> Recipe:
    """Read a recipe of fp8 weights with one 32-bit scale per block (DeepSeek-V3, Qwen3-FP8) or per matrix (AutoFP8).

    With one scale per matrix and static activations, each matrix also has a 32-bit scale for its inputs.
    """
    section.require_off("fmt", "e4m3", "float8_e4m3fn")
    block = section.integers("weight_block_size")
    if block and (len(block) != 2 or min(block) < 1):
        raise section.refuse(f"weight_block_size is {block}; it must be two sizes, outputs and inputs")
    static = section.text("activation_scheme", "dynamic") == "static"
    stored = (
        _float(f"fp8 {block[0]}x{block[1]}", (block[0], block[1]))
        if block
        else replace(_float("fp8 tensor", (None, None)), matrix_bits=32 * static)
    )
    recipe = _uniform("fp8", stored, _unconverted(section, "modules_to_not_convert", "ignored_layers"))
    return replace(recipe, kv=_kv(section))


def _kv(section: Fields) -> KVFormat | None:
    """Return the KV format of an AutoFP8 config, which calls its scheme static if it has scales for it."""
    if section.value("kv_cache_scheme") == "static":
        return compressed_tensors.stated_kv("fp8")
    scheme = section.section("kv_cache_scheme")
    return compressed_tensors.kv_scheme(scheme) if scheme.values else None


def _float(name: str, block: tuple[int | None, int | None]) -> WeightFormat:
    """Return an e4m3 weight format with one 32-bit scale per block."""
    return WeightFormat(name, 8, block, 32, activations="fp8", code="fp8", layout="fp8")


def _fbgemm(section: Fields) -> Recipe:
    """Read a recipe of fp8 weights with one 32-bit scale per output."""
    stored = _float("fp8 channel", (1, None))
    return _uniform("fp8", stored, _unconverted(section, "modules_to_not_convert"))


def _group(section: Fields, *names: str) -> int | None:
    """Return the number of inputs that share a scale; None for all of them, which configs write as -1."""
    name = next((name for name in names if section.has(name)), names[0])
    size = section.value(name)
    return None if size == -1 else section.count(name, 128, most=_MAX_GROUP)


def _integer(bits: int, group: int | None, layout: str) -> WeightFormat:
    """Return an integer weight format whose groups have a 16-bit scale and a zero point of `bits` bits.

    The product widens the weights. An empty `layout` means that the format is priced but does not run.
    """
    shared = "channel" if group is None else f"g{group}"
    code = {4: "int4", 8: "int8"}.get(bits, "") if layout else ""
    stored = WeightFormat(f"int{bits} {shared}", bits, (1, group), 16, bits)
    return replace(stored, code=code, layout=layout) if code else stored


def _awq(section: Fields) -> Recipe:
    """Read a recipe of AWQ weights, which run with 4 bits in AutoAWQ's GEMM layout."""
    bits = section.count("w_bit" if section.has("w_bit") else "bits", 4, most=_MAX_BITS)
    version = section.text("version", "gemm").lower()
    runs = bits == 4 and version == "gemm" and section.text("backend", "autoawq") == "autoawq"
    stored = _integer(bits, _group(section, "group_size", "q_group_size"), "awq" if runs else "")
    return _uniform(
        "awq" if version == "gemm" else f"awq {version}",
        stored,
        contains(names_listed(section, "modules_to_not_convert")),
    )


def _gptq(section: Fields) -> Recipe:
    """Read a recipe of GPTQ weights, which always have a 32-bit group index per input, even if inputs are in order.

    `dynamic` (GPTQModel) gives modules that match a pattern other bits, or leaves them unquantised (`-:`).
    """
    section.require_off("modules_in_block_to_quantize")
    stored = _gptq_format(section, section)
    own = _dynamic(section)
    kinds = LINEAR if section.flag("lm_head", False) else BLOCKS

    def choose(place: WeightSlot) -> WeightFormat | None:
        if place.kind not in kinds:
            return None
        return next((other for named, other in own if place.is_named(named)), stored)

    return Recipe(_named("gptq", stored), stored.bits, lambda _: choose)


def _gptq_format(section: Fields, own: Fields) -> WeightFormat:
    """Return the weight format of a GPTQ config, or of modules whose entry `own` overrides some settings.

    They are the bits, the group size and the order of inputs.
    """

    def says(name: str) -> Fields:
        return own if own.has(name) else section

    form = section.text("checkpoint_format", section.text("format", "gptq")).lower()
    packed = section.text("pack_dtype", "int32") == "int32" and not section.flag("is_marlin_format", False)
    bits = says("bits").count("bits", most=_MAX_BITS)
    layout = form if form in ("gptq", "gptq_v2") and packed else ""
    stored = _integer(bits, _group(says("group_size"), "group_size"), layout)
    return replace(stored, input_bits=32, ordered=says("desc_act").flag("desc_act", False))


def _dynamic(section: Fields) -> Sequence[tuple[Matcher, WeightFormat | None]]:
    """Return GPTQModel's patterns of module names with the format of those that match; None for the model's dtype."""
    listed = section.section("dynamic")
    own: list[tuple[Matcher, WeightFormat | None]] = []
    for entry in listed.values:
        stored = _gptq_format(section, listed.section(entry))
        expression = entry.removeprefix("-:").removeprefix("+:")
        named = partial(matches, [pattern(listed, expression, entry)])
        own.append((named, None if entry.startswith("-:") else stored))
    return own


def _bitsandbytes(section: Fields) -> Recipe:
    """Read a recipe of bitsandbytes: NF4 or FP4 in blocks of 64, or int8.

    A 4-bit block has a 32-bit scale, or with double quantisation an 8-bit one and 32 bits more for 256 of them (QLoRA,
    arXiv:2305.14314). 8 bits: a 32-bit scale per row, and products in int8 (arXiv:2208.07339).
    """
    four, eight = section.flag("load_in_4bit", False), section.flag("load_in_8bit", False)
    if four == eight:
        raise section.refuse("exactly one of load_in_4bit and load_in_8bit must be true")
    if eight:
        stored = WeightFormat("int8 channel", 8, (1, None), 32, activations="int8")
    else:
        number = section.text("bnb_4bit_quant_type", "fp4")
        if number not in ("fp4", "nf4"):
            raise section.refuse(f"bnb_4bit_quant_type {number!r} is not supported; fp4 and nf4 are")
        doubly = section.flag("bnb_4bit_use_double_quant", False)
        stored = WeightFormat(number, 4, (1, 64), 8 + 32 / 256 if doubly else 32)
    listed = section.has("llm_int8_skip_modules")
    return _uniform("bitsandbytes", stored, _unconverted(section, "llm_int8_skip_modules"), head=listed)


def _mxfp4(section: Fields) -> Recipe:
    """Read a recipe of MXFP4 for the experts only, as gpt-oss stores them."""
    kept = _unconverted(section, "modules_to_not_convert")
    return Recipe(MXFP4.name, MXFP4.bits, lambda _: stored_in(MXFP4, frozenset({"expert"}), kept))


def _gguf(section: Fields) -> Recipe:
    """Read the recipe of a GGUF file from the block type of each module; one without is in the model's dtype.

    Raises:
        ModelRefused: If a type is not supported.
    """
    listed = section.section("types")
    by_name: dict[str, WeightFormat] = {}
    for module in listed.values:
        kind = listed.text(module)
        if kind not in GGUF_BLOCKS:
            raise listed.refuse(f"{module} is stored in {kind!r}, which is not supported; {', '.join(GGUF_BLOCKS)} are")
        by_name[module] = GGUF_BLOCKS[kind]
    if not by_name:
        raise section.refuse("types is empty; leave the section out if no weights are quantised")
    formats = list(by_name.values())
    commonest = max(dict.fromkeys(formats), key=formats.count)
    mixed = " mixed" * (len(set(formats)) > 1)

    def choose(place: WeightSlot) -> WeightFormat | None:
        return by_name.get(place.name)

    return Recipe(f"gguf {commonest.name}{mixed}", commonest.bits, lambda _: choose)


METHODS: Mapping[str, Callable[[Fields], Recipe]] = MappingProxyType(
    {
        "fp8": _fp8,
        "fbgemm_fp8": _fbgemm,
        "compressed-tensors": compressed_tensors.read,
        "awq": _awq,
        "gptq": _gptq,
        "bitsandbytes": _bitsandbytes,
        "mxfp4": _mxfp4,
        _MODELOPT: modelopt.read,
        "gguf": _gguf,
    }
)
"""The reader of each quantisation method, by its name in `quant_method`."""


def quantised_recipe(weights: str, fields: Fields) -> Recipe:
    """Return the recipe that quantises plain weights to the format `weights` while they are loaded.

    It is the plain recipe if `weights` is the format that they are in already.

    Raises:
        ModelRefused: If the weights of the checkpoint are quantised.
        ValueError: If weights cannot be quantised to this format while they are loaded.
    """
    stated = read_recipe(fields)
    if stated.name:
        raise fields.refuse(
            f"its weights are already stored as {stated.name} and cannot be quantized again; leave --weights {weights} "
            "out, or give the unquantized checkpoint"
        )
    plain = next((known for known in FORMATS if known.is_called(weights)), None)
    if plain is not None and plain.dtype == fields.dtype:
        return stated
    if plain is not None:
        raise ValueError(
            f"--weights is {weights!r}, but the checkpoint's weights are in {format_of(fields.dtype).name} and are "
            "never converted to another unquantized format; leave it out, or give one of "
            f"{', '.join(runnable_format_names())}"
        )
    bare, running = weights.removesuffix(WITH_HEAD), ", ".join(runnable_format_names())
    if bare not in recipe_names():
        raise ValueError(
            f"weights is {weights!r}, an unknown format; use one of {running}, optionally followed by {WITH_HEAD}"
        )
    recipe = recipe_named(weights)
    if bare not in runnable_format_names():
        raise ValueError(
            f"--weights is {weights!r}, which cannot run yet, only be priced (ridgeline plan, trace --priced); give "
            f"one of {running}"
        )
    return recipe
