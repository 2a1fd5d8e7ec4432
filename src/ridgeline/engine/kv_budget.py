"""The size of the KV cache that fits next to the weights and a step, computed before anything is allocated."""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

import torch

from ridgeline.core.checkpoint import ModelSource
from ridgeline.core.checkpoint.adapter import Adapter
from ridgeline.core.checkpoint.weight_loader import remaining_memory, weight_bytes
from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.kv_layout import KVLayout
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.kv.page_count import default_budget, kv_layout
from ridgeline.engine.placement import available_gpu_memory, memory_backend
from ridgeline.engine.speculation.speculation_setup import Draft
from ridgeline.price.activations import activation_peak, replayed_bytes
from ridgeline.price.price import Price
from ridgeline.util.document.humanize import gib, say_gib, three_digits
from ridgeline.util.host import MIB


def fit_kv_layout(
    source: ModelSource,
    model: Model,
    price: Price,
    settings: EngineSettings,
    context: int,
    adapters: Sequence[Adapter],
    place: torch.device,
    draft: Draft | None,
) -> KVLayout:
    """Compute the layout of a KV cache that fits next to the weights, a step's activations and the backend's memory.

    Args:
        source: The checkpoint.
        model: The model, of one rank.
        price: The cost model of the model.
        settings: The settings of the engine.
        context: Maximum number of positions of a sequence.
        adapters: The LoRA adapters to load.
        place: The device to run on.
        draft: The draft model of speculative decoding, if any.

    Returns:
        The layout of one rank's KV pages.

    Raises:
        ModelRefused: If the weights and a step do not fit.
        ValueError: If the requested KV memory does not fit.
    """
    positions, limits = context * settings.limits.requests, settings.limits
    encoded = model.encoder_context
    # Either several encoder inputs fill a step, or a longer one runs alone.
    step_encoded = max(encoded, min(limits.tokens, encoded * limits.requests))
    if model.images is not None:  # each chunk may begin and end in the middle of an image, which is encoded as a whole
        parts = -(-limits.tokens // limits.max_request_tokens)
        step_encoded = limits.tokens + 2 * parts * model.images.rows
    step = activation_peak(price, min(limits.tokens, positions), limits.requests, step_encoded)
    activations = f"activations in a step of {max(limits.tokens, encoded):,} tokens"
    backend = memory_backend(place)
    steps = backend.replayed_steps(model)
    taken = {"weights": weight_bytes(model), activations: step}
    if steps is not None:
        taken[steps.title] = replayed_bytes(steps, model, price, limits.tokens)
    taken |= backend.workspace
    if adapters:
        width = model.storage.dtype.itemsize
        taken["adapters"] = float(sum(adapter.parameters for adapter in adapters) * width)
    # All ranks take the same amount. A draft model is not divided: the first rank holds the whole model.
    taken = {name: settings.ranks * nbytes for name, nbytes in taken.items()}
    if draft is not None:
        taken |= draft.taken(limits, place)
    available, budget = settings.memory, settings.kv_bytes
    if place.type != "cpu" and available is None:
        available = available_gpu_memory(place, settings.memory_share)
    free = remaining_memory(source, taken, available)
    if budget is None:
        budget = _budget(settings, free, sum(taken.values())) if place.type == "cpu" else free
    share = (1.0 if draft is None else draft.target_share(model, 1.0, settings.page_size)) / settings.ranks
    layout = kv_layout(
        model, share * budget, settings.page_size, most_tokens=positions, most_requests=limits.requests, encoded=encoded
    )
    if layout.nbytes > share * free:
        raise ValueError(
            f"--kv-memory is {say_gib(gib(layout.nbytes / share))}, but only {say_gib(gib(free))} are free next to "
            "the weights and a step: lower --kv-memory"
        )
    return _with_whole_context(layout, context, encoded, settings, free, share) if settings.whole_context else layout


def _with_whole_context(
    layout: KVLayout, context: int, encoded: int, settings: EngineSettings, free: float, share: float
) -> KVLayout:
    """Check that a KV layout holds a sequence of the whole context; enlarge a layout of default size if it does not.

    Args:
        layout: The layout to check.
        context: Maximum number of positions of a sequence.
        encoded: Number of encoder positions of a sequence.
        settings: The settings of the engine.
        free: Bytes that weights and a step leave free. An enlarged layout takes at most half of them.
        share: The layout's share of the KV memory; other ranks and a draft model have the rest.

    Raises:
        ValueError: If the layout is too small and may not grow.
    """
    chunk = settings.limits.max_request_tokens
    needed = layout.kept(context, min(context, chunk), encoded)
    if needed <= layout.pages:
        return layout
    if settings.kv_bytes is None and settings.memory_share is None and needed * layout.page_bytes <= share * free / 2:
        return replace(layout, pages=needed)
    most = layout.capacity(chunk, encoded)
    raise ValueError(
        f"KV memory of {say_gib(gib(layout.nbytes / share))} holds {most:,} positions of one request, but "
        f"the context is {context:,}: give --max-model-len {most} or less, or --kv-memory "
        f"{ceil(needed * layout.page_bytes / share / MIB)}MiB"
    )


def _budget(settings: EngineSettings, free: float, taken: float) -> float:
    """Return the bytes for the KV cache on a CPU.

    Args:
        settings: The settings of the engine.
        free: Bytes that weights and a step leave free.
        taken: Bytes that weights and a step take.

    Raises:
        ValueError: If the share of memory in the settings leaves nothing for the KV cache.
    """
    if settings.memory_share is None:
        return default_budget(free)
    budget = settings.memory_share * (free + taken) - taken
    if budget <= 0:
        least = three_digits(100 * taken / (free + taken))
        raise ValueError(
            f"{settings.memory_share:g} of the available memory leaves nothing for the KV cache, because weights and "
            f"a step need {least} %: give a larger share"
        )
    return budget
