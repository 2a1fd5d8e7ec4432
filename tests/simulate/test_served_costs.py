"""What an idle server shows of its costs: a server counted by hand, whose costs are known, gives them back."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from ridgeline.insight.simulate.serving_overhead import ApiServerOverhead, HostOverhead

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
BETWEEN = HostOverhead(step=90_000, sequence=4_000, request=380_000, idle=80_000, after=250_000)
FRONT = ApiServerOverhead(request=700_000, step=160_000, token=27_000, first=840_000, answer=1_410_000)
BEFORE = 200_000  # nanoseconds of a request's that are the client's, before the server has it
PRICE = 1e-3  # seconds of every step
COOLING = (0.4, 0.3, 0.15, 0.1, 0.05)  # shares of `after` that the steps after a prompt have
NANO = 1e-9


@pytest.fixture(scope="module")
def served_costs() -> Iterator[ModuleType]:
    """benchmarks/served_costs.py, a script beside the package."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import served_costs

        yield served_costs
    finally:
        sys.path.remove(str(BENCHMARKS))


def steps_of(users: int, answer: int, rounds: int, pace: float) -> Iterator[dict[str, float]]:
    """All ask, one after the other, then all decode; each round ends with nobody there."""
    at = 0.0
    for _ in range(rounds):
        for step in range(users + answer - 1):
            prompt, sequences = step < users, min(step + 1, users)
            gap = BETWEEN.step + BETWEEN.sequence * sequences + BETWEEN.request * prompt
            since = step - users
            cooling = BETWEEN.after * COOLING[since] if 0 <= since < len(COOLING) else 0.0
            seconds = PRICE + (BETWEEN.idle * (step == 0) + cooling) * NANO
            at += gap * NANO * pace
            running = 0 if step == users + answer - 2 else sequences
            positions = sequences + 40 * prompt
            yield {
                "at": at,
                "seconds": seconds * pace,
                "predicted": PRICE,
                "sequences": sequences,
                "positions": positions,
                "running": running,
            }
            at += seconds * pace
        at += 1.0


@pytest.mark.parametrize("paces", [(1.0, 1.0), (1.25, 1.5)])
def test_costs_of_an_idle_server_are_told_apart(served_costs: ModuleType, paces: tuple[float, float]) -> None:
    """As if undisturbed, however much longer its cores took."""

    def phase(users: int, answer: int, rounds: int) -> object:
        steps = list(steps_of(users, answer, rounds, paces[0]))
        count = users * rounds
        tokens = sum(step["sequences"] for step in steps)
        outside = (BEFORE + FRONT.first + FRONT.step + FRONT.token) * NANO * paces[1]
        taken_up = (BETWEEN.step + BETWEEN.sequence + BETWEEN.request) * NANO * paces[0]
        row = {
            "output_tokens": str(round(tokens / count)),
            "service_ttft": str(0.004 + outside),
            "server_ttft": "0.004",
            "server_queue": str((FRONT.request - BEFORE) * NANO * paces[1] + taken_up),
            "first_token": "1.0",
            "last_token": str(
                1.0 + next(served_costs.Phase([], steps, [], 0.0, 1.0)._spans()) - FRONT.first * NANO * paces[1]
            ),
        }
        asked = [{"at": 0.0, "queued": (FRONT.request - BEFORE) * NANO * paces[1]}] * count
        taken = count * (FRONT.request + FRONT.first + FRONT.answer) + len(steps) * FRONT.step + tokens * FRONT.token
        return served_costs.Phase([row] * count, steps, asked, taken * NANO * paces[1], paces[1])

    between, front = served_costs.costs_of(phase(1, 60, 8), phase(1, 2, 8), phase(2, 61, 8), phase(9, 60, 4))
    for found, known in ((between, BETWEEN), (front, FRONT)):
        for name in type(known).__dataclass_fields__:
            assert getattr(found, name) == pytest.approx(getattr(known, name), rel=0.02), name
