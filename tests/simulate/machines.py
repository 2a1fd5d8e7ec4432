"""Small machines to simulate, and runs of them."""

from collections.abc import Iterable
from typing import Any

from ridgeline.engine.scheduler import Limits
from ridgeline.insight.simulate.machine_setup import machine_of
from ridgeline.insight.simulate.replica import Machine
from ridgeline.insight.simulate.run_log import RunLog
from ridgeline.insight.simulate.simulation import run
from ridgeline.insight.traffic.offered import OpenLoop
from ridgeline.insight.traffic.workload_trace import TraceRequest
from ridgeline.price.plan.scenario import Scenario
from support.planned import TINY, case

TINY_CASE = case(TINY)


def machine(
    limits: Limits | None = None,
    pages: int | None = 4000,
    on: Scenario = TINY_CASE,
    context: int | None = None,
    **more: Any,
) -> Machine:
    """A tiny Llama on the A100 of the texts."""
    return machine_of(on, limits or Limits(tokens=512, requests=32), pages=pages, context=context, **more)


def simulated(requests: Iterable[TraceRequest], on: Machine | None = None) -> RunLog:
    return run(machine() if on is None else on, OpenLoop(requests))
