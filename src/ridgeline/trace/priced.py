"""A request of a model that is not here on a card that is not here: every op of its prefill and of its first decode
step, with shapes, cost and the three times. Nothing runs but the model's outline, on meta, without weights."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ridgeline.models.bill import layer_of
from ridgeline.models.model import Model
from ridgeline.ops.attention import Attention
from ridgeline.ops.cost import Cost
from ridgeline.ops.op import Op
from ridgeline.ops.work import ENCODER, LOGITS, TOKENS, Segment, Space, Work
from ridgeline.roofline.plan.case import Case
from ridgeline.roofline.price import PricedRow, StepPrice
from ridgeline.roofline.time import OpTime, compute_seconds, memory_seconds
from ridgeline.trace.tracer import shapes

Dimension = int | str
"""Of a shape: a number, or the letter of a space: as many as the step has rows of it."""

LETTERS: dict[Space, str] = {TOKENS: "N", LOGITS: "R", ENCODER: "E"}
_ROWS = (1031, 1021, 1019, 1013, 1009)  # of the spaces, in an outline: told apart by how many they are, TOKENS most


@dataclass(frozen=True, slots=True)
class Seen:
    """What an op takes and gives. scores: of attention, the query heads whose scores [N, S] lie between."""

    inputs: tuple[tuple[Dimension, ...], ...]
    outputs: tuple[tuple[Dimension, ...], ...]
    scores: int | None = None


@dataclass(frozen=True, slots=True)
class PricedCall:
    """One of `count` calls of the same op, in all layers that have it: cost and times of one.

    path: of the first, with a star for the number of its layer. layer: of the first; None outside layers. floor:
    seconds that nothing can beat.
    """

    path: str
    kind: str
    what: str
    layer: int | None
    count: int
    shapes: Seen
    cost: Cost
    floor: float
    time: OpTime


@dataclass(frozen=True, slots=True)
class PricedStep:
    """A step on one card. seen: positions whose keys the last of its rows sees. calls: each distinct op, in the order
    in which they run. matrix: bytes that keeping the scores of all attention ops in memory would move, and with them
    the bound of those ops; `attention` is their bound without."""

    name: str
    work: Work
    seen: int
    price: StepPrice
    calls: tuple[PricedCall, ...]
    limit: str
    attention: float
    matrix: tuple[float, float]


@dataclass(frozen=True, slots=True)
class PricedTrace:
    """A model's request in a case. input: tokens of each of `batch` prompts. layers: how many the model has."""

    model: str
    case: Case
    input: int
    batch: int
    layers: int
    steps: tuple[PricedStep, ...]


def priced_trace(name: str, case: Case, length: int, batch: int) -> PricedTrace:
    """The prefill of `batch` prompts of `length` tokens at once, and the step after it. Raises ValueError for more
    positions than the model has."""
    if length < 1 or batch < 1:
        raise ValueError(f"a prompt of {length} tokens, {batch} times, is none; give 1 or more")
    if length >= case.model.context:
        raise ValueError(
            f"a prompt of {length:,} tokens and one after it; the model's context is {case.model.context:,}"
        )
    reaches = case.price.reaches
    works = {
        "prefill": (Work.of([Segment(length, length)] * batch, reaches), length),
        "decode": (Work.decode([length + 1] * batch, reaches), length + 1),
    }
    seen = seen_shapes(case.model)
    steps = tuple(_step(step, case, seen, work, keys) for step, (work, keys) in works.items())
    return PricedTrace(name, case, length, batch, len(case.model.kv_specs), steps)


def seen_shapes(model: Model) -> dict[str, Seen]:
    """The shapes at each op of a model, by its path."""
    rows = dict(zip(model.spaces, _ROWS, strict=False))
    letters = {count: LETTERS.get(space, space) for space, count in rows.items()}
    seen: dict[str, Seen] = {}

    def named(values: Any) -> tuple[tuple[Dimension, ...], ...]:
        return tuple((letters.get(shape[0], shape[0]), *shape[1:]) for shape in shapes(values) if shape)

    def note(path: str, op: Op) -> Callable[..., None]:
        def hook(_: object, inputs: tuple[Any, ...], output: Tensor | tuple[Tensor, ...]) -> None:
            scores = op.heads if isinstance(op, Attention) else None
            seen[path] = Seen(named(inputs), named(output), scores)

        return hook

    handles = [op.register_forward_hook(note(path, op)) for path, op in model.ops()]
    try:
        model.outline(rows)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _step(name: str, case: Case, seen: dict[str, Seen], work: Work, keys: int) -> PricedStep:
    price = case.price.on(case.device, work)
    compute = compute_seconds(price.cost, case.device)
    bandwidth = case.device.bandwidth_of(price.working_set)
    attention, nbytes, within = _scores(case, work, price)
    return PricedStep(
        name,
        work,
        keys,
        price,
        tuple(_calls(case, seen, price)),
        "compute" if compute > price.cost.memory_bytes / bandwidth else "memory",
        attention,
        (nbytes, within),
    )


def _calls(case: Case, seen: dict[str, Seen], price: StepPrice) -> Iterator[PricedCall]:
    """Each distinct op once, with its count: the same op of all layers, and beside it those of its place in a layer
    that differ (the first norm, a window, another format)."""
    device = case.device
    found: dict[str, dict[tuple[int, Seen], list[str]]] = {}
    for path, index in case.price.calls:
        found.setdefault(_starred(path), {}).setdefault((index, seen[path]), []).append(path)
    for starred, variants in found.items():
        for (index, shape), paths in variants.items():
            row: PricedRow = price.rows[index]
            must = row.cost.memory_bytes
            floor = max(compute_seconds(row.cost, device), must / device.bandwidth_of(must))
            op, layer = row.priced.op, layer_of(paths[0])
            yield PricedCall(
                starred, op.kind, op.extra_repr(), layer, len(paths), shape, row.cost, floor, row.time
            )  # fmt: skip


def _starred(path: str) -> str:
    """A path with a star for the number of its layer."""
    layer = layer_of(path)
    return ".".join("*" if part == str(layer) else part for part in path.split("."))


def _scores(case: Case, work: Work, price: StepPrice) -> tuple[float, float, float]:
    """Of all attention ops: their bound, bytes of their scores in memory, and the bound with them there."""
    without = nbytes = within = 0.0
    for row in price.rows:
        if isinstance(row.priced.op, Attention):
            extra = row.priced.op.score_matrix_bytes(work)
            wide = row.cost + Cost(activation_bytes=extra)
            nbytes += extra * row.priced.count
            without += row.time.bound * row.priced.count
            compute, memory = compute_seconds(wide, case.device), memory_seconds(wide, case.device, price.working_set)
            within += max(compute, memory) * row.priced.count
    return without, nbytes, within
