"""The throughput log: a line every ten seconds, nearly in the wording of vLLM, unless the engine is idle.

vLLM writes "GPU KV cache" even if the cache is in the memory of a CPU; these lines write "KV cache" on every device.
"""

import logging
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from ridgeline.engine.events import Event, Stats
from ridgeline.engine.worker.engine_messages import EngineInfo, StepReport
from ridgeline.engine.worker.priced_steps import PricedSteps
from ridgeline.price.interval_text import factors_between
from ridgeline.server.errors import ApiError
from ridgeline.server.in_flight import InFlightRequest
from ridgeline.server.service import EngineClient
from ridgeline.util.document.humanize import gib, say_gib

_RECENT = 1000  # requests in the hit rate
logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Interval:
    """The token counts and step times since the last log line."""

    prompt: int = 0
    output: int = 0
    priced: PricedSteps = field(default_factory=PricedSteps)


class ThroughputLog:
    """A throughput log; an `Observer` of requests, which also gets each step (`stepped`). `line` ends an interval."""

    def __init__(self, llm: EngineClient, engine: int = 0, *, priced: bool = False) -> None:
        """Start the first interval of a throughput log.

        Args:
            llm: The engine.
            engine: The number of the engine in its lines.
            priced: Whether no model runs and steps take their predicted time, so that calibration makes no sense.
        """
        self.llm, self._engine, self._priced = llm, engine, priced
        self._interval, self._before = _Interval(), Stats()
        self._found: deque[tuple[int, int]] = deque(maxlen=_RECENT)  # per request: prompt tokens, cached ones
        self._was_idle = True

    def follow(self, llm: EngineClient) -> None:
        """Continue with another engine, which has replaced the previous one."""
        self.llm, self._before = llm, Stats()

    def begin(self) -> None:
        """Log the capacity of the KV cache and the source of predictions."""
        info = self.llm.info
        if info.held:
            logger.info(f"KV cache: {info.held} ({say_gib(gib(info.kv_bytes))})")
            logger.info(f"Maximum concurrency for {info.context:,} tokens per request: {info.concurrency:.2f}x")
        if info.unshared:
            logger.info(f"The prefix cache is off: {info.unshared}")
        if info.device is not None:
            missing = info.stale_calibration or "ridgeline calibrate"
            how = "" if info.calibrated or self._priced else f" (not calibrated: {missing})"
            logger.info(f"Predicted step times are those of {info.device}{how}{_expected(info)}")

    def refused(self, live: InFlightRequest, error: ApiError) -> None:
        """Count nothing for a rejected request, because the engine did no work for it."""

    def arrived(self, live: InFlightRequest) -> None:
        """Do nothing: a new request has no computed tokens to count."""

    def event(self, live: InFlightRequest, event: Event) -> None:
        """Record the prompt of a request with its first token."""
        if live.tokens == 1 and event.token is not None:
            self._interval.prompt += live.prompt_tokens
            self._found.append((live.prompt_tokens, live.cached))

    def ended(self, live: InFlightRequest, error: BaseException | None) -> None:
        """Count nothing at the end of a request, because its tokens are counted already."""

    def stepped(self, report: StepReport, stats: Stats) -> None:
        """Record the tokens of a step, and its measured and predicted time."""
        self._interval.output += stats.output_tokens - stats.base(self._before).output_tokens
        self._before = stats
        self._interval.priced.add(report.seconds, report.predicted, report.floor)

    def line(self, seconds: float) -> dict[str, Any] | None:
        """End the interval and return its rates and cache shares; None if this one and the one before were idle."""
        interval, self._interval = self._interval, _Interval()
        idle = not (interval.prompt or interval.output)
        self._was_idle, silent = idle, idle and self._was_idle
        if silent:
            return None
        stats = self.llm.stats
        prompt_tokens, found = (sum(counts) for counts in zip(*self._found, strict=True)) if self._found else (0, 0)
        return {
            "prompt_throughput": interval.prompt / seconds,
            "generation_throughput": interval.output / seconds,
            "running": stats.running,
            "waiting": stats.waiting,
            "kv_cache_usage": stats.held_pages / max(1, self.llm.info.pages),
            "prefix_cache_hit_rate": found / prompt_tokens if prompt_tokens else 0.0,
            "predicted_share": interval.priced.share,
        }

    def say(self, seconds: float) -> None:
        """Log the line of the interval, unless the engine was idle in it and in the one before.

        Formatters find the figures in the `fields` of the record.
        """
        fields = self.line(seconds)
        if fields is not None:
            logger.info(worded(fields, self._engine), extra={"fields": {"engine": self._engine, **fields}})


def _expected(info: EngineInfo) -> str:
    """Return between which factors on predicted times most measured times are expected, by phase of a step."""
    factors = (f"{phase} {factors_between(low, high)}" for phase, (low, high) in info.predicted_intervals.items())
    return f"; 8 of 10 measured steps are expected at: {', '.join(factors)}" if info.predicted_intervals else ""


def worded(fields: dict[str, Any], engine: int = 0) -> str:
    """Return a throughput line in the wording of vLLM, with the predicted share of the step time."""
    line = (
        f"Engine {engine:03d}: Avg prompt throughput: {fields['prompt_throughput']:.1f} tokens/s, "
        f"Avg generation throughput: {fields['generation_throughput']:.1f} tokens/s, "
        f"Running: {fields['running']} reqs, Waiting: {fields['waiting']} reqs, "
        f"KV cache usage: {fields['kv_cache_usage']:.1%}, "
        f"Prefix cache hit rate: {fields['prefix_cache_hit_rate']:.1%}"
    )
    share = fields["predicted_share"]
    return line if share is None else f"{line}, Predicted step time: {share:.0%} of measured"
