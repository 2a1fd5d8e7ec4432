"""The keys, values or state that a release's own code keeps of each sequence, as an op of a price."""

from collections.abc import Hashable, Iterator
from copy import copy
from dataclasses import replace

from typing_extensions import override

from ridgeline.core.ops.cost import NO_COST, Cost
from ridgeline.core.ops.kv_layout import CacheSpec, KVSpec
from ridgeline.core.ops.number_formats import KVFormat
from ridgeline.core.ops.op import Launch
from ridgeline.core.ops.traced_work import TracedContext
from ridgeline.core.ops.work import TOKENS, AttentionSum, RowAxis, Work


class TracedCache(TracedContext):
    """The bytes of keys, values or state that a step reads and writes in one layer of a release.

    The code that computes with them is other ops (`TracedAttention`).
    """

    part = "attention"

    def __init__(self, layer: int, spec: CacheSpec) -> None:
        """Create the op of one tensor, or pair of tensors, that a layer keeps.

        Args:
            layer: The index of the op's cache among the model's KV caches and recurrent states.
            spec: The format of what is kept.
        """
        super().__init__()
        self.layer, self.spec = layer, spec
        self.attention_pattern = spec.reach
        self.traced = "cache"

    @property
    @override
    def cache_spec(self) -> CacheSpec | None:
        return self.spec if self.spec.is_cached else None

    @override
    def with_kv_format(self, stored: KVFormat | None) -> "TracedCache":
        if not isinstance(self.spec, KVSpec):
            return self
        other = copy(self)
        other.spec = replace(self.spec, stored=stored)
        return other

    @override
    def _cost(self, sums: AttentionSum) -> Cost:
        """Return the cost of some sequences; new keys and values enter as activations."""
        if not self.spec.is_cached:
            return NO_COST
        new = sums.written * self.spec.given_bytes if isinstance(self.spec, KVSpec) else 0.0
        slot = self.spec.slot_bytes
        return Cost(kv_read_bytes=sums.keys * slot, kv_write_bytes=sums.written * slot, activation_bytes=new)

    @override
    def launches(self, work: Work, space: RowAxis = TOKENS) -> tuple[Launch, ...]:
        """Return one launch for all sequences with a single query, and one for the others."""
        return tuple(self._launches(work))

    def _launches(self, work: Work) -> Iterator[Launch]:
        attention = work.attention[self.attention_pattern]
        kernel = "recurrence" if self.spec.is_state else "attention"
        for name, sums in (("decode", attention.one), ("prefill", attention.few + attention.many)):
            if sums.queries:
                yield Launch(f"{kernel}.{name}", "", 1, self._cost(sums))

    @override
    def signature(self) -> Hashable:
        return self.spec

    @override
    def extra_repr(self) -> str:
        return "cache: a state" if self.spec.is_state else f"cache: keys and values, {self.attention_pattern}"
