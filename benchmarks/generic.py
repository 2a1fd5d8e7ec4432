"""Compare the speed of one model built in two ways: by its family here, and by its class of transformers.

    python benchmarks/generic.py [--rounds 9] [--layers 28] [--threads 2]

A random Qwen3 of 0.6 B parameters in bf16 runs in both ways in one process, in turn; the order changes in each round.
A sample of decode is the median step of 24 of one sequence after a prompt of 512 tokens, a sample of prefill the step
of that prompt. Printed are the medians of both, the speed of the class in units of the speed of the family with the
quartiles of the rounds' ratios, and the ceiling: the bytes of a decode step at the bandwidth of this machine.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ridgeline  # noqa: F401  # first, because it sets how the threads of PyTorch wait

# isort: split
import torch

from ridgeline.backends.model_loader import prepare_on_cpu
from ridgeline.core.checkpoint.weight_loader import fill_dummy
from ridgeline.core.models.building import build_to_run
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.from_transformers.class_family import class_family
from ridgeline.core.models.registry import family_of
from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.engine.engine import Engine
from ridgeline.engine.engine_builder import build_engine
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.kv.page_count import kv_layout
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.runner import Runner
from ridgeline.engine.scheduler import Limits
from ridgeline.insight.calibrate.roofs import beyond_caches, memory_bandwidth, stated_caches, streams
from ridgeline.insight.calibrate.timer import Timer
from ridgeline.price.price import Price

QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024,
    "intermediate_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000, "tie_word_embeddings": True,
    "hidden_act": "silu", "torch_dtype": "bfloat16", "attention_bias": False,
}  # fmt: skip
PROMPT, OUTPUT = 512, 24
WAYS = "family", "class"


@dataclass
class Samples:
    """The seconds of each round of one way."""

    prefill: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)


def build(way: str, layers: int) -> tuple[Engine, Any]:
    """Return an engine with the random model built in one way, and the model."""
    fields = Fields({**QWEN3, "num_hidden_layers": layers}, "config.json")
    model = build_to_run(fields, family=family_of(fields) if way == "family" else class_family(fields))
    fill_dummy(model)
    prepare_on_cpu(model)
    layout = kv_layout(model, float("1e12"), 16, most_tokens=4 * (PROMPT + OUTPUT))
    return build_engine(model, layout, Limits(), executor=Runner(model, layout), prefix_cache=False), model


def sample(engine: Engine, samples: Samples) -> None:
    """Run one request and append the seconds of its prompt and of its median decode step."""
    prompt = list(range(5, 5 + PROMPT))
    engine.add(GenerationRequest(prompt, SamplingParams(temperature=0.0, max_tokens=OUTPUT, ignore_eos=True)))
    seconds = []
    while engine.has_work:
        start = time.perf_counter()
        engine.step()
        seconds.append(time.perf_counter() - start)
    samples.prefill.append(seconds[0])
    samples.decode.append(statistics.median(seconds[2:]))


def ratio_row(name: str, family: Sequence[float], by_class: Sequence[float]) -> list[str]:
    """Return a row of the table: both medians, and the speed of the class with its quartiles."""
    ratios = [one / other for one, other in zip(family, by_class, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    own, other = statistics.median(family), statistics.median(by_class)
    return [name, f"{own * 1e3:.1f} ms", f"{other * 1e3:.1f} ms", f"{own / other:.2f} ({low:.2f} to {high:.2f})"]


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    engines, samples = {}, {way: Samples() for way in WAYS}
    for way in WAYS:
        engines[way], model = build(way, given.layers)
        sample(engines[way], Samples())  # warm up
    for number in range(given.rounds):
        for way in WAYS if number % 2 else reversed(WAYS):
            sample(engines[way], samples[way])
    cost = Price(model).step(Work.of([StepSegment(1, PROMPT + OUTPUT // 2)], model.attention_patterns))
    print("| step | family | class of transformers | speed of the class |\n| --- | ---: | ---: | ---: |")
    for name, part in (("decode, 1 sequence", "decode"), (f"prefill, {PROMPT} tokens", "prefill")):
        print("| " + " | ".join(ratio_row(name, *(getattr(samples[way], part) for way in WAYS))) + " |")
    caches = stated_caches(given.threads)
    bandwidth = memory_bandwidth(
        streams(Timer(torch.device("cpu"), given.threads), 3.0, [beyond_caches(caches)]), caches
    )
    print(
        f"ceiling of decode: {cost.total_bytes / 1e9:.2f} GB at {bandwidth / 1e9:.1f} GB/s = "
        f"{cost.total_bytes / bandwidth * 1e3:.1f} ms"
    )


if __name__ == "__main__":
    main()
