"""Metrics: what Prometheus is told. Counted as requests and steps go by, in a registry of this object's own."""

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from typing_extensions import override

from ridgeline.engine.events import Event, Stats
from ridgeline.engine.request import NANOSECONDS, FinishReason, Timing
from ridgeline.engine.worker.engine_messages import EngineInfo, StepReport, Transferred
from ridgeline.server.errors import ApiError
from ridgeline.server.in_flight import InFlightRequest
from ridgeline.server.service import failed_by_engine
from ridgeline.server.telemetry.metric_families import FAMILIES, FINISHES, PHASES, REASONS, STAGES, MetricFamily
from ridgeline.server.telemetry.metrics_registry import MetricsRegistry

_WINDOW = 10  # seconds that achieved_flops and achieved_bytes look back


@dataclass(slots=True)
class _Progress:
    """What is remembered of a request under way. last: when each choice's newest token came. first: when its first
    one did. longest: tokens of the longest choice that has ended.
    """

    timing: Timing | None
    last: dict[int, int]
    first: dict[int, int]
    longest: int = 0


class StatsSource(Protocol):
    """What is read of an AsyncLLM."""

    @property
    def info(self) -> EngineInfo: ...

    @property
    def stats(self) -> Stats: ...

    @property
    def restarts(self) -> int: ...


class EngineMetrics(MetricsRegistry):
    """Counts for one engine under one model's name. Told of requests as an Observer, of steps by `stepped`."""

    def __init__(
        self,
        llm: StatsSource,
        model_name: str,
        *,
        alias: str | None = None,
        engine: int = 0,
        more: Sequence[MetricFamily] = (),
    ) -> None:
        """llm: whose gauges are read at each scrape. model_name: the label; what answers say. alias: a prefix (`vllm`)
        under which the metrics that vLLM has are told once more. engine: the other label. more: families that whoever
        makes this counts.
        """
        super().__init__((*FAMILIES, *more), model_name, llm.info.context, alias, engine)
        self.llm = llm
        self._under_way: dict[InFlightRequest, _Progress] = {}
        self._before, self._restarts, self._gone = Stats(), 0, False
        self._achieved = _Achieved()
        self._prepare()

    def follow(self, llm: StatsSource) -> None:
        """Count another engine from now on, which has taken the place of the one before."""
        self.llm, self._before, self._restarts, self._gone = llm, Stats(), llm.restarts, False

    def leave(self) -> None:
        """The engine has gone: it holds nothing until another takes its place."""
        self._gone = True

    def _prepare(self) -> None:
        """Series whose labels are known appear at once, at 0; what every token touches is looked up once."""
        self._between = self._one("inter_token_latency_seconds")
        self._gaps: dict[int, int] = {}  # nanoseconds between two tokens of a choice: how often, and not yet told
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

    # -- requests: an Observer -----------------------------------------------------------------------------------------

    def refused(self, live: InFlightRequest, error: ApiError) -> None:
        """Count it by the error's code, which is one of ours."""
        self._one("admission_rejected", error.code or "other").inc()

    def arrived(self, live: InFlightRequest) -> None:
        """Begin to count it."""
        self._under_way[live] = _Progress(None, {}, {})

    def event(self, live: InFlightRequest, event: Event) -> None:
        """Count a token, an end, or both."""
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
        """Count the gaps between tokens. Those of a step's tokens are mostly equal, and are counted together: one by
        one they would take as long as all else that is counted of a token.
        """
        for gap, count in self._gaps.items():
            observe_often(self._between, gap * NANOSECONDS, count)
        self._gaps.clear()

    def _first_token(self, live: InFlightRequest, progress: _Progress, event: Event) -> None:
        progress.first[event.choice] = event.at
        if progress.timing is not None:
            return  # another choice has told of the prompt
        self._one("time_to_first_token_seconds").observe((event.at - live.spec.arrived) * NANOSECONDS)
        self._prompt(live, progress, event)

    def _only_prompt(self, live: InFlightRequest, progress: _Progress, event: Event) -> None:
        """Count the prompt of a request that ends without a token."""
        progress.last[event.choice] = event.at
        self._prompt(live, progress, event)

    def _prompt(self, live: InFlightRequest, progress: _Progress, event: Event) -> None:
        progress.timing = event.timing
        self._one("prompt_tokens").inc(live.prompt_tokens)
        if live.spec.params.prompt_logprobs is None:  # else every position had to run: nothing was searched for
            self._one("prefix_cache_queries").inc(live.prompt_tokens)
            self._one("prefix_cache_hits").inc(live.cached)

    def _embedded(self, live: InFlightRequest, event: Event) -> None:
        """A text became a vector: there are no tokens to wait for, and what it took is what it waited and ran."""
        timing = event.timing
        self._one("prompt_tokens").inc(live.prompt_tokens)
        self._one("e2e_request_latency_seconds").observe((event.at - live.spec.arrived) * NANOSECONDS)
        if timing is not None and timing.scheduled is not None:
            self._one("request_queue_time_seconds").observe((timing.scheduled - timing.arrived) * NANOSECONDS)
            self._one("request_inference_time_seconds").observe((event.at - timing.scheduled) * NANOSECONDS)

    def _finished(self, progress: _Progress, event: Event) -> None:
        """A choice has ended."""
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
        """Count how long it took, or where it was given up."""
        progress = self._under_way.pop(live)
        missing = live.spec.params.n - len(live.finishes)
        if isinstance(error, ValueError):
            return  # it could not run, and did not
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
        """Observe the parts of a request's time, if its prompt was computed."""
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
        """Count a step."""
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
        """Count what the engine has done between two steps."""
        self._tokens.inc(now.output_tokens - before.output_tokens)
        if now.preemptions != before.preemptions:
            self._one("num_preemptions").inc(now.preemptions - before.preemptions)
        if now.drafts != before.drafts:
            self._one("spec_decode_num_drafts").inc(now.drafts - before.drafts)
            self._one("spec_decode_num_draft_tokens").inc(now.draft_tokens - before.draft_tokens)
            self._one("spec_decode_num_accepted_tokens").inc(now.accepted_tokens - before.accepted_tokens)
            told = before.accepted_at or (0,) * len(now.accepted_at)
            for place, (count, known) in enumerate(zip(now.accepted_at, told, strict=True)):
                self._one("spec_decode_num_accepted_tokens_per_pos", str(place)).inc(count - known)
        grammars = now.grammars - before.grammars
        for _ in range(grammars):
            self._one("grammar_compile_seconds").observe((now.grammar_seconds - before.grammar_seconds) / grammars)

    def transferred(self, transferred: Transferred) -> None:
        """Count a prompt whose keys and values were asked of another engine."""
        if transferred.reason:
            self._one("kv_transfer_failures").inc()
            return
        self._one("kv_transfers").inc()
        self._one("kv_transfer_bytes").inc(transferred.nbytes)
        self._one("kv_transfer_seconds").observe(transferred.seconds)
        if transferred.predicted is not None:
            self._one("kv_transfer_predicted_seconds").observe(transferred.predicted)

    # -- what Prometheus reads -----------------------------------------------------------------------------------------

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
    """What `count` calls of Histogram.observe(value) do. prometheus_client has no public way to do them at once."""
    histogram._sum.inc(value * count)
    histogram._buckets[bisect_left(histogram._upper_bounds, value)].inc(count)


def phase_of(report: StepReport) -> str:
    """What a step ran: prompts, single positions (a token each), or both."""
    if report.decodes_only:
        return "decode"
    return "mixed" if min(item[3] for item in report.items) == 1 else "prefill"


def stage_of(live: InFlightRequest) -> str:
    """How far a request has come."""
    if live.tokens:
        return "decode"
    return "prefill" if live.begun else "queue"


class _Sums(NamedTuple):
    second: int
    busy: float
    flops: float
    nbytes: float


class _Achieved:
    """FLOPs and bytes of the steps of the last seconds, over the time that those steps took."""

    def __init__(self) -> None:
        self._seconds: deque[_Sums] = deque(maxlen=_WINDOW + 1)

    def add(self, at: int, busy: float, flops: float, nbytes: float) -> None:
        """A step that ended `at` nanoseconds."""
        second = at // 1_000_000_000
        if self._seconds and self._seconds[-1].second == second:
            _, a, b, c = self._seconds.pop()
            busy, flops, nbytes = busy + a, flops + b, nbytes + c
        self._seconds.append(_Sums(second, busy, flops, nbytes))

    def rates(self, now: int) -> tuple[float, float] | None:
        """FLOP/s and bytes/s; 0 when nothing ran, None before anything did."""
        if not self._seconds:
            return None
        recent = [sums for sums in self._seconds if sums.second > now // 1_000_000_000 - _WINDOW]
        busy = sum(sums.busy for sums in recent)
        if not busy:
            return 0.0, 0.0
        return sum(sums.flops for sums in recent) / busy, sum(sums.nbytes for sums in recent) / busy
