"""Summary: what the records of a run say together. The words of every figure are in DEFINITIONS."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.insight.traffic.percentiles import Distribution, distribution, weighted
from ridgeline.insight.traffic.request_record import RequestRecord
from ridgeline.insight.traffic.slo import SLO

SYMBOLS = (
    "For one request: a is the moment at which it was intended to be sent (in a closed loop, where nothing is "
    "scheduled, s), s when its bytes were handed to the socket, "
    "c1 ... ck when the client decoded each piece of the stream that has content, T its output tokens."
)
DEFINITIONS = {
    "TTFT": "c1 - a: time to first token, from the intended moment, so that a client that falls behind hides nothing.",
    "service TTFT": "c1 - s: the same without what the client itself waited.",
    "ITL": "inter-token latency: the gaps between tokens of all requests together; a gap before a piece of m tokens "
    "counts as m gaps of 1/m of it, m being (T - 1) / (k - 1) of its request.",
    "chunk gap": "the gaps between pieces as they came. Other tools call this ITL.",
    "server TTFT": "by the server's own clock, where it tells: from the arrival of the request in the server, "
    "before its body is read, to the first token. What service TTFT has beyond it is the network, and the way of the "
    "first token's text to the client.",
    "worst gap": "the longest chunk gap of each request.",
    "TPOT": "(ck - c1) / (T - 1): time per output token of one request after its first; absent for T < 2, and for "
    "an answer that came in one piece.",
    "E2E": "ck - a: the whole answer, from the intended moment.",
    "queue delay": "s - a: what a request waited on the client's side, for a free place under --max-concurrency too.",
    "lateness": "s less the moment at which it might be sent: what the load generator is to blame for.",
    "offered": "arrivals a second: those after the first, over the time from the first a to the last a. Of few "
    "requests it differs from the rate that was asked for, because gaps are drawn, and from the throughput, which "
    "counts the first one too.",
    "throughput": "requests, and T, of all answered requests, over the duration: from the first a to the last c.",
    "goodput": "answered requests that met every objective, over the duration. One that lacks a metric (TPOT of one "
    "token or piece) is counted apart and is not good. Uncertain: missed, but only by the load generator's own "
    "lateness.",
    "rejected": "429 or 503. Like failed ones, rejected requests are in no average and stand beside it.",
}

CLIENTS_OWN = ("lateness", "queue delay")
"""Of the latencies those that say nothing of the server, and stand however late the load generator was."""
MAX_LATENESS = 0.05  # of the median TTFT: our own lateness up to which it is the server that we measure


@dataclass(frozen=True, slots=True)
class Goodput:
    """Answered requests by whether they met the objectives; unknown: those that lack a metric. rate: good a second.
    uncertain: of the missed, those that would not have been but for the load generator's own lateness.
    """

    good: int
    missed: int
    unknown: int
    rate: float
    uncertain: int = 0


@dataclass(frozen=True, slots=True)
class Summary:
    """Of a run. counts: requests by outcome; reasons: how many were not answered for each reason. duration: seconds.
    latencies: seconds, by the names of DEFINITIONS; None where no request has it. sizes: tokens in and out. counted:
    answered requests whose tokens the server counted. goodput: None without objectives.
    """

    counts: dict[str, int]
    reasons: dict[str, int]
    duration: float
    requests_per_second: float
    tokens_per_second: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    counted: int
    tokens_per_chunk: float
    latencies: dict[str, Distribution | None]
    sizes: dict[str, Distribution | None]
    goodput: Goodput | None

    @property
    def answered(self) -> int:
        """Requests that were."""
        return self.counts["ok"]

    @property
    def total(self) -> int:
        """All of them: answered, rejected, failed and given up."""
        return sum(self.counts.values())

    @property
    def good_share(self) -> float:
        """Of all requests those that were good, or, without objectives, answered."""
        good = self.answered if self.goodput is None else self.goodput.good
        return good / self.total if self.total else 0.0

    @property
    def client_late(self) -> bool:
        """Whether the load generator was late by so much that its TTFT is no figure of the server's: by the highest
        percentile of its lateness that there are enough requests for. Never of so few that they have no median.
        """
        late, ttft = self.latencies["lateness"], self.latencies["TTFT"]
        judged = None if late is None else highest(late)
        return judged is not None and ttft is not None and judged[1] > MAX_LATENESS * middle(ttft)

    @property
    def some_late(self) -> bool:
        """Whether a request was late by so much, be it one alone."""
        late, ttft = self.latencies["lateness"], self.latencies["TTFT"]
        return late is not None and ttft is not None and late.most > MAX_LATENESS * middle(ttft)


def highest(samples: Distribution) -> tuple[int, float] | None:
    """The highest percentile that there are enough samples for, and its value; None where there is none."""
    found = [(percent, at.mid) for percent, at in samples.percentiles.items() if at is not None]
    return max(found, default=None)


def middle(samples: Distribution) -> float:
    """The median, or the mean where there are too few for one."""
    found = samples.percentiles.get(50)
    return samples.mean if found is None else found.mid


def summarise(records: Sequence[RequestRecord], slo: SLO | None = None) -> Summary:
    """The summary of all records of a run."""
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
    """Seconds from the first intended moment to the last token; where nothing was answered, to the last end."""
    if not records:
        return 0.0
    ends = [record.over for record in records if record.outcome == "ok"] or [record.over for record in records]
    return max(0, max(ends) - min(record.intended for record in records)) / 1e9


def _latencies(answered: Sequence[RequestRecord], records: Sequence[RequestRecord]) -> dict[str, Distribution | None]:
    """In seconds. What the client waited is said of all that it sent, the rest of what was answered."""
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
    """Whether the objectives were met but for what the load generator itself was late."""
    late = max(0, record.lateness or 0)
    ttft, e2e = record.ttft, record.e2e
    return slo.met(None if ttft is None else ttft - late, record.tpot, None if e2e is None else e2e - late)
