"""A machine from a case: the pages that a card's memory leaves, and an engine's limits."""

from dataclasses import replace

from ridgeline.engine.scheduler import Limits
from ridgeline.insight.simulate.replica import NOTHING, Machine
from ridgeline.insight.simulate.serving_overhead import HostOverhead
from ridgeline.price.plan.device_memory import memory_of
from ridgeline.price.plan.scenario import PlanWorkload, Scenario
from ridgeline.util.document.humanize import gib, say_gib


def machine_of(
    case: Scenario,
    limits: Limits,
    *,
    context: int | None = None,
    pages: int | None = None,
    page_size: int = 16,
    prefix_cache: bool = True,
    between: HostOverhead = NOTHING,
) -> Machine:
    """An engine with these limits on the card of a case. context: positions that a request may have, the model's by
    default. pages: of KV memory, where they are known; else what the plan leaves for them. between: as of a Machine.

    Raises ValueError for models that do not continue texts, for cards that run requests of their own, and for a model
    that leaves no page.
    """
    model = case.model
    if not model.has_head or model.encodes:
        raise ValueError("simulate takes models that continue a text: no encoders, encoder-decoders or speech models")
    if case.ranks > 1:
        raise ValueError(
            "each of several cards with attention of its own has a scheduler of its own, which is not simulated; leave "
            "--enable-dp-attention out"
        )
    if context is not None and not 1 <= context <= model.context:
        raise ValueError(f"--context is {context:,}; the model's is {model.context:,}, give that or less")
    memory = memory_of(case, PlanWorkload(1, 1, step_tokens=limits.tokens, page_size=page_size))
    if pages is None and not memory.fits:
        missing = say_gib(gib(memory.missing))
        raise ValueError(
            f"weights and one page do not fit {case.device.title}: {missing} a card are missing; give --weights in "
            "fewer bits, more --devices, or another card (ridgeline plan says which)"
        )
    if pages is not None and pages < len(memory.layout.groups):
        raise ValueError(f"--pages is {pages}; give at least {len(memory.layout.groups)}")
    if pages is not None and (needs := pages * memory.layout.page_bytes) > case.device.memory:
        raise ValueError(
            f"--pages is {pages:,}, which are {say_gib(gib(needs))} a card, and {case.device.title} has "
            f"{say_gib(gib(case.device.memory))}; give fewer"
        )
    layout = memory.layout if pages is None else replace(memory.layout, pages=pages)
    return Machine(case, layout, limits, model.context if context is None else context, prefix_cache, between)
