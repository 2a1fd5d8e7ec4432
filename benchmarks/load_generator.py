"""How far the load generator's own figures are from the truth: it measures a server whose times are known.

    python benchmarks/load_generator.py [--quick]          where the machine is busy: chrt -f 10 python ...

The server is another process. It answers every request after `first`, then a token each `gap`, at moments that are
counted from the one at which it had read the request, with timers of microseconds, and says how late it was itself. A
bare blocking socket asks it first, one request at a time: what that sees beyond the server's times is the loopback and
the waking up of two processes, which no client is without. The load generator's error is what it sees beyond that,
with how late the server was in its run added to the bare socket's figures. Prints a table in Markdown, and exits with 1
where the error of a median is above 2 %.
"""

import argparse
import asyncio
import json
import os
import selectors
import socket
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import pairwise

from ridgeline.insight.bench.bench_run import BenchRun, run, warm_up
from ridgeline.insight.bench.job import LoadJob, LoadPattern, LoadTarget, PromptDataset, TokensPerWord
from ridgeline.insight.traffic.percentiles import Distribution

ALLOWED = 0.02
MS = 1_000_000


@dataclass(frozen=True)
class Case:
    """A server's times in milliseconds, the tokens of an answer, and how it is asked."""

    first: float
    gap: float
    tokens: int
    load: LoadPattern
    processes: int = 1

    @property
    def words(self) -> str:
        """How it is asked."""
        load = self.load
        asked = f"{load.users} users" if load.users else f"{load.rate:g}/s"
        return f"{asked}, {self.processes} process{'es' if self.processes > 1 else ''}"


def cases(quick: bool) -> list[Case]:
    """From one request at a time to hundreds of streams."""
    seconds = 4.0 if quick else 10.0
    return [
        Case(20, 20, 16, LoadPattern(users=1, seconds=seconds)),
        Case(
            20, 20, 16, LoadPattern(arrivals="constant", rate=9.3, seconds=seconds)
        ),  # at 10 all streams would be in step
        Case(20, 20, 16, LoadPattern(rate=20.0, seconds=seconds)),
        Case(50, 20, 32, LoadPattern(rate=40.0, seconds=seconds)),
        Case(50, 20, 32, LoadPattern(rate=40.0, seconds=seconds), processes=2),
        Case(200, 40, 64, LoadPattern(rate=40.0, seconds=seconds)),
        Case(500, 50, 32, LoadPattern(users=64, seconds=seconds)),
    ]


# -- the server -------------------------------------------------------------------------------------------------------


class KnownServer:
    """Answers every POST by its path: /FIRST/GAP/TOKENS/v1/completions, in microseconds. late: by how many nanoseconds
    each token was sent after its moment."""

    def __init__(self) -> None:
        self.late: list[int] = []

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, kept open."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                path, body = head.split(b" ", 2)[1].decode(), b""
                for line in head.split(b"\r\n"):
                    if line.lower().startswith(b"content-length:"):
                        body = await reader.readexactly(int(line.split(b":")[1]))
                if path == "/late":
                    self._say(writer, json.dumps(sorted(self.late)[:: max(1, len(self.late) // 1000)]).encode())
                    self.late = []
                else:
                    assert b'"stream": true' in body
                    await self._stream(writer, *map(int, path.split("/")[1:4]))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _say(self, writer: asyncio.StreamWriter, body: bytes) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))

    async def _stream(self, writer: asyncio.StreamWriter, first: int, gap: int, tokens: int) -> None:
        read = time.perf_counter_ns()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for place in range(tokens):
            moment = read + (first + place * gap) * 1000
            if (left := moment - time.perf_counter_ns()) > 0:
                await asyncio.sleep(left / 1e9)
            self.late.append(time.perf_counter_ns() - moment)
            self._chunk(writer, {"choices": [{"index": 0, "text": "x", "finish_reason": None}]})
        self._chunk(writer, {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]})
        self._chunk(writer, {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": tokens}})
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")

    def _chunk(self, writer: asyncio.StreamWriter, value: object) -> None:
        data = f"data: {json.dumps(value)}\n\n".encode()
        writer.write(b"%x\r\n%s\r\n" % (len(data), data))


async def serve() -> None:
    """On a free port, which is printed."""
    server = await asyncio.start_server(KnownServer().handle, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


# -- the measurement --------------------------------------------------------------------------------------------------


async def measure(case: Case, port: int) -> tuple[BenchRun, float]:
    """A run against the server, and the median of the server's lateness in milliseconds."""
    base = f"http://127.0.0.1:{port}/{case.first * 1000:.0f}/{case.gap * 1000:.0f}/{case.tokens}"
    data = PromptDataset(input="16", output=str(case.tokens), wording=TokensPerWord())
    job = LoadJob(LoadTarget(base, "known"), data, case.load)
    await warm_up(job, 2)
    await late_of(port)
    found = await run(job, case.processes, case.processes, None, lambda text: None)
    late = await late_of(port)
    return found, statistics.median(late) / MS


async def late_of(port: int) -> list[int]:
    """The server's lateness since it was asked before."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /late HTTP/1.1\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    body = await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
    writer.close()
    return list(json.loads(body))


@dataclass(frozen=True)
class Seen:
    """What a bare socket saw of a case, medians in milliseconds; late: the server's lateness then."""

    ttft: float
    gap: float
    e2e: float
    late: float


def look(case: Case, port: int, requests: int = 40) -> Seen:
    """Ask with a bare socket, one request at a time."""
    body = b'{"stream": true}'
    path = f"/{case.first * 1000:.0f}/{case.gap * 1000:.0f}/8/v1/completions"
    request = f"POST {path} HTTP/1.1\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
    asyncio.run(late_of(port))
    firsts, gaps, wholes = [], [], []
    with socket.create_connection(("127.0.0.1", port)) as bare:
        bare.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(requests):
            time.sleep(0.03)
            sent = time.perf_counter_ns()
            bare.sendall(request)
            moments, text = [], b""
            while b"[DONE]" not in text:
                piece = bare.recv(1 << 16)
                moments += [time.perf_counter_ns()] * piece.count(b'"text": "x"')
                text += piece
            firsts.append(moments[0] - sent)
            gaps += [after - before for before, after in pairwise(moments)]
            wholes.append(moments[-1] - sent + round((case.tokens - 8) * case.gap * MS))
    late = asyncio.run(late_of(port))
    ttft, gap, e2e = (statistics.median(values) / MS for values in (firsts, gaps, wholes))
    return Seen(ttft, gap, e2e, statistics.median(late) / MS)


def rows_of(case: Case, bare: Seen, found: BenchRun, late: float) -> tuple[list[str], float]:
    """The case's rows, and its greatest error as a share."""
    whole, later = case.first + (case.tokens - 1) * case.gap, late - bare.late
    known = {
        "TTFT": (case.first, bare.ttft + later),
        "ITL": (case.gap, bare.gap),
        "TPOT": (case.gap, bare.gap),
        "E2E": (whole, bare.e2e + later),
    }
    rows, worst = [], 0.0
    for name, (server, true) in known.items():
        got = found.summary.latencies[name]
        assert got is not None
        error = _median(got) / true - 1
        worst = max(worst, abs(error))
        asked = case.words if name == "TTFT" else ""
        rows.append(f"| {asked} | {name} | {server:g} | {true:.3f} | {_median(got):.3f} | {error:+.2%} |")
    lateness = found.summary.latencies["lateness"]
    assert lateness is not None
    rows.append(
        f"| {found.summary.answered} requests, {found.cpu:.0%} of a core | lateness | | | {_median(lateness):.3f} "
        f"(most {lateness.most * 1e3:.2f}) | |"
    )
    return rows, worst


def _median(found: Distribution) -> float:
    """Milliseconds."""
    at = found.percentiles[50]
    return (found.mean if at is None else at.mid) * 1e3


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="4 seconds a case instead of 10")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:  # select's timers count microseconds, epoll's milliseconds
        asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())).run(serve())
    server = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        print(f"load of the machine before: {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores\n")
        print("| asked | figure | server's ms | bare socket's ms | load generator's ms | error |")
        print("|---|---|---|---|---|---|")
        worst = 0.0
        for case in cases(arguments.quick):
            rows, error = rows_of(case, look(case, port), *asyncio.run(measure(case, port)))
            print("\n".join(rows), flush=True)
            worst = max(worst, error)
        print(f"\nGreatest error of a median: {worst:.2%} (allowed {ALLOWED:.0%})")
        return int(worst > ALLOWED)
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    sys.exit(main())
