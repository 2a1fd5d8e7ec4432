"""A benchmark run, and what it showed of the server and of the load generator itself."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from ridgeline.insight.bench import client_pool
from ridgeline.insight.bench.job import LoadJob, PromptDataset
from ridgeline.insight.bench.server_probe import PhaseSteps
from ridgeline.insight.bench.streamed_response import SHORTER, beyond_context
from ridgeline.insight.traffic.request_record import RequestRecord
from ridgeline.insight.traffic.series import SecondStats, seconds, ttfts_by_arrival, under_way
from ridgeline.insight.traffic.slo import SLO
from ridgeline.insight.traffic.stationarity import Stationarity, judge_stationarity
from ridgeline.insight.traffic.summary import Summary, summarise

Look = Callable[[], Awaitable[Mapping[str, PhaseSteps]]]
"""A function that returns the steps a server has run so far, by phase."""
# Added to the seed for warm-up and repeated runs, whose prompts must differ because the server may have cached them.
_WARM_UP, _AGAIN = 1_000_003, 15_485_863
BUSY = 0.8  # the share of a core above which a client process may send late


@dataclass(frozen=True, slots=True)
class BenchRun:
    """The results of one benchmark run: the job, the records of its requests, and their summary."""

    job: LoadJob
    processes: int
    records: list[RequestRecord]
    """The records of all requests, in order of their intended send times."""
    summary: Summary
    cpu: float
    """The CPU use of the busiest client process, as a share of a core."""
    stopped: str
    """The reason why the run was stopped early; empty if it was not."""
    steadiness: Stationarity | None
    """The growth of the server's backlog in an open loop; None for a closed loop or too short a run."""
    steps: Mapping[str, PhaseSteps] = field(default_factory=dict)
    """The engine steps that the server ran during the benchmark run, by phase, if it reports them."""

    @property
    def overloaded(self) -> bool:
        """Whether requests arrived faster than the server completed them, over the last two thirds of the run."""
        return self.steadiness is not None and self.steadiness.overloaded

    @property
    def client_limited(self) -> bool:
        """Whether the load generator was too late or too busy for its figures to reflect the server."""
        return self.summary.client_late or self.cpu > BUSY

    @property
    def busy(self) -> bool:
        """Whether a client process was so busy that more processes would help."""
        return self.cpu > BUSY / 2

    @property
    def seconds(self) -> list[SecondStats]:
        """The arrivals, active requests and tokens of the run in each second."""
        return seconds(self.records)

    @property
    def offered(self) -> float:
        """The intended requests per second, over the time in which they were intended."""
        intended = [record.intended for record in self.records]
        span = (max(intended) - min(intended)) / 1e9 if intended else 0.0
        return (len(intended) - 1) / span if span else 0.0


def run_of(job: LoadJob, parts: Sequence[client_pool.ClientResult], slo: SLO | None) -> BenchRun:
    """Combine the results of all client processes into one run."""
    records = sorted((r for part in parts for r in part.records), key=lambda record: (record.intended, record.index))
    end = max((record.over for record in records), default=0)
    last = max((record.intended for record in records), default=0)
    rate = len(records) / (last / 1e9) if last else 0.0
    steady = None
    if job.load.users is None:  # a closed loop cannot fall behind
        steady = judge_stationarity(under_way(records, min(end, last)), ttfts_by_arrival(records), rate)
    stopped = [part.stopped for part in parts if part.stopped]
    cpu = max(part.cpu / part.wall for part in parts)
    return BenchRun(job, len(parts), records, summarise(records, slo), cpu, stopped[0] if stopped else "", steady)


async def no_steps() -> Mapping[str, PhaseSteps]:
    """Return an empty mapping of step counts, for a server that does not report its engine steps."""
    return {}


async def run(
    job: LoadJob,
    processes: int | None,
    most: int,
    slo: SLO | None,
    on_line: Callable[[str], None],
    look: Look = no_steps,
) -> BenchRun:
    """Run a benchmark job with one or more client processes and return the results.

    Args:
        job: The job.
        processes: The number of client processes, reduced if some would have no user or slot. None starts with one and,
            if that was late or busy, repeats the run with other prompts and as many as its CPU use calls for.
        most: The maximum number of processes if `processes` is None.
        slo: The objectives, if there are any.
        on_line: Called with progress messages.
        look: Returns the steps that the server has run so far.
    """
    limit = processes or most
    limit = min(limit, job.load.users or limit, job.load.most_under_way or limit)
    found = await _measured(job, 1 if processes is None else limit, slo, on_line, look)
    if processes is None and found.client_limited and limit > 1 and not found.stopped:
        count = min(limit, max(2, round(found.cpu / (BUSY / 2))))
        on_line(f"one client process was late or busy ({found.cpu:.0%} of a core): repeating the run with {count}\n")
        data = msgspec.structs.replace(job.data, seed=job.data.seed + _AGAIN)
        found = await _measured(msgspec.structs.replace(job, data=data), count, slo, on_line, look)
    return found


async def _measured(
    job: LoadJob, processes: int, slo: SLO | None, on_line: Callable[[str], None], look: Look
) -> BenchRun:
    """Run a job once, with the steps that the server ran meanwhile."""
    before = await look()
    found = run_of(job, await client_pool.run(job, processes, lambda at: on_line(_words(at))), slo)
    after = await look()
    return replace(found, steps={phase: steps.since(before.get(phase)) for phase, steps in after.items()})


async def warm_up(job: LoadJob, requests: int) -> None:
    """Send a few uncounted requests, one after another, to warm up connections, caches and compilation.

    Raises:
        ValueError: If all requests fail, other than by a rejection for lack of capacity (HTTP 429 or 503), with the
            server's reason in the message; or if the prompt data cannot be read.
    """
    load = msgspec.structs.replace(
        job.load, users=1, arrivals="poisson", most_under_way=None, requests=requests, seconds=None, most_failed=1.0
    )
    if job.data.kind == "file":  # the file's own prompts would then be cached in the run
        data = PromptDataset(input="64", output="16")
    else:
        data = msgspec.structs.replace(job.data, seed=job.data.seed + _WARM_UP)
    (part,) = await client_pool.run(msgspec.structs.replace(job, load=load, data=data), 1, lambda at: None)
    if part.records and not any(record.outcome in ("ok", "rejected") for record in part.records):
        raise no_answer(job, part.records[0].reason)


def no_answer(job: LoadJob, reason: str) -> ValueError:
    """Return the error for a server that answers none of a job's requests."""
    cure = f"; {SHORTER}" if job.data.kind == "random" and beyond_context(reason) else ""
    return ValueError(f"the server rejects or fails all requests of this kind: {reason}{cure}")


def _words(at: client_pool.ClientProgress) -> str:
    return f"{at.sent} sent, {at.over} finished" + (f", {at.bad} failed or rejected" if at.bad else "")
