"""`ridgeline plan` for embedding models: texts per second, and the price of a million tokens."""

import json
from collections.abc import Sequence
from functools import partial

from ridgeline.cli.options import device_named
from ridgeline.cli.plan_options import (
    DisplayFlags,
    MoneyFlags,
    SetupFlags,
    WorkloadFlags,
    compared_devices,
    given_flags,
    listed_options,
    quoted_devices,
    sections_of,
    with_price,
)
from ridgeline.core.checkpoint.embedding_config import EmbeddingConfig, with_pooling
from ridgeline.core.checkpoint.source import ModelSource
from ridgeline.core.models import family_of
from ridgeline.price.plan.embedding_comparison import (
    compare_embedding,
    compare_embedding_document,
    compare_embedding_json,
)
from ridgeline.price.plan.embedding_document import SECTIONS, embedding_document, embedding_json
from ridgeline.price.plan.embedding_plan import embedding_plan
from ridgeline.price.plan.scenario import ModelCache
from ridgeline.util.document.terminal_renderer import show


def plan_embedding(
    source: ModelSource,
    embedding: EmbeddingConfig | None,
    setup: SetupFlags,
    workload: WorkloadFlags,
    money: MoneyFlags,
    shown: DisplayFlags,
    lora: Sequence[str] | None,
    *,
    as_json: bool,
) -> None:
    """Print the plan of an embedding model, or its comparison on several devices.

    Args:
        source: The model.
        embedding: The embedding settings of the model's folder; None if it states none.
        setup: The deployment options.
        workload: The workload options.
        money: The price options.
        shown: The display options.
        lora: The adapters, which are refused.
        as_json: Whether to print JSON.

    Raises:
        ValueError: If an option is invalid or does not apply to embedding models.
    """
    _check(source.title, workload, lora)
    if setup.kv is not None and not family_of(source.config).generates:
        raise ValueError(f"{source.title} has no KV cache, because a text runs in one step; leave out --kv")
    models = ModelCache(source.config, around=partial(with_pooling, embedding=embedding))
    requested, devices = workload.workload(setup.max_batch_tokens), compared_devices(shown, setup.device)
    if devices is not None:
        named = None if setup.device is None else device_named(setup.device).name
        quoted, unpriced = quoted_devices(devices, money, named)
        compared = compare_embedding(source.title, models, setup.setup(devices[0]), requested, quoted, unpriced)
        shown_there = compare_embedding_document(compared)
        print(json.dumps(compare_embedding_json(compared))) if as_json else show(shown_there)
        return
    assert setup.device is not None
    sections = sections_of(shown, SECTIONS)
    device = with_price(device_named(setup.device), money)
    made = embedding_plan(source.title, models, setup.setup(device), requested)
    print(json.dumps(embedding_json(made))) if as_json else show(embedding_document(made, sections))


def _check(title: str, workload: WorkloadFlags, lora: Sequence[str] | None) -> None:
    """Raise ValueError for options of generative models, and for adapters, which the engine refuses too."""
    if lora:
        raise ValueError(
            f"{title} is an embedding model, which cannot use adapters; merge the adapter into it and leave out --lora"
        )
    if names := given_flags(workload, "input"):
        raise ValueError(
            f"{title} generates no text: {listed_options(names)} for language models; give --input (the tokens of a "
            "text) and --max-batch-tokens instead"
        )
