"""Prices of classes with a state, against FLOPs that are counted in another way: by PyTorch, and by our own families.

The class itself runs on the CPU, and all of its operations are counted where they run: its products by PyTorch's
counter, and the others by the sizes of their results. The price comes from traces at a few other lengths.
"""

import json
from collections.abc import Sequence
from functools import cache
from inspect import signature
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from typing_extensions import override

from ridgeline.core.checkpoint import read_config
from ridgeline.core.models import Fields, build
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.recipes import PLAIN
from ridgeline.core.models.from_transformers.aten_table import CONVOLUTION, PRODUCT, category_of, flops_of, is_free
from ridgeline.core.models.from_transformers.class_family import class_family
from ridgeline.core.models.from_transformers.class_lookup import find_class, registered_causal_types
from ridgeline.core.models.from_transformers.class_priced import ClassPriced
from ridgeline.core.models.from_transformers.meta_tracing import AssumesTrue
from ridgeline.core.models.from_transformers.small_layers import keep_layers
from ridgeline.core.ops.latent_attention import LatentAttention
from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.price.price import Price
from support.priced_classes import eager_class, priced_class
from support.registered_classes import registered_fields

FAST = ("mamba", "mamba2", "falcon_h1", "kimi_linear", "nemotron_h", "lfm2_moe", "qwen3_next")
"""One type for each kind of state: two scans, both next to attention, two delta rules, and a mere convolution."""
OTHERS = (
    "falcon_mamba", "jamba", "zamba", "zamba2", "lfm2", "qwen3_5_text", "qwen3_5_moe_text", "rwkv", "olmo_hybrid",
    "bailing_hybrid",
)  # fmt: skip
CACHES = ("cache", "cache_params", "past_key_values", "state")
"""The names that classes have for their cache."""
CHUNKS = ("chunk_size", "mamba_chunk_size")
"""The names that configs have for the chunks in which a recurrence runs."""
LAYERS = 4
BF16 = torch.bfloat16
CHUNK = 64
"""The length of the chunks of recurrences, as in most releases; small configs have shorter ones."""
STEPS = {"prompt": (256, 256), "chunk": (64, 320), "decode": (1, 321)}
"""The positions of three passes over one sequence, and those that it then has: whole chunks, of no traced length."""


def fields_of(kind: str) -> Fields:
    """Return a small config of a type of transformers, as a checkpoint states it."""
    values = dict(registered_fields(kind).values)
    return Fields({**values, **{name: CHUNK for name in CHUNKS if name in values}}, "config.json")


@cache
def priced(kind: str) -> tuple[Model, Price]:
    """Return a type's small model, built as its class, and its price."""
    return priced_class(fields_of(kind))


class OtherFlops(TorchDispatchMode):
    """The FLOPs of all operations that run while the mode is active, other than those that PyTorch's counter knows."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0.0

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.linalg_solve_triangular.default:  # each number needs as many others as a row has
            self.total += args[0].shape[-1] * args[1].numel()
        elif computes(func, args, out):
            self.total += sum(flops_of(func, args, kwargs or {}, out).values())
        return out


def computes(func: Any, args: Sequence[Any], out: Any) -> bool:
    """Return whether an operation computes numbers, and is no product, no allocation and no view of its input."""
    results = [each for each in tree_leaves(out) if torch.is_tensor(each)]
    if not results or is_free(func) or category_of(func) in (PRODUCT, CONVOLUTION):
        return False
    held = {each.untyped_storage()._cdata for each in args if torch.is_tensor(each)}
    is_view = results[0].untyped_storage()._cdata in held  # `_unsafe_view` says that it is none
    return func._schema.is_mutable or not is_view


def counted(kind: str) -> dict[str, float]:
    """Return the FLOPs of each of STEPS, which the class runs on the CPU one after the other, with its own cache."""
    model = eager_class(fields_of(kind))
    name = next(each for each in CACHES if each in signature(model.forward).parameters)
    kept, counts = None if name == "state" else DynamicCache(config=model.config), {}
    for step, (new, _) in STEPS.items():
        with torch.no_grad(), OtherFlops() as other, FlopCounterMode(display=False) as counter:
            result = model(torch.arange(new)[None] % 90, use_cache=True, **{name: kept})
        kept = getattr(result, name)
        counts[step] = float(counter.get_total_flops()) + other.total
    return counts


@pytest.mark.parametrize("kind", [*FAST, *(pytest.param(kind, marks=pytest.mark.slow) for kind in OTHERS)])
def test_flops_are_those_of_the_class(kind: str) -> None:
    """Compare the FLOPs of a prompt, of a further chunk and of a decode step.

    The class also multiplies pairs that the mask hides. Where it keeps latents, only prompts are compared: in later
    passes it makes keys and values of the latents of all positions again, while our op attends to the latents. Our op
    also counts no FLOPs of its softmax, which are 1.3 % of the small Kimi Linear's.
    """
    model, price = priced(kind)
    one, two = (price.step(Work.decode([count], price.reaches)).total_flops for count in (100, 101))
    latents = [op for _, op in model.ops_of(LatentAttention)]
    pair = sum(2 * op.heads * (op.sizes.key + op.sizes.value) for op in latents) or two - one
    for step, count in counted(kind).items():
        new, keys = STEPS[step]
        if latents and new < keys:
            continue
        cost = price.step(Work.of([StepSegment(new, keys)], price.reaches, new))
        assert cost.total_flops + pair * new * (new - 1) / 2 == pytest.approx(count, rel=0.015 if latents else 0.006), (
            step
        )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mamba2", "falcon_h1", "zamba2"])
def test_what_a_price_leaves_out_is_little_at_real_sizes(kind: str) -> None:
    """Compare a prompt of four chunks with all FLOPs of the class, of LAYERS layers as wide as those of releases.

    The price leaves out products that join the states of all chunks.
    """
    values = keep_layers(json.loads(CONFIG_MAPPING[kind]().to_json_string(use_diff=False)), LAYERS)
    fields = Fields({**values, "architectures": [registered_causal_types()[kind]]}, "config.json")
    found, tokens = find_class(fields), 4 * next(values[name] for name in CHUNKS if name in values)
    found.config._attn_implementation = "eager"
    price = Price(build(fields, BF16, family=class_family(fields)))
    with torch.device("meta"), torch.no_grad(), AssumesTrue():
        model = found.type._from_config(found.config, dtype=BF16).eval()
        with OtherFlops() as other, FlopCounterMode(display=False) as counter:
            model(torch.empty(1, tokens, dtype=torch.int64), use_cache=True)
    one, two = (price.step(Work.decode([count], price.reaches)).total_flops for count in (100, 101))
    masked = (two - one) * tokens * (tokens - 1) / 2
    cost = price.step(Work.of([StepSegment(tokens, tokens)], price.reaches, tokens))
    assert cost.total_flops + masked == pytest.approx(counter.get_total_flops() + other.total, rel=0.002)


def few_layers(name: str) -> dict[str, Any]:
    """Return the config of a release with LAYERS layers, some of each kind."""
    values = keep_layers(dict(read_config(name).values), LAYERS)
    kinds = {"hybrid_override_pattern": "M-M*"}  # a letter for each layer, which `keep_layers` does not read
    return values | {field: kept for field, kept in kinds.items() if field in values}


@pytest.mark.parametrize("name", ["qwen3-next-80b-a3b", "qwen3.5-9b-text", "nemotron-h-8b"])
def test_the_price_is_that_of_our_own_family(name: str) -> None:
    """Compare FLOPs, weights and bytes with our own definition of the same model, whose code is apart.

    Of activations, Qwen3-Next's class moves 10 % more, because it puts the rows of its projection in another order.
    """
    ours, by_class = (Fields(few_layers(name), "config.json") for _ in range(2))
    family = build(ours, BF16, recipe=PLAIN)
    traced = build(by_class, BF16, recipe=PLAIN, family=class_family(by_class))
    assert isinstance(traced, ClassPriced)
    for segments in ([StepSegment(1024, 1024)], [StepSegment(512, 2048)], [StepSegment(1, 3000)] * 16):
        own, other = (Price(each).step(Work.of(segments, each.attention_patterns)) for each in (family, traced))
        assert other.total_flops == pytest.approx(own.total_flops, rel=0.015)
        assert other.weight_bytes == pytest.approx(own.weight_bytes, rel=1e-3)
        kept, own_kept = (each.kv_read_bytes + each.kv_write_bytes for each in (other, own))
        assert kept == pytest.approx(own_kept, rel=0.01)
        assert other.activation_bytes == pytest.approx(own.activation_bytes, rel=0.11 if "next" in name else 0.06)
