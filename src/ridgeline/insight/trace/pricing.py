"""The prediction for a traced step: the cost of each call on the device, next to its measurement."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ridgeline.core.models.common.parameter_breakdown import layer_of
from ridgeline.core.ops.cost import NO_COST, Cost
from ridgeline.core.ops.work import Work
from ridgeline.insight.trace.measurement import Measurement
from ridgeline.insight.trace.trace_ledger import LedgerEntry, LedgerStep, OpRow, Overhead, ScoreMatrix
from ridgeline.price.device import Device
from ridgeline.price.host_parts import GREEDY, HostShares
from ridgeline.price.op_time import compute_seconds, memory_seconds
from ridgeline.price.physics_guard import under_floor
from ridgeline.price.price import Price, StepPrice
from ridgeline.price.priced_op import PricedRow


@dataclass(frozen=True, slots=True)
class _Priced:
    """A measured step with its price."""

    measured: Measurement
    device: Device
    at_hand: bool
    work: Work
    price: StepPrice
    shares: HostShares | None
    """The predicted time outside ops, part by part; None if the device's price has only their sum."""
    rows: Sequence[PricedRow]
    """The priced op of each measured call."""
    ran: Sequence[int]
    """The index of each measured call among all priced calls."""

    def entry(self, place: int) -> LedgerEntry:
        """Return the ledger entry of the priced call with index `place`; an empty one if the step did not run it."""
        if place not in self.ran:
            return LedgerEntry(NO_COST, 0.0, 0.0, 0.0, "", (), (), 0.0, False, 0.0, "not in this step")
        index = self.ran.index(place)
        call, measured = self.measured.calls[index], self.measured.seconds[index]
        row, note = self.rows[index], ""
        must = row.cost.memory_bytes
        if call.op.experts is not None and call.experts_hit is not None:
            priced = call.op.experts.expected_hits(self.work.tokens)
            must *= call.experts_hit / priced
            note = f"{call.experts_hit} experts hit, {priced:.1f} priced"
        # The floor assumes the nearest memory that could hold this op's bytes, even if the step's do not fit there:
        # the guard must not report an op whose data a cache held.
        floor = max(compute_seconds(row.cost, self.device), must / self.device.bandwidth_of(must))
        time = row.time
        return LedgerEntry(
            row.cost,
            floor,
            time.bound,
            time.expected,
            time.limit,
            call.inputs,
            call.outputs,
            measured,
            self.at_hand and under_floor(measured, floor),
            self.measured.gaps[index],
            note,
        )


def price_steps(
    price: Price,
    measured: Mapping[str, Measurement],
    device: Device,
    *,
    at_hand: bool,
    layer: Callable[[str], int | None] = layer_of,
    shown: Callable[[str], str] = str,
    sampling: str = GREEDY,
) -> tuple[tuple[LedgerStep, ...], tuple[OpRow, ...]]:
    """Return the steps and op rows of a ledger, with the predicted next to the measured times.

    All steps run priced ops in the same order, and a later step runs no op that the first did not; it may skip some,
    such as an encoder.

    Args:
        price: The price of the model.
        measured: The measurements by step name.
        device: The device whose price is used.
        at_hand: Whether `device` is the machine that measured, so that its floors apply to the measurements.
        layer: Returns the layer number of a path.
        shown: Returns the path of an op as reports show it.
        sampling: The way in which the steps sample.
    """
    priced = {name: _priced(price, one, device, sampling, at_hand=at_hand) for name, one in measured.items()}
    first = next(iter(measured.values()))
    rows = [
        OpRow(
            shown(call.path),
            call.op.kind,
            call.op.extra_repr(),
            layer(call.path),
            {n: p.entry(place) for n, p in priced.items()},
            "" if call.op.backend.covers(call.op) else call.op.backend.name,
        )
        for place, call in zip(next(iter(priced.values())).ran, first.calls, strict=True)
    ]
    return tuple(_step(name, one) for name, one in priced.items()), tuple(rows)


def _priced(price: Price, measured: Measurement, device: Device, sampling: str, *, at_hand: bool) -> _Priced:
    ran = _places([call.path for call in measured.calls], [path for path, _ in price.calls])
    on = price.price_step(device, measured.work)
    shares = price.host_shares(device, measured.work, sampling)
    rows = [on.rows[price.calls[i][1]] for i in ran]
    return _Priced(measured, device, at_hand, measured.work, on, shares, rows, ran)


def _places(ran: Sequence[str], known: Sequence[str]) -> list[int]:
    """Return the index of each executed path among the known calls.

    If an op is called several times, the last calls count, because a step that skips an encoder skips the first ones.
    """
    places, place = list[int](), len(known)
    for path in reversed(ran):
        place = next((i for i in range(place - 1, -1, -1) if known[i] == path), -1)
        assert place >= 0, "the step ran other ops than the priced ones"
        places.append(place)
    return places[::-1]


def _step(name: str, priced: _Priced) -> LedgerStep:
    price, one, shares = priced.price, priced.measured, priced.shares
    host = price.host if shares is None else shares.total - shares.schedule  # a repeated step is not scheduled again
    compute, bandwidth = compute_seconds(price.cost, priced.device), priced.device.bandwidth_of(price.working_set)
    return LedgerStep(
        name=name,
        work=priced.work,
        cost=price.cost,
        working_set=price.working_set,
        memory_level=priced.device.memory_level_of(price.working_set),
        floor=price.floor,
        bound=price.bound,
        expected=price.expected - price.host + host,
        limit="compute" if compute > price.cost.memory_bytes / bandwidth else "memory",
        host=host,
        score_matrix=_score_matrix(priced),
        overheads=(
            Overhead("batch", one.batch, None if shares is None else shares.batch),
            Overhead("between ops", one.between, None if shares is None else shares.between),
            Overhead("sampling", one.sampling, None if shares is None else shares.sampling),
        ),
        unhooked=one.unhooked,
        hooks=one.hooks,
        repeats=one.repeats,
        interruptions=one.hooked - one.whole,
        left_out=one.left_out,
        recorded=one.recorded,
    )


def _score_matrix(priced: _Priced) -> ScoreMatrix | None:
    """Return the cost of a step's attention ops with and without their score matrix in memory; None if it has none."""
    nbytes = without = within = 0.0
    for row, call in zip(priced.rows, priced.measured.calls, strict=True):
        if call.op.score_heads is not None:
            extra = call.op.score_matrix_bytes(priced.work)
            nbytes += extra
            without += _bound(row.cost, priced)
            within += _bound(row.cost + Cost(activation_bytes=extra), priced)
    return ScoreMatrix(nbytes, without, within) if nbytes else None


def _bound(cost: Cost, priced: _Priced) -> float:
    memory = memory_seconds(cost, priced.device, priced.price.working_set)
    return max(compute_seconds(cost, priced.device), memory)
