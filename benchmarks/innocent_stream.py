"""The effect of attacks on an innocent stream of the same server, and on the server's memory.

    python benchmarks/innocent_stream.py [--model tales] [--rounds 4] [--only 18,55] [--out FILE]

A real server (`ridgeline serve`) streams tokens to a reader in a process of its own, one stream after another.
Meanwhile the attacks of tests/server/attacks.py and tests/server/crowds.py come one by one; the tests of hostile inputs
make the same attacks. A row is a row of the table of hostile inputs in docs/serving.md. Its figure is the worst gap
between two tokens of a stream while one of its attacks was under way: the median of the rounds, and the worst of them.
The bound is ten times the worst gap of an idle server, or 0.2 s if that is more. Memory is that of the server's
processes after each round. KV memory and the traces of ended requests are filled before the first, because both grow
with any requests up to a size that is set.
"""

import argparse
import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from server import attacks, crowds

BOUND_SECONDS, BOUND_TIMES = 0.2, 10
AFTER = 0.05
"""Seconds after an attack's end in which a gap still counts as its own."""
IDLE_SECONDS = 3.0
"""Seconds without an attack before each round; the idle gap is that of their second half."""

READER = """
import http.client, json, sys, time
port, fields = int(sys.argv[1]), json.loads(sys.argv[2])
for stream in range(1 << 30):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("POST", "/v1/completions", json.dumps(fields))
    response = connection.getresponse()
    for line in response:
        if line.startswith(b"data: {"):
            print(stream, time.monotonic())
    sys.stdout.flush()
    connection.close()
    if response.status != 200:
        time.sleep(0.02)
"""
INNOCENT = {"prompt": "Once upon a time", "max_tokens": 480, "ignore_eos": True, "temperature": 0, "stream": True}


@dataclass
class Reader:
    """The innocent client. at: of each token the number of its stream, and seconds of time.monotonic."""

    process: subprocess.Popen[bytes]
    at: list[tuple[int, float]] = field(default_factory=list)

    def follow(self) -> None:
        """Take what the process says until it ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            stream, at = line.split()
            self.at.append((int(stream), float(at)))

    def gap(self, start: float, end: float) -> float:
        """Return the worst gap between tokens of one stream that has a part in this stretch of time."""
        pairs = zip(self.at, self.at[1:], strict=False)
        return max((b - a for (one, a), (other, b) in pairs if one == other and b >= start and a <= end), default=0.0)


@contextmanager
def serving(model: Sequence[str]) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run a server in processes of its own; yield its process and its port."""
    command = [sys.executable, "-m", "ridgeline", "serve", *model, "--port", "0", "--no-access-log"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(rb"at http://[^ :]+:(\d+)", line):
                threading.Thread(target=process.stdout.read, daemon=True).start()
                yield process, int(found[1])
                return
        raise SystemExit("the server did not start")
    finally:
        process.terminate()
        process.wait()


@contextmanager
def reading(port: int) -> Iterator[Reader]:
    command = [sys.executable, "-c", READER, str(port), json.dumps(INNOCENT)]
    reader = Reader(subprocess.Popen(command, stdout=subprocess.PIPE))
    threading.Thread(target=reader.follow, daemon=True).start()
    try:
        yield reader
    finally:
        reader.process.kill()
        reader.process.wait()


def held_bytes(pid: int) -> int:
    """Return the resident bytes of a process and of all that it has started."""
    pages, left = 0, [pid]
    while left:
        pid = left.pop()
        pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        children = [task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/children")]
        left += map(int, " ".join(children).split())
    return pages * os.sysconf("SC_PAGE_SIZE")


def fill(port: int) -> None:
    """Fill KV memory and the traces of ended requests: with twice as many tokens as KV memory has positions."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    connection.request("GET", "/v1/engine/state")
    limits = json.loads(connection.getresponse().read())["limits"]
    connection.close()
    body = json.dumps({"prompt": ["Once"] * 32, "max_tokens": 480, "ignore_eos": True, "temperature": 1}).encode()
    asking = partial(post, attacks.Post("fill", attacks.COMPLETE, body), port)
    for _ in range(0, 2 * limits["pages"] * limits["page_size"], 8 * 32 * 480):
        crowds.at_once(8, asking)


def post(attack: attacks.Post, port: int) -> None:
    """Send one attack and read all of the response."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        connection.request("POST", attack.path, attack.body, {"content-type": "application/json"})
        connection.getresponse().read()
    finally:
        connection.close()


Attack = tuple[str, str, Callable[[int], None]]
"""The row, the name and the call of an attack."""


def all_attacks(only: Sequence[str]) -> list[Attack]:
    """Return all attacks; only those of these rows, if any are given."""
    found: list[Attack] = [(each.row, each.name, partial(post, each)) for each in attacks.posts()]
    found += [(name[:2], name, attack) for name, attack in crowds.CROWDS]
    return [each for each in found if not only or each[0] in only]


def make(todo: Sequence[Attack], port: int) -> list[tuple[str, str, float, float]]:
    """Make attacks one by one; return the row, the name, the start and the end of each."""
    took = list[tuple[str, str, float, float]]()
    for row, name, attack in todo:
        start = time.monotonic()
        with suppress(OSError):  # the server closes the connection of one that it refuses unread
            attack(port)
        took.append((row, name, start, time.monotonic() + AFTER))
        time.sleep(2 * AFTER)
    return took


@dataclass
class Row:
    """The measurements of one row of the table. gaps: the worst of each round. worst: the attack of the worst of
    all."""

    name: str
    gaps: list[float] = field(default_factory=list)
    worst: str = ""


def measure(model: Sequence[str], rounds: int, only: Sequence[str]) -> tuple[list[Row], list[float], list[int]]:
    """Return the rows, the idle server's worst gap before each round, and its bytes of memory after each."""
    todo = all_attacks(only)
    rows = {name: Row(name) for name in dict.fromkeys(row for row, _, _ in todo)}
    idle, held = list[float](), list[int]()
    with serving(model) as (server, port):
        fill(port)
        with reading(port) as reader:
            time.sleep(IDLE_SECONDS)
            for _ in range(rounds):
                time.sleep(IDLE_SECONDS)
                now = time.monotonic()
                took = make(todo, port)
                time.sleep(1.0)  # streams say what they had when they end
                idle.append(reader.gap(now - IDLE_SECONDS / 2, now))
                held.append(held_bytes(server.pid))
                take(rows, reader, took)
                reader.at = reader.at[-1:]
    return list(rows.values()), idle, held


def take(rows: dict[str, Row], reader: Reader, took: Sequence[tuple[str, str, float, float]]) -> None:
    """Put the gaps of a round into their rows."""
    for row in rows.values():
        gaps = {name: reader.gap(start, end) for of, name, start, end in took if of == row.name}
        name = max(gaps, key=lambda each: gaps[each])
        if not row.gaps or gaps[name] > max(row.gaps):
            row.worst = name
        row.gaps.append(gaps[name])


def processor() -> str:
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return f"{found[1] if found else 'unknown processor'}, {os.cpu_count()} cores"


def report(model: Sequence[str], rows: Sequence[Row], idle: Sequence[float], held: Sequence[int]) -> str:
    """Return the table, in Markdown."""
    bound = max(BOUND_SECONDS, BOUND_TIMES * statistics.median(idle))
    load = os.getloadavg()[1]
    said = [
        f"{' '.join(model)}, {processor()}, {date.today().isoformat()}, load average {load:.1f}: {len(held)} rounds.",
        f"Idle gap {1e3 * statistics.median(idle):.0f} ms; bound {1e3 * bound:.0f} ms.",
        "",
        "| row | worst gap, median of rounds | worst of all | by | |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        median, most = statistics.median(row.gaps), max(row.gaps)
        verdict = "" if median <= bound else "beyond the bound"
        said.append(f"| {row.name} | {1e3 * median:.0f} ms | {1e3 * most:.0f} ms | {row.worst} | {verdict} |")
    said += ["", "Memory after each round: " + ", ".join(f"{each / 2**20:.0f} MiB" for each in held)]
    if len(held) > 1:
        said[-1] += f"; the second is {held[1] / held[0] - 1:+.1%} of the first."
    return "\n".join(said)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=["tales"], help="what `ridgeline serve` is given")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--only", default="", help="rows, with commas between them")
    parser.add_argument("--out", type=Path, help="write the table to this file too")
    given = parser.parse_args()
    only = [each for each in given.only.split(",") if each]
    said = report(given.model, *measure(given.model, given.rounds, only))
    print(said)
    if given.out:
        given.out.write_text(said + "\n")


if __name__ == "__main__":
    main()
