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
        "expected": "with each kernel class's efficiency, measured or the default of its kind; --json: sources",
        "FLOP/B": "FLOP a byte: arithmetic of matrices over weights and KV moved, once a step",
        "ridge": "the FLOP/B where both take equally long, in the step's formats: memory is the limit below",
        "gain": "total tokens a second of a batch over those of batch 1, by the bound",
        "units": "1k tokens = 1,024; GiB = 2^30 and GB = 10^9 bytes; TFLOP = 10^12, peaks are dense",
    }
)
