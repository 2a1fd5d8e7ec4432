"""The summary of a run's records; DEFINITIONS explains each figure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.insight.traffic.percentiles import Distribution, distribution, weighted
from ridgeline.insight.traffic.request_record import RequestRecord
from ridgeline.insight.traffic.slo import SLO

SYMBOLS = (
    "For one request: a is the time at which it was intended to be sent (s in a closed loop, which has no schedule), s "
    "the time at which its bytes were given to the socket, c1 ... ck the times at which the client decoded each chunk "
    "of the stream with content, T the number of its output tokens."
)
DEFINITIONS = {
    "TTFT": "c1 - a: time to first token, from the intended send time, so that a slow client cannot hide delays.",
    "service TTFT": "c1 - s: TTFT without the delay of the client itself.",
    "ITL": "inter-token latency: the gaps between tokens of all requests together; a gap before a chunk of m tokens "
    "counts as m gaps of 1/m of its length, where m is (T - 1) / (k - 1) of its request.",
    "chunk gap": "the gaps between chunks as they arrived. Other tools call this ITL.",
    "server TTFT": "by the server's own clock, if the server reports it: from the arrival of the request, "
    "before its body is "
    "read, to the first token. The difference to service TTFT is the network and the transfer of the first token's "
    "text to the client.",
    "worst gap": "the longest chunk gap of each request.",
    "TPOT": "(ck - c1) / (T - 1): time per output token of one request after its first; absent for T < 2, and for a "
    "response that came in one chunk.",
    "E2E": "ck - a: the whole response, from the intended send time.",
    "queue delay": (
        "s - a: the time that a request waited in the client, including for a free slot under --max-concurrency."
    ),
    "lateness": "s minus the time at which the request could have been sent: the delay that the load generator caused.",
    "offered": "arrivals per second: those after the first, over the time from the first a to the last a. With "
    "few requests "
    "it differs from the requested rate, because gaps are random, and from the throughput, which also counts the "
    "first request.",
    "throughput": (
        "the number of answered requests and the sum of their T, over the duration from the first a to the last c."
    ),
    "goodput": "answered requests that met every objective, over the duration. A request that lacks a metric "
    "(TPOT with one "
    "token or chunk) is counted separately and is not good. Uncertain: missed only because of the load generator's "
    "lateness.",
    "rejected": (
        "429 or 503. Like failed requests, rejected requests are not in the averages and are reported separately."
    ),
}

CLIENTS_OWN = ("lateness", "queue delay")
"""The latencies that describe only the load generator, and are valid however late it was."""
MAX_LATENESS = 0.05  # the client's lateness relative to the median TTFT, up to which TTFT describes the server


@dataclass(frozen=True, slots=True)
class Goodput:
    """The completed requests by whether they met the objectives."""

    good: int
    missed: int
    unknown: int
    """The requests that lack a metric with a limit and exceed no other limit."""
    rate: float
    """The requests per second that met their objectives."""
    uncertain: int = 0
    """The missed requests that would not have been missed without the load generator's own lateness."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The throughput, latencies and goodput of a run, computed from its request records."""

    counts: dict[str, int]
    """The number of requests by outcome, such as `ok` or `rejected`."""
    reasons: dict[str, int]
    """The number of requests that were not completed, by reason."""
    duration: float
    """The duration of the run in seconds."""
    requests_per_second: float
    tokens_per_second: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    counted: int
    """The completed requests whose tokens the server counted."""
    tokens_per_chunk: float
    latencies: dict[str, Distribution | None]
    """The distributions in seconds by the names of DEFINITIONS; None if no request has the metric."""
    sizes: dict[str, Distribution | None]
    """The distributions of prompt and output tokens."""
    goodput: Goodput | None
    """The completed requests by whether they met their objectives; None without objectives."""

    @property
    def answered(self) -> int:
        """The number of completed requests."""
        return self.counts["ok"]

    @property
    def total(self) -> int:
        """The number of all requests: completed, rejected, failed and unfinished."""
        return sum(self.counts.values())

    @property
    def good_share(self) -> float:
        """The share of all requests that met their objectives, or that completed if there are none."""
        good = self.answered if self.goodput is None else self.goodput.good
        return good / self.total if self.total else 0.0

    @property
    def client_late(self) -> bool:
        """Whether the load generator was so late that TTFT does not describe the server.

        This compares the highest percentile of its lateness that has enough samples; it is False if even the median has
        too few.
        """
        late, ttft = self.latencies["lateness"], self.latencies["TTFT"]
        judged = None if late is None else highest(late)
        return judged is not None and ttft is not None and judged[1] > MAX_LATENESS * middle(ttft)

    @property
    def some_late(self) -> bool:
        """Whether at least one request was sent so late that its TTFT does not describe the server."""
        late, ttft = self.latencies["lateness"], self.latencies["TTFT"]
        return late is not None and ttft is not None and late.most > MAX_LATENESS * middle(ttft)


def highest(samples: Distribution) -> tuple[int, float] | None:
    """Return the highest percentile that has enough samples, and its value; None if there is none."""
    found = [(percent, at.mid) for percent, at in samples.percentiles.items() if at is not None]
    return max(found, default=None)


def middle(samples: Distribution) -> float:
    """Return the median of a distribution, or the mean if there are too few samples."""
    found = samples.percentiles.get(50)
    return samples.mean if found is None else found.mid


def summarise(records: Sequence[RequestRecord], slo: SLO | None = None) -> Summary:
    """Return the summary of all records of a run."""
    answered = [record for record in records if record.outcome == "ok"]
    duration = _duration(records)
    output = sum(record.output for record in answered)
    chunks = sum(len(record.chunks) for record in answered)
    return Summary(
        {outcome: sum(r.outcome == outcome for r in records) for outcome in ("ok", "rejected", "failed", "unfinished")},
        dict(Counter(record.reason for record in records if record.outcome != "ok")),
        duration,
        len(answered) / duration if duration else 0.0,
        output / duration if duration else 0.0,
        sum(record.input or 0 for record in answered),
        output,
        sum(record.cached or 0 for record in answered),
        sum(record.counted for record in answered),
        output / chunks if chunks else 0.0,
        _latencies(answered, records),
        {
            "input": distribution([record.input for record in answered if record.input is not None]),
            "output": distribution([record.output for record in answered]),
        },
        _goodput(answered, slo, duration) if slo else None,
    )


def _duration(records: Sequence[RequestRecord]) -> float:
    """Return the seconds from the first intended send time to the last token, or to the last end if none completed."""
    if not records:
        return 0.0
    ends = [record.over for record in records if record.outcome == "ok"] or [record.over for record in records]
    return max(0, max(ends) - min(record.intended for record in records)) / 1e9


def _latencies(answered: Sequence[RequestRecord], records: Sequence[RequestRecord]) -> dict[str, Distribution | None]:
    """Return the latency distributions in seconds.

    Waiting at the client covers all sent requests, the other metrics only completed ones.
    """
    found: dict[str, list[int | None] | list[float | None]] = {
        "TTFT": [record.ttft for record in answered],
        "service TTFT": [record.service_ttft for record in answered],
        "TPOT": [record.tpot for record in answered],
        "E2E": [record.e2e for record in answered],
        "server TTFT": [None if r.server_ttft is None else r.server_ttft * 1e6 for r in answered],
        "worst gap": [max(record.gaps, default=None) for record in answered],
        "queue delay": [record.queue_delay for record in records],
        "lateness": [record.lateness for record in records],
    }
    single = {name: distribution([v / 1e9 for v in values if v is not None]) for name, values in found.items()}
    gaps = [np.asarray(record.gaps, dtype=np.float64) / 1e9 for record in answered if len(record.chunks) > 1]
    pooled = np.concatenate(gaps) if gaps else np.empty(0)
    each = [record.tokens_per_gap for record in answered if len(record.chunks) > 1]
    tokens = np.repeat(np.asarray(each, dtype=np.float64), [len(of) for of in gaps])
    return {**single, "ITL": weighted(pooled / tokens, tokens), "chunk gap": weighted(pooled, None)}


def _goodput(answered: Sequence[RequestRecord], slo: SLO, duration: float) -> Goodput:
    verdicts = Counter(slo.met(record.ttft, record.tpot, record.e2e) for record in answered)
    in_time = Counter(_met_in_time(record, slo) for record in answered)
    good = verdicts[True]
    uncertain = verdicts[False] - in_time[False]
    return Goodput(good, verdicts[False], verdicts[None], good / duration if duration else 0.0, uncertain)


def _met_in_time(record: RequestRecord, slo: SLO) -> bool | None:
    """Return whether a request would have met the objectives without the load generator's own lateness."""
    late = record.lateness or 0
    ttft, e2e = record.ttft, record.e2e
    return slo.met(None if ttft is None else ttft - late, record.tpot, None if e2e is None else e2e - late)
