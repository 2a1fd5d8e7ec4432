"""The time from the logits to the tokens, by way of sampling, number of rows and vocabulary, and its constants."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from ridgeline.engine.params import SamplingParams
from ridgeline.engine.sampling import SampleRow
from ridgeline.insight.calibrate.fit import least_squares
from ridgeline.insight.calibrate.probe import PaceProbe, undisturbed_pace
from ridgeline.insight.calibrate.steps import TrialRunner
from ridgeline.insight.calibrate.timer import Timer, undisturbed
from ridgeline.insight.calibrate.trials import TRIALS, decode
from ridgeline.price.host_parts import GREEDY, SamplingTime
from ridgeline.price.slowdown import Slowdown

WAYS: Mapping[str, SamplingParams] = MappingProxyType(
    {
        GREEDY: SamplingParams(temperature=0.0),
        "all": SamplingParams(temperature=0.8),
        "top-k": SamplingParams(temperature=0.8, top_k=50, top_p=0.95),
        "top-p": SamplingParams(temperature=0.8, top_p=0.95),
    }
)
"""The ways of sampling that take different times: greedy, from all tokens, and after a cut, by name."""

VOCABULARIES, ROWS = (500, 4_000, 32_000, 128_000), (1, 4, 16)
_MOST_LOGITS = 600_000  # of a call; more would take long, and add nothing to the cost of a logit
_POSITION = 40
_LIKELY, _STEP = 10, 0.7  # the likeliest tokens of a row, and how far apart their logits are
_ABOVE = 3.5  # of the likeliest token, compared with all unlikely ones together: these have a probability of 1.5 %


@dataclass(frozen=True, slots=True)
class SampledRows:
    """The undisturbed seconds of one call of the sampler."""

    way: str
    rows: int
    vocabulary: int
    seconds: float


def way_of(params: SamplingParams) -> str:
    """Return the way of sampling, a key of WAYS, that costs about as much as these parameters do."""
    if params.greedy:
        return GREEDY
    if params.top_k > 0:
        return "top-k"
    return "top-p" if params.top_p < 1 or params.min_p > 0 else "all"


def sampling_times(timer: Timer, probe: PaceProbe, pace: Slowdown, budget: float) -> list[SampledRows]:
    """Measure the sampler on rows of several vocabularies, repeatedly, converted to one pace.

    A decode step of a tiny model runs before each call, as in an engine: in a loop of its own the sampler would find
    its code in the caches.

    Args:
        timer: The timer of the CPU.
        probe: Measures the pace of the machine.
        pace: The pace to convert to.
        budget: Seconds of wall time; every call is made at least once.
    """
    stage = TrialRunner(TRIALS[0].model(torch.float32, timer.device), 64)
    step, sampler = stage.prepare(decode(1, _POSITION)), stage.runner.sampler
    calls = [
        (way, likely_logits(rows, vocabulary))
        for vocabulary, rows in product(VOCABULARIES, ROWS)
        if rows * vocabulary <= _MOST_LOGITS
        for way in WAYS
    ]
    taken: list[list[float]] = [[] for _ in calls]
    begin, before = timer.wall(), len(probe.taken)
    while not taken[0] or timer.wall() - begin < budget:
        probe()
        for (way, logits_RV), own in zip(calls, taken, strict=True):
            params = WAYS[way]
            step.run()
            logits_RV.mul_(1.0)  # the head has just written the logits of an engine's step
            start = timer.now()
            sampler.sample(logits_RV, [SampleRow(params, seed, _POSITION) for seed in range(len(logits_RV))])
            own.append(timer.now() - start)
    slower = undisturbed_pace(probe.taken[before:]).over(pace).launch
    return [
        SampledRows(way, len(logits_RV), logits_RV.shape[1], undisturbed(own) / slower)
        for (way, logits_RV), own in zip(calls, taken, strict=True)
    ]


def likely_logits(rows: int, vocabulary: int) -> Tensor:
    """Return logits [rows, vocabulary] with a few likely tokens, as a trained model's text has them."""
    generator = torch.Generator().manual_seed(0)
    logits_RV = torch.randn(rows, vocabulary, generator=generator)
    top = float(torch.logsumexp(logits_RV[0], 0)) + _ABOVE
    places = torch.randint(vocabulary, (rows, _LIKELY), generator=generator)
    return logits_RV.scatter_(1, places, (top - _STEP * torch.arange(_LIKELY)).expand(rows, _LIKELY))


def fit_sampling(times: Sequence[SampledRows]) -> dict[str, SamplingTime]:
    """Fit the non-negative constants of each way of sampling, by relative errors."""
    found = {}
    for way in dict.fromkeys(each.way for each in times):
        own = [each for each in times if each.way == way]
        seconds = np.array([each.seconds for each in own])
        counts = np.array([[1, each.rows, each.rows * each.vocabulary] for each in own], dtype=float)
        constants = least_squares(counts / seconds[:, None], np.ones(len(own)))
        found[way] = SamplingTime(*map(float, constants))
    return found
