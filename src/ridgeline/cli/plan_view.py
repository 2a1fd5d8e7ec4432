"""How a plan looks in a terminal: the answer first, then what it rests on."""

import sys
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from ridgeline.cli import plan_tables as tables
from ridgeline.document.numbers import say_seconds, three
from ridgeline.roofline.plan import Plan
from ridgeline.roofline.plan.definitions import DEFINITIONS
from ridgeline.roofline.plan.units import gib, show_gib
from ridgeline.roofline.plan.words import lacking, scarcest, trust, users_in_words, verdict

_WIDTH = 100


def print_plan(plan: Plan) -> None:
    """Print a plan on standard output."""
    console = Console(highlight=False, width=line_width())
    for line in _title(plan):
        console.print(line, markup=False)
    console.print(_pairs(list(answer(plan))))
    console.print()
    console.print(verdict(plan), markup=False)
    for title, table in tables.sections(plan):
        console.print()
        console.print(title, style="bold", markup=False)
        console.print(table)
    if plan.cards is not None:
        console.print(tables.prices(plan.cards), style="dim", markup=False)
        console.print(tables.unable(plan.cards), style="dim", markup=False)
    console.print()
    console.print(_pairs(list(DEFINITIONS.items()), style="dim"))


def line_width() -> int | None:
    """Columns of what is printed: the terminal's own, else those of a file."""
    return None if sys.stdout.isatty() else _WIDTH


def _title(plan: Plan) -> Iterator[str]:
    case, workload = plan.case, plan.workload
    yield (
        f"{plan.name} on {case.setup.devices} x {case.device.title}: {case.weights} weights, {case.kv} KV, "
        f"{workload.input:,} tokens in, {workload.output:,} out"
    )
    if not case.device.calibrated:
        yield trust(case.device)


def answer(plan: Plan) -> Iterator[tuple[str, str]]:
    """What a reader came for: does it fit, how many users, how fast, what limits, what it costs."""
    memory, capacity = plan.memory, plan.capacity
    yield "fits", _fits(plan)
    if capacity.users:
        rate = capacity.load.requests_per_second.expected
        yield "users", f"{capacity.users:,} at once, {three(rate)} requests/s; {_stops(plan)}{_hint(plan)}"
    elif memory.fits:
        yield "users", f"none within the targets: {_stops(plan)}"
    yield "speed", _speed(plan)
    yield "limit", _limit(plan)
    yield "cost", _cost(plan)


def _fits(plan: Plan) -> str:
    memory = plan.memory
    if not memory.fits:
        return f"NO: {lacking(plan)}"
    return (
        f"yes: of {show_gib(gib(memory.budget))} usable a card, weights take {show_gib(gib(memory.weights))} and "
        f"{show_gib(gib(memory.left))} are left for KV"
    )


def _hint(plan: Plan) -> str:
    if plan.capacity.users < 2 or plan.workload.ttft or plan.workload.tpot:
        return ""
    return "; targets like --ttft 1s --tpot 50ms give the users of an interactive service"


def _stops(plan: Plan) -> str:
    capacity, workload = plan.capacity, plan.workload
    if capacity.limit == "memory":
        return "one more does not fit in memory"
    if capacity.limit == "step":
        return "a decode step has positions for no more; raise --max-batch-tokens"
    wanted = workload.ttft if capacity.limit == "ttft" else workload.tpot
    assert wanted is not None
    name = capacity.limit.upper()
    if capacity.users:
        return f"one more would miss the {name} target of {say_seconds(wanted)}"
    got = capacity.load.ttft if capacity.limit == "ttft" else capacity.load.tpot
    return f"a single user gets a {name} of {say_seconds(got.expected)}, {say_seconds(wanted)} is wanted"


def _speed(plan: Plan) -> str:
    batch, load = plan.workload.batch, plan.capacity.load
    first, step = plan.prefill.seconds.expected, plan.decode.seconds.expected
    line = f"{users_in_words(batch)}: first token in {say_seconds(first)}, then {three(1 / step)} tok/s"
    if batch > 1:
        whole = batch * plan.workload.output / plan.request.expected
        line += f" each, {three(whole)} in total, prefill included"
    if plan.capacity.users > 1:
        each, everyone = load.tokens_per_user.expected, load.tokens_per_second.expected
        line += f"; {load.users:,} users under way: {three(each)} tok/s each, {three(everyone)} in total"
    return line


def _limit(plan: Plan) -> str:
    phase, scarce = plan.decode, scarcest(plan)
    intensity = f"{three(phase.intensity)} FLOP a byte"
    far = {
        "memory": f"memory bandwidth, {intensity}, {three(1 / phase.balance)} x under the ridge",
        "compute": f"arithmetic, {intensity}, {three(phase.balance)} x over the ridge",
        "communication": "the link between the cards",
    }
    batch, users = plan.workload.batch, plan.capacity.users
    line = f"{users_in_words(batch)}: {far[phase.limit]}"
    if users <= batch:
        return line
    gain = "doubling no one resource would help noticeably"
    if scarce is not None:
        gain = f"{scarce.name} helps most, x {three(scarce.throughput or 1)} tokens"
    return f"{line}; {users:,} users: {gain}"


def _cost(plan: Plan) -> str:
    price = plan.case.setup.price or plan.case.device.price
    if price is None:
        return "no price is known for this card; give --price"
    hourly = f"${price.dollars:g} a card and hour ({price.date}, {price.source})"
    if plan.dollars_per_million is None:
        return hourly
    return f"${three(plan.dollars_per_million)} a million output tokens, prompts included, at that load; {hourly}"


def _pairs(rows: Sequence[tuple[str, str]], style: str = "") -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, style=style)
    table.add_column(style=style or "bold", no_wrap=True)
    table.add_column()
    for name, text in rows:
        table.add_row(name, text)
    return table
