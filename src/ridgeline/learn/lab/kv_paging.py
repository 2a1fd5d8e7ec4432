"""Reserved KV memory compared with pages: the share of the reserved memory that is used, and the users that fit."""

import random
from collections.abc import Callable

from ridgeline.engine.kv.page_count import kv_layout
from ridgeline.learn.lab.cost_calculator import CostCalculator
from ridgeline.learn.lab.experiment import Experiment, ExperimentOutcome
from ridgeline.util.document.charts import Bar, Bars
from ridgeline.util.document.elements import DocumentTable, TableRow, columns

MODEL, GPU, LONGEST = "llama-3-8b", "rtx-4090", 8192
SIZES = (1, 16, 64, 256, 512)
REQUESTS, MEDIAN, SPREAD, SEED = 20_000, 800, 0.9, 1
"""The number of chat requests, and the median, spread and seed of their random lengths in tokens.

The lengths are log-normal, so that a few are ten times as long as the median.
"""


def lengths() -> list[int]:
    """Return the random final length in tokens of each chat request, drawn from a log-normal distribution."""
    draw = random.Random(SEED)
    return [min(LONGEST, max(1, round(draw.lognormvariate(0, SPREAD) * MEDIAN))) for _ in range(REQUESTS)]


def fill(requests: list[int], reserve: Callable[[int], int], room: int) -> tuple[float, int]:
    """Return the used share of the reserved memory and the number of users, averaged over many fillings of a memory.

    Args:
        requests: Lengths of requests, which are admitted in this order.
        reserve: Function from a request's length to the tokens reserved for it.
        room: Tokens that fit into the memory.
    """
    shares, users, start = [], [], 0
    while start < len(requests):
        taken = used = 0
        at = start
        while at < len(requests) and taken + reserve(requests[at]) <= room:
            taken, used, at = taken + reserve(requests[at]), used + requests[at], at + 1
        if at == len(requests):
            break  # the last filling is not full
        shares.append(used / taken)
        users.append(at - start)
        start = at
    return sum(shares) / len(shares), round(sum(users) / len(users))


def power(length: int) -> int:
    """Return a length rounded up to a power of two."""
    return 1 << (length - 1).bit_length()


def in_pages(size: int) -> Callable[[int], int]:
    """Return the function that rounds a length up to whole pages of a size."""
    return lambda length: -(-length // size) * size


def run() -> ExperimentOutcome:
    """Run the experiment: compare three ways to reserve KV memory for requests of unknown length."""
    ledger = CostCalculator()
    left = ledger.users(MODEL, GPU, 2000).steps[-1].left
    room = kv_layout(ledger.model(MODEL), left).tokens
    requests = lengths()
    ways = {f"reserve {LONGEST:,} each": lambda _: LONGEST, "the next power of two": power}
    ways |= {f"pages of {size}" if size > 1 else "pages of 1": in_pages(size) for size in SIZES}
    found = {name: fill(requests, reserve, room) for name, reserve in ways.items()}
    waste = {size: sum(in_pages(size)(n) - n for n in requests) / len(requests) for size in SIZES}
    whole, doubled, *paged = found.values()
    sixteen = found["pages of 16"]
    return ExperimentOutcome(
        (
            (whole[0] < 0.25, f"{whole[0]:.0%} of the memory is used, by {whole[1]} users"),
            (
                sixteen[0] > 0.98 and sixteen[1] > 4 * whole[1],
                f"{sixteen[0]:.1%} of the memory is used, by {sixteen[1]} users; with powers of two "
                f"{doubled[0]:.0%}, by {doubled[1]} users",
            ),
            (
                all(abs(waste[size] - (size - 1) / 2) < 0.05 * size for size in SIZES)
                and [share for share, _ in paged] == sorted((share for share, _ in paged), reverse=True),
                ", ".join(f"{wasted:.1f} wasted with pages of {size}" for size, wasted in waste.items()),
            ),
        ),
        (
            DocumentTable(
                columns("", "used", "users"),
                tuple(TableRow((name, f"{share:.1%}", f"{users}")) for name, (share, users) in found.items()),
            ),
            Bars(
                f"KV memory of an 8B on a GPU with 24 GB: {room:,} tokens",
                "percent of the memory that is used",
                tuple(Bar(name, 100 * share, f"{users} users") for name, (share, users) in found.items()),
            ),
        ),
        {"room": room, "ways": {name: {"used": share, "users": users} for name, (share, users) in found.items()}},
    )


EXPERIMENT = Experiment(
    "pages",
    "Why does an engine store keys and values in pages?",
    (
        "Reserving the longest length for each request leaves more than three quarters of the memory empty.",
        "Pages of 16 tokens use more than 98 % of the memory and have room for over four times as many users.",
        "On average a request wastes half a page minus half a token, so larger pages waste more.",
    ),
    run,
)
