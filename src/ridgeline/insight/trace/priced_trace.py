"""A request of a model that is not here on a card that is not here: every op of its prefill and of its first decode
step, with shapes, cost and the three times. Nothing runs but the model on meta, without weights.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.parameter_breakdown import layer_of, layers_of
from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.op import Op
from ridgeline.core.ops.work import ENCODER, LOGITS, TOKENS, RowAxis, StepSegment, Work
from ridgeline.insight.trace.tracer import shapes
from ridgeline.price.op_time import OpTime, floor_seconds
from ridgeline.price.plan.request_phases import Phase, price_phase
from ridgeline.price.plan.scenario import PlanWorkload, Scenario
from ridgeline.price.plan.score_matrix import ScoresRow, scores_of
from ridgeline.price.price import StepPrice

Dimension = int | str
"""Of a shape: a number, or the letter of a space: as many as the step has rows of it."""

LETTERS: dict[RowAxis, str] = {TOKENS: "N", LOGITS: "R", ENCODER: "E"}
_ROWS = (1031, 1021, 1019, 1013, 1009)  # of the spaces, TOKENS most: told apart by how many they are in a trace


@dataclass(frozen=True, slots=True)
class OpShapes:
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
    shapes: OpShapes
    cost: Cost
    floor: float
    time: OpTime


@dataclass(frozen=True, slots=True)
class PricedStep:
    """A step on one card. seen: positions whose keys the last of its rows sees, those of an encoder not counted. calls:
    each distinct op that runs in it, in their order. limit: compute, memory or communication, as plan has it. scores:
    all attention ops, with their score matrices in memory and without.
    """

    name: str
    work: Work
    seen: int
    price: StepPrice
    calls: tuple[PricedCall, ...]
    limit: str
    scores: ScoresRow


@dataclass(frozen=True, slots=True)
class PricedTrace:
    """A model's request in a case. input: tokens of each of `batch` prompts, or positions of sound. encoded: of it what
    an encoder reads, all or nothing. layers: how many the model has, those of an encoder first.
    """

    model: str
    case: Scenario
    input: int
    batch: int
    encoded: int
    layers: tuple[int, ...]
    steps: tuple[PricedStep, ...]


def priced_trace(name: str, case: Scenario, length: int, batch: int) -> PricedTrace:
    """The prefill of `batch` prompts of `length` tokens at once, and the step after it; where an encoder reads them, of
    one position each of the decoder; of a speech model windows of sound, whatever the length. Of a model that writes no
    text the step that runs the texts alone. Raises ValueError for more positions than the model has.
    """
    if length < 1 or batch < 1:
        raise ValueError(f"a prompt of {length} tokens, {batch} times, is none; give 1 or more")
    asked = PlanWorkload(input=length).of(case.model)
    if asked.encoded > case.model.encoder_context:
        raise ValueError(f"a prompt of {length:,} tokens; the model's encoder takes {case.model.encoder_context:,}")
    writes = case.model.has_head
    if not case.model.encodes and length + writes > case.model.context:
        after = " and one after it" if writes else ""
        raise ValueError(f"a prompt of {length:,} tokens{after}; the model's context is {case.model.context:,}")
    reaches = case.price.reaches
    encoded, own = asked.encoded, asked.input
    works = {"prefill": (Work.of([StepSegment(own, own, encoded, encodes=encoded > 0)] * batch, reaches), own)}
    if writes:
        works["decode"] = Work.decode([own + 1] * batch, reaches, [encoded] * batch), own + 1
    found = op_shapes(case.model)
    steps = tuple(_step(step, case, found, case.dealt(work), seen) for step, (work, seen) in works.items())
    return PricedTrace(name, case, asked.given, batch, encoded, tuple(layers_of(case.model)), steps)


def op_shapes(model: Model) -> dict[str, OpShapes]:
    """The shapes at each op of a model, by its path."""
    rows = dict(zip(model.spaces, _ROWS, strict=False))
    letters = {count: LETTERS.get(space, space) for space, count in rows.items()}
    found: dict[str, OpShapes] = {}

    def named(values: Any) -> tuple[tuple[Dimension, ...], ...]:
        return tuple((letters.get(shape[0], shape[0]), *shape[1:]) for shape in shapes(values) if shape)

    def note(path: str, op: Op, inputs: tuple[Any, ...], output: Any) -> None:
        found[path] = OpShapes(named(inputs), named(output), op.score_heads)

    model.trace_calls(rows, note)
    return found


def _step(name: str, case: Scenario, found: dict[str, OpShapes], work: Work, seen: int) -> PricedStep:
    price = case.price.on(case.device, work)
    limit = price_phase(case.price, case.device, Phase(name, (work,))).limit
    scores = scores_of(case, work, seen, price.working_set)
    return PricedStep(name, work, seen, price, tuple(_calls(case, found, price)), limit, scores)


def _calls(case: Scenario, found: dict[str, OpShapes], price: StepPrice) -> Iterator[PricedCall]:
    """Each distinct op once, with its count: the same op of all layers, and beside it those of its place in a layer
    that differ (the first norm, a window, another format); not those without rows, as an encoder's in a decode step.
    """
    places: dict[str, dict[tuple[int, OpShapes], list[str]]] = {}
    for path, index in case.price.calls:
        places.setdefault(_starred(path), {}).setdefault((index, found[path]), []).append(path)
    for starred, variants in places.items():
        for (index, shapes_there), paths in variants.items():
            row = price.rows[index]
            if not (row.cost.total_flops or row.cost.total_bytes or row.cost.communication_bytes):
                continue
            op, layer = row.priced.op, layer_of(paths[0])
            floor = floor_seconds(row.cost, case.device, row.cost.memory_bytes)
            yield PricedCall(
                starred, op.kind, op.extra_repr(), layer, len(paths), shapes_there, row.cost, floor, row.time
            )


def _starred(path: str) -> str:
    """A path with a star for the number of its layer."""
    layer = layer_of(path)
    return ".".join("*" if part == str(layer) else part for part in path.split("."))
