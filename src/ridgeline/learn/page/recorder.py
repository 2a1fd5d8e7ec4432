"""The recorder: it has a loaded model run one text, and records the run for the page.

As the inspector of a server's engine (engine/worker/inspector.py) it works in the engine's process, between two steps,
with a second engine on the same weights. It changes no running request, but all of them wait, and the recording states
how long. A recording that would take longer than the caller allows is refused after its first two steps.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec

from ridgeline.engine.engine_builder import build_engine
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.kv.page_count import kv_layout
from ridgeline.engine.llm import LLM
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.setup import LoadedEngine
from ridgeline.insight.trace.attention_weights import AttentionWeights, attention_at
from ridgeline.insight.trace.capture import capture
from ridgeline.insight.trace.measure import measuring_seconds
from ridgeline.insight.trace.request_trace import TraceOptions, TraceSubject, trace
from ridgeline.insight.trace.token_sampling import draws, plain
from ridgeline.learn.page.request_recording import RecordingTime, recording
from ridgeline.price.device import Device

MOST_TOKENS = 64
"""The maximum number of tokens of the prompt in a recording."""

MOST_PAUSE = 30.0
"""The default of the maximum seconds that other requests may wait for a recording."""

INSPECTOR = f"{__name__}:inspect"
"""The recorder as an engine's inspector: it receives a RecordingRequest and returns a recording in JSON."""

_WRITTEN = 8
_PREFILLS, _DECODES = 6, 2 * _WRITTEN
"""The prefills and decode steps that a recording runs in addition to the measured ones.

They are those of a warm-up, the response, the sampling, the views of the model's inside, and attention.
"""
_BYTES = 1e15  # effectively unlimited KV memory; `most_tokens` limits the pages
_MOST_SHARES = 400_000
"""The maximum attention weights in a recording; for a larger model only the last token's row is recorded."""


class RecordingRequest(msgspec.Struct, frozen=True):
    """A request to record a run; the sampling fields are as in SamplingParams."""

    name: str
    """The name of the model to record."""
    text: str
    """The prompt to record, as text."""
    ids: list[int]
    """The prompt to record, as token ids."""
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    max_pause: float = MOST_PAUSE
    """The maximum seconds that the recording may be expected to take."""

    def params(self) -> SamplingParams:
        """Return the request's sampling parameters."""
        return SamplingParams(
            temperature=self.temperature, top_k=self.top_k, top_p=self.top_p, min_p=self.min_p, seed=self.seed
        )


def inspect(loaded: LoadedEngine, device: Device | None, question: bytes) -> bytes:
    """Decode a RecordingRequest, make the recording, and return it as JSON.

    Raises:
        ValueError: If the run cannot be recorded.
    """
    query = msgspec.json.decode(question, type=RecordingRequest)
    if device is None:
        raise ValueError(
            "this machine's speed is not known, so there are no prices to compare with: run `ridgeline calibrate` first"
        )
    recording = record(loaded, query.name, query.text, query.ids, query.params(), device, max_pause=query.max_pause)
    return msgspec.json.encode(recording)


def record(
    loaded: LoadedEngine,
    name: str,
    text: str,
    ids: Sequence[int],
    params: SamplingParams,
    device: Device,
    repeats: int | None = None,
    max_pause: float = math.inf,
) -> dict[str, Any]:
    """Return a recording of the prefill of a prompt and of the first decode step after it.

    Args:
        loaded: Loaded model.
        name: Name of the model.
        text: Prompt as text.
        ids: Prompt as token ids.
        params: Sampling parameters.
        device: Device for which the prices are computed.
        repeats: Repetitions of each measurement; see `TraceOptions`.
        max_pause: Maximum seconds that the recording may be expected to take.

    Raises:
        ValueError: If the run cannot be recorded, or is expected to take longer than `max_pause`.
    """
    if not 0 < len(ids) <= MOST_TOKENS:
        raise ValueError(f"the text has {len(ids)} tokens; give 1 to {MOST_TOKENS}")
    if loaded.model.has_cross_attention:
        raise ValueError(
            "the model reads its prompt with an encoder; only models that continue the prompt can be recorded"
        )
    start = time.perf_counter()
    llm = LLM.around(_second_engine(loaded, len(ids) + _WRITTEN), name)
    expected = _expected_pause(llm, ids, repeats)
    if expected > max_pause:
        raise ValueError(
            f"the recording would delay all other requests for about {expected:.3g} s, but max_pause is {max_pause:g} "
            "s: give a shorter text or a larger max_pause"
        )
    rules = plain(replace(params, n=1, max_tokens=_WRITTEN, seed=params.seed or 0))
    experts = any(op.experts is not None for _, op in loaded.model.ops())
    ledger = trace(
        llm,
        TraceSubject(name, text, lambda: list(ids)),
        rules,
        device,
        TraceOptions(lens=True, memory=True, experts=experts, repeats=repeats),
        at_hand=device.calibrated or device.basis == "probe",
        threads=llm.threads,
    )
    drawn = draws(llm, ids, rules, len(ledger.steps))
    looked = _attention(llm, ids, [token.id for token in ledger.written])
    pause = time.perf_counter() - start
    time_taken, factors = RecordingTime(pause, expected), loaded.info(device).predicted_intervals
    return recording(ledger, rules, drawn, looked, llm.tokenizer.special_ids, time_taken, factors)


def _expected_pause(llm: LLM, ids: Sequence[int], repeats: int | None) -> float:
    """Return the expected seconds of a recording, from one run of its prefill and its first decode step."""
    engine, moments = llm.engine, [time.perf_counter()]
    engine.add(GenerationRequest(list(ids), SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)))
    while engine.has_work:
        engine.step()
        moments.append(time.perf_counter())
    prefill, decode = (after - before for before, after in pairwise(moments))
    measured = measuring_seconds(prefill, repeats) + measuring_seconds(decode, repeats)
    return moments[-1] - moments[0] + measured + _PREFILLS * prefill + _DECODES * decode


def _second_engine(loaded: LoadedEngine, positions: int) -> LoadedEngine:
    """Return the same model in a second engine, with KV memory for one request of `positions` positions."""
    first = loaded.engine
    layout = kv_layout(loaded.model, _BYTES, first.kv_cache_manager.page_size, most_tokens=positions, most_requests=1)
    engine = build_engine(
        loaded.model,
        layout,
        Limits(tokens=positions, requests=1),
        context=first.traits.context,
        prefix_cache=False,
        eos_ids=first.eos_ids,
    )
    return replace(loaded, engine=engine, layout=layout)


def _attention(llm: LLM, ids: Sequence[int], written: Sequence[int]) -> list[AttentionWeights]:
    """Return the attention weights of each prompt token in one pass, or only of the last if they would be too many."""
    last = len(ids) - 1
    calls = capture(llm.loaded.model, [*ids, *written], last).attention
    rows = [attention_at(calls, last)]
    shares = sum(len(head) for layer in rows[0].weights for head in layer) * (last + 2) // 2
    if shares <= _MOST_SHARES:
        rows = [*(attention_at(calls, position) for position in range(last)), *rows]
    return rows
