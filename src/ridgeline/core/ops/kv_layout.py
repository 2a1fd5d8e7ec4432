"""What layers keep of a sequence, and the pages that hold it.

One pool of pages of equal bytes serves all layers. Layers that keep the same are dealt into groups that fill a page
together; a page table belongs to a group, because a sliding window lets go of positions that full attention keeps
(vLLM's hybrid KV cache manager does the same), cross-attention keeps an encoder's, and a recurrent layer has a state
however long the sequence is. How many pages a sequence holds is said once, by `KVGroup.kept`: for admission, for the
engine's tables and for the plan.

`encoded`, wherever it is asked for: positions of the encoder that the sequence looks at.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ridgeline.core.ops.number_formats import KVFormat, format_of
from ridgeline.core.ops.work import RECURRENT, AttentionPattern

if TYPE_CHECKING:
    import torch

NULL_PAGE = 0  # a page of zeros that stands for "nothing to see here"; never granted

# What one more group, with its tables, is taken to cost: as much as this share of the memory.
_GROUP_SHARE = 0.01
_ENDLESS = 1 << 40  # more positions than any sequence has


@dataclass(frozen=True, slots=True)
class KVSpec:
    """The keys and values of one position in one layer.

    v_dim: 0 where the value is a part of the key, a latent. reach: which positions a query sees; those that look both
    ways are all in one step, so that nothing is kept. In cross-attention they are the encoder's, kept from the step
    that runs it. stored: a narrower format than the model's dtype, which runs where it has a code. at_once: whether
    sequences are all in one step whatever the reach is.
    """

    heads: int
    k_dim: int
    v_dim: int
    reach: AttentionPattern
    dtype: "torch.dtype"
    stored: KVFormat | None = None
    at_once: bool = False
    is_state: ClassVar[bool] = False
    """Whether every step overwrites it, so that an earlier position can be neither shared nor returned to."""

    @property
    def kept(self) -> bool:
        """Whether later steps read what a step wrote."""
        return not (self.at_once or self.reach.both_ways)

    @property
    def grows(self) -> bool:
        """Whether it keeps positions of the sequence itself: a longer one keeps more."""
        return self.reach.kind != "cross"

    @property
    def bytes_per_token(self) -> float:
        """Bytes that one more position of a sequence takes in one such layer."""
        return self.slot_bytes if self.grows else 0.0

    @property
    def slot_bytes(self) -> float:
        """Bytes that what is kept of one position takes in one such layer."""
        if self.stored is None:
            return self.given_bytes
        numbers = self.heads * (self.k_dim + self.v_dim)
        vectors = self.heads * (2 if self.v_dim else 1)  # a latent is one
        scales = vectors if self.stored.block is None else numbers / self.stored.block
        return (numbers * self.stored.bits + scales * self.stored.scale_bits) / 8

    @property
    def is_latent(self) -> bool:
        """Whether a position keeps a latent, of which the value is a part."""
        return not self.v_dim

    @property
    def code(self) -> str:
        """What numbers are stored as, as KVFormat.code; "" for the model's dtype."""
        return "" if self.stored is None else self.stored.code

    @property
    def scales(self) -> int:
        """Scales of a head at one position, in a format that has one for a vector: of its key, and of its value."""
        return 0 if self.stored is None or not self.stored.scale_bits else 2 if self.v_dim else 1

    @property
    def given_bytes(self) -> float:
        """Bytes of one position's K and V in the model's dtype, as they come to be stored."""
        return self.heads * (self.k_dim + self.v_dim) * format_of(self.dtype).bytes

    @property
    def passes(self) -> bool:
        """Whether queries leave positions behind that no later one sees."""
        return self.reach.kind in ("window", "chunked")

    def slots(self, positions: int, encoded: int = 0) -> int:
        """How many positions a sequence of so many keeps, those let go included."""
        return positions if self.grows else encoded

    def written(self, start: int, end: int, encodes: int = 0) -> range:
        """Which of these a step fills that runs the positions from `start` to `end`, and so many of the encoder."""
        return range(start, end) if self.grows else range(encodes)

    def first_seen(self, position: int) -> int:
        """The first position that a query at `position` looks at; none after it looks farther back."""
        match self.reach.kind:
            case "window":
                return max(0, position - self.reach.size + 1)
            case "chunked":
                return position // self.reach.size * self.reach.size
            case _:
                return 0


@dataclass(frozen=True, slots=True)
class StateSpec:
    """What a recurrent layer keeps of a sequence: so many numbers, however long it is, all zeros before its first
    position. Every step changes them, so that what they were at an earlier position is not known any more.
    """

    numbers: int
    dtype: "torch.dtype"
    is_state: ClassVar[bool] = True
    is_latent: ClassVar[bool] = False
    reach: ClassVar[AttentionPattern] = RECURRENT
    kept: ClassVar[bool] = True
    grows: ClassVar[bool] = False
    passes: ClassVar[bool] = False
    bytes_per_token: ClassVar[float] = 0.0

    @property
    def slot_bytes(self) -> float:
        """Bytes of one such layer's state."""
        return self.numbers * format_of(self.dtype).bytes

    def slots(self, positions: int, encoded: int = 0) -> int:
        """A state takes the place of one position."""
        return 1

    def written(self, start: int, end: int, encodes: int = 0) -> range:
        """As KVSpec.written: every step changes it."""
        return range(1)

    def first_seen(self, position: int) -> int:
        """As KVSpec.first_seen: a state is seen by all."""
        return 0


CacheSpec = KVSpec | StateSpec
"""What a layer keeps."""


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers of one spec that lie together in pages. page_size: positions a page; 1 of a state, which has a page to
    itself in every sequence.
    """

    spec: CacheSpec
    layers: tuple[int, ...]
    page_size: int

    @property
    def used_bytes(self) -> float:
        """Bytes of a page that the group fills."""
        return len(self.layers) * self.page_size * self.spec.slot_bytes

    def entries(self, positions: int, encoded: int = 0) -> int:
        """Entries that a sequence's table has once it holds so many positions, those let go included."""
        return -(-self.spec.slots(positions, encoded) // self.page_size)

    def final(self, positions: int, encoded: int = 0) -> int:
        """Of these entries, those whose pages no later step writes: the full ones, and all of an encoder's."""
        if isinstance(self.spec, StateSpec):
            return 0
        return positions // self.page_size if self.spec.grows else self.entries(positions, encoded)

    def first_page(self, position: int) -> int:
        """The first entry that a query at `position` still looks at."""
        return self.spec.first_seen(position) // self.page_size

    def kept(self, positions: int, chunk: int, encoded: int = 0) -> int:
        """The keeping rule: most pages that a sequence of so many positions holds at a time, where a step runs at most
        `chunk` of them. A window's are size - 1 + chunk positions, which may begin anywhere in a page; so many are
        those of chunked attention, whose first query may be the last of its chunk, and they begin where a chunk does.
        """
        every = self.entries(positions, encoded)
        return min(every, self.entries(self.spans + chunk)) if self.spec.passes else every

    @property
    def spans(self) -> int:
        """Of a spec that lets positions go, those that pages must have room for beside the ones of a step."""
        assert isinstance(self.spec, KVSpec)
        reach = self.spec.reach
        begins = self.page_size - (1 if reach.kind == "window" else math.gcd(reach.size, self.page_size))
        return begins + reach.size - 1


@dataclass(frozen=True, slots=True)
class KVLayout:
    """One pool of `pages` pages of `page_bytes` bytes, for all groups of a model's layers.

    page_size: positions of the smallest page; those of other groups that keep positions are multiples of it.
    """

    page_bytes: int
    pages: int
    page_size: int
    groups: tuple[KVGroup, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all pages."""
        return self.pages * self.page_bytes

    @property
    def bytes_per_token(self) -> float:
        """Bytes that one more position of a sequence takes in all layers, the padding of pages included."""
        return sum(self.page_bytes / group.page_size for group in self.groups if group.spec.grows)

    @property
    def tokens(self) -> int:
        """Positions of sequences that fit where every layer keeps them, and no encoder's beside them."""
        share = sum(self.page_size / group.page_size for group in self.groups if group.spec.grows)
        return int(self.pages / share) * self.page_size if share else 0

    @property
    def state_bytes(self) -> float:
        """Bytes of the states of a sequence, however long it is."""
        return sum(group.used_bytes for group in self.groups if isinstance(group.spec, StateSpec))

    @property
    def unshared(self) -> str:
        """Why sequences that begin alike share no pages; "" where they may."""
        if self.state_bytes:
            return "layers keep a state, and what it was at an earlier position is not known any more"
        return "" if any(group.spec.grows for group in self.groups) else "layers keep nothing"

    @property
    def reaches(self) -> frozenset[AttentionPattern]:
        """What the attention reaches that keeps something."""
        return frozenset(group.spec.reach for group in self.groups if isinstance(group.spec, KVSpec))

    def kept(self, positions: int, chunk: int, encoded: int = 0) -> int:
        """Most pages that one sequence holds at a time, as KVGroup.kept."""
        return sum(group.kept(positions, chunk, encoded) for group in self.groups)

    def capacity(self, chunk: int, encoded: int = 0) -> int:
        """Most positions that one sequence alone could have; 0 also where what its encoder gives does not fit."""
        fitting = bisect_right(range(_ENDLESS), self.pages, key=lambda n: self.kept(n, min(n, chunk), encoded))
        return max(0, fitting - 1)

    def users(self, positions: int, chunk: int, encoded: int = 0) -> int:
        """Sequences of so many positions that the pages hold: the last to come runs its prompt in chunks beside
        the others, which run a position a step.
        """
        begins, stays = self.kept(positions, min(positions, chunk), encoded), self.kept(positions, 1, encoded)
        return 0 if begins > self.pages else 1 + (self.pages - begins) // stays

    def padding(self, positions: int, encoded: int = 0) -> float:
        """The share of the pages' bytes that hold nothing, for sequences of so many positions."""
        held = [group.kept(positions, 1, encoded) for group in self.groups]
        used = sum(pages * group.used_bytes for pages, group in zip(held, self.groups, strict=True))
        return 1 - used / (sum(held) * self.page_bytes) if self.groups else 0.0

    def concurrency(self, positions: int, encoded: int = 0) -> float:
        """VLLM's "maximum concurrency": all pages over those that a sequence of so many positions takes; 0 where layers
        keep nothing.
        """
        return self.pages / self.kept(positions, 1, encoded) if self.groups else 0.0

    def taken(self) -> str:
        """What a request takes, in words: bytes of each token, and of its states."""
        token = sum(len(group.layers) * group.spec.bytes_per_token for group in self.groups)
        state = f"a state of {self.state_bytes:,.0f} bytes a request, however long it is"
        return ", and ".join([f"{token:,.0f} bytes a token"] * (token > 0) + [state] * (self.state_bytes > 0))

    def holds(self) -> str:
        """What there is room for, in words. Where layers keep states, how many tokens fit depends on the requests that
        they are of: it is said what each takes.
        """
        stored = {
            group.spec.stored.name for group in self.groups if isinstance(group.spec, KVSpec) and group.spec.stored
        }
        narrowed = "".join(f" in {name}" for name in stored)
        return (self.taken() if self.state_bytes else f"{self.tokens:,} tokens") + narrowed

    def describe(self, context: int, encoded: int = 0) -> str:
        """VLLM's sentence: `KV cache: N tokens; maximum concurrency for M tokens: k x`, and the padding if any."""
        padding, read = self.padding(context, encoded), f" and {encoded:,} of the encoder" if encoded else ""
        return (
            f"KV cache: {self.holds()} ({self.nbytes / 2**30:.2f} GiB); "
            f"maximum concurrency for {context:,} tokens{read}: {self.concurrency(context, encoded):.2f}x"
            + (f"; {len(self.groups)} groups of layers, {padding:.1%} is padding" if padding >= 0.0005 else "")
        )


def deal_layers(specs: Sequence[CacheSpec], page_size: int, context: int) -> KVLayout:
    """Deal layers, given by what they keep, into groups; the layout has no pages yet.

    Of all page sizes that hold a whole number of some spec's layers, the one with which a sequence of `context`
    positions, and as many of its encoder, takes the fewest bytes, each group counted for a hundredth of them. Raises
    ValueError if a page is to hold nothing.
    """
    assert all(spec.kept for spec in specs), "a layer that keeps nothing has no place in a page"
    if page_size < 1:
        raise ValueError(f"the page size is {page_size}; a page holds at least 1 position")
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
    """Slots of the smallest page: a state's is one, which holds all of it."""
    return page_size if isinstance(spec, KVSpec) else 1


def _page_sizes(layers_of: dict[CacheSpec, list[int]], page_size: int) -> list[int]:
    """Bytes of a page that some number of layers of one spec fill, with as many positions more as it takes for a layer
    of each other spec to have room.
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
    """As many layers of a spec together as a page has room for; more positions a page where there are too few."""
    for spec, layers in layers_of.items():
        slots = _least_slots(spec, page_size)
        while isinstance(spec, KVSpec) and len(layers) * 2 * slots * spec.slot_bytes <= page_bytes:
            slots *= 2
        together = min(len(layers), int(page_bytes // (slots * spec.slot_bytes)))
        count, every = -(-len(layers) // together), len(layers)
        for index in range(count):
            yield KVGroup(spec, tuple(layers[index * every // count : (index + 1) * every // count]), slots)
