"""`ridgeline plan` for embedding models: texts per second, and the price of a million tokens."""

from functools import partial

from ridgeline.cli.console import print_json
from ridgeline.cli.flags import given_flags
from ridgeline.cli.plan_options import PlanFlags, listed_options, sections_of
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


def plan_embedding(source: ModelSource, embedding: EmbeddingConfig | None, flags: PlanFlags) -> None:
    """Print the plan of an embedding model, or its comparison on several devices.

    Args:
        source: The model.
        embedding: The embedding settings of the model's folder; None if it states none.
        flags: The options.

    Raises:
        ValueError: If an option is invalid or does not apply to embedding models.
    """
    setup = flags.setup
    _check(source.title, flags)
    if setup.kv is not None and not family_of(source.config).generates:
        raise ValueError(f"{source.title} has no KV cache, because a text runs in one step; leave out --kv")
    models = ModelCache(source.config, around=partial(with_pooling, embedding=embedding))
    requested, devices = flags.workload.workload(setup.max_batch_tokens), flags.compared_devices()
    if devices is not None:
        quoted, unpriced = flags.quoted_devices(devices)
        compared = compare_embedding(source.title, models, setup.setup(devices[0]), requested, quoted, unpriced)
        shown_there = compare_embedding_document(compared)
        print_json(compare_embedding_json(compared)) if flags.as_json else show(shown_there)
        return
    sections = sections_of(flags.shown, SECTIONS)
    made = embedding_plan(source.title, models, setup.setup(flags.device), requested)
    print_json(embedding_json(made)) if flags.as_json else show(embedding_document(made, sections))


def _check(title: str, flags: PlanFlags) -> None:
    """Raise ValueError for options of generative models, and for adapters, which the engine refuses too."""
    if flags.lora:
        raise ValueError(
            f"{title} is an embedding model, which cannot use adapters; merge the adapter into it and leave out --lora"
        )
    if names := given_flags(flags.workload, "input"):
        raise ValueError(
            f"{title} generates no text: {listed_options(names)} for language models; give --input (the tokens of a "
            "text) and --max-batch-tokens instead"
        )
