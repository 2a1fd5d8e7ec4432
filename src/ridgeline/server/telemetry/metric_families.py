"""The definitions of the server's metrics: names, kinds, labels and buckets, which a test freezes for operators.

If vLLM has the same metric (`shared`), the suffix, labels and buckets are vLLM's, so that a dashboard for vLLM needs
only another prefix (vllm/v1/metrics/loggers.py and buckets.py). No label holds text that a user wrote.
"""

from functools import partial
from typing import Literal, NamedTuple

PREFIX = "ridgeline:"
MODEL_LABELS = ("model_name", "engine")

PHASES = ("prefill", "decode", "mixed")
STAGES = ("queue", "prefill", "decode")
REASONS = ("queue_full", "queue_tokens", "shutting_down", "too_many_choices")  # the codes in admission.py
FINISHES = ("stop", "length", "abort", "error")

_LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
_BETWEEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_ITERATION = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_STEP = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_HTTP = (0.1, 0.5, 1)

Kind = Literal["gauge", "counter", "histogram"]


class MetricFamily(NamedTuple):
    """The definition of one Prometheus metric."""

    kind: Kind
    name: str
    help: str
    labels: tuple[str, ...] = ()
    """The labels besides `MODEL_LABELS`, which all but the HTTP metrics have."""
    buckets: tuple[float, ...] | None = ()
    """The upper bounds of the buckets; None for 1, 2, 5, 10, ... up to the model's context."""
    shared: bool = False
    """Whether vLLM has the metric under the same suffix, or the same name."""

    def edges(self, context: int) -> tuple[float, ...]:
        """Return the upper bounds of the buckets for a model with this context."""
        return lengths_up_to(context) if self.buckets is None else self.buckets


def lengths_up_to(most: int) -> tuple[float, ...]:
    """Return the bucket bounds 1, 2, 5, 10, 20, ... up to at most `most`."""
    return tuple(
        edge for exponent in range(len(str(most))) for edge in (m * 10**exponent for m in (1, 2, 5)) if edge <= most
    )


_gauge = partial(MetricFamily, "gauge")
_counter = partial(MetricFamily, "counter")
_histogram = partial(MetricFamily, "histogram")

_OF_VLLM = (
    _gauge("num_requests_running", "Requests that are running."),
    _gauge("num_requests_waiting", "Requests that are waiting for their first step."),
    _gauge("kv_cache_usage_perc", "Fraction of the KV pages in use, from 0 to 1."),
    _gauge(
        "cache_config_info", "Size and number of the KV pages, as labels; always 1.", ("block_size", "num_gpu_blocks")
    ),
    _counter("num_preemptions", "Requests that were preempted, to be recomputed."),
    _counter("prompt_tokens", "Prompt tokens of requests that produced their first token."),
    _counter("generation_tokens", "Tokens that were generated."),
    _counter("prefix_cache_queries", "Prompt tokens that were looked up in the prefix cache."),
    _counter("prefix_cache_hits", "Prompt tokens that were found in the prefix cache."),
    _counter("request_success", "Choices that finished, by finish reason.", ("finished_reason",)),
    _counter("spec_decode_num_drafts", "Times that draft tokens of a request were verified."),
    _counter("spec_decode_num_draft_tokens", "Draft tokens that were verified."),
    _counter("spec_decode_num_accepted_tokens", "Draft tokens that were accepted."),
    _counter(
        "spec_decode_num_accepted_tokens_per_pos",
        "Accepted draft tokens, by position in the draft, from 0.",
        ("position",),
    ),
    _histogram("time_to_first_token_seconds", "Seconds from arrival to first token.", buckets=_FIRST_TOKEN),
    _histogram("inter_token_latency_seconds", "Seconds between consecutive tokens of a choice.", buckets=_BETWEEN),
    _histogram(
        "request_time_per_output_token_seconds", "Seconds per token of a choice, without the first.", buckets=_BETWEEN
    ),
    _histogram("e2e_request_latency_seconds", "Seconds from arrival to last token.", buckets=_LATENCY),
    _histogram("request_queue_time_seconds", "Seconds in the engine's queue before the first step.", buckets=_LATENCY),
    _histogram("request_prefill_time_seconds", "Seconds from first step to first token.", buckets=_LATENCY),
    _histogram("request_decode_time_seconds", "Seconds from first token to last token.", buckets=_LATENCY),
    _histogram("request_inference_time_seconds", "Seconds from first step to last token.", buckets=_LATENCY),
    _histogram("request_prompt_tokens", "Tokens per prompt.", buckets=None),
    _histogram("request_generation_tokens", "Generated tokens per choice.", buckets=None),
    _histogram("request_max_num_generation_tokens", "Generated tokens of a request's longest choice.", buckets=None),
    _histogram("request_params_n", "Choices requested (n).", buckets=(1, 2, 5, 10, 20)),
    _histogram("request_params_max_tokens", "Maximum tokens requested (max_tokens).", buckets=None),
    _histogram("iteration_tokens_total", "Tokens computed per step.", buckets=_ITERATION),
)

FAMILIES = (
    *(family._replace(shared=True) for family in _OF_VLLM),
    _counter("admission_rejected", "Requests rejected before the engine, by reason.", ("reason",)),
    _counter("request_errors", "HTTP requests that got an error, by error code.", ("code",)),
    _counter("aborted", "Requests aborted before their end, by phase.", ("phase",)),
    _histogram("step_seconds", "Measured seconds per step.", ("phase",), buckets=_STEP),
    _histogram("step_predicted_seconds", "Predicted seconds of the same steps.", ("phase",), buckets=_STEP),
    _gauge(
        "predicted_interval_ratio",
        "Factors on predicted seconds of a step between which 8 of 10 measured steps lie: low and high.",
        ("phase", "bound"),
    ),
    _gauge("achieved_flops", "FLOP/s of the steps of the last 10 seconds, idle time excluded."),
    _gauge("achieved_bytes", "Bytes/s that those steps had to read and write."),
    _gauge("kv_blocks", "KV pages: free, cached (reusable prefixes) or used.", ("state",)),
    _histogram("grammar_compile_seconds", "Seconds to compile a grammar in the engine.", buckets=_STEP),
    _gauge("grammar_cache_bytes", "Maximum bytes of the compiled grammars in the engine's cache."),
    _histogram("loop_lag_seconds", "Seconds by which the server's event loop woke up late.", buckets=_STEP),
    _counter("ignored_fields", "Request fields that were accepted but have no effect."),
    _counter("kv_transfers", "Prompts whose KV pages came from a prefill engine."),
    _counter("kv_transfer_failures", "Prompts whose KV pages did not come, so that this engine computed them."),
    _counter("kv_transfer_bytes", "Bytes of KV pages received."),
    _histogram("kv_transfer_seconds", "Seconds to transfer the KV pages of a prompt.", buckets=_STEP),
    _histogram("kv_transfer_predicted_seconds", "Predicted seconds of the same transfers.", buckets=_STEP),
    _counter("engine_restarts", "Times that the engine's process was restarted."),
    _gauge("build_info", "Versions, as labels; always 1.", ("version", "torch", "python")),
)

REPLICA_STATES = ("ready", "restarting", "draining", "starting")

FLEET_FAMILIES = (
    _gauge("replicas", "Replicas, by state.", ("state",)),
    _counter("requests_retried", "Requests that a replica lost before their first token and that another one ran."),
)
"""The metrics of a fleet of replicas, exported under the label of the first replica."""

HTTP_FAMILIES = (
    _counter("http_requests", "HTTP requests, by route.", ("handler", "method", "status"), shared=True),
    _histogram(
        "http_request_duration_seconds",
        "Seconds from the request to the last byte of the response.",
        ("handler", "method"),
        buckets=_HTTP,
        shared=True,
    ),
)

IMAGE_PHASES = ("encode", "denoise", "decode")
IMAGE_REASONS = ("invalid_value", "queue_full", "queue_pictures", "shutting_down")  # the codes in ImageQueue

_SAME = {family.name: family for family in FAMILIES}
_DENOISE_STEP = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)

IMAGE_FAMILIES = (
    *(_SAME[name] for name in ("num_requests_running", "num_requests_waiting")),
    _counter("images", "Images generated."),
    _counter("clips", "Videos generated."),
    _counter("request_success", "Requests that finished, by finish reason.", ("finished_reason",), shared=True),
    _histogram("e2e_request_latency_seconds", "Seconds from arrival to last image.", buckets=_LATENCY, shared=True),
    _histogram("request_queue_time_seconds", "Seconds from arrival to first step.", buckets=_LATENCY, shared=True),
    *(_SAME[name] for name in ("admission_rejected", "request_errors", "aborted")),
    _histogram("step_seconds", "Measured seconds per step.", ("phase",), buckets=_DENOISE_STEP),
    _histogram("step_predicted_seconds", "Predicted seconds of the same steps.", ("phase",), buckets=_DENOISE_STEP),
    *(_SAME[name] for name in ("predicted_interval_ratio", "loop_lag_seconds", "ignored_fields", "build_info")),
)
"""The metrics of pipelines; a step is the encoding of prompts, a denoising step, or the decoding of an image."""
