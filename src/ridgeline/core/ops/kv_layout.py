"""The KV cache: the data that layers store per sequence, and the pages that hold the data.

All layers share one pool of pages of equal bytes. Layers with the same spec form groups that fill a page together, and
each group has page tables of its own: a sliding window frees positions that full attention keeps (as in vLLM's hybrid
KV cache manager), cross-attention stores an encoder's positions, and a recurrent layer has a state of fixed size.
`KVGroup.max_pages` alone defines the number of pages that a sequence holds, for admission, for the engine's page tables
and for the plan.

The argument `encoded` is always the number of encoder positions that the sequence attends to.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from ridgeline.core.ops.number_formats import KVFormat, format_of
from ridgeline.core.ops.work import RECURRENT, AttentionPattern
from ridgeline.util.document.humanize import gib, say_gib

if TYPE_CHECKING:
    import torch

NULL_PAGE = 0
"""The page of zeros that stands for positions that are out of sight; it is never allocated."""

_GROUP_SHARE = 0.01
"""The cost of one more group of layers with its own page tables, as a share of the KV-cache memory."""
_ENDLESS = 1 << 40
"""A number of positions that is more than any sequence has."""


@dataclass(frozen=True, slots=True)
class KVSpec:
    """The format of the keys and values of one position in one attention layer."""

    heads: int
    """The number of KV heads that this tensor-parallel rank holds."""
    k_dim: int
    """The number of entries of each head's key."""
    v_dim: int
    """The number of entries of each head's value; 0 if the value is a part of the key (MLA's latent)."""
    reach: AttentionPattern
    """The attention pattern of a layer; bidirectional sequences run whole in one step, so nothing is cached for them.

    In cross-attention the keys are the encoder's, cached by the step that runs the encoder.
    """
    dtype: "torch.dtype"
    stored: KVFormat | None = None
    """The narrower format in which keys and values are cached; None for the model's dtype.

    A format without codes is only priced.
    """
    whole_sequences: bool = False
    """Whether every sequence runs whole in one step whatever the attention pattern is, so that nothing is cached."""
    is_state: ClassVar[bool] = False
    """Whether every step overwrites a layer's cached data, so that no earlier position can be shared or restored."""

    @property
    def is_cached(self) -> bool:
        """Whether later steps read the data that a step wrote, so that the layer needs a KV cache."""
        return not (self.whole_sequences or self.reach.is_bidirectional)

    @property
    def grows(self) -> bool:
        """Whether a layer caches positions of the sequence itself, so that a longer sequence needs more memory."""
        return self.reach.kind != "cross"

    @property
    def bytes_per_token(self) -> float:
        """The KV-cache bytes that one layer of this format needs per additional position of a sequence."""
        return self.slot_bytes if self.grows else 0.0

    @property
    def slot_bytes(self) -> float:
        """The KV-cache bytes of one cached position in one layer of this format."""
        if self.stored is None:
            return self.given_bytes
        numbers = self.heads * (self.k_dim + self.v_dim)
        vectors = self.heads * (2 if self.v_dim else 1)  # a latent is one vector
        scales = vectors if self.stored.block is None else numbers / self.stored.block
        return (numbers * self.stored.bits + scales * self.stored.scale_bits) / 8

    @property
    def is_latent(self) -> bool:
        """Whether a layer caches one latent per position, of which the value is a part (MLA)."""
        return not self.v_dim

    @property
    def code(self) -> str:
        """The type of the quantised codes in the KV cache, as `KVFormat.code`; "" for the model's dtype."""
        return "" if self.stored is None else self.stored.code

    @property
    def scales(self) -> int:
        """The number of KV-cache scales per head and position: 2 (of the key and of the value), or 0 without scales."""
        return 0 if self.stored is None or not self.stored.scale_bits else 2 if self.v_dim else 1

    @property
    def given_bytes(self) -> float:
        """The bytes of one position's keys and values in the model's dtype, before any quantisation."""
        return self.heads * (self.k_dim + self.v_dim) * format_of(self.dtype).bytes

    @property
    def frees_positions(self) -> bool:
        """Whether old positions become invisible to all later queries, as with a sliding window, and can be freed."""
        return self.reach.kind in ("window", "chunked")

    def slots(self, positions: int, encoded: int = 0) -> int:
        """Return the number of positions that a layer caches for a sequence, including those that have been freed."""
        return positions if self.grows else encoded

    def written(self, start: int, end: int, encodes: int = 0) -> range:
        """Return the range of cached positions that a step writes.

        Args:
            start: The first position of the sequence that the step runs.
            end: The end of these positions.
            encodes: The number of encoder positions that the step runs.
        """
        return range(start, end) if self.grows else range(encodes)

    def first_seen(self, position: int) -> int:
        """Return the first position that a query at `position` sees; later queries see no earlier position."""
        match self.reach.kind:
            case "window":
                return max(0, position - self.reach.size + 1)
            case "chunked":
                return position // self.reach.size * self.reach.size
            case _:
                return 0


@dataclass(frozen=True, slots=True)
class StateSpec:
    """The state that a recurrent layer stores per sequence, of the same size however long the sequence is.

    It is all zeros before the first position. Every step overwrites it, so the state at an earlier position is lost.
    """

    numbers: int
    """The count of numbers in one layer's recurrent state."""
    dtype: "torch.dtype"
    is_state: ClassVar[bool] = True
    is_latent: ClassVar[bool] = False
    reach: ClassVar[AttentionPattern] = RECURRENT
    is_cached: ClassVar[bool] = True
    grows: ClassVar[bool] = False
    frees_positions: ClassVar[bool] = False
    bytes_per_token: ClassVar[float] = 0.0

    @property
    def slot_bytes(self) -> float:
        """The bytes of one layer's recurrent state for one sequence."""
        return self.numbers * format_of(self.dtype).bytes

    def slots(self, positions: int, encoded: int = 0) -> int:
        """Return 1: a recurrent state takes the slot of one position."""
        return 1

    def written(self, start: int, end: int, encodes: int = 0) -> range:
        """Return the range of a recurrent state's single slot, which every step writes."""
        return range(1)

    def first_seen(self, position: int) -> int:
        """Return 0, because every query depends on the recurrent state, and so on all positions from the first."""
        return 0


CacheSpec = KVSpec | StateSpec
"""The format of the data that a layer stores per sequence."""


@dataclass(frozen=True, slots=True)
class KVGroup:
    """The layers with one cache format that share KV pages."""

    spec: CacheSpec
    layers: tuple[int, ...]
    """The cache indices of the layers that share each page of a KV group."""
    page_size: int
    """The number of positions per page; 1 for recurrent states, of which a sequence has one page."""

    @property
    def used_bytes(self) -> float:
        """The bytes of a page that a KV group fills; the rest is padding."""
        return len(self.layers) * self.page_size * self.spec.slot_bytes

    def entries(self, positions: int, encoded: int = 0) -> int:
        """Return the number of page-table entries of a sequence, including those of freed positions."""
        return -(-self.spec.slots(positions, encoded) // self.page_size)

    def final(self, positions: int, encoded: int = 0) -> int:
        """Return the number of a sequence's page-table entries whose pages no later step writes.

        They are the full pages, and all pages of an encoder's positions.
        """
        if isinstance(self.spec, StateSpec):
            return 0
        return positions // self.page_size if self.spec.grows else self.entries(positions, encoded)

    def first_page(self, position: int) -> int:
        """Return the first page-table entry that a query at `position` still sees."""
        return self.spec.first_seen(position) // self.page_size

    def max_pages(self, positions: int, chunk: int, encoded: int = 0) -> int:
        """Return the most pages that a sequence holds at a time, if each step runs at most `chunk` of its positions.

        A window needs size - 1 + chunk positions, which may start anywhere in a page. Chunked attention needs as many,
        because the first query may be the last of its chunk, but they start at the start of a chunk.

        Args:
            positions: The length of the sequence.
            chunk: The most positions of it per step.
            encoded: The number of encoder positions that the sequence attends to.
        """
        every = self.entries(positions, encoded)
        return min(every, self.entries(self.spans + chunk)) if self.spec.frees_positions else every

    @property
    def spans(self) -> int:
        """The number of positions that pages must hold besides a step's own, for windowed or chunked attention."""
        assert isinstance(self.spec, KVSpec)
        reach = self.spec.reach
        begins = self.page_size - (1 if reach.kind == "window" else math.gcd(reach.size, self.page_size))
        return begins + reach.size - 1


@dataclass(frozen=True, slots=True)
class KVLayout:
    """The division of the KV cache into one pool of pages for all groups of a model's layers."""

    page_bytes: int
    """The bytes of a page of the KV cache."""
    pages: int
    """The number of pages in the KV-cache pool."""
    page_size: int
    """The positions of the smallest KV page; other groups that store positions have a multiple of that size."""
    groups: tuple[KVGroup, ...]
    """The groups of layers that share pages of the KV cache."""

    @property
    def nbytes(self) -> int:
        """The bytes of all pages of the KV cache."""
        return self.pages * self.page_bytes

    @property
    def bytes_per_token(self) -> float:
        """The KV-cache bytes per additional position of a sequence in all layers, including the padding of pages."""
        return sum(self.page_bytes / group.page_size for group in self.groups if group.spec.grows)

    @property
    def tokens(self) -> int:
        """The number of token positions that fit in the KV cache, if all layers keep them and no encoder runs."""
        share = sum(self.page_size / group.page_size for group in self.groups if group.spec.grows)
        return int(self.pages / share) * self.page_size if share else 0

    @property
    def state_bytes(self) -> float:
        """The bytes of all recurrent states of a sequence, however long it is."""
        return sum(group.used_bytes for group in self.groups if isinstance(group.spec, StateSpec))

    @property
    def why_no_prefix_cache(self) -> str:
        """The reason why sequences with equal prefixes cannot share pages; "" if they can."""
        if self.state_bytes:
            return "layers keep a recurrent state, which is not stored for earlier positions"
        return "" if any(group.spec.grows for group in self.groups) else "layers store nothing"

    @property
    def reaches(self) -> frozenset[AttentionPattern]:
        """The attention patterns of all layers with a KV cache."""
        return frozenset(group.spec.reach for group in self.groups if isinstance(group.spec, KVSpec))

    def kept(self, positions: int, chunk: int, encoded: int = 0) -> int:
        """Return the most KV pages that one sequence holds at a time, over all groups (see `KVGroup.max_pages`)."""
        return sum(group.max_pages(positions, chunk, encoded) for group in self.groups)

    def capacity(self, chunk: int, encoded: int = 0) -> int:
        """Return the most positions that a single sequence can have; 0 if the encoder's data alone does not fit."""
        fitting = bisect_right(range(_ENDLESS), self.pages, key=lambda n: self.kept(n, min(n, chunk), encoded))
        return max(0, fitting - 1)

    def max_sequences(self, positions: int, chunk: int, encoded: int = 0) -> int:
        """Return the number of sequences of this length that fit into the KV cache at a time.

        The last one to start runs its prompt in chunks, while the others run one position per step.
        """
        begins, stays = self.kept(positions, min(positions, chunk), encoded), self.kept(positions, 1, encoded)
        return 0 if begins > self.pages else 1 + (self.pages - begins) // stays

    def padding(self, positions: int, encoded: int = 0) -> float:
        """Return the share of the allocated KV pages' bytes that hold no data, for sequences of this length."""
        held = [group.max_pages(positions, 1, encoded) for group in self.groups]
        used = sum(pages * group.used_bytes for pages, group in zip(held, self.groups, strict=True))
        return 1 - used / (sum(held) * self.page_bytes) if self.groups else 0.0

    def concurrency(self, positions: int, encoded: int = 0) -> float:
        """Return vLLM's "maximum concurrency": all pages divided by those of a sequence of this length.

        It is 0 if no layer stores anything.
        """
        return self.pages / self.kept(positions, 1, encoded) if self.groups else 0.0

    def taken(self) -> str:
        """Return a text with one request's KV-cache memory: its bytes per token, and those of its states."""
        token = sum(len(group.layers) * group.spec.bytes_per_token for group in self.groups)
        state = f"a state of {self.state_bytes:,.0f} bytes a request of any length"
        return ", and ".join([f"{token:,.0f} bytes a token"] * (token > 0) + [state] * (self.state_bytes > 0))

    def holds(self) -> str:
        """Return a text with the capacity of the KV cache in tokens.

        If layers have states, the number of tokens depends on the number of requests, so the text describes the memory
        of one request instead.
        """
        stored = {
            group.spec.stored.name for group in self.groups if isinstance(group.spec, KVSpec) and group.spec.stored
        }
        narrowed = "".join(f" in {name}" for name in stored)
        return (self.taken() if self.state_bytes else f"{self.tokens:,} tokens") + narrowed

    def describe(self, context: int, encoded: int = 0) -> str:
        """Return a line like vLLM's `KV cache: N tokens; maximum concurrency for M tokens: k x`.

        It also states the padding, if there is any.

        Args:
            context: The length of a sequence.
            encoded: The number of encoder positions that it attends to.
        """
        padding, read = self.padding(context, encoded), f" and {encoded:,} of the encoder" if encoded else ""
        return (
            f"KV cache: {self.holds()} ({say_gib(gib(self.nbytes))}); "
            f"maximum concurrency for {context:,} tokens{read}: {self.concurrency(context, encoded):.2f}x"
            + (f"; {len(self.groups)} groups of layers, {padding:.1%} is padding" if padding >= 0.0005 else "")
        )


def group_layers(specs: Sequence[CacheSpec], page_size: int, context: int) -> KVLayout:
    """Divide layers into groups that share pages; the resulting layout has no pages yet.

    A page must hold a whole number of layers of some spec. Of all such page sizes, the function chooses the one with
    which a sequence of `context` positions, and as many encoder positions, takes the fewest bytes. Each group counts as
    1 % more bytes.

    Args:
        specs: The spec of each layer.
        page_size: The positions of the smallest page.
        context: The length of the sequence to optimise for.

    Raises:
        ValueError: If the page size is below 1.
    """
    assert all(spec.is_cached for spec in specs), "a layer that stores nothing has no place in a page"
    if page_size < 1:
        raise ValueError(f"page_size is {page_size}; it must be at least 1 position")
    return _grouped(tuple(specs), page_size, context)


@lru_cache(maxsize=256)  # a comparison of devices asks for few layouts, many times
def _grouped(specs: tuple[CacheSpec, ...], page_size: int, context: int) -> KVLayout:
    """Return the layout that `group_layers` describes."""
    layers_of: dict[CacheSpec, list[int]] = {}
    for layer, spec in enumerate(specs):
        layers_of.setdefault(spec, []).append(layer)
    candidates = [
        KVLayout(page_bytes, 0, page_size, tuple(_groups(layers_of, page_bytes, page_size)))
        for page_bytes in _page_sizes(layers_of, page_size)
    ]
    if not candidates:
        return KVLayout(0, 0, page_size, ())

    def taken(layout: KVLayout) -> float:
        return layout.kept(context, 1, context) * layout.page_bytes * (1 + _GROUP_SHARE * len(layout.groups))

    return min(candidates, key=taken)


def _least_slots(spec: CacheSpec, page_size: int) -> int:
    """Return the positions of the smallest KV page that a layer can have: 1 for a recurrent state."""
    return page_size if isinstance(spec, KVSpec) else 1


def _page_sizes(layers_of: dict[CacheSpec, list[int]], page_size: int) -> list[int]:
    """Return the candidate sizes of a KV page in bytes.

    Each is filled by some number of layers of one spec, with positions doubled until a layer of every other spec fits.
    """
    units = {spec: _least_slots(spec, page_size) * spec.slot_bytes for spec in layers_of}
    least = max(units.values(), default=0)
    sizes = set()
    for spec, layers in layers_of.items():
        for count in range(1, len(layers) + 1):
            size = math.ceil(count * units[spec])
            while size < least and isinstance(spec, KVSpec):
                size *= 2
            sizes.add(size)
    return sorted(size for size in sizes if size >= least)


def _groups(layers_of: dict[CacheSpec, list[int]], page_bytes: int, page_size: int) -> Iterator[KVGroup]:
    """Yield groups of as many layers of one cache format as fit into a KV page.

    If a spec has too few layers to fill a page, its pages have more positions.
    """
    for spec, layers in layers_of.items():
        slots = _least_slots(spec, page_size)
        while isinstance(spec, KVSpec) and len(layers) * 2 * slots * spec.slot_bytes <= page_bytes:
            slots *= 2
        together = min(len(layers), int(page_bytes // (slots * spec.slot_bytes)))
        count, every = -(-len(layers) // together), len(layers)
        for index in range(count):
            yield KVGroup(spec, tuple(layers[index * every // count : (index + 1) * every // count]), slots)
