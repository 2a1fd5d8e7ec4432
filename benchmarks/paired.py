"""Compare the speed of two versions of the package, both alive, in turn, in one run.

    python benchmarks/paired.py BEFORE/src AFTER/src [--rounds 12] [--only NAME] [--threads N]

Each version has a worker process and a server of its own, which hold their models all the time. In each round both are
asked for one sample of each measure, in the order before, after, and after, before in the next round, so that what else
the machine does meets both. Printed are the median seconds of each, and the speed after in units of the speed before:
the ratio of the medians, with the quartiles of the rounds' own ratios. What is slower than 0.97 is marked, and the exit
code is 1 then.

Random weights of the size of Qwen2.5-0.5B, in bf16, for `decode`, `batch` and `prefill`; the built-in `tales` for
`tales` and `server`. `plan` and `help` are processes that start, run and end; `help` fails if it imports torch.
"""

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

SLOWER = 0.97
"""The speed after, in units of the speed before, below which a measure is marked."""
QWEN = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896,
    "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
    "hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16",
}  # fmt: skip
MEASURES = {
    "decode": "a decode step of one sequence",
    "batch": "a decode step of 16 sequences",
    "prefill": "prompts of 16 requests, 128 tokens each",
    "tales": "a decode step of tales, on one thread",
    "server": "a token of tales that the server streams",
    "priced": "a decode step of 256 sequences, priced",
    "plan": "ridgeline plan, a process",
    "help": "ridgeline --help, a process",
}
COMMANDS = {
    "plan": [sys.executable, "-m", "ridgeline", "plan", "llama-3-8b", "--device", "h100-sxm"],
    "help": [sys.executable, "-m", "ridgeline", "--help"],
}
STREAMED = 128
"""Tokens of a response that the server streams for one sample."""
MODEL_STEPS, TALES_STEPS = 8, 100
"""Decode steps of a sample."""


# -- the worker: all that imports the package -------------------------------------------------------------------------


def queue_function() -> Callable[..., object]:
    """Return a function that queues a prompt with its sampling parameters in an engine of this version."""
    from ridgeline.engine.engine import Engine

    try:
        from ridgeline.engine.generation_request import GenerationRequest
    except ImportError:  # an engine of a version before it takes the two apart
        return Engine.add
    return lambda engine, prompt, params: engine.add(GenerationRequest(prompt, params))


def samplers(threads: int) -> dict[str, Callable[[], float]]:
    """Return a function for each measure, which takes a sample in seconds a unit."""
    import torch

    import ridgeline
    from ridgeline import EngineSettings, SamplingParams
    from ridgeline.engine.setup import load_engine

    sys.path.insert(0, str(Path(ridgeline.__path__[0]).parents[1] / "benchmarks"))
    from pricing import steps_a_second  # the version's own, which knows its names, where it has benchmarks

    settings, add = EngineSettings(kv_bytes=2**28, prefix_cache=False), queue_function()

    def random_model() -> Any:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "config.json"
            path.write_text(json.dumps(QWEN), encoding="utf-8")
            return load_engine(str(path), settings, dummy_weights=True).engine

    def decode(engine: Any, sequences: int, steps: int, threads: int = threads) -> float:
        """Return the median seconds of so many decode steps."""
        torch.set_num_threads(threads)
        params = SamplingParams(temperature=0, max_tokens=steps + 1, ignore_eos=True)
        for number in range(sequences):
            add(engine, list(range(5 + number, 37 + number)), params)
        engine.step()
        seconds = []
        while engine.has_work:
            start = time.perf_counter()
            engine.step()
            seconds.append(time.perf_counter() - start)
        return statistics.median(seconds)

    def prefill(engine: Any) -> float:
        """Return the seconds of the prompts of 16 requests of 128 tokens."""
        torch.set_num_threads(threads)
        params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
        for number in range(16):
            add(engine, list(range(5 + number, 133 + number)), params)
        start = time.perf_counter()
        while engine.has_work:
            engine.step()
        return time.perf_counter() - start

    model, tales = Lazy(random_model), Lazy(lambda: load_engine("tales", settings).engine)
    return {
        "decode": lambda: decode(model(), 1, MODEL_STEPS),
        "batch": lambda: decode(model(), 16, MODEL_STEPS),
        "prefill": lambda: prefill(model()),
        "tales": lambda: decode(tales(), 1, TALES_STEPS, threads=1),
        "priced": lambda: 1 / steps_a_second("llama-3-8b", "h100-sxm", time.perf_counter),
    }


class Lazy:
    """A value that is made when it is first asked for."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make, self._made = make, list[Any]()

    def __call__(self) -> Any:
        """Return the value."""
        if not self._made:
            self._made.append(self._make())
        return self._made[0]


def work(threads: int) -> None:
    """Respond to each line of stdin, the name of a measure, with the seconds of a sample on stdout."""
    responses = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed goes to stderr
    samples = samplers(threads)
    for line in sys.stdin:
        print(samples[line.strip()](), file=responses, flush=True)


# -- a version --------------------------------------------------------------------------------------------------------


@dataclass
class Version:
    """A version of the package: its folder `src`, its worker, and its server where there is one."""

    source: Path
    threads: int
    worker: "subprocess.Popen[str]"
    server: str | None

    def sample(self, measure: str) -> float:
        """Take one sample: seconds of a step, a prefill, a token or a command."""
        if measure in COMMANDS:
            from start import seconds_of  # not above: a worker of another version does without

            return seconds_of(COMMANDS[measure], environment(self.source))[2]
        if measure == "server":
            assert self.server is not None
            return streamed_token(self.server)
        assert self.worker.stdin is not None
        assert self.worker.stdout is not None
        print(measure, file=self.worker.stdin, flush=True)
        if not (line := self.worker.stdout.readline()):
            raise SystemExit(f"the worker of {self.source} ended while it measured {measure}")
        return float(line)


def environment(source: Path) -> dict[str, str]:
    """Return the environment in which a process finds a version."""
    return os.environ | {"PYTHONPATH": str(source)}


@contextmanager
def worker_of(source: Path, threads: int) -> Iterator["subprocess.Popen[str]"]:
    """Start a process that takes samples of a version, and end it with the context."""
    command = [sys.executable, __file__, "--worker", "--threads", str(threads)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(source)
    )
    try:
        yield process
    finally:
        process.communicate()


def streamed_token(url: str) -> float:
    """Return the seconds a token of one streamed response, from its first to its last."""
    where = urlsplit(url)
    connection = http.client.HTTPConnection(str(where.hostname), where.port, timeout=60)
    body = {"prompt": "Once upon a time", "max_tokens": STREAMED, "temperature": 0, "ignore_eos": True, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    times = [time.perf_counter() for line in connection.getresponse() if line.startswith(b"data: {")]
    connection.close()
    if len(times) < STREAMED // 2:
        raise SystemExit(f"the server at {url} streamed {len(times)} chunks of {STREAMED} tokens")
    return (times[-1] - times[0]) / (STREAMED - 1)


def check_help(source: Path) -> None:
    """Refuse a version whose `--help` imports torch."""
    command = [sys.executable, "-X", "importtime", *COMMANDS["help"][1:]]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, env=environment(source))
    if any(line.rpartition("|")[2].strip() == "torch" for line in ended.stderr.splitlines()):
        raise SystemExit(f"ridgeline --help of {source} imports torch")


# -- the comparison ---------------------------------------------------------------------------------------------------


def measure_all(before: Version, after: Version, names: list[str], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Return the samples before and after of each measure, round by round; the first round warms up and is not kept."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for number in range(rounds + 1):
        for name in names:
            if number % 2:
                second = after.sample(name)
                first = before.sample(name)
            else:
                first, second = before.sample(name), after.sample(name)
            if number:
                found[name].append((first, second))
        print(f"round {number} of {rounds}", file=sys.stderr, flush=True)
    return found


def report(found: Mapping[str, list[tuple[float, float]]]) -> int:
    """Print a row for each measure. Return how many are slower."""
    slower = 0
    print(f"{'':8} {'before':>10} {'after':>10}   speed  quartiles")
    for name, samples in found.items():
        before, after = (statistics.median(side) for side in zip(*samples, strict=True))
        ratios = [first / second for first, second in samples]
        low, _, high = statistics.quantiles(ratios, method="inclusive") if len(ratios) > 1 else ratios * 3
        marked = before / after < SLOWER
        slower += marked
        print(f"{name:8} {in_words(before):>10} {in_words(after):>10}   {before / after:.3f}  {low:.3f} to {high:.3f}"
              f"{f'   slower than {SLOWER}' if marked else ''}")  # fmt: skip
    print(f"speed: of the version after, in units of the one before; quartiles of {len(samples)} rounds")
    return slower


def in_words(seconds: float) -> str:
    """Return seconds in a unit that leaves three digits or four."""
    return (
        f"{seconds:.3f} s"
        if seconds >= 1
        else f"{1e3 * seconds:.3f} ms"
        if seconds >= 1e-3
        else f"{1e6 * seconds:.1f} us"
    )


def main() -> int:
    """Compare two versions, or be the worker of one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", type=Path, metavar="SRC", help="the folders src before and after")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--only", action="append", choices=MEASURES, help="this measure alone; may be repeated")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of the random model")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        work(asked.threads)
        return 0
    if len(asked.sources) != 2:
        parser.error("give two folders: src before, and src after")
    sources = [source.resolve() for source in asked.sources]
    for source in sources:
        if not (source / "ridgeline").is_dir():
            parser.error(f"{source} holds no package ridgeline: give the folder src of a checkout")
    names = asked.only or list(MEASURES)
    with ExitStack() as stack:
        from serving import started  # not above: a worker of another version does without

        if "help" in names:
            for source in sources:
                check_help(source)
        serve = [sys.executable, "-m", "ridgeline", "serve", "tales", "--port", "0", "--kv-memory", "64MiB"]
        before, after = (
            Version(
                source, asked.threads, stack.enter_context(worker_of(source, asked.threads)),
                stack.enter_context(started(serve, environment(source)))[0] if "server" in names else None,
            )
            for source in sources
        )  # fmt: skip
        found = measure_all(before, after, names, asked.rounds)
    return 1 if report(found) else 0


if __name__ == "__main__":
    sys.exit(main())
