"""The number of pages of KV memory, computed from a budget in bytes."""

import math
from dataclasses import replace

from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.kv_layout import KVLayout, group_layers

GIB = 1 << 30
# The share of the memory that weights and a step leave free; other programs get the rest.
SHARE_OF_FREE = 0.5
MAX_BY_DEFAULT = 4 * GIB


def kv_layout(
    model: Model,
    budget_bytes: float,
    page_size: int = 16,
    most_tokens: int | None = None,
    most_requests: int | None = None,
    encoded: int = 0,
) -> KVLayout:
    """Divide a memory budget into KV pages for the layers of a model.

    Args:
        model: The model.
        budget_bytes: Bytes for the KV cache.
        page_size: Positions of the smallest page.
        most_tokens: Number of positions, and as many of encoders, for which pages suffice; None for no limit.
        most_requests: Maximum number of sequences that these positions belong to; by default one each.
        encoded: Number of encoder positions of each of these sequences, if it is known.

    Raises:
        ValueError: If the budget does not hold one page of each group, or if a page has no positions.
    """
    layout = group_layers(model.kv_specs, page_size, model.context)
    if not layout.groups:
        return layout  # the layers keep nothing
    pages = int(budget_bytes // layout.page_bytes)
    if most_tokens is not None:
        states = min(most_tokens, most_requests or most_tokens)
        most = [
            states if group.spec.is_state else group.entries(most_tokens, encoded * states or most_tokens)
            for group in layout.groups
        ]
        pages = min(pages, sum(most))
    if pages < len(layout.groups):
        raise ValueError(
            f"a KV budget of {budget_bytes / 1024:.1f}KiB does not hold a single page of {page_size} positions: "
            f"raise --kv-memory to {math.ceil(len(layout.groups) * layout.page_bytes / 1024)}KiB or more, or lower "
            "--page-size"
        )
    return replace(layout, pages=pages)


def default_budget(free_bytes: float) -> float:
    """Return the default size of KV memory: half of what weights and a step leave free, at most 4 GiB."""
    return min(SHARE_OF_FREE * free_bytes, MAX_BY_DEFAULT)
