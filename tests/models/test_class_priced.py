"""Classes of transformers that are priced without being run: weights, KV bytes and FLOPs against the class itself.

The references are the class's parameters, the cache that the class fills on the CPU, and PyTorch's counter of FLOPs.
"""

import json
from functools import cache
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ridgeline.core.models import Fields, ModelRefused, build, build_to_run
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.from_transformers.class_family import class_family
from ridgeline.core.models.from_transformers.class_lookup import find_class, registered_causal_types
from ridgeline.core.models.from_transformers.class_priced import ClassPriced
from ridgeline.core.models.from_transformers.small_config import small_config
from ridgeline.core.ops.kv_layout import KVSpec, StateSpec
from ridgeline.core.ops.work import CAUSAL, RECURRENT, StepSegment, Work
from ridgeline.learn.page.op_table import LinePool, op_table
from ridgeline.price.price import Price

BF16 = torch.bfloat16
ATTEND = ("bloom", "falcon", "mpt", "gpt_neo")
KEEP_STATES = ("mamba", "mamba2", "jamba")


def fields_of(kind: str) -> Fields:
    """Return a small config of a type of transformers, as a checkpoint states it."""
    values = json.loads(small_config(CONFIG_MAPPING[kind]()).to_json_string())
    return Fields({**values, "architectures": [registered_causal_types()[kind]], "model_type": kind}, "config.json")


@cache
def priced(kind: str) -> tuple[Model, Price]:
    """Return the model of a type, built as the class that config.json names, and its price."""
    fields = fields_of(kind)
    model = build(fields, BF16, family=class_family(fields))
    return model, Price(model)


def of_transformers(kind: str) -> Any:
    """Return the class's own model, with random weights."""
    found = find_class(fields_of(kind))
    found.config._attn_implementation = "eager"
    return found.type._from_config(found.config, dtype=BF16).eval()


@pytest.mark.parametrize("kind", [*ATTEND, *KEEP_STATES])
def test_weights_are_the_parameters_of_the_class(kind: str) -> None:
    """Check that each parameter counts once, also one that is the head and the embedding."""
    model, price = priced(kind)
    assert isinstance(model, ClassPriced)
    assert price.weight_bytes == sum(parameter.nbytes for parameter in of_transformers(kind).parameters())


@pytest.mark.parametrize("kind", ATTEND)
def test_kv_bytes_are_those_of_the_cache_of_the_class(kind: str) -> None:
    model, price = priced(kind)
    theirs = of_transformers(kind)
    kept = DynamicCache(config=theirs.config)
    with torch.no_grad():
        theirs(torch.arange(11)[None], cache=kept)
    nbytes = sum(layer.keys.nbytes + layer.values.nbytes for layer in kept.layers)
    assert all(isinstance(spec, KVSpec) for spec in model.kv_specs)
    assert sum(spec.bytes_per_token for spec in model.kv_specs) * 11 == nbytes
    assert price.step(Work.of([StepSegment(11, 11)], price.reaches)).kv_write_bytes == nbytes
    assert price.step(Work.decode([12], price.reaches)).kv_read_bytes == nbytes / 11 * 12


@pytest.mark.parametrize("kind", [kind for kind in ATTEND if kind != "gpt_neo"])  # whose scores are products in fp32
def test_products_are_those_that_torch_counts(kind: str) -> None:
    """Check the FLOPs of a prompt, of which PyTorch counts all pairs and a price those that the mask leaves."""
    _, price = priced(kind)
    counted = dict[int, int]()
    for count in (8, 24):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            of_transformers(kind)(torch.arange(count)[None], use_cache=False)
        counted[count] = counter.get_total_flops()
    # FLOPs are a count + b count^2; the pairs of a causal mask are count (count + 1) / 2.
    b = (counted[24] / 24 - counted[8] / 8) / 16
    a = counted[8] / 8 - 8 * b
    work = Work.of([StepSegment(24, 24)], price.reaches, 24)
    assert price.step(work).flops["bf16"] == pytest.approx(a * 24 + b * 24 * 25 / 2, rel=1e-9)


@pytest.mark.parametrize("kind", KEEP_STATES)
def test_states_are_of_one_size(kind: str) -> None:
    """Check that a state costs the same after any number of positions, and nothing before the first."""
    model, price = priced(kind)
    states = sum(spec.slot_bytes for spec in model.kv_specs if isinstance(spec, StateSpec))
    assert states > 0
    assert RECURRENT in price.reaches
    first, later = (
        price.step(Work.of([segment], price.reaches)) for segment in (StepSegment(9, 9), StepSegment(9, 99))
    )
    grown = later.kv_read_bytes - first.kv_read_bytes
    assert grown == states + 90 * sum(spec.bytes_per_token for spec in model.kv_specs)


@pytest.mark.parametrize("kind", [*ATTEND, *KEEP_STATES])
def test_every_figure_is_at_least_zero(kind: str) -> None:
    _, price = priced(kind)
    for segments in ([StepSegment(1, 50)] * 3, [StepSegment(100, 100)], [StepSegment(7, 30), StepSegment(1, 9)]):
        cost = price.step(Work.of(segments, price.reaches))
        assert min(cost.total_flops, cost.activation_bytes, cost.weight_bytes) > 0
        assert min(cost.flops.values()) > 0


def test_the_page_prices_such_a_model() -> None:
    _, price = priced("bloom")
    pool = LinePool()
    for row in price.ops:
        op_table(row, [CAUSAL], pool)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("bloom", "it reads the attention mask in code of its own"),
        ("mamba", "it keeps a recurrent or convolution state"),
    ],
)
def test_the_engine_refuses_it_with_the_reason(kind: str, reason: str) -> None:
    assert priced(kind)[0].priced_only.startswith(reason)
    with pytest.raises(ModelRefused, match=rf"can only be priced .*because {reason}"):
        build_to_run(fields_of(kind), family=class_family(fields_of(kind)))
