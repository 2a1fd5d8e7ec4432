"""The predicted cost of every op in a request, for a model and a GPU that need not be present.

It covers the prefill and the first decode step, with the shapes, cost and three times of each op. Only the model on the
meta device runs, without weights.
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
from ridgeline.price.error_interval import ErrorInterval, Kind
from ridgeline.price.host_parts import HostShares
from ridgeline.price.op_time import OpTime, floor_seconds
from ridgeline.price.plan.request_phases import Phase, price_phase
from ridgeline.price.plan.scenario import PlanWorkload, Scenario
from ridgeline.price.plan.score_matrix import ScoresRow, scores_of
from ridgeline.price.price import StepPrice
from ridgeline.util.json_data import json_shape

Dimension = int | str
"""A dimension of a tensor's shape: a number, or a letter for a number of rows that depends on the step."""

LETTERS: dict[RowAxis, str] = {TOKENS: "N", LOGITS: "R", ENCODER: "E"}
_ROWS = (1031, 1021, 1019, 1013, 1009)  # row counts that identify each row axis in a traced shape; TOKENS has most


@dataclass(frozen=True, slots=True)
class OpShapes:
    """The input and output shapes of an op."""

    inputs: tuple[tuple[Dimension, ...], ...]
    outputs: tuple[tuple[Dimension, ...], ...]
    scores: int | None = None
    """The number of query heads of an attention op, each of which has scores [N, S]; None for other ops."""


@json_shape(
    "path", "kind", "what", "count", "shapes.inputs", "shapes.outputs", "shapes.scores", "*cost", "time.limit",
    "floor_s=floor", "bound_s=time.bound", "expected_s=time.expected",
)  # fmt: skip
@dataclass(frozen=True, slots=True)
class PricedCall:
    """One of `count` calls of the same op, over all layers that have it, with the cost and times of one call."""

    path: str
    """The path of the first call, with a star in place of its layer number."""
    kind: str
    what: str
    layer: int | None
    """The layer number of the first call; None outside layers."""
    count: int
    shapes: OpShapes
    cost: Cost
    floor: float
    """A lower bound in seconds that no implementation can beat."""
    time: OpTime


@dataclass(frozen=True, slots=True)
class PricedStep:
    """The predicted cost of a request's step on one GPU, op by op."""

    name: str
    work: Work
    seen: int
    """The number of positions that the step's last token attends to, without those of an encoder."""
    price: StepPrice
    interval: ErrorInterval
    """The interval in which 8 of 10 measured times of such a step lie."""
    calls: tuple[PricedCall, ...]
    """Each distinct op that runs in the step, in order."""
    limit: str
    """The bottleneck of the step: compute, memory or communication."""
    scores: ScoresRow
    """The cost of the step's attention ops together, with and without their score matrices in memory."""
    host: HostShares | None
    """The host time of the step part by part, with greedy sampling; None if the device has only its sum."""


@dataclass(frozen=True, slots=True)
class PricedTrace:
    """The predicted cost of every op in a request, for a model and GPUs."""

    model: str
    case: Scenario
    input: int
    """The tokens of each of `batch` prompts, or positions of audio."""
    batch: int
    encoded: int
    """The part of the input that an encoder reads: all of it or nothing."""
    layers: tuple[int, ...]
    """The number of layers of each stack, the encoder's first."""
    steps: tuple[PricedStep, ...]


def priced_trace(name: str, case: Scenario, length: int, batch: int, longer: str = "") -> PricedTrace:
    """Price the prefill of `batch` prompts of `length` tokens, and the first decode step after it.

    If the model is an encoder-decoder, its encoder reads the prompts and the decoder begins with one token each. A
    speech model always gets a full audio window and a few control tokens. A model that generates no text has only the
    step that runs the texts.

    Args:
        name: The name of the model.
        case: The model and the GPUs.
        length: The tokens of each prompt.
        batch: The number of prompts.
        longer: How to extend the context, to append to the refusal of prompts that exceed it.

    Raises:
        ValueError: If `length` or `batch` is below 1, or the prompts exceed the model's context.
    """
    if length < 1 or batch < 1:
        raise ValueError(f"the prompt length is {length} and the batch {batch}; both must be at least 1")
    workload = PlanWorkload(input=length).of(case.model)
    if workload.encoded > case.model.encoder_context:
        raise ValueError(
            f"the prompt has {length:,} tokens, but the model's encoder takes at most {case.model.encoder_context:,}; "
            "shorten it"
        )
    writes = case.model.has_head
    if not case.model.has_cross_attention and length + writes > case.model.context:
        after = " and one after it" if writes else ""
        raise ValueError(
            f"the prompt has {length:,} tokens{after}, but the model's context is {case.model.context:,}; shorten it"
            f"{longer}"
        )
    reaches = case.price.reaches
    encoded, own = workload.encoded, workload.input
    works: dict[Kind, tuple[Work, int]] = {
        "prefill": (Work.of([StepSegment(own, own, encoded, runs_encoder=encoded > 0)] * batch, reaches), own)
    }
    if writes:
        works["decode"] = Work.decode([own + 1] * batch, reaches, [encoded] * batch), own + 1
    found = op_shapes(case.model)
    steps = tuple(_step(step, case, found, case.with_adapter_rows(work), seen) for step, (work, seen) in works.items())
    return PricedTrace(name, case, workload.given, batch, encoded, tuple(layers_of(case.model)), steps)


def op_shapes(model: Model) -> dict[str, OpShapes]:
    """Return the input and output shapes of each op of a model, by path."""
    rows = dict(zip(model.row_axes, _ROWS, strict=False))
    letters = {count: LETTERS.get(space, space) for space, count in rows.items()}
    found: dict[str, OpShapes] = {}

    def named(values: Any) -> tuple[tuple[Dimension, ...], ...]:
        return tuple((letters.get(shape[0], shape[0]), *shape[1:]) for shape in shapes(values) if shape)

    def note(path: str, op: Op, inputs: tuple[Any, ...], output: Any) -> None:
        found[path] = OpShapes(named(inputs), named(output), op.score_heads)

    model.trace_calls(rows, note)
    return found


def _step(name: Kind, case: Scenario, found: dict[str, OpShapes], work: Work, seen: int) -> PricedStep:
    price = case.price.price_step(case.device, work)
    limit = price_phase(case.price, case.device, Phase(name, (work,))).limit
    scores = scores_of(case, work, seen, price.working_set)
    host, interval = case.price.host_shares(case.device, work), case.intervals[name]
    return PricedStep(name, work, seen, price, interval, tuple(_calls(case, found, price)), limit, scores, host)


def _calls(case: Scenario, found: dict[str, OpShapes], price: StepPrice) -> Iterator[PricedCall]:
    """Yield each distinct op once with its count: ops of equal cost and shapes over all layers.

    Ops that differ between layers (a first norm, a window, another weight format) are listed separately. Ops without
    rows are left out, such as an encoder's in a decode step.
    """
    places: dict[str, dict[tuple[int, OpShapes], list[str]]] = {}
    for path, index in case.price.calls:
        places.setdefault(_starred(case.model.shown_path(path)), {}).setdefault((index, found[path]), []).append(path)
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
    """Return a path with a star in place of its layer number."""
    layer = layer_of(path)
    return ".".join("*" if part == str(layer) else part for part in path.split("."))
