"""Published measurements, and what the ledger says of each: a row of facts becomes a prediction with its floor.

What a metric means, in steps of the priced model:
    inter-token, decode tok/s    one decode step of the batch at the mean context of the output
    first token                  the prefill of the whole batch, all prompts there at once
    request, output tok/s        that prefill, then output - 1 decode steps (the prefill emits the first token)
    prefill tok/s                one prefill
    TTFT, TPOT                   a closed loop of `batch` users, or arrivals at a rate, step by step (accuracy_loop.py)
    output tok/s without a batch the most over all numbers of users that memory holds, steadily mixed
"""

import csv
import math
import tomllib
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import accuracy_loop
from accuracy_loop import Loop
from ridgeline.core.checkpoint.catalogue import CATALOGUE
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.recipes import PLAIN, uniform
from ridgeline.core.ops.number_formats import KV_FORMATS, WEIGHT_FORMATS, WeightFormat, format_named
from ridgeline.core.ops.work import LOGITS, TOKENS, AttentionSum, AttentionWork, StepSegment, Work
from ridgeline.price.devices import load_device
from ridgeline.price.engine_profile import load_engine
from ridgeline.price.plan.device_memory import memory_of
from ridgeline.price.plan.request_phases import Estimate, decode_step
from ridgeline.price.plan.scenario import Deployment, PlanWorkload, Scenario, one_device_part
from ridgeline.price.price import Price

METRICS = {
    "decode": "a decode step of a batch",
    "prefill": "the prefill of a batch",
    "static": "a batch from its first prompt token to its last",
    "serving": "first tokens, tokens and throughput under load",
    "tp8": "any of these on 8 devices",
}
UNITS = {"ms": 1e-3, "s": 1.0, "tok/s": 1.0}  # of published figures, in seconds and tokens a second
ROUNDS = 10  # requests that each user of a closed loop makes, which no table says

MEASURED = Path(__file__).resolve().parent / "measured"

# Formats that published engines store weights in and ours does not.
FOREIGN = (WeightFormat("int4-g32", 4, (1, 32), 16, 16),)


@dataclass(frozen=True, slots=True)
class Published:
    """An engine as rows name it: the profile that prices it, its date, and what it leaves open."""

    rows: str
    profile: str
    date: str
    open: str


@lru_cache(maxsize=1)
def published() -> tuple[Published, ...]:
    """The engines of measured/engines.toml, in their order."""
    text = (MEASURED / "engines.toml").read_text(encoding="utf-8")
    return tuple(Published(**entry) for entry in tomllib.loads(text)["engine"])


def published_as(engine: str) -> Published:
    """The entry of an engine as a row names it."""
    return next(entry for entry in published() if engine.startswith(entry.rows))


@dataclass(frozen=True, slots=True)
class Row:
    """A measurement as published: figures and conditions, with their source. batch: 0 where it is not published.

    rate, requests: arrivals a second and how many there are, where users do not ask again at once; then batch is the
    most that the engine takes at once.
    """

    id: str
    model: str
    card: str
    devices: int
    weights: str
    kv: str
    batch: int
    input: int
    output: int
    step_tokens: int
    metric: str
    value: float
    unit: str
    engine: str
    conditions: str
    source: str
    rate: float = 0.0
    requests: int = 0

    @property
    def metric_class(self) -> str:
        """The kind of the figure, one of METRICS; on eight devices or more, all-reduce dominates any time."""
        return "tp8" if self.devices >= 8 else self._sort

    @property
    def _sort(self) -> str:
        if self.metric in ("TTFT", "TPOT") or not self.batch:
            return "serving"
        if self.metric in ("inter-token", "decode tok/s"):
            return "decode"
        return "prefill" if self.metric in ("first token", "prefill tok/s") else "static"

    @property
    def is_rate(self) -> bool:
        """Whether more is better: tokens a second, not seconds."""
        return self.metric.endswith("tok/s")

    @property
    def measured(self) -> float:
        """The value in seconds, or tokens a second."""
        return self.value * UNITS[self.unit]


def read(name: str) -> list[Row]:
    """The rows of one file of facts."""
    return [_row(line) for line in facts(name)]


def _row(line: dict[str, str]) -> Row:
    def count(key: str) -> int:
        return int(line.get(key) or 0)

    return Row(
        line["id"], line["model"], line["card"], count("devices"), line["weights"], line["kv"], count("batch"),
        count("input"), count("output"), count("step_tokens"), line["metric"], float(line["value"]), line["unit"],
        line["engine"], line["conditions"], line["source"], float(line.get("rate") or 0), count("requests"),
    )  # fmt: skip


def facts(name: str) -> list[dict[str, str]]:
    """The lines of one file of facts."""
    with (MEASURED / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@lru_cache(maxsize=64)
def case_of(
    model: str, card: str, devices: int, weights: str, kv: str = "", utilization: float = 0.9, engine: str = ""
) -> Scenario:
    """A model on cards, driven by an engine as a row names it; configs come from the catalogue, else from beside the
    facts."""
    path = CATALOGUE / f"{model}.json"
    fields = Fields.read(path if path.is_file() else MEASURED / "models" / f"{model}.json")
    stored = next((f for f in (*WEIGHT_FORMATS, *FOREIGN) if f.name == weights), None)
    dtype = fields.dtype if stored else format_named(weights).dtype
    cached = next((f for f in KV_FORMATS if f.name == kv), None)
    recipe = replace(uniform(stored) if stored else PLAIN, kv=cached)
    driven = load_engine(published_as(engine).profile)
    setup = Deployment(load_device(card), devices, utilization=utilization, engine=driven)
    built = one_device_part(fields, dtype, recipe, setup)
    return Scenario(setup, built, Price(built, devices), recipe)


def predict(row: Row) -> Estimate:
    """Floor, bound and expected of what the row measures, in its unit (seconds, or tokens a second)."""
    case = case_of(row.model, row.card, row.devices, row.weights, row.kv, engine=row.engine)
    if row.metric in ("TTFT", "TPOT"):
        return serve(row, case)
    if not row.batch:
        return most(row, case)
    match row.metric:
        case "inter-token":
            return decode(row, case)
        case "decode tok/s":
            return decode(row, case).per_second(row.batch)
        case "first token":
            return prefill(row, case)
        case "prefill tok/s":
            return prefill(row, case).per_second(row.batch * row.input)
        case "request":
            return request(row, case)
        case "output tok/s":
            return request(row, case).per_second(row.batch * row.output)
    raise ValueError(f"{row.id}: no prediction is defined for the metric {row.metric!r}")


def decode(row: Row, case: Scenario) -> Estimate:
    """One decode step at the mean context of the output."""
    return Estimate.of([decode_step(case, row.batch, row.input + max(1, row.output // 2))])


def prefill(row: Row, case: Scenario) -> Estimate:
    """All prompts of the batch in one step."""
    work = Work.of([StepSegment(row.input, row.input)] * row.batch, case.price.reaches)
    return Estimate.of([case.price.price_step(case.device, work)])


def request(row: Row, case: Scenario) -> Estimate:
    """From the first prompt token to the last of the output."""
    return prefill(row, case) + decode(row, case) * (row.output - 1)


def serve(row: Row, case: Scenario) -> Estimate:
    """What requests get in a closed loop, or at a rate; no floor of it is below one prompt's, or one step's."""
    engine = case.setup.engine
    cards = row.devices if engine.own_attention else 1  # each of which has its share of the requests
    loop = Loop(
        row.batch // cards, row.input, row.output, engine.policy, ROUNDS,
        row.step_tokens // cards, row.rate / cards, row.requests // cards,
    )  # fmt: skip
    ttft, tpot = accuracy_loop.replay(loop, case.price, case.device)
    if row.metric == "TTFT":
        alone = prefill(replace(row, batch=1), case)
        return Estimate(alone.floor, alone.bound, ttft)
    step = decode(replace(row, batch=loop.users), case)
    return Estimate(step.floor, step.bound, tpot)


def most(row: Row, case: Scenario) -> Estimate:
    """The highest rate over all numbers of users that memory holds.

    Steadily mixed: every step gives each user a token, and runs the prompts that came in place of the requests that
    ended, `users / output` of them. Requests are at all ages, so each holds the KV of half its output.
    """
    memory = memory_of(case, PlanWorkload(row.input, row.output, step_tokens=8192))
    context = row.input + max(1, row.output // 2)
    held = max(1, memory.kv_tokens // context)
    rates = []
    for users in {min(held, 2**power) for power in range(14)}:
        work = Work.decode([context] * users, case.price.reaches) + _prompts(row, users, case)
        rates.append(Estimate.of([case.price.price_step(case.device, work)]).per_second(users))
    return max(rates, key=lambda rate: rate.expected)


def _prompts(row: Row, users: int, case: Scenario) -> Work:
    """The prompt positions of a mixed step: `users / output` prompts, on average."""
    one, share = Work.of([StepSegment(row.input, row.input)], case.price.reaches, logit_rows=0), users / row.output
    rows, attention = round(row.input * share), {}
    for reach, asked in one.attention.items():
        pairs, keys = round(asked.total.pairs * share), round(asked.total.keys * share)
        attention[reach] = AttentionWork(many=AttentionSum(math.ceil(share), rows, pairs, keys, rows))
    return Work({TOKENS: rows, LOGITS: 0}, math.ceil(share), attention)
