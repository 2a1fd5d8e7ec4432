"""The construction of a simulated machine from a pricing scenario: KV pages from GPU memory, and engine limits."""

from dataclasses import replace

from ridgeline.engine.scheduler import Limits
from ridgeline.insight.simulate.replica import NO_OVERHEAD, Machine
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
    between: HostOverhead = NO_OVERHEAD,
) -> Machine:
    """Return the simulated machine (model, GPUs, KV pages and engine limits) of a pricing scenario.

    Args:
        case: The model and the GPUs.
        limits: The engine limits.
        context: The maximum number of positions per request; the model's by default.
        pages: The number of KV pages, if known; by default as many as the memory plan leaves.
        page_size: Positions per page.
        prefix_cache: Whether requests share the pages of equal prefixes.
        between: The host overhead between two steps.

    Raises:
        ValueError: If the model does not continue text, if each GPU has its own scheduler (data-parallel attention), if
            `context` exceeds the model's, if the model leaves no KV page, or if `pages` are too few for the model or
            too many for the GPU.
    """
    model = case.model
    if not model.has_head or model.has_cross_attention:
        raise ValueError(
            "simulate supports only models that continue a text, not encoders, encoder-decoders or speech models"
        )
    if case.ranks > 1:
        raise ValueError(
            "--enable-dp-attention is not supported, because each GPU would have its own scheduler; leave it out"
        )
    if context is not None and not 1 <= context <= model.context:
        raise ValueError(f"--context is {context:,}, but the model's context is {model.context:,}; give at most that")
    memory = memory_of(
        case, PlanWorkload(1, 1, step_tokens=limits.tokens, page_size=page_size), requests=limits.requests
    )
    if pages is None and not memory.fits:
        missing = say_gib(gib(memory.missing))
        raise ValueError(
            f"the weights and one KV page do not fit on {case.device.title}: {missing} per GPU are missing; quantize "
            "with --weights, raise --devices, or choose another GPU (`ridgeline plan` shows which)"
        )
    if pages is not None and pages < len(memory.layout.groups):
        raise ValueError(f"--pages is {pages}; give at least {len(memory.layout.groups)}")
    if pages is not None and (needs := pages * memory.layout.page_bytes) > case.device.memory:
        raise ValueError(
            f"--pages {pages:,} needs {say_gib(gib(needs))} per GPU, but {case.device.title} has "
            f"{say_gib(gib(case.device.memory))}; give fewer"
        )
    layout = memory.layout if pages is None else replace(memory.layout, pages=pages)
    return Machine(case, layout, limits, model.context if context is None else context, prefix_cache, between)
