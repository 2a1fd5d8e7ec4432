"""The laws, of requests that come by themselves and of users who ask again at once, beside the engine."""

import numpy as np
import pytest

from ridgeline.engine.scheduler import Limits
from ridgeline.roofline.cards import load_card
from ridgeline.roofline.engine_profile import usual_engine
from ridgeline.roofline.plan.case import Case, ModelCache, Setup
from ridgeline.simulate.law import load_law, loop_law
from ridgeline.simulate.log import Log
from ridgeline.simulate.run import run
from ridgeline.simulate.setup import machine_of
from ridgeline.traffic.arrivals import SECOND, constant, poisson
from ridgeline.traffic.lengths import Fixed
from ridgeline.traffic.offered import OpenLoop, Users, bounded, drawn, spread
from support.planned import LLAMA_3_8B, fields


@pytest.fixture(scope="module")
def case() -> Case:
    card = load_card("h100-sxm")
    return ModelCache(fields(LLAMA_3_8B)).case(Setup(card, engine=usual_engine(card)))


def half_way(log: Log) -> float:
    """Tokens a second in the middle half of a run, when all users are there."""
    begun, over = log.end // 4, log.end * 3 // 4
    ends, firsts = np.asarray(log.gaps.at), np.asarray(log.requests.first)
    later = np.asarray(log.gaps.tokens)[(ends > begun) & (ends <= over)].sum()
    return float(later + ((firsts > begun) & (firsts <= over)).sum()) * SECOND / (over - begun)


@pytest.mark.parametrize(
    ("given", "made", "users", "tokens"),
    [(100, 64, 1, 2048), (100, 64, 16, 2048), (500, 100, 4, 2048), (1000, 50, 8, 2048), (1500, 60, 4, 512)],
)
def test_users_get_what_the_law_says(case: Case, given: int, made: int, users: int, tokens: int) -> None:
    """Within 2 %, prompts that run in several steps too."""
    asked = bounded(drawn(constant(1.0), spread(Fixed(given)), spread(Fixed(made)), 1), users * 25, None)
    log = run(machine_of(case, Limits(tokens=tokens)), Users(users, 0, asked, None, 1))
    assert half_way(log) == pytest.approx(loop_law(case, users, given, made, tokens), rel=0.02)


@pytest.mark.parametrize(
    ("given", "made", "limits", "pages"),
    [
        (925, 266, Limits(tokens=2048), None),
        (300, 40, Limits(tokens=64), None),
        (300, 40, Limits(tokens=2048, requests=7), None),
        (300, 120, Limits(tokens=2048), 900),
        (2000, 20, Limits(tokens=512), None),
    ],
)
def test_a_replica_answers_what_the_law_has_it_answer(
    case: Case, given: int, made: int, limits: Limits, pages: int | None
) -> None:
    """Within 5 %, of twice what the law says that it keeps up with: whatever it is that holds requests back."""
    machine = machine_of(case, limits, pages=pages)
    wall = load_law(machine, 1.0, given, made).wall
    offered = OpenLoop(bounded(drawn(poisson(2 * wall, 3), spread(Fixed(given)), spread(Fixed(made)), 3), 900, None))
    log = run(machine, offered)
    answered = np.sort(np.asarray(log.requests.last))[200:450]
    assert (len(answered) - 1) * SECOND / (answered[-1] - answered[0]) == pytest.approx(wall, rel=0.05)
    beyond, below = (load_law(machine, share * wall, given, made) for share in (1.01, 0.99))
    assert beyond.tpot is None
    assert below.tpot is not None
