"""How many pages KV memory has: from a budget in bytes, said as vLLM says it."""

import math
from dataclasses import dataclass

from ridgeline.models.model import Model
from ridgeline.ops.kv import KVSpec

GIB = 1 << 30
# Of the memory that is free beside the weights and a step: the rest is for everyone else.
SHARE_OF_FREE = 0.5
MOST_BY_DEFAULT = 4 * GIB


@dataclass(frozen=True, slots=True)
class KVLayout:
    """KV groups of a model and the pages that each one gets. Every group gets the same number of positions."""

    specs: tuple[KVSpec, ...]
    group_of_layer: tuple[int, ...]
    page_size: int
    pages: int

    @property
    def bytes_per_page(self) -> float:
        """Bytes of one page in all layers."""
        return self.page_size * sum(self.specs[group].bytes_per_token for group in self.group_of_layer)

    @property
    def nbytes(self) -> float:
        """Bytes of all pages."""
        return self.pages * self.bytes_per_page

    @property
    def tokens(self) -> int:
        """Positions that fit."""
        return self.pages * self.page_size

    def describe(self, context: int) -> str:
        """vLLM's sentence: `KV cache: N tokens; maximum concurrency for M tokens: k x`."""
        return (
            f"KV cache: {self.tokens:,} tokens ({self.nbytes / GIB:.2f} GiB); "
            f"maximum concurrency for {context:,} tokens: {self.tokens / context:.2f}x"
        )


def kv_layout(model: Model, budget_bytes: float, page_size: int = 16, most_tokens: int | None = None) -> KVLayout:
    """Divide a budget into pages. `most_tokens`: more than that many positions are never needed.

    Raises ValueError if not even one page fits, or if a page is to hold nothing.
    """
    if page_size < 1:
        raise ValueError(f"the page size is {page_size}; a page holds at least 1 position")
    specs = tuple(dict.fromkeys(model.kv_specs))
    group_of_layer = tuple(specs.index(spec) for spec in model.kv_specs)
    one = KVLayout(specs, group_of_layer, page_size, 1)
    pages = int(budget_bytes // one.bytes_per_page)
    if most_tokens is not None:
        pages = min(pages, -(-most_tokens // page_size))
    if pages < 1:
        raise ValueError(
            f"a KV budget of {budget_bytes / 1024:.1f}KiB holds not one page of {page_size} positions; "
            f"give at least {math.ceil(one.bytes_per_page / 1024)}KiB (--kv-memory), or a smaller page"
        )
    return KVLayout(specs, group_of_layer, page_size, pages)


def default_budget(free_bytes: float) -> float:
    """Bytes for KV memory where none are stated: half of what is free beside the weights and a step, at most 4 GiB."""
    return min(SHARE_OF_FREE * free_bytes, MOST_BY_DEFAULT)
