"""The part `trust` of every JSON export of predictions, which has one shape."""

import json

import pytest

from cli.running import Run
from ridgeline.price.error_interval import LEVELS

FIELDS = {"engine", "kernels", "kernels_in_words", "known", "known_in_words", "intervals", "kind_of"}
FACTORS = {"kind", "known", "low", "high", "rows", "sources", "pooled", "development", "traced_from"}
CARD = ("--device", "h100-sxm", "--json")


@pytest.mark.parametrize(
    ("words", "kinds"),
    [
        (("plan", "llama-3-8b"), {"prefill", "decode", "load", "memory"}),
        (("plan", "bge-m3", "--input", "128"), {"prefill", "load"}),
        (("plan", "FLUX.1-schnell"), {"image"}),
        (("simulate", "llama-3-8b", "--rate", "2", "--requests", "9"), {"load"}),
        (("trace", "llama-3-8b", "--priced", "h100-sxm", "--json"), {"prefill", "decode"}),
    ],
)
def test_trust_has_one_shape(ridgeline: Run, words: tuple[str, ...], kinds: set[str]) -> None:
    ended = ridgeline(*words, *(() if "--priced" in words else CARD))
    assert ended.err == "" or words[0] == "simulate"
    trust = json.loads(ended.out)["trust"]
    assert set(trust) == FIELDS
    assert trust["known_in_words"] == LEVELS[trust["known"]]
    assert set(trust["intervals"]) == set(trust["kind_of"].values()) == kinds
    for kind, interval in trust["intervals"].items():
        assert set(interval) == FACTORS
        assert (interval["kind"], interval["known"]) == (kind, trust["known"])
