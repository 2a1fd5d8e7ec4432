"""Predictions for the rows of `measured/published.csv`, by the same code as `ridgeline plan` and `ridgeline simulate`.

A row is priced as the product would answer it: its model by `measured/published_models.csv`, its device by the
catalogue, its engine by `measured/engines.toml`. What the metric of a row means in priced steps:

    decode     one decode step of the batch at the mean context of the output
    prefill    all prompts of the batch in one step
    static     that prefill, then output - 1 decode steps
    load       a simulation of one replica with the row's users or arrivals

Errors are factors on times: measured over predicted. For a rate it is predicted over measured. A factor above 1 says
that the measured system was slower than predicted.
"""

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from accuracy_replay import MEASURED, published_as
from published_rows import PublishedRow, read_models
from ridgeline.core.checkpoint.catalogue import CATALOGUE
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.recipes import read_recipe
from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.engine.scheduler import Limits
from ridgeline.insight.simulate.machine_setup import machine_of
from ridgeline.insight.simulate.simulation import run
from ridgeline.insight.traffic.arrivals import constant, poisson
from ridgeline.insight.traffic.lengths import Fixed
from ridgeline.insight.traffic.offered import ClosedLoop, Offered, OpenLoop, bounded, draw_requests, jittered
from ridgeline.insight.traffic.think_time import ThinkTime
from ridgeline.price.devices import load_device
from ridgeline.price.engine_profile import load_engine
from ridgeline.price.plan.request_phases import Estimate, decode_step
from ridgeline.price.plan.scenario import Deployment, ModelCache, Scenario

SECONDS = {"ms": 1e-3, "s": 1.0}
MANY_TOKENS, FEW_TOKENS = 8192, 2048  # vLLM's step budgets on GPUs with 70 GiB or more, and on others
MANY_REQUESTS, FEW_REQUESTS = 1024, 256  # and its requests at a time
ROUNDS = 4  # requests that each user of a closed loop makes, where the source does not say

FORMATS = {
    "w8a8": "w8a8", "int8 (w8a8)": "w8a8", "int8 w8a8": "w8a8", "int8-g64": "q8_0", "int6-g64": "q6_k",
    "int5-g64": "q5_k_m", "int4-g64": "int4-g64", "int4-g32": "int4-g32", "q4f16_1": "int4-g32", "nf4": "int4-g64",
    "int8": "int8", "int4": "int4", "fp8": "fp8", "mxfp8": "fp8", "mxfp4": "mxfp4", "fp4": "mxfp4", "nvfp4": "nvfp4",
    "q8": "q8_0", "q6_k": "q6_k", "q5_k": "q5_k_m", "q4_k": "q4_k_m", "q4_0": "q4_0", "q3_k": "q3_k_l",
}  # fmt: skip
"""Our weight formats by the start of a source's format name; unknown ones by bits per weight."""
KV_NAMES = {"fp8": "fp8", "int8": "int8", "q8_0": "int8", "q4_0": "nvfp4", "k int8": "int8"}
"""Our KV formats by the start of a source's format name; others count as 16 bits or more."""
PLAIN_NAMES = ("fp32", "fp16", "bf16")


@dataclass(frozen=True, slots=True)
class PricedRow:
    """A published row with what was predicted for it."""

    row: PublishedRow
    case: Scenario
    predicted: float
    """The prediction in seconds, or in tokens per second."""
    floor: float | None
    """The physical limit of the prediction, in its unit; None under load, where each simulated step has its own."""

    @property
    def least(self) -> float:
        """The factor that a measurement at the physical limit would have; 0 without a limit."""
        if self.floor is None:
            return 0.0
        return self.floor / self.predicted if self.row.unit in SECONDS else self.predicted / self.floor

    @property
    def factor(self) -> float:
        """The factor by which the measured system was slower than predicted."""
        if self.row.unit in SECONDS:
            return self.row.value * SECONDS[self.row.unit] / self.predicted
        return self.predicted / self.row.value


def price_row(row: PublishedRow, slower: float = 1.0) -> PricedRow:
    """Predict what a row measures.

    Args:
        row: The row.
        slower: A factor on the steps of a simulation, for rows under load.

    Raises:
        ValueError: If the row cannot be priced; the message says why.
    """
    case = case_of(row)
    match row.kind:
        case "decode":
            found = _decode(row, case)
        case "prefill":
            found = _prefill(row, case)
        case "static":
            found = _static(row, case)
        case _:
            return PricedRow(row, case, _load(row, case, slower), None)
    return PricedRow(row, case, found.expected, found.floor)


# -- what is priced ---------------------------------------------------------------------------------------------------


def case_of(row: PublishedRow) -> Scenario:
    """Return the scenario of a row: its model, in its formats, on its devices, under its engine.

    Raises:
        ValueError: If the model, a format or the device is not known, or if the model cannot be split over the devices.
    """
    model = read_models()[row.model]
    if not model.config:
        raise ValueError(f"the model is not priced: {model.reason}")
    if row.devices > 1 and re.search(r"layer split|-sm layer|split-mode layer", row.conditions):
        raise ValueError("layers are split over devices, which run one after the other")
    engine = published_as(row.engine).profile
    weights = "w8a8" if "int8 activations" in row.conditions else row.weights.lower()
    return _case(model.config, row.card, row.devices, weights, row.kv.lower(), engine)


@lru_cache(maxsize=256)
def _case(config: str, card: str, devices: int, weights: str, kv: str, engine: str) -> Scenario:
    models = _models(config)
    stored = _named(weights, FORMATS) or next(name for name in PLAIN_NAMES if weights.startswith(name))
    if stored == "mxfp4" and "mxfp4" in read_recipe(models.fields).name:
        stored = None  # as the checkpoint stores them: the experts alone
    try:
        device = load_device(card)
    except ValueError:
        raise ValueError(f"{card} is not in the catalogue") from None
    return models.scenario(Deployment(device, devices, stored, _named(kv, KV_NAMES), engine=load_engine(engine)))


@lru_cache(maxsize=16)
def _models(config: str) -> ModelCache:
    path = CATALOGUE / f"{config}.json"
    return ModelCache(Fields.read(path if path.is_file() else MEASURED / "models" / f"{config}.json"))


def _named(text: str, names: Mapping[str, str]) -> str | None:
    """Return the name that the beginning of a text stands for, or None."""
    return next((name for start, name in names.items() if text.removeprefix("ud-").startswith(start)), None)


# -- batches ----------------------------------------------------------------------------------------------------------


def _count(text: str) -> int:
    """Return a number of a row; 0 if it is empty."""
    return int(text) if text else 0


def _context(row: PublishedRow) -> int:
    return _count(row.input) + max(1, _count(row.output) // 2)


def _decode(row: PublishedRow, case: Scenario) -> Estimate:
    batch = max(1, _count(row.batch))
    step = Estimate.of([decode_step(case, batch, _context(row))])
    if row.unit in SECONDS:
        return step
    return step.per_second(1 if "per user" in row.metric else batch)


def _prompts(row: PublishedRow, case: Scenario) -> Estimate:
    batch, length = max(1, _count(row.batch)), _count(row.input)
    work = Work.of([StepSegment(length, length)] * batch, case.price.reaches)
    return Estimate.of([case.price.price_step(case.device, work)])


def _prefill(row: PublishedRow, case: Scenario) -> Estimate:
    seconds = _prompts(row, case)
    return seconds if row.unit in SECONDS else seconds.per_second(max(1, _count(row.batch)) * _count(row.input))


def _static(row: PublishedRow, case: Scenario) -> Estimate:
    batch, output = max(1, _count(row.batch)), _count(row.output)
    step = Estimate.of([decode_step(case, batch, _context(row))])
    seconds = _prompts(row, case) + step * (output - 1)
    if row.unit in SECONDS:
        return seconds
    return seconds.per_second(batch * (output + (_count(row.input) if "total" in row.metric else 0)))


# -- load -------------------------------------------------------------------------------------------------------------


def _lengths(row: PublishedRow) -> tuple[int, int]:
    """Return the prompt and output tokens of a request; for a data set, their means."""
    sizes = []
    for text in (row.input, row.output):
        total = re.fullmatch(r"sharegpt: (\d+) in (\d+) requests", text)
        if not total and not text.isdigit():
            raise ValueError("the lengths of its requests are not in the row")
        sizes.append(round(int(total[1]) / int(total[2])) if total else int(text))
    return sizes[0], sizes[1]


def _offered(row: PublishedRow) -> Offered:
    given, made = _lengths(row)
    lengths = Fixed(given), Fixed(made)
    if row.input.startswith("sharegpt"):
        lengths = jittered(lengths[0]), jittered(lengths[1])
    try:
        rate = float(row.rate)
    except ValueError:
        rate = math.inf
    if math.isfinite(rate) and rate:
        moments = constant(rate) if "constant rate" in row.conditions else poisson(rate, 0)
        return OpenLoop(bounded(draw_requests(moments, *lengths, 0), _count(row.requests), None))
    users = int(row.batch)
    requests = _count(row.requests) or users * ROUNDS
    return ClosedLoop(users, ThinkTime(), bounded(draw_requests(constant(1.0), *lengths, 0), requests, None), None, 0)


def _limits(row: PublishedRow, case: Scenario) -> Limits:
    large = case.device.memory >= 70 * 2**30 and not case.device.name.startswith("a100")
    tokens = _count(row.step_tokens) or (MANY_TOKENS if large else FEW_TOKENS)
    return Limits(tokens, MANY_REQUESTS if large else FEW_REQUESTS)


def _load(row: PublishedRow, case: Scenario, slower: float) -> float:
    """Return what a simulation gives for the row's statistic, with steps that are slower than predicted by a factor."""
    log = run(machine_of(case, _limits(row, case), prefix_cache=False), _offered(row), slower)
    requests = log.requests
    ended = [place for place in range(len(requests)) if requests.last[place] >= 0]
    if len(ended) < len(requests):
        raise ValueError("the priced memory cannot hold a request")
    first = [(requests.first[place] - requests.arrived[place]) / 1e9 for place in ended]
    per_token = [
        (requests.last[place] - requests.first[place]) / 1e9 / max(1, requests.made[place] - 1) for place in ended
    ]
    metric = row.metric.lower()
    if "ttft" in metric:
        return _statistic(metric, first)
    if "tpot" in metric or "itl" in metric:
        return _statistic(metric, per_token)
    if "e2e" in metric:
        whole = [(requests.last[place] - requests.arrived[place]) / 1e9 for place in ended]
        return _statistic(metric, whole)
    if "per user" in metric:
        return 1 / statistics.fmean(per_token)
    seconds = (max(requests.last) - min(requests.arrived)) / 1e9
    made, given = sum(requests.made), sum(requests.input)
    if "total" in metric:
        return (made + given) / seconds
    return (given if "input" in metric else made) / seconds


def _statistic(metric: str, values: Sequence[float]) -> float:
    if "mean" in metric or not re.search(r"median|p50|p99", metric):
        return statistics.fmean(values)
    ordered = sorted(values)
    return ordered[math.ceil(0.99 * len(ordered)) - 1] if "p99" in metric else statistics.median(values)
