"""Decode steps of `tales`, all overhead: the median of 200, alone and sixteen at once, on one thread.

Run it in turn with the versions to compare: `PYTHONPATH=OTHER/src python benchmarks/decode_steps.py`.
"""

import statistics
import time

import torch

from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.setup import load_engine


def main() -> None:
    """Print a line for each number of sequences."""
    torch.set_num_threads(1)
    engine = load_engine("tales", EngineSettings(kv_bytes=2**26, prefix_cache=False)).engine
    greedy = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
    for sequences in (1, 16):
        for _ in range(sequences):
            engine.add(GenerationRequest(list(range(5, 37)), greedy))
        engine.step()
        seconds = []
        while engine.has_work:
            start = time.perf_counter()
            engine.step()
            seconds.append(time.perf_counter() - start)
        print(f"{sequences} sequences: {statistics.median(seconds) * 1e3:.3f} ms a step")


if __name__ == "__main__":
    main()
