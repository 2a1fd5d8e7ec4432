"""How long the command line and a model take to start: imports, the first token, the help, and loading.

    python benchmarks/start.py [FOLDER] [--rounds 10]

Commands are run in turn, each a process of its own, and told in processor time (user and system), which other work on
the machine changes little; beside it stands the time on the clock. FOLDER: a checkpoint whose loading is measured in
turn with reading its files from the page cache, into one buffer and into fresh memory.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

RIDGELINE = [sys.executable, "-m", "ridgeline"]
COMMANDS = {
    "import typer": [sys.executable, "-c", "import typer"],
    "ridgeline --help": [*RIDGELINE, "--help"],
    "import torch": [sys.executable, "-c", "import torch"],
    "first token of tales": [*RIDGELINE, "run", "tales", "Once upon a time", "--max-tokens", "1", "--quiet"],
}


def main() -> None:
    """Print a table of commands, and one of loading."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="a checkpoint")
    parser.add_argument("--rounds", type=int, default=10)
    asked = parser.parse_args()
    print(f"{'':22} user s  all s  clock s    (medians of {asked.rounds})")
    for name, (user, both, clock) in medians(COMMANDS, asked.rounds).items():
        print(f"{name:22} {user:6.3f} {both:6.3f} {clock:8.3f}")
    if asked.folder is not None:
        print_loading(asked.folder, asked.rounds)


def medians(commands: Mapping[str, list[str]], rounds: int) -> dict[str, tuple[float, ...]]:
    """Seconds of each command: user, user and system, clock."""
    measured: dict[str, list[tuple[float, ...]]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            measured[name].append(seconds_of(command))
    return {name: tuple(map(statistics.median, zip(*rows, strict=True))) for name, rows in measured.items()}


def seconds_of(command: list[str], env: Mapping[str, str] | None = None) -> tuple[float, float, float]:
    """Return the seconds of one process, its imports and its end included: user, user and system, clock. env: its
    environment, by default ours. Raises CalledProcessError."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=env)
    _, status, used = os.wait4(process.pid, 0)
    clock = time.perf_counter() - start
    if status:
        raise subprocess.CalledProcessError(os.waitstatus_to_exitcode(status), command)
    return used.ru_utime, used.ru_utime + used.ru_stime, clock


def print_loading(folder: Path, rounds: int) -> None:
    """Loading of the weights and of all that runs them, in turn with reading the files; GB/s are of the files."""
    files = sorted(folder.glob("*.safetensors"))
    nbytes = sum(file.stat().st_size for file in files)
    measured: dict[str, list[float]] = {}
    for _ in range(rounds):
        seconds = {"read into one buffer": sum(map(read_over, files)), "read into fresh memory": read_fresh(folder)}
        for name, value in (seconds | load(folder)).items():
            measured.setdefault(name, []).append(value)
    print(f"\n{'':24} seconds   GB/s    ({nbytes / 1e9:.2f} GB from the page cache)")
    for name, values in measured.items():
        print(f"{name:24} {statistics.median(values):7.3f} {nbytes / statistics.median(values) / 1e9:6.2f}")


def read_over(file: Path) -> float:
    """Seconds of a file read into the same MiB again and again: what the page cache gives, and nothing is kept."""
    place = bytearray(1 << 20)
    start = time.perf_counter()
    with file.open("rb", buffering=0) as opened:
        while opened.readinto(place):
            pass
    return time.perf_counter() - start


def read_fresh(folder: Path) -> float:
    """Seconds of all tensors read into fresh memory."""
    from ridgeline.core.checkpoint.folder import open_checkpoint
    from ridgeline.core.checkpoint.load_report import time_buffered_read

    return time_buffered_read(open_checkpoint(folder), float("inf")).seconds


def load(folder: Path) -> dict[str, float]:
    """Seconds of the weights' loading, of an engine around them, and of its first two steps, which have other prompts
    of one length: what the first takes longer is what loading left to it."""
    from ridgeline.engine.engine_settings import EngineSettings
    from ridgeline.engine.generation_request import GenerationRequest
    from ridgeline.engine.params import SamplingParams
    from ridgeline.engine.setup import load_engine

    start = time.perf_counter()
    loaded = load_engine(str(folder), EngineSettings(kv_bytes=2**26, prefix_cache=False))
    seconds = {"an engine, ready": time.perf_counter() - start}
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    for name, first in (("its first step", 100), ("its second step", 200)):
        loaded.engine.add(GenerationRequest(list(range(first, first + 16)), params))
        start = time.perf_counter()
        loaded.engine.step()
        seconds[name] = time.perf_counter() - start
    assert loaded.loading is not None
    return {"weights mapped": loaded.loading.seconds, **seconds}


if __name__ == "__main__":
    main()
