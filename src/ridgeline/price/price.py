"""The price of a step: the summed costs of all op calls of a model, each distinct op evaluated once.

Most ops cost the same however long the sequences are. Their sum is cached per step shape, so that pricing the next
decode step only evaluates attention, at tens of thousands of steps per second. For a new shape, such as another prompt
next to the same decodes, `cached_ops.py` has the cost of each op whose number of rows occurred before.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec

from ridgeline.backends import priced_backend, priced_backends
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.priced_module import PricedModule
from ridgeline.core.ops.backend import Backend, ReplayShape
from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.matrix.operands import DTYPES
from ridgeline.core.ops.number_formats import KVFormat
from ridgeline.core.ops.op import NOT_MODELLED, Op
from ridgeline.core.ops.work import LOGITS, TOKENS, RowAxis, Work
from ridgeline.price.bounded_cache import put
from ridgeline.price.cached_ops import CachedOps
from ridgeline.price.device import Device
from ridgeline.price.host_parts import GREEDY, HostShares
from ridgeline.price.op_time import added_host_seconds, floor_seconds, host_seconds, op_seconds
from ridgeline.price.priced_op import PricedOp, PricedRow

# The row count of each space in the traced forward pass. Primes identify the space even if an op multiplies its rows.
_PRIMES = (13, 7, 11, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73)

StepShape = tuple[tuple[RowAxis, int], ...]
V = TypeVar("V")


class OtherEngine(Backend):
    """A stand-in backend for an engine such as vLLM, whose kernels are priced but never run.

    For each op it counts the kernel launches that PyTorch would make. The device's constants say how fast these are.
    """

    name = "other engine"


OTHER_ENGINE = OtherEngine()


class StepPrice(msgspec.Struct, frozen=True, gc=False):
    """The cost and the predicted seconds of one step on a device."""

    cost: Cost
    floor: float
    """The seconds of the roofline limit of the whole step."""
    bound: float
    """The summed roofline limits of the single ops in seconds."""
    expected: float
    """The predicted seconds of the step, including the host."""
    working_set: float
    """The bytes of weights and KV that the step reads and writes."""
    rows: tuple[PricedRow, ...]
    """The distinct ops of the step with their costs and times."""
    host: float = 0.0
    """The seconds that the host adds to those of the ops; they are part of `expected`."""


@dataclass(frozen=True, slots=True)
class _ContextFreeCost:
    """The total cost of the ops that do not read the context."""

    total: Cost
    calls: int
    """The number of calls of any op that have rows in the step."""


@dataclass(frozen=True, slots=True)
class _ContextFreeTime:
    """The seconds on one device of the ops that do not read the context."""

    device: Device
    """The device, referenced so that no new object can reuse the id that the cache key contains."""
    bound: float
    expected: float
    rows: tuple[PricedRow, ...]


class Price:
    """The cost model of one model: its op calls, grouped by cost, and the price of any step. It needs no weights.

    The traffic of a step counts calls, so the weights of an op that is called twice are read twice. Memory counts each
    op once.
    """

    def __init__(self, model: PricedModule, devices: int = 1, same_calls: "Price | None" = None) -> None:
        """Trace the model and group its op calls by cost function.

        Args:
            model: The model, loaded or on the meta device.
            devices: The number of devices that the model is split over. All figures are per device.
            same_calls: The price of the same model in other storage formats, which makes the same op calls. The model
                is not traced again.
        """
        calls = traced_calls(model) if same_calls is None else same_calls._calls_of(model)
        keys: list[Hashable] = [(type(op), op.signature(), space) for _, op, space in calls]
        counts = Counter(keys)
        first = dict(reversed(list(zip(keys, calls, strict=True))))
        self.reaches, self.devices = model.attention_patterns, devices
        self.vocabulary = _logits(model)
        """The number of logits of a row that is sampled from; 0 for a model without a head."""
        self._taken = model.storage.dtype in DTYPES
        self._replayed = {
            backend.name: backend.replayed_steps(model) if devices == 1 else None for backend in priced_backends()
        }
        weighted = [op for _, op in model.weighted_ops()]
        self.weight_bytes = sum(op.stored_bytes() for op in weighted) + model.adapter_bytes
        """The bytes of the weights as stored, including adapters. A tied LM head counts only as the embedding."""
        self.repacked_bytes = sum(op.repacked_bytes for op in weighted)
        """The additional bytes that the weights take where Ridgeline itself holds them."""
        self.ops = tuple(PricedOp(first[key][1], first[key][0], first[key][2], count) for key, count in counts.items())
        order = {key: index for index, key in enumerate(counts)}
        self.calls = tuple((path, order[key]) for key, (path, _, _) in zip(keys, calls, strict=True))
        """The op calls of a forward pass in order, each as its module path and the index of its `PricedOp` in `ops`."""
        self._reset_caches()

    def with_active_ranks(self, ranks: int) -> "Price":
        """Return the price of steps in which only `ranks` data-parallel ranks have rows, while the others wait.

        Each of these ranks has the same number of rows, which meet at the experts. A model whose ranks exchange no rows
        costs the same.
        """
        found = copy(self)
        found.ops = tuple(replace(priced, op=_gathering(priced.op, ranks)) for priced in self.ops)
        found._reset_caches()
        return found

    def with_kv_format(self, stored: KVFormat | None) -> "Price":
        """Return the price of the same model with another KV format. Both share what does not depend on the KV cache.

        Formats whose scales are in the checkpoint are weights too, so a model with them has to be built.
        """
        found = copy(self)
        found.ops = tuple(replace(priced, op=priced.op.with_kv_format(stored)) for priced in self.ops)
        found._context_ops = tuple((i, found.ops[i]) for i, _ in self._context_ops)
        return found

    def _calls_of(self, model: PricedModule) -> list[tuple[str, Op, RowAxis]]:
        """Return the op calls of the same model in other storage formats, as `traced_calls` does.

        Ops for code that no op models exist only in the model that was traced; storage formats do not change them.
        """
        ops, calls = dict(model.ops()), []
        for path, index in self.calls:
            traced = self.ops[index]
            assert path in ops or traced.op.kind == NOT_MODELLED, f"the model has no op {path}"
            calls.append((path, ops.get(path, traced.op), traced.space))
        return calls

    def _reset_caches(self) -> None:
        """Divide the ops into those that read the context and the others, and start with empty caches."""
        self._standing_ops = tuple(priced for priced in self.ops if not priced.op.reads_context)
        self._context_ops = tuple((i, priced) for i, priced in enumerate(self.ops) if priced.op.reads_context)
        self._standing: dict[StepShape, _ContextFreeCost] = {}
        spaces = dict.fromkeys(priced.space for priced in self._standing_ops)
        self._by_space = {
            space: CachedOps([priced for priced in self._standing_ops if priced.space == space], self.devices)
            for space in spaces
        }
        self._times: dict[tuple[int, float, StepShape, StepShape, bool], _ContextFreeTime] = {}

    def weights_on(self, device: Device) -> float:
        """Return the bytes of the weights in a device's memory: as stored, or repacked for Ridgeline's kernels."""
        return self.weight_bytes + (self.repacked_bytes if device.native else 0.0)

    def backend_on(self, device: Device) -> Backend:
        """Return the backend whose kernels run the model on the device.

        It is Ridgeline's own if the device runs Ridgeline's kernels (`Device.native`) and they support the model's
        dtype, otherwise another engine's.
        """
        return priced_backend(device.kind) if device.native and self._taken else OTHER_ENGINE

    def recorded(self, device: Device, work: Work) -> bool:
        """Return whether a step on the device is replayed, because it was captured or recorded once."""
        return self._replayed_as(device, work) is not None

    def _replayed_as(self, device: Device, work: Work) -> ReplayShape | None:
        """Return the padded size with which a step on the device is replayed, or None if it is not replayed."""
        steps = self._replayed[priced_backend(device.kind).name] if device.native else None
        return None if steps is None else steps.shape_of(work)

    def step(self, work: Work) -> Cost:
        """Return the FLOPs and bytes of a step of the model, summed over all op calls."""
        total = self._standing_of(work).total
        for _, priced in self._context_ops:
            total += priced.cost(work) * priced.count
        return total

    def price_step(self, device: Device, work: Work) -> StepPrice:
        """Return the cost and the seconds of a step on a device, with rows in the order of `ops`."""
        known = self._standing_of(work)
        total, reading = known.total, []
        for index, priced in self._context_ops:
            cost = priced.cost(work)
            total += cost * priced.count
            reading.append((index, priced, cost))
        working_set, backend, shape = total.memory_bytes, self.backend_on(device), self._replayed_as(device, work)
        recorded = shape is not None
        ran = work if shape is None else replace(work, rows={**work.rows, TOKENS: shape.rows, LOGITS: shape.logits})
        standing = self._times_of(device, work, ran, working_set, recorded=recorded)
        bound, expected, rows = standing.bound, standing.expected, list(standing.rows)
        for index, priced, cost in reading:
            launches = priced.launches(work, backend)
            time = op_seconds(cost, launches, device, working_set, self.devices, recorded=recorded)
            bound += time.bound * priced.count
            expected += time.expected * priced.count
            rows.insert(index, PricedRow(priced, cost, time))
        floor = floor_seconds(total, device, working_set)
        own = host_seconds(
            *(work, total, known.calls, device),
            recorded=recorded,
            device_seconds=expected,
            prompts=work.prompts,
            vocabulary=self.vocabulary,
        )
        host = added_host_seconds(expected, own, device)
        return StepPrice(total, floor, bound, expected + host, working_set, tuple(rows), host)

    def host_shares(self, device: Device, work: Work, sampling: str = GREEDY) -> HostShares | None:
        """Return the host seconds of a step part by part.

        None if the device has no constants for the parts, or the model samples no tokens.

        Args:
            device: The device.
            work: The step.
            sampling: The way of sampling. `price_step` prices greedy sampling.
        """
        if not self.vocabulary or device.host is None or (parts := device.host.parts) is None:
            return None
        recorded, prompts = self.recorded(device, work), work.prompts
        known = parts.seconds(work, prompts, self.vocabulary, recorded=recorded)
        return HostShares(
            parts.schedule.seconds(work, prompts, recorded=recorded),
            parts.batch.seconds(work, prompts, recorded=recorded),
            self.price_step(device, work).host - known,
            parts.sampling[sampling].seconds(work.logit_rows, self.vocabulary),
        )

    def _standing_of(self, work: Work) -> _ContextFreeCost:
        shape = work.shape
        found = self._standing.get(shape)
        if found is None:
            total = Cost()
            costs = self._in_order(lambda ops: ops.costs(work))
            for priced, cost in zip(self._standing_ops, costs, strict=True):
                total += cost * priced.count
            calls = sum(priced.count for priced in self.ops if work.rows.get(priced.space))
            found = put(self._standing, shape, _ContextFreeCost(total, calls))
        return found

    def _times_of(
        self, device: Device, work: Work, ran: Work, working_set: float, *, recorded: bool
    ) -> _ContextFreeTime:
        key = (id(device), device.bandwidth_of(working_set), work.shape, ran.shape, recorded)
        found = self._times.get(key)
        if found is None:
            backend = self.backend_on(device)
            rows = self._in_order(lambda ops: ops.rows_on(device, work, ran, working_set, backend, recorded=recorded))
            bound = sum(row.time.bound * row.priced.count for row in rows)
            expected = sum(row.time.expected * row.priced.count for row in rows)
            found = put(self._times, key, _ContextFreeTime(device, bound, expected, rows))
        return found

    def _in_order(self, of: Callable[[CachedOps], Iterable[V]]) -> tuple[V, ...]:
        """Merge the results of the cached ops, grouped by kind of rows, into the model's order of ops."""
        parts = {space: iter(of(ops)) for space, ops in self._by_space.items()}
        return tuple([next(parts[priced.space]) for priced in self._standing_ops])


def _logits(model: PricedModule) -> int:
    """Return the number of logits of a row, from which a model's sampler takes a token; 0 if there is none."""
    if not isinstance(model, Model) or not model.has_head:
        return 0
    return model.sampled_vocab_size or model.vocabulary


def traced_calls(model: PricedModule) -> list[tuple[str, Op, RowAxis]]:
    """Return each op call of a forward pass: module path, op, and kind of rows, such as tokens.

    The forward pass runs on the meta device.
    """
    calls: list[tuple[str, Op, RowAxis]] = []
    assert len(model.row_axes) <= len(_PRIMES), (
        "the model has more row row_axes than there are primes to tell them apart"
    )
    rows_of = dict(zip(model.row_axes, _PRIMES, strict=False))
    spaces = {rows: space for space, rows in rows_of.items()}

    def note(path: str, op: Op, inputs: tuple[Any, ...], _: Any) -> None:
        rows = inputs[0].shape[0]
        assert rows in spaces, f"{path} runs over {rows} rows, which belong to no row space"
        calls.append((path, op, spaces[rows]))

    model.trace_calls(rows_of, note)
    return calls


def _gathering(op: Op, ranks: int) -> Op:
    """Return the op with the rows of `ranks` ranks, if it gathers rows of several ranks; otherwise the op itself."""
    if op.gathered_ranks == 1:
        return op
    other = copy(op)
    other.gathered_ranks = ranks
    return other
