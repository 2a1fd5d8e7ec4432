"""Prices of classes with a state, against FLOPs that are counted in another way: by PyTorch, and by our own families.

The class itself runs on the CPU, and all of its operations are counted where they run: its products by PyTorch's
counter, and the others by the sizes of their results. The price comes from traces at a few other lengths.
"""

import json
from functools import cache
from inspect import signature
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from typing_extensions import override

from ridgeline.core.checkpoint import read_config
from ridgeline.core.models import Fields, build
from ridgeline.core.models.common.recipes import PLAIN
from ridgeline.core.models.from_transformers.aten_table import CONVOLUTION, PRODUCT, category_of, flops_of
from ridgeline.core.models.from_transformers.class_family import class_family
from ridgeline.core.models.from_transformers.class_lookup import find_class, registered_causal_types
from ridgeline.core.models.from_transformers.class_priced import ClassPriced
from ridgeline.core.models.from_transformers.small_config import small_config
from ridgeline.core.models.from_transformers.small_layers import keep_layers
from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.price.price import Price

KINDS = ("mamba", "mamba2", "jamba", "falcon_h1", "kimi_linear")
LAYERS = 4
BF16 = torch.bfloat16
PROMPT = 256
"""The length of the prompt: whole chunks of all classes, and longer than any traced prompt."""


def fields_of(kind: str) -> Fields:
    """Return a small config of a type of transformers, as a checkpoint states it."""
    values = json.loads(small_config(CONFIG_MAPPING[kind]()).to_json_string())
    values |= {name: 64 for name in ("chunk_size", "mamba_chunk_size") if name in values}
    return Fields({**values, "architectures": [registered_causal_types()[kind]], "model_type": kind}, "config.json")


@cache
def priced(kind: str) -> Price:
    """Return the price of a type's small model, built as its class."""
    fields = fields_of(kind)
    model = build(fields, BF16, family=class_family(fields))
    assert isinstance(model, ClassPriced)
    return Price(model)


class OtherFlops(TorchDispatchMode):
    """The FLOPs of all operations that run while the mode is active, other than products and convolutions."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0.0

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view and category_of(func) not in (PRODUCT, CONVOLUTION) and torch.is_tensor(out):
            self.total += sum(flops_of(func, args, kwargs or {}, out).values())
        return out


def counted(kind: str) -> list[tuple[float, float]]:
    """Return the FLOPs of products and of all else, of a prompt and of a decode step of the class on the CPU."""
    found = find_class(fields_of(kind))
    found.config._attn_implementation, found.config._experts_implementation = "eager", "eager"
    model = found.type._from_config(found.config, dtype=BF16).eval()
    kept, results = DynamicCache(config=found.config), []
    name = next(
        each for each in ("cache", "cache_params", "past_key_values") if each in signature(model.forward).parameters
    )
    for ids_1T in (torch.arange(PROMPT)[None] % 90, torch.tensor([[1]])):
        with torch.no_grad(), OtherFlops() as other, FlopCounterMode(display=False) as counter:
            model(ids_1T, use_cache=True, **{name: kept})
        results.append((float(counter.get_total_flops()), other.total))
    return results


@pytest.mark.parametrize("kind", KINDS)
def test_flops_are_those_of_the_class(kind: str) -> None:
    """Compare all FLOPs of a prompt, and the products of a decode step after it."""
    price = priced(kind)
    (products, other), (decode_products, _) = counted(kind)
    one, two = (price.step(Work.decode([count], price.reaches)).total_flops for count in (100, 101))
    masked = (two - one) * PROMPT * (PROMPT - 1) / 2  # the class computes them, and the price does not
    prompt = price.step(Work.of([StepSegment(PROMPT, PROMPT)], price.reaches, PROMPT)).total_flops
    decode = price.step(Work.decode([PROMPT + 1], price.reaches)).flops["bf16"]
    assert prompt + masked == pytest.approx(products + other, rel=0.03)
    # In each decode step, Kimi Linear's class computes the keys of all positions from their latents.
    assert kind == "kimi_linear" or decode == pytest.approx(decode_products, rel=0.03)


@pytest.mark.parametrize("name", ["qwen3-next-80b-a3b", "qwen3.5-9b-text"])
def test_the_price_is_that_of_our_own_family(name: str) -> None:
    """Compare FLOPs, weights and what is kept with our own definition of the same model, whose code is apart."""
    values = keep_layers(dict(read_config(name).values), LAYERS)
    ours, by_class = (Fields(dict(values), "config.json") for _ in range(2))
    family = build(ours, BF16, recipe=PLAIN)
    traced = build(by_class, BF16, recipe=PLAIN, family=class_family(by_class))
    assert isinstance(traced, ClassPriced)
    for segments in ([StepSegment(1024, 1024)], [StepSegment(512, 2048)], [StepSegment(1, 3000)] * 16):
        own, other = (Price(each).step(Work.of(segments, each.attention_patterns)) for each in (family, traced))
        assert other.total_flops == pytest.approx(own.total_flops, rel=0.015)
        assert other.weight_bytes == pytest.approx(own.weight_bytes, rel=1e-3)
        kept, own_kept = (each.kv_read_bytes + each.kv_write_bytes for each in (other, own))
        assert kept == pytest.approx(own_kept, rel=0.01)
