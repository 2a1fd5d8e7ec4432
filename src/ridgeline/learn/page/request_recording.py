"""The recording of one request, which the page plays from its text to its generated token.

It is a compact form of a trace's ledger: an op of a step is a row under COLUMNS, its numbers have seven digits, and
attention has four decimals. Times are in seconds. All prices and measurements come from the ledger.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ridgeline.engine.params import SamplingParams
from ridgeline.insight.trace.attention_weights import AttentionWeights
from ridgeline.insight.trace.bottleneck import slowest
from ridgeline.insight.trace.expert_routing import Routing
from ridgeline.insight.trace.feed_forward_memory import FeedForwardMemory
from ridgeline.insight.trace.lens import Lens
from ridgeline.insight.trace.token_candidates import Token
from ridgeline.insight.trace.token_sampling import TokenDraw
from ridgeline.insight.trace.trace_ledger import Ledger, LedgerEntry, LedgerStep
from ridgeline.price.op_time import compute_seconds, memory_seconds
from ridgeline.util.json_data import json_select

VERSION = 1

RECORDED = "recordings.json"
"""The name of the list of recordings in a single-file page."""

COLUMNS = (
    "measured", "gap", "expected", "bound", "floor", "limit", "compute", "memory",
    "flops", "weights", "read", "written", "activations", "inputs", "outputs", "impossible", "note",
)  # fmt: skip
"""The names of the values that a recording stores for an op in a step: times, FLOPs, bytes, shapes and remarks.

compute and memory are the seconds of the op at peak FLOP/s alone, and at full bandwidth alone. weights, read, written
and activations are bytes; read and written are those of keys and values. gap is the seconds before the op that belong
to no op.
"""

_DIGITS, _DECIMALS = 7, 4


@dataclasses.dataclass(frozen=True, slots=True)
class RecordingTime:
    """The seconds that it took to record a request for the page, and the seconds that were expected."""

    measured: float
    """The seconds that recording the request took."""
    expected: float
    """The seconds that recording the request was expected to take, as estimated after its first two steps."""


def recording(
    ledger: Ledger,
    params: SamplingParams,
    draws: Sequence[TokenDraw],
    attention: Sequence[AttentionWeights],
    special: Collection[int],
    pause: RecordingTime,
    factors: Mapping[str, tuple[float, float]],
) -> dict[str, Any]:
    """Return a traced request (tokens, op times, sampling, attention) as plain data for the web page.

    Args:
        ledger: Trace of the request, with one row for each op.
        params: Sampling parameters.
        draws: Sampling of the trace's steps with these parameters.
        attention: Attention weights of positions of the prompt, including the last one.
        special: Ids of special tokens.
        pause: Measured and expected seconds of the recording, during which no other request runs.
        factors: Factors on predicted times between which 8 of 10 measured times lie, by name of the step.
    """
    return {
        "version": VERSION,
        "model": ledger.model,
        "device": json_select(ledger, "device.title", "device.calibrated", "at_hand", "threads"),
        "predicted_intervals": dict(factors),
        "pause": _short(pause.measured),
        "pause_expected": _short(pause.expected),
        "rules": json_select(params, "temperature", "top_k", "top_p", "min_p", "seed"),
        **json_select(ledger, "text", "answer"),
        "prompt": [_token(token, special) for token in ledger.prompt],
        "written": [_token(token, special) for token in ledger.written],
        "layers": ledger.layers,
        "ops": [json_select(row, "path", "kind", "what=detail", "layer") for row in ledger.rows],
        "columns": COLUMNS,
        "steps": [_step(ledger, step) for step in ledger.steps],
        "impossible": ledger.impossible(),
        "attention": _attention(attention),
        "lens": None if ledger.lens is None else _lens(ledger.lens),
        "neurons": None if ledger.memory is None else _neurons(ledger.memory),
        "experts": None if ledger.experts is None else _experts(ledger.experts),
        "draws": [_draw(draw) for draw in draws],
    }


def _short(value: float) -> float:
    """Return a number rounded to seven digits."""
    return float(f"{value:.{_DIGITS}g}")


def _shortened(record: Any, *keys: str) -> dict[str, Any]:
    """Return parts of a record as `json_select` does, with fractions rounded to seven digits."""
    found = json_select(record, *keys)
    return {name: _short(value) if isinstance(value, float) else value for name, value in found.items()}


def _token(token: Token, special: Collection[int]) -> dict[str, Any]:
    return {"id": token.id, "piece": token.piece, **({"special": True} if token.id in special else {})}


def _step(ledger: Ledger, step: LedgerStep) -> dict[str, Any]:
    total = ledger.total(step.name)
    return {
        **json_select(step, "name", "rows", "place=memory_level", "limit"),
        "measured": _short(total.measured),
        **_shortened(step, "expected", "bound", "floor", "host"),
        "impossible": total.has_impossible,
        "overheads": {overhead.name: _short(overhead.seconds) for overhead in step.overheads},
        **_shortened(step, "unhooked", "repeats", "left_out", "recorded"),
        "slowest": slowest(ledger, step.name),
        "entries": [_entry(ledger, step, row.entries[step.name]) for row in ledger.rows],
    }


def _entry(ledger: Ledger, step: LedgerStep, entry: LedgerEntry) -> list[Any]:
    cost, device = entry.cost, ledger.device
    seconds = (entry.measured, entry.gap, entry.expected, entry.bound, entry.floor)
    alone = (compute_seconds(cost, device), memory_seconds(cost, device, step.working_set))
    nbytes = (cost.weight_bytes, cost.kv_read_bytes, cost.kv_write_bytes, cost.activation_bytes)
    return [
        *map(_short, seconds), entry.limit, *map(_short, alone), _short(cost.total_flops), *map(_short, nbytes),
        entry.inputs, entry.outputs, entry.impossible, entry.note,
    ]  # fmt: skip


def _attention(found: Sequence[AttentionWeights]) -> dict[str, Any] | None:
    """Return the attention weights by position, layer, head and attended position; None if there are none."""
    if not found or not found[-1].layers:
        return None
    rows = {
        str(each.position): [[[round(share, _DECIMALS) for share in head] for head in layer] for layer in each.weights]
        for each in found
    }
    return {"layers": found[-1].layers, "rows": rows}


def _lens(lens: Lens) -> dict[str, Any]:
    rows = [
        {"after": row.after, "rank": row.rank, "share": _short(row.share), "top": _pieces(row.top)} for row in lens.rows
    ]
    return {"position": lens.position, "word": lens.word.piece, "settled": lens.settled, "rows": rows}


def _pieces(top: Sequence[tuple[Token, float]]) -> list[list[Any]]:
    return [[token.piece, _short(value)] for token, value in top]


def _neurons(memory: FeedForwardMemory) -> dict[str, Any]:
    layers = [
        [
            _shortened(each, "layer", "expert", "index", "activation") | {"promotes": _pieces(each.promotes)}
            for each in layer
        ]
        for layer in memory.layers
    ]
    return {"position": memory.position, "layers": layers}


def _experts(routing: Routing) -> dict[str, Any]:
    """Return for each mixture the experts picked for the recorded token, and the distribution over all tokens."""
    layers = [
        {
            "layer": each.layer,
            "picked": each.picked[routing.position],
            "weights": [_short(share) for share in each.weights[routing.position]],
            "load": each.load,
            "hit": each.hit,
            "expected": _short(each.expected),
        }
        for each in routing.layers
    ]
    return {"position": routing.position, "layers": layers}


def _draw(draw: TokenDraw) -> dict[str, Any]:
    return {
        **json_select(draw, "uniform", "kept", "vocabulary", "taken"),
        "candidates": [
            _shortened(each, "token.id", "token.piece", "raw", "tempered", "drawn", "start", "removed")
            for each in draw.candidates
        ],
    }
