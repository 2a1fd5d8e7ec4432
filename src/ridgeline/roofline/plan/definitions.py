"""What the words of a plan mean."""

from collections.abc import Mapping
from types import MappingProxyType

DEFINITIONS: Mapping[str, str] = MappingProxyType(
    {
        "TTFT": "time to first token: from asking until prefill has emitted one",
        "ITL": "inter-token latency: one decode step at the running context, input + output / 2",
        "TPOT": "time per output token after the first on average, others' prefills in between included",
        "floor": "of a whole step, max(FLOPs / peak, weights and KV / bandwidth): nothing can beat it",
        "bound": "each operation's own max, activations included, summed: perfect kernels",
        "expected": "with the efficiency that kernels of each class have been measured to reach",
        "units": "1k tokens = 1,024; GiB = 2^30 and GB = 10^9 bytes; TFLOP = 10^12, peaks are dense",
    }
)
