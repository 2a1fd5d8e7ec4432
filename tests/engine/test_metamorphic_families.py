"""Every family through four corners of the metamorphic suite: alone and in pieces of one position, many over shared
prefixes with neighbours aborted, and preempted, in two ways."""

import random

import pytest

from engine.test_metamorphic import Subject, Way, check_guessed, check_way, make_trace, uncached_subject
from models.configs import CONFIGS
from ridgeline.core.models import ModelRefused
from ridgeline.core.ops.kv_layout import StateSpec
from ridgeline.engine.speculation.config import Speculation
from ridgeline.engine.speculation.speculation_setup import check_speculation
from support.checkpoints import random_ours

# Layers with a window leave room where others do not, so that requests are preempted by hand.
CORNERS = (
    Way("alone", 7, prefix_cache=False, page_size=1, aborts=False),
    Way("many", None, prefix_cache=True, page_size=16, aborts=True),
    Way("preempted", 1, prefix_cache=True, page_size=4, aborts=False),
    Way("preempted", 64, prefix_cache=False, page_size=16, aborts=True),
)


@pytest.fixture(scope="module", params=CONFIGS)
def family(request: pytest.FixtureRequest) -> Subject:
    """A small model of the family, and what it says without a cache."""
    model = random_ours(CONFIGS[request.param] | ({"n_positions": 128} if request.param == "gpt2" else {}), seed=1)
    every = make_trace(random.Random(1).choices(range(model.vocabulary), k=120))
    return uncached_subject(model, (*every[:2], every[3], every[8]))


@pytest.mark.parametrize("way", CORNERS, ids=str)
def test_the_same_tokens_in_every_corner(family: Subject, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    check_way(family, way, monkeypatch)


def test_the_same_tokens_with_guesses(family: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the corner where prefixes are shared and neighbours are aborted; a state cannot be rolled back."""
    if any(isinstance(spec, StateSpec) for spec in family.model.kv_specs):
        with pytest.raises(ModelRefused, match="keeps a recurrent state"):
            check_speculation(Speculation("ngram"), family.model, "the model")
        return
    check_guessed(family, CORNERS[1], monkeypatch)
