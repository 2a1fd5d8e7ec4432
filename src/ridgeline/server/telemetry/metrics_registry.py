"""The base class of Prometheus metrics: a registry, the HTTP metrics of every server, and the /metrics route."""

import asyncio
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from typing_extensions import override

from ridgeline.server.http.exchanges import Exchange
from ridgeline.server.telemetry.metric_families import HTTP_FAMILIES, MODEL_LABELS, PREFIX, MetricFamily
from ridgeline.util.version import __version__

_KINDS = {"gauge": Gauge, "counter": Counter, "histogram": Histogram}
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
_LAG_SECONDS = 1.0


class MetricsRegistry:
    """The metrics of one model in a registry of their own, including those that every server has."""

    def __init__(
        self,
        families: Sequence[MetricFamily],
        model_name: str,
        context: int = 0,
        alias: str | None = None,
        engine: int = 0,
    ) -> None:
        """Register the metrics of a model and of HTTP at 0.

        Args:
            families: The metrics of the model; HTTP metrics are added to them.
            model_name: The value of the label `model_name`.
            context: The positions of the model, which bound the buckets of length histograms.
            alias: The prefix (`vllm`) under which metrics shared with vLLM are exported a second time; None for none.
            engine: The value of the label `engine`, which distinguishes replicas.
        """
        self.model_name, self.registry, self._label = model_name, CollectorRegistry(), str(engine)
        self._engine: dict[str, Callable[..., Any]] = {}
        self._http: dict[str, Callable[..., Any]] = {}
        for made, each, prefix, common in (
            (self._engine, families, PREFIX, MODEL_LABELS),
            (self._http, HTTP_FAMILIES, "", ()),
        ):
            made.update((family.name, _series(self.registry, family, prefix, common, context)) for family in each)
        shared = {PREFIX + family.name for family in families if family.shared}
        self._exposed = _Exposed(self.registry, shared, None if alias is None else f"{alias}:")
        self.others: list[MetricsRegistry] = []
        """The metrics of other models or engines of the server, which are exported together with these."""
        self._one("build_info", __version__, version("torch"), platform.python_version()).set(1)

    def _one(self, name: str, *labels: str) -> Any:
        """Return the time series of a metric with these label values."""
        return self._of(self.model_name, name, *labels)

    def _of(self, model_name: str, name: str, *labels: str) -> Any:
        """Return the time series of a metric for one of several models."""
        return self._engine[name](model_name, self._label, *labels)

    def exchanged(self, exchange: Exchange) -> None:
        """Record a finished HTTP request under the path pattern of its route, never under the client's path."""
        method = exchange.method if exchange.method in _METHODS else "other"
        self.answered(exchange.handler or "none", method, exchange.status, exchange.seconds)
        if exchange.status >= 400:
            self.failed(exchange.code)
        if exchange.ignored:
            self.ignored(exchange.ignored)

    def ignored(self, fields: int) -> None:
        """Add to the number of request fields that the server ignored."""
        self._one("ignored_fields").inc(fields)

    def failed(self, code: str | None) -> None:
        """Record an HTTP error response under the code of its ApiError, which never has text of a client."""
        self._one("request_errors", code or "other").inc()

    def lagged(self, seconds: float) -> None:
        """Record how many seconds late the event loop woke up."""
        self._one("loop_lag_seconds").observe(seconds)

    def answered(self, handler: str, method: str, status: int, seconds: float) -> None:
        """Record a finished HTTP request and its duration; `handler` is the path pattern of its route."""
        self._http["http_requests"](handler, method, f"{status // 100}xx").inc()
        self._http["http_request_duration_seconds"](handler, method).observe(seconds)

    async def watch_loop(self) -> None:
        """Record the delay of the event loop once a second, for ever."""
        while True:
            due = time.perf_counter() + _LAG_SECONDS
            await asyncio.sleep(_LAG_SECONDS)
            self.lagged(max(0.0, time.perf_counter() - due))

    # -- the scrape ----------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Update the metrics that are only computed at a scrape."""

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format 0.0.4."""
        parts = (self, *self.others)
        for part in parts:
            part.refresh()
        return generate_latest(_Merged([part._exposed for part in parts]))

    def route(self) -> Route:
        """Return the route /metrics, from which Prometheus scrapes."""
        return Route("/metrics", self._scraped, methods=["GET"])

    async def _scraped(self, request: Request) -> Response:
        return Response(self.exposition(), media_type=CONTENT_TYPE_PLAIN_0_0_4)


def _series(
    registry: CollectorRegistry, family: MetricFamily, prefix: str, common: tuple[str, ...], context: int
) -> Callable[..., Any]:
    edges = {"buckets": family.edges(context)} if family.kind == "histogram" else {}
    metric: Any = _KINDS[family.kind](
        prefix + family.name, family.help, common + family.labels, registry=registry, **edges
    )
    return metric.labels  # type: ignore[no-any-return]


class _Exposed(Collector):
    """A collector of a registry that omits creation timestamps and adds shared metrics under vLLM's prefix."""

    def __init__(self, registry: CollectorRegistry, shared: set[str], alias: str | None) -> None:
        """Wrap a registry for export.

        Args:
            registry: The registry.
            shared: The names of the metrics that vLLM has too.
            alias: The prefix for their second export; None for none.
        """
        self._registry, self._shared, self._alias = registry, shared, alias

    @override
    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric
            if self._alias is not None and metric.name in self._shared:
                yield _renamed(metric, self._alias)


class _Merged(Collector):
    """A collector that merges several others; a metric that more than one has is exported once, with all samples."""

    def __init__(self, parts: Sequence[Collector]) -> None:
        self._parts = parts

    @override
    def collect(self) -> Iterator[Metric]:
        merged: dict[str, Metric] = {}
        for metric in (metric for part in self._parts for metric in part.collect()):
            if (known := merged.setdefault(metric.name, metric)) is not metric:
                known.samples = [*known.samples, *metric.samples]
        return iter(merged.values())


def _renamed(metric: Metric, prefix: str) -> Metric:
    copy = Metric(metric.name.replace(PREFIX, prefix, 1), metric.documentation, metric.type)
    copy.samples = [Sample(s.name.replace(PREFIX, prefix, 1), *s[1:]) for s in metric.samples]
    return copy
