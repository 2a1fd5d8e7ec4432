"""The tensors of KV memory: one buffer of pages of equal bytes, in which every group of layers has its own layout."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ridgeline.core.ops.kv_layout import NULL_PAGE, KVLayout
from ridgeline.core.ops.layer_pages import layer_pages
from ridgeline.core.ops.paged_state import state_pages
from ridgeline.engine.kv.kv_cache_manager import PageCopy
from ridgeline.util.host import fresh_memory

_ALIGNED = 16  # alignment of pages in bytes, enough for any dtype


class KVStore:
    """The KV memory of a model: a buffer of bytes [pages + 1, bytes per page], and each layer's view into the buffer.

    `layers` has the views of layers that store keys and values, `states` those of layers that store a state. Page 0 is
    the page of zeros. The store writes nothing else until a step writes it: the operating system provides a page's
    memory at its first use, so that a large pool costs only what is in it.
    """

    def __init__(self, layout: KVLayout, device: torch.device | str = "cpu") -> None:
        self.layout = layout
        page_bytes = -(-layout.page_bytes // _ALIGNED) * _ALIGNED
        self.buffer = _memory(layout.pages + 1, page_bytes, torch.device(device))
        self.buffer[NULL_PAGE] = 0
        self.layers, self.states = layer_pages(self.buffer, layout), state_pages(self.buffer, layout)

    def export_pages(self, pages: Sequence[int]) -> Tensor:
        """Copy pages to the host: bytes [pages, bytes per page], with the data of all layers of their groups."""
        return self.buffer.index_select(0, self._tensor(pages)).cpu()

    def import_pages(self, pages: Sequence[int], rows: Tensor) -> None:
        """Write KV pages that another store with the same layout exported into pages of this store."""
        self.buffer.index_copy_(0, self._tensor(pages), rows.to(self.buffer.device))

    def copy(self, copies: Sequence[PageCopy]) -> None:
        """Copy the contents of KV pages to other pages, in order."""
        for copy in copies:
            self.buffer[copy.target] = self.buffer[copy.source]

    def blank(self, pages: Sequence[int]) -> None:
        """Fill KV pages with zeros."""
        if pages:
            self.buffer.index_fill_(0, self._tensor(pages), 0)

    def _tensor(self, numbers: Any) -> Tensor:
        return torch.tensor(numbers, device=self.buffer.device)


def _memory(pages: int, page_bytes: int, device: torch.device) -> Tensor:
    """Return uninitialised bytes [pages, page_bytes] on a device."""
    if device.type != "cpu" or not page_bytes:
        return torch.empty(pages, page_bytes, dtype=torch.uint8, device=device)
    return torch.frombuffer(fresh_memory(pages * page_bytes), dtype=torch.uint8).view(pages, page_bytes)
