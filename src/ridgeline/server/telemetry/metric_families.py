"""The definitions of the server's metrics: names, kinds, labels and buckets, which a test freezes for operators.

If vLLM has the same metric (`shared`), the suffix, labels and buckets are vLLM's, so that a dashboard for vLLM needs
only another prefix (vllm/v1/metrics/loggers.py and buckets.py). No label holds text that a user wrote.
"""

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

    name: str
    kind: Kind
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


FAMILIES = (
    MetricFamily("num_requests_running", "gauge", "Requests that are running.", shared=True),
    MetricFamily("num_requests_waiting", "gauge", "Requests that are waiting for their first step.", shared=True),
    MetricFamily("kv_cache_usage_perc", "gauge", "Fraction of the KV pages in use, from 0 to 1.", shared=True),
    MetricFamily(
        "cache_config_info",
        "gauge",
        "Size and number of the KV pages, as labels; always 1.",
        ("block_size", "num_gpu_blocks"),
        shared=True,
    ),
    MetricFamily("num_preemptions", "counter", "Requests that were preempted, to be recomputed.", shared=True),
    MetricFamily("prompt_tokens", "counter", "Prompt tokens of requests that produced their first token.", shared=True),
    MetricFamily("generation_tokens", "counter", "Tokens that were generated.", shared=True),
    MetricFamily(
        "prefix_cache_queries", "counter", "Prompt tokens that were looked up in the prefix cache.", shared=True
    ),
    MetricFamily("prefix_cache_hits", "counter", "Prompt tokens that were found in the prefix cache.", shared=True),
    MetricFamily(
        "request_success", "counter", "Choices that finished, by finish reason.", ("finished_reason",), shared=True
    ),
    MetricFamily(
        "spec_decode_num_drafts", "counter", "Times that draft tokens of a request were verified.", shared=True
    ),
    MetricFamily("spec_decode_num_draft_tokens", "counter", "Draft tokens that were verified.", shared=True),
    MetricFamily("spec_decode_num_accepted_tokens", "counter", "Draft tokens that were accepted.", shared=True),
    MetricFamily(
        *(
            "spec_decode_num_accepted_tokens_per_pos",
            "counter",
            "Accepted draft tokens, by position in the draft, from 0.",
        ),
        *(("position",), (), True),
    ),
    MetricFamily(
        "time_to_first_token_seconds", "histogram", "Seconds from arrival to first token.", (), _FIRST_TOKEN, True
    ),
    MetricFamily(
        "inter_token_latency_seconds",
        "histogram",
        "Seconds between consecutive tokens of a choice.",
        (),
        _BETWEEN,
        True,
    ),
    MetricFamily(
        *("request_time_per_output_token_seconds", "histogram", "Seconds per token of a choice, without the first."),
        *((), _BETWEEN, True),
    ),
    MetricFamily("e2e_request_latency_seconds", "histogram", "Seconds from arrival to last token.", (), _LATENCY, True),
    MetricFamily(
        "request_queue_time_seconds",
        "histogram",
        "Seconds in the engine's queue before the first step.",
        (),
        _LATENCY,
        True,
    ),
    MetricFamily(
        "request_prefill_time_seconds", "histogram", "Seconds from first step to first token.", (), _LATENCY, True
    ),
    MetricFamily(
        "request_decode_time_seconds", "histogram", "Seconds from first token to last token.", (), _LATENCY, True
    ),
    MetricFamily(
        "request_inference_time_seconds", "histogram", "Seconds from first step to last token.", (), _LATENCY, True
    ),
    MetricFamily("request_prompt_tokens", "histogram", "Tokens per prompt.", (), None, True),
    MetricFamily("request_generation_tokens", "histogram", "Generated tokens per choice.", (), None, True),
    MetricFamily(
        "request_max_num_generation_tokens",
        "histogram",
        "Generated tokens of a request's longest choice.",
        (),
        None,
        True,
    ),
    MetricFamily("request_params_n", "histogram", "Choices requested (n).", (), (1, 2, 5, 10, 20), True),
    MetricFamily("request_params_max_tokens", "histogram", "Maximum tokens requested (max_tokens).", (), None, True),
    MetricFamily("iteration_tokens_total", "histogram", "Tokens computed per step.", (), _ITERATION, True),
    MetricFamily("admission_rejected", "counter", "Requests rejected before the engine, by reason.", ("reason",)),
    MetricFamily("request_errors", "counter", "HTTP requests that got an error, by error code.", ("code",)),
    MetricFamily("aborted", "counter", "Requests aborted before their end, by phase.", ("phase",)),
    MetricFamily("step_seconds", "histogram", "Measured seconds per step.", ("phase",), _STEP),
    MetricFamily("step_predicted_seconds", "histogram", "Predicted seconds of the same steps.", ("phase",), _STEP),
    MetricFamily("achieved_flops", "gauge", "FLOP/s of the steps of the last 10 seconds, idle time excluded."),
    MetricFamily("achieved_bytes", "gauge", "Bytes/s that those steps had to read and write."),
    MetricFamily("kv_blocks", "gauge", "KV pages: free, cached (reusable prefixes) or used.", ("state",)),
    MetricFamily("grammar_compile_seconds", "histogram", "Seconds to compile a grammar in the engine.", (), _STEP),
    MetricFamily("grammar_cache_bytes", "gauge", "Maximum bytes of the compiled grammars in the engine's cache."),
    MetricFamily("loop_lag_seconds", "histogram", "Seconds by which the server's event loop woke up late.", (), _STEP),
    MetricFamily("ignored_fields", "counter", "Request fields that were accepted but have no effect."),
    MetricFamily("kv_transfers", "counter", "Prompts whose KV pages came from a prefill engine."),
    MetricFamily(
        "kv_transfer_failures", "counter", "Prompts whose KV pages did not come, so that this engine computed them."
    ),
    MetricFamily("kv_transfer_bytes", "counter", "Bytes of KV pages received."),
    MetricFamily("kv_transfer_seconds", "histogram", "Seconds to transfer the KV pages of a prompt.", (), _STEP),
    MetricFamily("kv_transfer_predicted_seconds", "histogram", "Predicted seconds of the same transfers.", (), _STEP),
    MetricFamily("engine_restarts", "counter", "Times that the engine's process was restarted."),
    MetricFamily("build_info", "gauge", "Versions, as labels; always 1.", ("version", "torch", "python")),
)

REPLICA_STATES = ("ready", "restarting", "draining", "starting")

FLEET_FAMILIES = (
    MetricFamily("replicas", "gauge", "Replicas, by state.", ("state",)),
    MetricFamily(
        "requests_retried", "counter", "Requests that a replica lost before their first token and that another one ran."
    ),
)
"""The metrics of a fleet of replicas, exported under the label of the first replica."""

HTTP_FAMILIES = (
    MetricFamily("http_requests", "counter", "HTTP requests, by route.", ("handler", "method", "status"), shared=True),
    MetricFamily(
        "http_request_duration_seconds",
        "histogram",
        "Seconds from the request to the last byte of the response.",
        ("handler", "method"),
        _HTTP,
        True,
    ),
)

IMAGE_PHASES = ("encode", "denoise", "decode")
IMAGE_REASONS = ("invalid_value", "queue_full", "queue_pictures", "shutting_down")  # the codes in ImageQueue

_SAME = {family.name: family for family in FAMILIES}
_DENOISE_STEP = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)

IMAGE_FAMILIES = (
    *(_SAME[name] for name in ("num_requests_running", "num_requests_waiting")),
    MetricFamily("images", "counter", "Images generated."),
    MetricFamily("clips", "counter", "Videos generated."),
    MetricFamily(
        "request_success", "counter", "Requests that finished, by finish reason.", ("finished_reason",), shared=True
    ),
    MetricFamily("e2e_request_latency_seconds", "histogram", "Seconds from arrival to last image.", (), _LATENCY, True),
    MetricFamily("request_queue_time_seconds", "histogram", "Seconds from arrival to first step.", (), _LATENCY, True),
    *(_SAME[name] for name in ("admission_rejected", "request_errors", "aborted")),
    MetricFamily("step_seconds", "histogram", "Measured seconds per step.", ("phase",), _DENOISE_STEP),
    MetricFamily(
        "step_predicted_seconds", "histogram", "Predicted seconds of the same steps.", ("phase",), _DENOISE_STEP
    ),
    *(_SAME[name] for name in ("loop_lag_seconds", "ignored_fields", "build_info")),
)
"""The metrics of pipelines; a step is the encoding of prompts, a denoising step, or the decoding of an image."""
