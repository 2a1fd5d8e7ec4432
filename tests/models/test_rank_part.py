"""The part of a transformers class that a rank holds, and which results the ranks join."""

import re

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from ridgeline.core.models import build
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.from_transformers.class_construction import class_module
from ridgeline.core.models.from_transformers.class_decoder import ClassDecoder
from ridgeline.core.models.from_transformers.class_family import class_family
from ridgeline.core.models.from_transformers.class_lookup import find_class
from ridgeline.core.models.from_transformers.rank_part import part_of
from ridgeline.core.models.from_transformers.routed_experts import RoutedExperts
from ridgeline.core.models.from_transformers.small_config import small_config
from ridgeline.core.ops.collective import AllReduce
from ridgeline.core.ops.shard import WHOLE, Shard
from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.price.price import Price
from support.registered_classes import registered_fields


def test_experts_that_every_rank_holds_whole_are_not_summed() -> None:
    """Take ranks of which each has all of the class: the sum over both would be twice the result."""
    config = small_config(CONFIG_MAPPING["olmoe"]())
    config.vocab_size = 51  # two ranks cannot divide it
    module = class_module(AutoModelForCausalLM._model_mapping[type(config)], config, torch.float32)
    part = part_of(module, {name: own.shape for name, own in module.named_parameters()}, Shard(1, 2))
    model = ClassDecoder(module, StorageConfig(torch.float32, part.shard), 32, part)
    experts = [op for _, op in model.ops_of(RoutedExperts)]
    assert experts
    assert {spec.shard for op in experts for spec in op.specs.values()} == {WHOLE}
    assert not model.ops_of(AllReduce)


def test_matrices_of_sorted_rows_are_summed_over_the_ranks() -> None:
    """Take JetMoE, which has experts in its attention too: each has a matrix of whose inputs a rank has a part."""
    fields, rows = registered_fields("jetmoe"), 5
    model = build(fields, torch.bfloat16, family=class_family(fields), shard=Shard(0, 2))
    layers, hidden = fields.values["num_hidden_layers"], fields.values["hidden_size"]
    price = Price(model)
    communication = price.step(Work.of([StepSegment(rows, rows)], price.reaches)).communication
    assert communication["all_reduce"] == (1 + 2 * layers) * rows * hidden * 2


@pytest.mark.parametrize(
    ("model_type", "names"),
    [
        ("openai-gpt", ("OpenAIGPTModel", "Attention", "MLP")),  # the first has the table of positions
        ("xlnet", ("XLNetRelativeAttention", "XLNetFeedForward")),
    ],
)
def test_matrices_that_are_no_linear_modules_are_named_too(model_type: str, names: tuple[str, ...]) -> None:
    """Take a class whose matrices are stored the other way round, and one whose matrices are parameters of its own."""
    found = find_class(registered_fields(model_type))
    module = class_module(found.type, found.config, torch.float32, "eager")
    part = part_of(module, {name: own.shape for name, own in module.named_parameters()}, Shard(0, 2))
    named = re.findall(r"(\w+) \(\d+%\)", part.describe_undivided(module))
    assert tuple(named) == names
