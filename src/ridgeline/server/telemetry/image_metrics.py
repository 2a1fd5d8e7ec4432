"""The Prometheus metrics of image and video pipelines: requests, and measured and predicted times of work units."""

from collections.abc import Mapping
from time import perf_counter_ns

from typing_extensions import override

from ridgeline.engine.request import NANOSECONDS
from ridgeline.price.error_interval import ErrorInterval
from ridgeline.server.errors import ApiError
from ridgeline.server.images.diffusion_engine import WorkUnitReport
from ridgeline.server.images.image_service import InFlightImageRequest
from ridgeline.server.telemetry.metric_families import IMAGE_FAMILIES, IMAGE_PHASES, IMAGE_REASONS
from ridgeline.server.telemetry.metrics_registry import MetricsRegistry


class ImageMetrics(MetricsRegistry):
    """The metrics of a server's pipelines; an `ImageObserver` of their requests."""

    def __init__(
        self, live: Mapping[str, InFlightImageRequest], models: Mapping[str, ErrorInterval], alias: str | None = None
    ) -> None:
        """Register the metrics of image and video pipelines at 0.

        Args:
            live: The requests in progress, read at each scrape.
            models: The intervals of predicted times of the pipelines, by their names in responses.
            alias: The prefix for vLLM's metric names; None for none.
        """
        super().__init__(IMAGE_FAMILIES, next(iter(models)), alias=alias)
        self._live, self._models = live, tuple(models)
        for name in ("ignored_fields", "loop_lag_seconds"):
            self._one(name)
        for model, interval in models.items():
            self._prepare(model, interval)

    def _prepare(self, model: str, interval: ErrorInterval) -> None:
        """Create the time series with known labels at 0, so that they are exported from the start."""
        for family in ("images", "clips", "e2e_request_latency_seconds", "request_queue_time_seconds"):
            self._of(model, family)
        for finish in ("stop", "abort", "error"):
            self._of(model, "request_success", finish)
        for reason in IMAGE_REASONS:
            self._of(model, "admission_rejected", reason)
        for phase in IMAGE_PHASES:
            self._of(model, "step_seconds", phase)
            self._of(model, "step_predicted_seconds", phase)
            self._of(model, "predicted_interval_ratio", phase, "low").set(interval.low)
            self._of(model, "predicted_interval_ratio", phase, "high").set(interval.high)
        for stage in ("queue", *IMAGE_PHASES):
            self._of(model, "aborted", stage)

    def refused(self, live: InFlightImageRequest, error: ApiError) -> None:
        """Record a rejected request under the code of its error, which never has text of a client."""
        self._of(live.model, "admission_rejected", error.code).inc()

    def on_work_unit(self, live: InFlightImageRequest, report: WorkUnitReport) -> None:
        """Record the times of a finished work unit, and count the image or video that it completed."""
        if live.phase == "queue":
            waited = (report.started - live.arrived) * NANOSECONDS
            self._of(live.model, "request_queue_time_seconds").observe(max(0.0, waited))
        self._of(live.model, "step_seconds", report.stage).observe(report.seconds)
        self._of(live.model, "step_predicted_seconds", report.stage).observe(report.predicted)
        if report.image is not None:
            self._of(live.model, "clips" if live.is_video else "images").inc()

    def ended(self, live: InFlightImageRequest, error: BaseException | None) -> None:
        """Count a request that ended as successful, failed or aborted, and record its duration or its stage.

        The duration is recorded for a successful request, and the stage for an aborted one.
        """
        if error is None:
            seconds = (perf_counter_ns() - live.arrived) * NANOSECONDS
            self._of(live.model, "e2e_request_latency_seconds").observe(seconds)
            self._of(live.model, "request_success", "stop").inc()
        elif not isinstance(error, ApiError) and isinstance(error, Exception):
            self._of(live.model, "request_success", "error").inc()
        else:
            self._of(live.model, "request_success", "abort").inc()
            self._of(live.model, "aborted", live.phase).inc()

    @override
    def refresh(self) -> None:
        for model in self._models:
            own = [live for live in self._live.values() if live.model == model]
            waiting = sum(live.phase == "queue" for live in own)
            self._of(model, "num_requests_waiting").set(waiting)
            self._of(model, "num_requests_running").set(len(own) - waiting)
