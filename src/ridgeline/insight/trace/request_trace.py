"""The trace of one LLM request: it runs unchanged, then with repeated and hooked steps.

Both runs generate the same tokens, which is asserted. If requested, one more forward pass over prompt and response
captures activations.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ridgeline.core.ops.number_formats import format_of
from ridgeline.core.text import Tokenizer
from ridgeline.engine.engine import Executor
from ridgeline.engine.events import Event
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.llm import LLM, TextEngine
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.runner import Runner
from ridgeline.engine.sampling import Sampled
from ridgeline.insight.calibrate.sampling_trials import way_of
from ridgeline.insight.trace.attention_weights import attention_at
from ridgeline.insight.trace.capture import capture
from ridgeline.insight.trace.cross_attention import cross_attention
from ridgeline.insight.trace.expert_routing import routing
from ridgeline.insight.trace.expert_sources import check_texts, expert_sources
from ridgeline.insight.trace.feed_forward_memory import memory
from ridgeline.insight.trace.lens import lens
from ridgeline.insight.trace.measure import StepMeasurer
from ridgeline.insight.trace.measurement import Measurement
from ridgeline.insight.trace.pricing import price_steps
from ridgeline.insight.trace.timeline import Clock, TimelineRecorder, TimelineSlice, shifted
from ridgeline.insight.trace.token_candidates import Candidate, Token, TokenChoice, tokens_of
from ridgeline.insight.trace.trace_ledger import Ledger
from ridgeline.insight.trace.tracer import HookCost, Tracer, hook_cost
from ridgeline.price.device import Device

CANDIDATES = 5


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """The views that a trace includes besides the times of ops."""

    attention: bool = False
    lens: bool = False
    memory: bool = False
    experts: bool = False
    position: int | None = None
    """The position for attention, lens, memory and experts; None for the last prompt token."""
    repeats: int | None = None
    """The repeats of each measured step; None for as many as a few seconds allow."""
    sources: tuple[tuple[str, str], ...] = ()
    """The texts whose expert routing is compared, as (name, text) pairs; shown only together with another view."""

    @property
    def inside(self) -> bool:
        """Whether a pass that captures activations is needed."""
        return self.attention or self.lens or self.memory or self.experts


@dataclass(frozen=True, slots=True)
class TraceSubject:
    """The subject of a trace: model name, prompt, tokenization and LoRA adapter."""

    name: str
    """The model's name as the user wrote it."""
    text: str
    """The text of the prompt to trace."""
    encode: Callable[[], list[int]]
    """A function that returns the token ids of the prompt."""
    adapter: str = ""
    """The name of the LoRA adapter; empty for none."""


def trace(
    llm: LLM,
    subject: TraceSubject,
    params: SamplingParams,
    device: Device,
    wanted: TraceOptions = TraceOptions(),
    *,
    at_hand: bool = True,
    threads: int = 1,
    clock: Clock = time.perf_counter,
    cost: HookCost | None = None,
) -> Ledger:
    """Trace one LLM request: run it unchanged, measure its ops, and capture what the options request.

    Args:
        llm: The engine with its model.
        subject: The prompt and the adapter.
        params: The sampling parameters.
        device: The device whose price is used.
        wanted: What to show besides the times of ops.
        at_hand: Whether `device` is the machine that runs the request.
        threads: The number of CPU threads, for the report.
        clock: Returns the time in seconds.
        cost: The time that hooks take; measured by default.

    Raises:
        ValueError: If `check` rejects the prompt or the options, the request fails, or a repeated step samples another
            token.
    """
    ids = subject.encode()
    params = replace(params, n=1, logprobs=min(CANDIDATES, llm.loaded.model.vocabulary), seed=params.seed or 0)
    check(llm, ids, wanted)
    with _prepared(llm):
        # also a warm-up, so that no first call is measured
        choices = _complete(llm, ids, replace(params, max_tokens=2, ignore_eos=True), subject.adapter)
        sampled, answer, timeline = _watched(llm, subject, params, clock)
        plain = replace(params, logprobs=None)  # only the table of candidates needs them, and they take time
        measured, repeated = _measured(
            *(llm, ids, plain, subject.adapter, wanted.repeats, clock, cost or hook_cost(clock))
        )
    written, chosen = [one.token for one in sampled], [one.token for one in choices]
    assert chosen[: len(written)] == written[: len(chosen)], "tracing must not change the tokens"
    assert chosen == [one.token for one in repeated], "log-probabilities must not change the tokens"
    tokenizer, model = llm.tokenizer, llm.loaded.model
    steps, rows = price_steps(
        *(llm.loaded.price, measured, device), at_hand=at_hand, shown=model.shown_path, sampling=way_of(params)
    )
    dtype, kv = format_of(model.storage.dtype).name, model.storage.kv
    ledger = Ledger(
        subject.name, device, at_hand, threads, steps, rows,
        subject.text, tokens_of(tokenizer, ids), tokens_of(tokenizer, written), answer,
        {step: _choice(one, tokenizer, params.greedy) for step, one in zip(measured, choices, strict=False)},
        timeline, model.recipe or dtype, dtype if kv is None else kv.name,
    )  # fmt: skip
    return _looked_at(ledger, llm, [*ids, *written], wanted, subject.adapter) if wanted.inside else ledger


def check(llm: LLM, ids: Sequence[int], wanted: TraceOptions) -> None:
    """Check that a prompt fits in one step, that the options are valid, and that the model can show what they request.

    Raises:
        ValueError: If one of these is not the case.
    """
    most = llm.engine.scheduler.limits.max_request_tokens
    if len(ids) > most:
        raise ValueError(
            f"the prompt has {len(ids)} tokens, but a step runs at most {most}, and a trace shows a prefill of one "
            "step: shorten the prompt, or raise the engine's token budget"
        )
    if wanted.position is not None and not 0 <= wanted.position < len(ids):
        raise ValueError(f"position is {wanted.position}; the prompt has positions 0 to {len(ids) - 1}")
    if wanted.repeats is not None and wanted.repeats < 1:
        raise ValueError(f"repeats is {wanted.repeats}; it must be at least 1")
    if llm.loaded.model.has_cross_attention and (wanted.lens or wanted.memory or wanted.position is not None):
        raise ValueError(
            "for an encoder-decoder, a trace shows only --attention: leave out --lens, --memory and --position"
        )
    if llm.loaded.model.traced_from and (wanted.lens or wanted.memory or wanted.experts):
        raise ValueError(
            f"for a model traced from {llm.loaded.model.traced_from}, a trace shows only --attention: leave out "
            "--lens, --memory and --experts"
        )
    if wanted.experts and all(op.experts is None for _, op in llm.loaded.model.ops()):
        raise ValueError("this model is dense and has no experts: leave out --experts")
    check_texts(_encoded(wanted.sources, llm.tokenizer))


@contextmanager
def _prepared(llm: LLM) -> Iterator[None]:
    """Disable the prefix cache within this context, so that every request computes its whole prompt.

    The engine's step callback is disabled too.
    """
    engine = llm.engine
    before = engine.on_step, engine.kv_cache_manager.prefix_cache
    engine.on_step, engine.kv_cache_manager.prefix_cache = None, False
    try:
        yield
    finally:
        engine.on_step, engine.kv_cache_manager.prefix_cache = before


def _runner(executor: Executor) -> Runner:
    if not isinstance(executor, Runner):
        raise ValueError("a trace needs an engine whose model runs in this process")
    return executor


def _complete(llm: LLM, ids: list[int], params: SamplingParams, adapter: str) -> list[Sampled]:
    (completion,) = llm.generate([ids], params, adapter=adapter)
    choice = completion.choices[0]
    if choice.error is not None:
        raise ValueError(f"the request failed: {choice.error}")
    return choice.tokens


def _watched(
    llm: LLM, subject: TraceSubject, params: SamplingParams, clock: Clock
) -> tuple[list[Sampled], str, TimelineSlice]:
    """Run the request unchanged, and return its tokens, text and timeline."""
    texts, watch, start = TextEngine(llm.loaded), TimelineRecorder(clock), clock()
    tokens: list[Sampled] = []
    text = ""
    with watch.note("tokenise"):
        ids = subject.encode()
    parts = list(watch.take())
    queued = clock()
    request = texts.add(GenerationRequest(ids, params, adapter=subject.adapter))
    try:
        while texts.engine.has_work:
            began = clock()
            if not tokens:
                parts.append(TimelineSlice("queue", queued, began - queued))
            for event in _watched_step(texts, watch):
                text += event.text
                tokens += [event.token] if event.token is not None else []
            name = f"decode {len(tokens) - 1}" if len(tokens) > 1 else "prefill"
            parts.append(_step_slice(name, began, clock(), watch.take()))
    finally:
        texts.abort(request)
    whole = TimelineSlice("request", start, clock() - start, tuple(parts))
    return tokens, text, shifted(whole, -start)


def _watched_step(texts: TextEngine, watch: TimelineRecorder) -> list[Event]:
    """Run one engine step, record the times of its forward pass, sampling and detokenization, and return its events.

    Raises:
        ValueError: If the step or the request fails.
    """
    engine = texts.engine
    runner, plan = _runner(engine.executor), engine.plan()
    assert plan is not None
    try:
        with watch.note("forward"):
            logits_RV = runner.step_logits(plan)
    except Exception as error:
        raise ValueError(f"the request failed: {type(error).__name__}: {error}") from error
    with watch.note("sample"):
        sampled = runner.sampler.sample(logits_RV, engine.rows(plan))
    events = engine.accept(plan, sampled)
    with watch.note("detokenise"):
        deltas, stops = texts.output_processor.take(events)
    for stop in stops:
        engine.stop(*stop)
    for event in deltas:
        if event.error is not None:
            raise ValueError(f"the request failed: {event.error}")
    return deltas


def _step_slice(name: str, began: float, ended: float, noted: tuple[TimelineSlice, ...]) -> TimelineSlice:
    """Return the timeline slice of a step; the time before its forward pass belongs to the scheduler."""
    schedule = TimelineSlice("schedule", began, (noted[0].start if noted else ended) - began)
    return TimelineSlice(name, began, ended - began, (schedule, *noted))


def _measured(
    llm: LLM,
    ids: list[int],
    params: SamplingParams,
    adapter: str,
    repeats: int | None,
    clock: Clock,
    cost: HookCost,
) -> tuple[dict[str, Measurement], list[Sampled]]:
    """Run the request up to its first decode step, and measure this step and the prefill."""
    measuring = StepMeasurer(_runner(llm.engine.executor), Tracer(llm.loaded.model, clock), cost, repeats)
    llm.engine.on_step = measuring.observe
    sampled = _complete(llm, ids, replace(params, max_tokens=2, ignore_eos=True), adapter)
    llm.engine.on_step = None
    return measuring.measured, sampled


def _choice(sampled: Sampled, tokenizer: Tokenizer, greedy: bool) -> TokenChoice:
    """Return the candidates of a step from its log-probabilities."""

    def candidate(token: int, raw: float) -> Candidate:
        drawn = dict(sampled.top).get(token, sampled.logprob if token == sampled.token else None)
        kept = None if drawn is None or greedy else math.exp(drawn)
        return Candidate(Token(token, tokenizer.printable_token(token)), math.exp(raw), kept)

    assert sampled.logprob_raw is not None
    taken = candidate(sampled.token, sampled.logprob_raw)
    return TokenChoice(tuple(candidate(token, raw) for token, raw in sampled.top_raw), taken, greedy)


def _encoded(sources: Sequence[tuple[str, str]], tokenizer: Tokenizer) -> dict[str, list[int]]:
    return {name: tokenizer.encode(text) for name, text in sources}


def _looked_at(ledger: Ledger, llm: LLM, ids: list[int], wanted: TraceOptions, adapter: str) -> Ledger:
    """Return the trace's ledger (one row per op), extended by the captured activations that the options request."""
    model = llm.loaded.model
    if model.has_cross_attention:
        begun = llm.loaded.text_processor.decoder_prompt(ids)
        encoder = [token.id for token in ledger.prompt]
        return replace(ledger, cross=cross_attention(model, encoder, begun, ledger.prompt, ledger.written))
    position = len(ledger.prompt) - 1 if wanted.position is None else wanted.position
    number = llm.engine.adapter_number(adapter)
    captured = capture(model, ids, position, number)
    return replace(
        ledger,
        attention=attention_at(captured.attention, position) if wanted.attention else None,
        lens=lens(model, captured, llm.tokenizer) if wanted.lens else None,
        memory=memory(model, captured, llm.tokenizer) if wanted.memory else None,
        experts=routing(captured.experts, position) if wanted.experts else None,
        sources=expert_sources(model, _encoded(wanted.sources, llm.tokenizer), number) if wanted.sources else None,
    )
