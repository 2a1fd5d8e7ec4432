"""`ridgeline plan` of a model that writes no text: texts a second, and what a million tokens cost."""

import json
from collections.abc import Sequence
from functools import partial

from ridgeline.cli.options import device_named
from ridgeline.cli.plan_options import (
    DisplayFlags,
    MoneyFlags,
    SetupFlags,
    WorkloadFlags,
    compared_cards,
    given_flags,
    listed_options,
    quoted_cards,
    sections_of,
    with_price,
)
from ridgeline.core.checkpoint.embedding_config import EmbeddingConfig, pooled
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
    said: EmbeddingConfig | None,
    setup: SetupFlags,
    workload: WorkloadFlags,
    money: MoneyFlags,
    shown: DisplayFlags,
    lora: Sequence[str] | None,
    *,
    as_json: bool,
) -> None:
    """Print the plan, or the comparison of cards. said: how the source says that it embeds. Raises ValueError."""
    _check(source.title, workload, lora)
    if setup.kv is not None and not family_of(source.config).writes:
        raise ValueError(f"{source.title} keeps no keys and values, a text runs in one step; leave out --kv")
    models = ModelCache(source.config, around=partial(pooled, said=said))
    asked, devices = workload.workload(setup.max_batch_tokens), compared_cards(shown, setup.device)
    if devices is not None:
        named = None if setup.device is None else device_named(setup.device).name
        quoted, unpriced = quoted_cards(devices, money, named)
        compared = compare_embedding(source.title, models, setup.setup(devices[0]), asked, quoted, unpriced)
        shown_there = compare_embedding_document(compared)
        print(json.dumps(compare_embedding_json(compared))) if as_json else show(shown_there)
        return
    assert setup.device is not None
    sections = sections_of(shown, SECTIONS)
    device = with_price(device_named(setup.device), money)
    made = embedding_plan(source.title, models, setup.setup(device), asked)
    print(json.dumps(embedding_json(made))) if as_json else show(embedding_document(made, sections))


def _check(title: str, workload: WorkloadFlags, lora: Sequence[str] | None) -> None:
    """Raises ValueError for what is asked of models that generate, and for adapters, which the engine refuses too."""
    if lora:
        raise ValueError(f"{title} embeds, beside which no adapter runs; merge it into the model, and leave out --lora")
    if names := given_flags(workload, "input"):
        raise ValueError(
            f"{title} writes no text: {listed_options(names)} for models that generate; "
            " give --input, the tokens of a text, and --max-batch-tokens"
        )
