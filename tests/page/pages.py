"""What the tests of the page share: cards of every sort, works at random, the page's price of many steps at once."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from page.modules import Modules
from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.learn.page.device_tables import build_device_tables
from ridgeline.price.device import Cache, Copies, Device, Efficiency, HostTime
from ridgeline.price.devices import load_device
from ridgeline.price.engine_profile import EngineProfile, load_engine
from ridgeline.price.host_parts import HostParts, PartTime, SamplingTime
from ridgeline.price.plan.scenario import Scenario
from ridgeline.price.price import StepPrice

PARTS = HostParts(
    PartTime(7e-6, 2e-6, 1e-8, 0.0, 5e-6, 2e-6),
    PartTime(2e-5, 4e-6, 3e-8, 6e-6, 9e-6, 7e-6),
    {"greedy": SamplingTime(1e-5, 3e-6, 2e-10), "all": SamplingTime(2e-5, 4e-6, 5e-10)},
)
"""The parts of a step that belong to no op."""

NATIVE = replace(
    load_device("h100-sxm"),
    name="own",
    kind="cpu",
    peaks={"fp32": 1.1e12, "bf16": 1.9e12, "int8": 3.1e12},
    bandwidth=4.1e10,
    caches=(Cache("L2", 3 << 20, 3e11), Cache("L3", 40 << 20, 2e11)),
    link=None,
    efficiency={
        "default": Efficiency(3e-6, 0.4, 0.6, 1.0),
        "linear": Efficiency(2e-6, 0.5, 0.7, 1.0, 1.7, 1e-6),
        "linear.few": Efficiency(2.5e-6, 0.6, 0.8, 1.0, 1.0, 0.9e-6),
        "linear.many/bf16": Efficiency(2.6e-6, 0.7, 0.9, 0.5, 4.0),
        "attention.paged": Efficiency(5e-6, 0.3, 0.5, 0.0, 2.0, 4e-6),
    },
    host=HostTime(5e-5, 2e-6, 3e-6, 1e-7, 1e-12, asked=4e-5, prompts=6e-5, parts=PARTS),
    calibrated=True,
    native=True,
)
"""A processor that runs our kernels: recorded steps, caches, powers of its own, a host that waits."""

COPYING = replace(
    load_engine("llama.cpp"),
    name="copying",
    rereads=True,
    copies=Copies(3, 1.5, 0.5),
    dequantise={"int4": 0.8, "fp8": 0.9},
    host=HostTime(1e-4, 1e-5, 2e-6, 1e-8, 0.0, asked=3e-5, ahead=True, prompts=6e-5),
)
"""An engine with every rule that one may have."""

CARDS = (load_device("h100-sxm"), load_device("a100-sxm-80gb"), load_device("v100-sxm-32gb"), load_device("l4"))
ENGINES = (load_engine("vllm"), load_engine("tensorrt-llm"), COPYING, load_engine("vllm-dp"))


class Page(Modules):
    """Modules with data that they share, as `kept`."""

    def keep(self, name: str, value: Any) -> None:
        """Data as `kept.NAME`."""
        self.run(f"globalThis.kept = globalThis.kept || {{}}; kept.{name} = {json.dumps(value)};")

    def run(self, code: str) -> None:
        """Statements."""
        self._context.eval(code)


def opened(*names: str) -> Page:
    """Modules of the page, with `kept.all` cards and engines, and `steps` to price many of them."""
    page = Page(*names)
    page.keep("data", build_device_tables((*CARDS, NATIVE), ENGINES))
    page.run("""
        const {openTable, openCards, drive, priceStep, scaled} = modules["price.js"];
        const {Cost_total_flops, Cost_communication_bytes} = modules["step_formulas.js"];
        const {segment, workOf, decodeWork} = modules["work.js"];
        kept.all = openCards(kept.data);
        function steps(works, card, engine, ranks) {
          const device = drive(kept.all.cards[card], kept.all.engines[engine], kept.table.devices);
          return works.map(([segments, rows]) => {
            const work = workOf(kept.table, segments.map((each) => segment(...each)), rows);
            const {cost, floor, bound, expected, host, workingSet} = priceStep(kept.table, device, work, ranks);
            const {weight_bytes, kv_read_bytes, kv_write_bytes, activation_bytes} = cost;
            const seconds = [floor, bound, expected, host, workingSet];
            const bytes = [weight_bytes, kv_read_bytes, kv_write_bytes, activation_bytes];
            return [...seconds, Cost_total_flops(cost), ...bytes, Cost_communication_bytes(cost)];
          });
        }""")
    return page


def put(page: Page, table: dict[str, Any]) -> None:
    """As `kept.table`, as it comes over a wire."""
    page.keep("written", json.loads(json.dumps(table)))
    page.run("kept.table = openTable(kept.written)")


def figures(step: StepPrice) -> list[float]:
    """Those of a step, in the order of `steps`."""
    cost: Cost = step.cost
    return [
        step.floor, step.bound, step.expected, step.host, step.working_set, cost.total_flops, cost.weight_bytes,
        cost.kv_read_bytes, cost.kv_write_bytes, cost.activation_bytes, cost.communication_bytes,
    ]  # fmt: skip


def drawn(rng: random.Random, encodes: bool = False) -> tuple[list[StepSegment], int]:
    """The segments of a step of up to 40 sequences: decodes, a few positions, chunks of prompts; and its rows of
    logits."""
    segments = []
    decodes = rng.random() < 0.3
    for _ in range(rng.choice((1, 2, 3, rng.randint(4, 40)))):
        queries = 1 if decodes else rng.choice((1, 1, rng.randint(2, 9), round(2 ** rng.uniform(3, 11))))
        known = rng.choice((0, 1, rng.randint(2, 60), round(2 ** rng.uniform(5, 15))))
        encoded = rng.choice((0, 1, rng.randint(2, 300))) if encodes else 0
        segments.append(StepSegment(queries, queries + known, encoded, runs_encoder=encoded > 0 and rng.random() < 0.5))
    return segments, len(segments) if decodes or rng.random() < 0.5 else rng.randint(0, len(segments))


def written(works: Sequence[tuple[list[StepSegment], int]]) -> list[Any]:
    """As the page takes them."""
    return [[[[s.q_len, s.kv_len, s.encoder_len, s.runs_encoder] for s in segments], rows] for segments, rows in works]


def worst(
    page: Page,
    case: Scenario,
    works: Sequence[tuple[list[StepSegment], int]],
    device: Device,
    engine: EngineProfile,
    ranks: int | None = None,
) -> float:
    """The largest relative difference of a figure of the page from the price's, over these steps."""
    driven = engine.on(device, case.setup.devices)
    price = case.price if ranks is None else case.price.with_active_ranks(ranks)
    page.keep("works", written(works))
    told = "undefined" if ranks is None else ranks
    found = page.eval(f"steps(kept.works, {json.dumps(device.name)}, {json.dumps(engine.name)}, {told})")
    differences = [0.0]
    for (segments, rows), got in zip(works, found, strict=True):
        wanted = figures(price.price_step(driven, Work.of(segments, price.reaches, rows)))
        differences += [abs(a - b) / max(abs(a), abs(b)) for a, b in zip(got, wanted, strict=True) if a != b]
    return max(differences)
