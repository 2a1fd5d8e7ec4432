"""The Prometheus metrics of an engine, updated with each request event and each step."""

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from typing_extensions import override

from ridgeline.engine.events import Event, Stats
from ridgeline.engine.request import NANOSECONDS, FinishReason, Timing
from ridgeline.engine.worker.engine_messages import StepReport, Transferred
from ridgeline.server.errors import ApiError
from ridgeline.server.in_flight import InFlightRequest
from ridgeline.server.service import EngineClient, failed_by_engine
from ridgeline.server.telemetry.metric_families import FAMILIES, FINISHES, PHASES, REASONS, STAGES, MetricFamily
from ridgeline.server.telemetry.metrics_registry import MetricsRegistry

_WINDOW = 10  # seconds, the window of achieved_flops and achieved_bytes


@dataclass(slots=True)
class _Progress:
    """The metric state of a request in progress, with times in nanoseconds of the engine's clock."""

    timing: Timing | None
    """The timing at the first token, or None before it."""
    last: dict[int, int]
    """The time of the newest token, by choice."""
    first: dict[int, int]
    """The time of the first token, by choice."""
    longest: int = 0
    """The tokens of the longest choice that has ended."""


class EngineMetrics(MetricsRegistry):
    """The metrics of one engine and one model; an `Observer` of requests, which also gets each step (`stepped`)."""

    def __init__(
        self,
        llm: EngineClient,
        model_name: str,
        *,
        alias: str | None = None,
        engine: int = 0,
        more: Sequence[MetricFamily] = (),
    ) -> None:
        """Register the metrics of an engine at 0.

        Args:
            llm: The engine, whose gauges are read at each scrape.
            model_name: The value of the label `model_name`.
            alias: The prefix (`vllm`) under which metrics shared with vLLM are exported a second time; None for none.
            engine: The value of the label `engine`.
            more: Further metrics that the caller updates.
        """
        super().__init__((*FAMILIES, *more), model_name, llm.info.context, alias, engine)
        self.llm = llm
        self._under_way: dict[InFlightRequest, _Progress] = {}
        self._before, self._restarts, self._gone = Stats(), 0, False
        self._achieved = _Achieved()
        self._prepare()

    def follow(self, llm: EngineClient) -> None:
        """Continue with another engine, which has replaced the previous one."""
        self.llm, self._before, self._restarts, self._gone = llm, Stats(), llm.restarts, False

    def leave(self) -> None:
        """Export 0 for what the engine holds, because it was removed, until another replaces it."""
        self._gone = True

    def _prepare(self) -> None:
        """Create the time series with known labels at 0, and look up those that every token updates."""
        self._between = self._one("inter_token_latency_seconds")
        self._gaps: dict[int, int] = {}  # unrecorded counts, by nanoseconds between tokens
        self._tokens = self._one("generation_tokens")
        self._steps = {phase: self._one("step_seconds", phase) for phase in PHASES}
        self._positions = self._one("iteration_tokens_total")
        for finish in FINISHES:
            self._one("request_success", finish)
        for reason in REASONS:
            self._one("admission_rejected", reason)
        for stage in STAGES:
            self._one("aborted", stage)
        for family in FAMILIES:
            if not family.labels and family.name not in ("achieved_flops", "achieved_bytes"):
                self._one(family.name)
        self._one("cache_config_info", str(self.llm.info.page_size), str(self.llm.info.pages)).set(1)
        for phase, (low, high) in self.llm.info.predicted_intervals.items():
            self._one("predicted_interval_ratio", phase, "low").set(low)
            self._one("predicted_interval_ratio", phase, "high").set(high)

    # -- requests: Observer --------------------------------------------------------------------------------------------

    def refused(self, live: InFlightRequest, error: ApiError) -> None:
        """Record a rejected request under the code of its error, which never has text of a client."""
        self._one("admission_rejected", error.code or "other").inc()

    def arrived(self, live: InFlightRequest) -> None:
        """Start tracking a request that was admitted."""
        self._under_way[live] = _Progress(None, {}, {})

    def event(self, live: InFlightRequest, event: Event) -> None:
        """Update the metrics with a token, a finish reason, or both."""
        progress, choice = self._under_way[live], event.choice
        if event.token is not None:
            last = progress.last.get(choice)
            if last is not None:
                self._gaps[event.at - last] = self._gaps.get(event.at - last, 0) + 1
            else:
                self._first_token(live, progress, event)
            progress.last[choice] = event.at
        if event.hidden is not None:
            self._embedded(live, event)
        elif event.finish is FinishReason.LENGTH and progress.timing is None:
            self._only_prompt(live, progress, event)
        if event.finish is not None:
            self._finished(progress, event)

    def _tell_gaps(self) -> None:
        """Record the intervals between tokens, grouped by equal values.

        The tokens of a step mostly have the same interval. One by one, they would take as long as all other metrics of
        a token.
        """
        for gap, count in self._gaps.items():
            observe_often(self._between, gap * NANOSECONDS, count)
        self._gaps.clear()

    def _first_token(self, live: InFlightRequest, progress: _Progress, event: Event) -> None:
        progress.first[event.choice] = event.at
        if progress.timing is not None:
            return  # another choice has recorded the prompt
        self._one("time_to_first_token_seconds").observe((event.at - live.spec.arrived) * NANOSECONDS)
        self._prompt(live, progress, event)

    def _only_prompt(self, live: InFlightRequest, progress: _Progress, event: Event) -> None:
        """Record the prompt of a request that ends without a token."""
        progress.last[event.choice] = event.at
        self._prompt(live, progress, event)

    def _prompt(self, live: InFlightRequest, progress: _Progress, event: Event) -> None:
        progress.timing = event.timing
        self._one("prompt_tokens").inc(live.prompt_tokens)
        if live.spec.params.prompt_logprobs is None:  # otherwise every position runs, without a cache lookup
            self._one("prefix_cache_queries").inc(live.prompt_tokens)
            self._one("prefix_cache_hits").inc(live.cached)

    def _embedded(self, live: InFlightRequest, event: Event) -> None:
        """Record an embedding request, whose time is its queue time and one inference time without tokens."""
        timing = event.timing
        self._one("prompt_tokens").inc(live.prompt_tokens)
        self._one("e2e_request_latency_seconds").observe((event.at - live.spec.arrived) * NANOSECONDS)
        if timing is not None and timing.scheduled is not None:
            self._one("request_queue_time_seconds").observe((timing.scheduled - timing.arrived) * NANOSECONDS)
            self._one("request_inference_time_seconds").observe((event.at - timing.scheduled) * NANOSECONDS)

    def _finished(self, progress: _Progress, event: Event) -> None:
        """Record the end of a choice: its finish reason, its length and its time per token."""
        tokens, first = event.output_tokens or 0, progress.first.get(event.choice)
        progress.longest = max(progress.longest, tokens)
        self._one("request_success", str(event.finish)).inc()
        if event.finish not in (FinishReason.STOP, FinishReason.LENGTH):
            return
        self._one("request_generation_tokens").observe(tokens)
        if first is not None and tokens > 1:
            seconds = (progress.last[event.choice] - first) * NANOSECONDS
            self._one("request_time_per_output_token_seconds").observe(seconds / (tokens - 1))

    def ended(self, live: InFlightRequest, error: BaseException | None) -> None:
        """Record the lengths and times of a finished request, or the stage at which it was aborted."""
        progress = self._under_way.pop(live)
        missing = live.spec.params.n - len(live.finishes)
        if isinstance(error, ValueError):
            return  # the engine rejected it
        if missing and failed_by_engine(error):
            self._one("request_success", "error").inc(missing)
            return
        if missing:
            self._one("aborted", stage_of(live)).inc()
            self._one("request_success", "abort").inc(missing)
            return
        if not {FinishReason.STOP, FinishReason.LENGTH}.issuperset(live.finishes):
            return
        self._one("request_prompt_tokens").observe(live.prompt_tokens)
        self._one("request_params_n").observe(live.spec.params.n)
        if live.spec.params.max_tokens is not None:
            self._one("request_params_max_tokens").observe(live.spec.params.max_tokens)
        self._one("request_max_num_generation_tokens").observe(progress.longest)
        self._times(live, progress)

    def _times(self, live: InFlightRequest, progress: _Progress) -> None:
        """Record the queue, prefill, decode and total times of a finished request whose prompt was computed."""
        timing = progress.timing
        if timing is None or timing.scheduled is None or timing.first_token is None:
            return
        last = max(progress.last.values())
        for name, start, end in (
            ("e2e_request_latency_seconds", live.spec.arrived, last),
            ("request_queue_time_seconds", timing.arrived, timing.scheduled),
            ("request_prefill_time_seconds", timing.scheduled, timing.first_token),
            ("request_decode_time_seconds", timing.first_token, last),
            ("request_inference_time_seconds", timing.scheduled, last),
        ):
            self._one(name).observe((end - start) * NANOSECONDS)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def stepped(self, report: StepReport, stats: Stats) -> None:
        """Update the metrics with the report of a step."""
        self._tell_gaps()
        phase, seconds = phase_of(report), report.seconds
        self._steps[phase].observe(seconds)
        self._positions.observe(report.positions)
        self._count(stats.base(self._before), stats)
        self._before = stats
        if report.predicted is not None:
            self._one("step_predicted_seconds", phase).observe(report.predicted)
            self._achieved.add(report.finished, seconds, report.flops, report.nbytes)

    def _count(self, before: Stats, now: Stats) -> None:
        """Add the difference between two states of the engine's statistics to the counters."""
        self._tokens.inc(now.output_tokens - before.output_tokens)
        if now.preemptions != before.preemptions:
            self._one("num_preemptions").inc(now.preemptions - before.preemptions)
        if now.drafts != before.drafts:
            self._one("spec_decode_num_drafts").inc(now.drafts - before.drafts)
            self._one("spec_decode_num_draft_tokens").inc(now.draft_tokens - before.draft_tokens)
            self._one("spec_decode_num_accepted_tokens").inc(now.accepted_tokens - before.accepted_tokens)
            accepted_before = before.accepted_at or (0,) * len(now.accepted_at)
            for place, (count, known) in enumerate(zip(now.accepted_at, accepted_before, strict=True)):
                self._one("spec_decode_num_accepted_tokens_per_pos", str(place)).inc(count - known)
        grammars = now.grammars - before.grammars
        for _ in range(grammars):
            self._one("grammar_compile_seconds").observe((now.grammar_seconds - before.grammar_seconds) / grammars)

    def transferred(self, transferred: Transferred) -> None:
        """Count a transfer of a prompt's KV cache from another engine, with its bytes and seconds, or its failure."""
        if transferred.reason:
            self._one("kv_transfer_failures").inc()
            return
        self._one("kv_transfers").inc()
        self._one("kv_transfer_bytes").inc(transferred.nbytes)
        self._one("kv_transfer_seconds").observe(transferred.seconds)
        if transferred.predicted is not None:
            self._one("kv_transfer_predicted_seconds").observe(transferred.predicted)

    # -- the scrape ----------------------------------------------------------------------------------------------------

    @override
    def refresh(self) -> None:
        stats, pages = (Stats(), 0) if self._gone else (self.llm.stats, self.llm.info.pages)
        used, cached = stats.held_pages, stats.cached_pages
        self._one("num_requests_running").set(stats.running)
        self._one("num_requests_waiting").set(stats.waiting)
        self._one("kv_cache_usage_perc").set(used / max(1, pages))
        for state, count in (("free", pages - used - cached), ("cached", cached), ("used", used)):
            self._one("kv_blocks", state).set(count)
        self._one("grammar_cache_bytes").set(stats.grammar_bytes)
        self._one("engine_restarts").inc(self.llm.restarts - self._restarts)
        self._restarts = self.llm.restarts
        rates = self._achieved.rates(time.perf_counter_ns())
        if rates is not None:
            self._one("achieved_flops").set(rates[0])
            self._one("achieved_bytes").set(rates[1])
        self._tell_gaps()


def observe_often(histogram: Any, value: float, count: int) -> None:
    """Record the same value `count` times in a histogram at once; prometheus_client has no public method for this."""
    histogram._sum.inc(value * count)
    histogram._buckets[bisect_left(histogram._upper_bounds, value)].inc(count)


def phase_of(report: StepReport) -> str:
    """Return whether a step ran prefills, only decodes, or both ("mixed")."""
    if report.decodes_only:
        return "decode"
    return "mixed" if min(item[3] for item in report.items) == 1 else "prefill"


def stage_of(live: InFlightRequest) -> str:
    """Return the stage of a request: queue, prefill or decode."""
    if live.tokens:
        return "decode"
    return "prefill" if live.begun else "queue"


class _Sums(NamedTuple):
    second: int
    busy: float
    flops: float
    nbytes: float


class _Achieved:
    """The achieved FLOP/s and bytes/s of the last seconds, relative to the time in which steps ran."""

    def __init__(self) -> None:
        self._seconds: deque[_Sums] = deque(maxlen=_WINDOW + 1)

    def add(self, at: int, busy: float, flops: float, nbytes: float) -> None:
        """Add a step that ended at the time `at`, in nanoseconds."""
        second = at // 1_000_000_000
        if self._seconds and self._seconds[-1].second == second:
            _, a, b, c = self._seconds.pop()
            busy, flops, nbytes = busy + a, flops + b, nbytes + c
        self._seconds.append(_Sums(second, busy, flops, nbytes))

    def rates(self, now: int) -> tuple[float, float] | None:
        """Return FLOP/s and bytes/s; 0 if no step ran in the window, None before the first step."""
        if not self._seconds:
            return None
        recent = [sums for sums in self._seconds if sums.second > now // 1_000_000_000 - _WINDOW]
        busy = sum(sums.busy for sums in recent)
        if not busy:
            return 0.0, 0.0
        return sum(sums.flops for sums in recent) / busy, sum(sums.nbytes for sums in recent) / busy
