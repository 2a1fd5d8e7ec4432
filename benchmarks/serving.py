"""What serving costs: a soak of many streams, and HTTP beside the same requests through `LLM` in one process.

    python benchmarks/serving.py soak [--minutes 10] [--streams 200] [--model tales]
    python benchmarks/serving.py through [--model qwen3-0.6b --dummy-weights] [--streams 64] [--tokens 64] [--rounds 3]

The soak keeps `streams` streams open, each a new request as the last one ends, and looks once in ten seconds at errors,
at the memory of the server's two processes and at KV pages. `through` runs the same requests in turn through a server
and through `LLM`, each with all cores, and counts what the server's own process takes for a streamed token.
"""

import argparse
import asyncio
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

PROMPT = "Once upon a time there was"
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Server:
    """A server under test and its processes."""

    url: str
    pid: int
    engine: int

    def metrics(self) -> dict[str, float]:
        """What /metrics says, summed over labels."""
        with urllib.request.urlopen(f"{self.url}/metrics") as answer:
            text = answer.read().decode()
        values: dict[str, float] = {}
        for name, value in re.findall(r"^([\w:]+)(?:\{[^}]*\})? ([-+.\deEinf]+)$", text, re.MULTILINE):
            values[name] = values.get(name, 0.0) + float(value)
        return values

    def held_pages(self) -> int:
        """KV pages that requests hold."""
        with urllib.request.urlopen(f"{self.url}/v1/engine/state") as answer:
            return int(json.load(answer)["counters"]["held_pages"])


def memory(pid: int) -> int:
    """Resident bytes of a process."""
    fields = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def processor_seconds(pid: int) -> float:
    """Seconds of processor that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


@contextmanager
def started(command: list[str], env: dict[str, str] | None = None) -> Iterator[tuple[str, int, Path]]:
    """Start a server with a command that chooses its port; give its URL, its process id and its log. env: its
    environment, by default ours."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("w") as said:
            process = subprocess.Popen(command, stderr=said, env=env)
        try:
            while not (found := re.search(r"at (http://[\d.:]+)/v1", log.read_text())):
                if process.poll() is not None:
                    raise SystemExit(log.read_text())
                time.sleep(0.1)
            yield found[1], process.pid, log
        finally:
            process.terminate()
            process.wait(60)


def child_of(pid: int) -> int:
    """The engine's process of a server."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                stat = (folder / "stat").read_text(encoding="ascii").rpartition(")")[2].split()
                command = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if int(stat[1]) == pid and b"ridgeline.engine.worker.engine_child" in command:
                return int(folder.name)
    raise SystemExit("the server has no process for its engine")


@contextmanager
def serving(model: list[str]) -> Iterator[Server]:
    """A server on a port of its own, ended as an operator ends it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "ridgeline", "serve", *model, "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        while True:
            if process.poll() is not None:
                raise SystemExit(f"{' '.join(command)} ended with exit code {process.returncode}")
            try:
                urllib.request.urlopen(f"{url}/health/ready").close()
                break
            except OSError:
                time.sleep(0.2)
        yield Server(url, process.pid, child_of(process.pid))
    finally:
        process.terminate()
        if process.wait(60) != 0:
            print(f"the server ended with exit code {process.returncode}", file=sys.stderr)


@dataclass
class Tally:
    """What the clients have seen."""

    done: int = 0
    tokens: int = 0
    errors: list[str] = field(default_factory=list)


async def stream(session: aiohttp.ClientSession, url: str, tokens: int, seed: int, tally: Tally) -> None:
    """One request; its chunks are counted, its end is looked at."""
    body = {
        "prompt": PROMPT, "max_tokens": tokens, "stream": True, "ignore_eos": True, "seed": seed,
        "temperature": 1.0, "stream_options": {"include_usage": True},
    }  # fmt: skip
    try:
        async with session.post(f"{url}/v1/completions", json=body) as answer:
            last = b""
            async for data in answer.content.iter_any():
                last = (last + data)[-4096:]
            found = re.search(rb'"completion_tokens": ?(\d+)', last)
            if answer.status != 200 or found is None or not last.endswith(b"data: [DONE]\n\n"):
                tally.errors.append(f"{answer.status} {last[-200:]!r}")
                return
            tally.done += 1
            tally.tokens += int(found[1])
    except (aiohttp.ClientError, TimeoutError) as error:
        tally.errors.append(repr(error))


def session() -> aiohttp.ClientSession:
    """Of as many connections as are asked for, without an end to patience."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None), read_bufsize=1 << 20
    )


# -- the soak ---------------------------------------------------------------------------------------------------------


async def keep_streaming(url: str, streams: int, until: float, tally: Tally) -> None:
    """`streams` streams at all times until `until` of time.monotonic."""

    async def one(number: int, of: aiohttp.ClientSession) -> None:
        seed = number
        while time.monotonic() < until:
            # lengths differ, so that streams do not end together
            await stream(of, url, 50 + (seed * 37) % 350, seed, tally)
            seed += streams

    async with session() as of:
        await asyncio.gather(*(one(number, of) for number in range(streams)))


async def watch(server: Server, until: float, tally: Tally, seen: list[tuple[float, int, int]]) -> None:
    """Memory of both processes once in ten seconds."""
    start = time.monotonic()
    while time.monotonic() < until:
        await asyncio.sleep(10)
        now = time.monotonic() - start
        seen.append((now, memory(server.pid), memory(server.engine)))
        rss = " ".join(f"{nbytes / 1e6:.0f} MB" for nbytes in seen[-1][1:])
        print(
            f"{now:5.0f} s: {tally.done} done, {tally.tokens} tokens, {len(tally.errors)} errors, RSS {rss}", flush=True
        )


def grown(sizes: list[int]) -> float:
    """By which share the last third's median is over the second's; the first third warms up."""
    third = len(sizes) // 3
    return statistics.median(sizes[-third:]) / statistics.median(sizes[third : 2 * third]) - 1


def soak(arguments: argparse.Namespace) -> int:
    """Exit code 0 if nothing failed and nothing grew."""
    tally, seen = Tally(), list[tuple[float, int, int]]()
    with serving([*arguments.model, "--max-num-seqs", str(arguments.streams)]) as server:

        async def both() -> None:
            until = time.monotonic() + 60 * arguments.minutes
            await asyncio.gather(
                keep_streaming(server.url, arguments.streams, until, tally), watch(server, until, tally, seen)
            )

        before, began = server.metrics(), time.monotonic()
        own, engine = processor_seconds(server.pid), processor_seconds(server.engine)
        asyncio.run(both())
        wall = time.monotonic() - began
        own, engine = processor_seconds(server.pid) - own, processor_seconds(server.engine) - engine
        after = server.metrics()
        held = server.held_pages()
    steps, seconds = (after[f"ridgeline:step_seconds_{part}"] - before.get(f"ridgeline:step_seconds_{part}", 0.0)
                      for part in ("count", "sum"))  # fmt: skip
    growth = [grown([row[which] for row in seen]) for which in (1, 2)]
    print(f"{tally.done} requests, {tally.tokens} tokens in {wall:.0f} s")
    print(f"{len(tally.errors)} errors, {held} pages held at the end")
    print(f"memory, last third beside the second: server {growth[0]:+.1%}, engine {growth[1]:+.1%}")
    print(
        f"{steps:.0f} steps: {1e3 * seconds / steps:.2f} ms of the model and sampler, "
        f"{1e3 * (wall - seconds) / steps:.2f} ms of scheduling and messages between two, "
        f"{1e3 * own / steps:.2f} ms of the server's processor beside them"
    )
    print(f"processor a token: server {1e6 * own / tally.tokens:.1f} us, engine {1e6 * engine / tally.tokens:.1f} us")
    for error in tally.errors[:5]:
        print(error)
    return 0 if not tally.errors and held == 0 and max(growth) < 0.05 else 1


# -- through HTTP and without -----------------------------------------------------------------------------------------


def through(arguments: argparse.Namespace) -> int:
    """Exit code 0 if HTTP reaches 95 % of what `LLM` reaches, at 60 us of the server a token."""
    ratios, costs = [], []
    with serving([*arguments.model, "--max-num-seqs", str(arguments.streams)]) as server, script(arguments) as alone:
        for number in range(arguments.rounds + 1):
            tally, own, began = Tally(), processor_seconds(server.pid), time.monotonic()
            asyncio.run(at_once(server.url, arguments.streams, arguments.tokens, tally))
            wall, own = time.monotonic() - began, processor_seconds(server.pid) - own
            if tally.errors:
                raise SystemExit(tally.errors[0])
            assert alone.stdin is not None
            assert alone.stdout is not None
            print("go", file=alone.stdin, flush=True)
            tokens, seconds = json.loads(alone.stdout.readline())
            if number == 0:
                continue  # the first of both warms up
            ratios.append((tally.tokens / wall) / (tokens / seconds))
            costs.append(1e6 * own / tally.tokens)
            print(f"HTTP {tally.tokens / wall:.1f} tok/s, LLM {tokens / seconds:.1f} tok/s: {ratios[-1]:.3f}; "
                  f"server {costs[-1]:.1f} us a token", flush=True)  # fmt: skip
    ratio, cost = statistics.median(ratios), statistics.median(costs)
    print(f"median of {len(ratios)}: {ratio:.3f} ({min(ratios):.3f} to {max(ratios):.3f}), {cost:.1f} us a token")
    return 0 if ratio >= 0.95 and cost <= 60 else 1


async def at_once(url: str, streams: int, tokens: int, tally: Tally) -> None:
    """All requests at once."""
    async with session() as of:
        await asyncio.gather(*(stream(of, url, tokens, seed, tally) for seed in range(streams)))


@contextmanager
def script(arguments: argparse.Namespace) -> Iterator["subprocess.Popen[str]"]:
    """A process that runs the same requests through `LLM` whenever it is told to."""
    command = [sys.executable, __file__, "alone", *sys.argv[2:]]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.communicate()


def alone(arguments: argparse.Namespace) -> int:
    """The same requests through `LLM`, once for each line of standard input."""
    from ridgeline import LLM, EngineSettings, SamplingParams
    from ridgeline.engine.scheduler import Limits

    name, dummy = arguments.model[0], "--dummy-weights" in arguments.model
    llm = LLM(name, EngineSettings(limits=Limits(requests=arguments.streams)), dummy_weights=dummy)
    params = [
        SamplingParams(temperature=1.0, max_tokens=arguments.tokens, ignore_eos=True, seed=seed)
        for seed in range(arguments.streams)
    ]
    for _ in sys.stdin:
        began = time.monotonic()
        done = llm.generate([PROMPT] * arguments.streams, params)
        seconds = time.monotonic() - began
        print(json.dumps([sum(len(c.choices[0].tokens) for c in done), seconds]), flush=True)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["soak", "through", "alone"])
    parser.add_argument("--model", default="tales", help="as `ridgeline serve` takes it")
    parser.add_argument("--dummy-weights", action="store_true")
    parser.add_argument("--streams", type=int, default=None)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    arguments.streams = arguments.streams or (200 if arguments.what == "soak" else 64)
    arguments.model = [arguments.model, *(["--dummy-weights"] if arguments.dummy_weights else [])]
    return {"soak": soak, "through": through, "alone": alone}[arguments.what](arguments)


if __name__ == "__main__":
    sys.exit(main())
