"""What a step pays for sampling: milliseconds of one `sample` call over a vocabulary the size of Qwen3's.

    python benchmarks/sampler.py [--rows 1 16 64] [--vocab 151936] [--threads N] [--repeats 15] [--json]

Peaked logits are normal with a standard deviation of 6, near what a trained model gives; flat ones have 0.5, as a model
with random weights gives, of which top-p 0.95 keeps 130,000 tokens. The ceiling is printed first: no sampler is faster
than reading the logits once.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from ridgeline.backends import backend_of
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.sampling import History, SampleRow, sampler_of
from ridgeline.engine.sampling.sampler import Sampler

PEAKED, FLAT = 6.0, 0.5

# name -> (standard deviation of the logits, parameters)
CASES: dict[str, tuple[float, dict[str, Any]]] = {
    "greedy": (PEAKED, {"temperature": 0}),
    "temperature": (PEAKED, {"temperature": 0.8}),
    "top-p 0.95, peaked": (PEAKED, {"top_p": 0.95}),
    "top-p 0.95, flat": (FLAT, {"top_p": 0.95}),
    "top-k 20": (PEAKED, {"top_k": 20}),
    "T 0.6, top-k 20, top-p 0.95": (PEAKED, {"temperature": 0.6, "top_k": 20, "top_p": 0.95}),
    "min-p 0.05": (PEAKED, {"min_p": 0.05}),
    "all penalties": (PEAKED, {"repetition_penalty": 1.1, "frequency_penalty": 0.2, "presence_penalty": 0.2}),
    "temperature, 5 logprobs": (PEAKED, {"temperature": 0.8, "logprobs": 5}),
}


def milliseconds(call: Callable[[int], object], repeats: int) -> dict[str, float]:
    """Median and quartiles of the time of `call(repeat)`, after two calls that do not count."""
    times = []
    for repeat in range(repeats + 2):
        start = time.perf_counter()
        call(repeat)
        times.append((time.perf_counter() - start) * 1e3)
    low, median, high = statistics.quantiles(times[2:], n=4)
    return {"median_ms": round(median, 3), "q1_ms": round(low, 3), "q3_ms": round(high, 3)}


def measure(sampler: Sampler, name: str, row_count: int, vocab: int, repeats: int) -> dict[str, Any]:
    """One line of the table: a case at a batch size; each repeat samples another position."""
    std, fields = CASES[name]
    logits_RV = torch.randn(row_count, vocab, generator=torch.Generator().manual_seed(0)) * std
    params = SamplingParams(**fields)
    # A prompt of 1,000 distinct tokens and 500 output ones: what a chat has after a few turns.
    history = History(range(0, vocab, vocab // 1000), range(500)) if params.uses_history else None

    def step(repeat: int) -> None:
        rows = [SampleRow(params, seed=i, position=repeat, history=history) for i in range(row_count)]
        sampler.sample(logits_RV, rows)

    return {"case": name, "rows": row_count, **milliseconds(step, repeats)}


def read_once(row_count: int, vocab: int, repeats: int) -> dict[str, Any]:
    """The ceiling: the largest logit of each row, one pass over memory."""
    logits = torch.randn(row_count, vocab).numpy()
    return {"case": "(read once)", "rows": row_count, **milliseconds(lambda _: logits.max(axis=1), repeats)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--vocab", type=int, default=151_936)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    device = torch.device("cpu")
    backend = backend_of(device)
    backend.share_threads()
    sampler = sampler_of(backend, device)
    if not args.json:
        print(f"{args.vocab} tokens, {args.threads} threads, median of {args.repeats} [quartiles], ms")
    for row_count in args.rows:
        lines = [read_once(row_count, args.vocab, args.repeats)]
        lines += [measure(sampler, name, row_count, args.vocab, args.repeats) for name in CASES]
        for line in lines:
            spread = f"[{line['q1_ms']:.2f} .. {line['q3_ms']:.2f}]"
            text = f"{line['rows']:3d} rows  {line['case']:30s}{line['median_ms']:9.2f}  {spread}"
            print(json.dumps(line | {"threads": args.threads}) if args.json else text, flush=True)


if __name__ == "__main__":
    main()
