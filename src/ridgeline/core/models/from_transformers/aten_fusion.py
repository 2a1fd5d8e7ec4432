"""The kernels that a module's aten operations need at least, and the bytes that these move.

Operations of one module call run in one kernel if one's result is read only by the next. Such a result never lies in
memory. The kernel reads each other tensor once and writes each result once. So the figures are the least that must
move, as for our own ops, and not those of a kernel for each operation.

Products with weights, convolutions, and gathers are kernels of their own. Products of activations are not, so that
attention needs no score matrix in memory, and a scan over positions only its first and last state.

Four kinds of copies move less than their tensors. What is written to a cache is written there by the kernel that makes
it. Rows that are joined to cached ones are read where they are. Memory that is filled with one number and overwritten
need not be filled. And an op of ours can write its result in the dtype to which it is cast.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ridgeline.core.models.from_transformers.aten_costs import AtenCall, AtenRecord, Extent, TensorKey
from ridgeline.core.models.from_transformers.aten_table import CATEGORIES, FILLS, FUSED, PRODUCT
from ridgeline.core.ops.cost import NO_COST, Cost

KernelClass = tuple[str, str, str, tuple[str, ...]]
"""The key of kernels whose figures are added up: module path, its class, category, and aten operations."""


@dataclass(frozen=True, slots=True)
class FusedKernel:
    """One or several aten operations that run in one kernel."""

    key: KernelClass
    cost: Cost


def fused_kernels(record: AtenRecord) -> list[FusedKernel]:
    """Return the kernels of a recorded forward pass, in the order of their first operations.

    The cost of a kernel has no traffic of tensors that come from a cache.
    """
    groups, weights_read = _groups(record), set[tuple[int, int]]()
    traffic = _Traffic(record, groups)
    return [_kernel(group, traffic, weights_read) for group in groups]


def _groups(record: AtenRecord) -> list[list[AtenCall]]:
    """Divide the operations into those that run in one kernel."""
    calls, makers, readers = record.calls, dict[TensorKey, int](), defaultdict[TensorKey, list[int]](list)
    for index, call in enumerate(calls):
        for extent in call.reads:
            readers[extent.key].append(index)
        makers.update((extent.key, index) for extent in call.writes)
    leader, ours = list(range(len(calls))), record.read_by_ops | record.fused_into_ops
    for key, maker in makers.items():
        if key not in ours and all(_joins(calls[maker], calls[reader], record) for reader in readers[key]):
            for reader in readers[key]:
                leader[_find(leader, reader)] = _find(leader, maker)
    found = defaultdict[int, list[AtenCall]](list)
    for index, call in enumerate(calls):
        found[_find(leader, index)].append(call)
    return list(found.values())


def _joins(maker: AtenCall, reader: AtenCall, record: AtenRecord) -> bool:
    """Return whether an operation can read another's result from the same kernel."""
    return _is_fused(maker, record) and _is_fused(reader, record) and reader.owner.number in maker.within


def _is_fused(call: AtenCall, record: AtenRecord) -> bool:
    """Return whether a kernel can do an operation together with others."""
    if call.category != PRODUCT:
        return call.category in FUSED
    return not any(extent.key.storage in record.weights for extent in call.reads)


def _find(leader: list[int], index: int) -> int:
    while leader[index] != index:
        leader[index] = leader[leader[index]]
        index = leader[index]
    return index


class _Traffic:
    """The tensors of a forward pass that pass through memory."""

    def __init__(self, record: AtenRecord, groups: Sequence[Sequence[AtenCall]]) -> None:
        self.record = record
        made = {extent.key: number for number, group in enumerate(groups) for call in group for extent in call.writes}
        read = [(extent.key, number) for number, group in enumerate(groups) for call in group for extent in call.reads]
        self._elsewhere = {key for key, number in read if made.get(key) != number} | record.read_by_ops
        self._read = Counter(extent.key for group in groups for call in group for extent in call.reads)
        newest = {key.storage: key.version for key in sorted(made)}
        fills = {extent.key for group in groups for call in group if call.name in FILLS for extent in call.writes}
        self._replaced = {key for key in fills if key.version < newest[key.storage]} - self._read.keys()
        self._inner = {key for key, _ in read} & made.keys() - self._elsewhere - record.fused_into_ops

    def read(self, group: Sequence[AtenCall]) -> Iterator[tuple[int, int]]:
        """Yield each tensor that a kernel reads and does not make itself, by its memory, with the bytes read."""
        made = {extent.key for call in group for extent in call.writes} if len(group) > 1 else set()
        calls = [call for call in group if not self._goes_to_cache(call)]
        for memory, extents in _by_memory(extent for call in calls for extent in call.reads):
            yield memory, _union([extent for extent in extents if extent.key not in made])

    def written(self, group: Sequence[AtenCall]) -> int:
        """Return the bytes of a kernel's results that go to memory, less those that fusing an op of ours saves.

        Such an op states that it reads its input. It does not if the kernel that makes the input does the op too; and
        the input is not written if nothing else reads it.
        """
        total = 0
        for extent in _results(group):
            if extent.key.storage in self.record.cached or extent.key in self._inner | self._replaced:
                continue
            if extent.key not in self.record.fused_into_ops or not all(_is_fused(call, self.record) for call in group):
                total += extent.nbytes
            elif extent.key not in self._elsewhere:
                total -= extent.nbytes
        return total

    def _goes_to_cache(self, call: AtenCall) -> bool:
        """Return whether an operation copies to a cache what the kernel that makes it can write there."""
        return call.name == "copy" and all(extent.key.storage in self.record.cached for extent in call.writes)

    def only_joins(self, group: Sequence[AtenCall]) -> bool:
        """Return whether a kernel only joins new rows to those of a cache; its readers can read both where they are."""
        return [call.name for call in group] == ["cat"] and group[0].writes[0].key.storage in self.record.joined

    def casts_result_of_op(self, group: Sequence[AtenCall]) -> bool:
        """Return whether a kernel only casts a result of an op of ours, which nothing else reads."""
        (call, *others) = group
        keys = {extent.key for extent in call.reads}
        alone = all(self._read[key] == 1 for key in keys) and keys <= self.record.made_by_ops - self.record.read_by_ops
        return not others and call.name == "_to_copy" and alone


def _kernel(group: Sequence[AtenCall], traffic: _Traffic, weights_read: set[tuple[int, int]]) -> FusedKernel:
    """Return the kernel of some operations.

    Args:
        group: The operations.
        traffic: The tensors that pass through memory.
        weights_read: The weights that earlier kernels read, each with the number of the module call, extended here.
    """
    owner = min((call.owner for call in group), key=lambda owner: owner.path.count("."))
    category = min((call.category for call in group), key=CATEGORIES.index)
    names = tuple(dict.fromkeys(call.name for call in group))
    if traffic.only_joins(group):
        return FusedKernel((owner.path, owner.class_name, category, names), NO_COST)
    weights, moved = 0, traffic.written(group)
    flops: dict[str, float] = {}
    for call in group:
        for name, count in call.flops.items():
            flops[name] = flops.get(name, 0.0) + count
    for memory, nbytes in traffic.read(group):
        if memory in traffic.record.weights:
            if (owner.number, memory) not in weights_read:  # a loop over positions reads a weight once
                weights_read.add((owner.number, memory))
                weights += nbytes
        elif memory not in traffic.record.cached:
            moved += -nbytes if traffic.casts_result_of_op(group) else nbytes
    cost = Cost(flops, weight_bytes=float(weights), activation_bytes=float(max(0, moved)))
    return FusedKernel((owner.path, owner.class_name, category, names), cost)


def _results(group: Sequence[AtenCall]) -> Iterator[Extent]:
    """Yield the results of a kernel: of a norm only the first, because the others are for gradients."""
    for call in group:
        yield from call.writes[:1]
        yield from call.writes[1:] if call.category not in FUSED else ()


def _by_memory(extents: Iterable[Extent]) -> Iterator[tuple[int, list[Extent]]]:
    found = defaultdict[int, list[Extent]](list)
    for extent in extents:
        found[extent.key.storage].append(extent)
    yield from found.items()


def _union(extents: Sequence[Extent]) -> int:
    """Return the bytes of some parts of one tensor together.

    A part counts nothing if it lies between the ends of a larger one, such as a half of each head next to the whole.
    """
    kept: list[Extent] = []
    for extent in sorted(set(extents), key=lambda extent: -extent.nbytes):
        if not any(other.first <= extent.first and extent.last <= other.last for other in kept):
            kept.append(extent)
    return sum(extent.nbytes for extent in kept)
