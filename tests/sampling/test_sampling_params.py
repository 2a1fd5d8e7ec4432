"""SamplingParams: what is refused and in which words, what is normalised, what a generation_config.json becomes."""

import copy
import dataclasses
import math
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.engine.params import COUNT_MAX, SamplingParams, ignored_keys

NAN, INF = math.nan, math.inf
BAD: list[tuple[str, Any]] = [
    *[("temperature", v) for v in (NAN, INF, -INF, -0.1, -1, "1", None, True, 10**400, 1e39, 1j)],
    *[("top_k", v) for v in (-2, 2**63, 0.5, 1.0, NAN, "5", None, True)],
    *[("top_p", v) for v in (0, 0.0, -0.1, 1.0001, NAN, INF, "1", None, True)],
    *[("min_p", v) for v in (-0.1, 1.1, NAN, INF, "0", None, False)],
    *[("repetition_penalty", v) for v in (0, -1.0, NAN, INF, "1", None)],
    *[(f"{kind}_penalty", v) for kind in ("frequency", "presence") for v in (-2.01, 2.01, NAN, INF, "0", None)],
    *[("logit_bias", v) for v in ({1: NAN}, {1: INF}, {1: 100.5}, {-1: 0.0}, {"1": 1.0}, {1.0: 1.0}, {1: "2"})],
    *[("logit_bias", v) for v in ([1], None, "1")],
    *[("seed", v) for v in (2**64, -(2**63) - 1, 1.0, "1", True)],
    *[(name, v) for name in ("logprobs", "prompt_logprobs") for v in (-1, 1.0, "1", True)],
    *[("n", v) for v in (0, -1, 1.0, None, True)],
    *[("max_tokens", v) for v in (-1, 2.5, NAN, "9", True, 2**63)],
    *[("min_tokens", v) for v in (-1, 1.0, None, 257)],
    *[("stop", v) for v in ("", ("",), ("a", ""), (1,), None, b"x", ("a\nb", 3))],
    *[("stop_token_ids", v) for v in (3, (-1,), (1.0,), ("2",), None, "2", (True,))],
    *[(name, v) for name in ("ignore_eos", "include_stop") for v in (0, 1, None, "yes")],
]


@pytest.mark.parametrize(("name", "value"), BAD, ids=lambda v: repr(v)[:30])
def test_bad_value_is_refused_in_one_line_that_names_it(name: str, value: Any) -> None:
    problem = r"(?:\[\d+\] is|(?: is| has the key))" if name == "logit_bias" else " is"
    with pytest.raises(ValueError, match=rf"^{name}{problem} [^\n]+; give [^\n]+\Z") as caught:
        SamplingParams(**{name: value})
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0), ("temperature", 1e-8), ("temperature", 100), ("top_k", -1), ("top_k", COUNT_MAX),
        ("top_p", 1), ("top_p", 1e-9), ("min_p", 1), ("repetition_penalty", 0.01), ("frequency_penalty", -2),
        ("presence_penalty", 2), ("logit_bias", {0: -100, 7: 100}), ("seed", -(2**63)), ("seed", 2**64 - 1),
        ("logprobs", 0), ("prompt_logprobs", 0), ("max_tokens", None), ("min_tokens", 256), ("stop", ["a"]),
        ("stop_token_ids", frozenset({3})),
    ],
)  # fmt: skip
def test_edge_of_the_range_is_taken(name: str, value: Any) -> None:
    SamplingParams(**{name: value})


def test_values_are_normalised() -> None:
    params = SamplingParams(temperature=1, top_k=-1, stop=["a", "b"], stop_token_ids={9, 2})  # type: ignore[arg-type]
    assert isinstance(params.temperature, float)
    assert params.top_k == 0
    assert params.stop == ("a", "b")
    assert params.stop_token_ids == (2, 9)
    assert params == SamplingParams(stop=("a", "b"), stop_token_ids=(9, 2))
    assert SamplingParams(stop=".") == SamplingParams(stop=(".",)), "a string by itself is one stop"  # type: ignore[arg-type]


def test_immutable_hashable_and_survives_the_ways_to_another_process() -> None:
    bias = {5: 1.0, 3: -2}
    params = SamplingParams(logit_bias=bias)
    bias[5] = 99.0
    assert params.logit_bias == {3: -2.0, 5: 1.0}
    with pytest.raises(TypeError):
        params.logit_bias[5] = 3.0  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.top_k = 3  # type: ignore[misc]
    assert hash(params) == hash(SamplingParams(logit_bias={3: -2, 5: 1}))
    for clone in (pickle.loads(pickle.dumps(params)), copy.deepcopy(params), dataclasses.replace(params)):
        assert clone == params
    assert SamplingParams(**dataclasses.asdict(params)) == params


def test_greedy_and_uses_history() -> None:
    assert SamplingParams(temperature=0).greedy
    assert SamplingParams(temperature=9e-6).greedy
    assert not SamplingParams(temperature=1e-5).greedy
    assert not SamplingParams().uses_history
    for name, value in (("repetition_penalty", 1.1), ("frequency_penalty", 0.1), ("presence_penalty", -0.1)):
        assert SamplingParams(**{name: value}).uses_history  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"logit_bias": {10: 1.0}}, "logit_bias has the key"),
        ({"stop_token_ids": (3, 11)}, "stop_token_ids has the id"),
        ({"logprobs": 11}, "logprobs is"),
        ({"prompt_logprobs": 11}, "prompt_logprobs is"),
    ],
)
def test_check_vocab(fields: dict[str, Any], problem: str) -> None:
    params = SamplingParams(**fields)
    params.check_vocab(12)
    with pytest.raises(ValueError, match=rf"^{problem} 1[01]; give .*(9|10)") as caught:
        params.check_vocab(10)
    assert "\n" not in str(caught.value)


@given(st.floats(), st.floats(), st.floats(), st.integers())
def test_any_numbers_are_taken_or_refused_with_value_error(a: float, b: float, c: float, k: int) -> None:
    try:
        params = SamplingParams(temperature=a, top_p=b, min_p=c, top_k=k)
    except ValueError:
        return
    assert params.temperature >= 0
    assert 0 < params.top_p <= 1
    assert 0 <= params.min_p <= 1
    assert params.top_k == max(k, 0)


def test_generation_config() -> None:
    qwen = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [1, 2], "min_p": None}
    params = SamplingParams.from_generation_config(qwen)
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.6, 20, 0.95, 0.0)
    assert SamplingParams.from_generation_config(qwen, top_k=0, seed=3).top_k == 0
    assert SamplingParams.from_generation_config({}).greedy, "transformers' do_sample is false unless the file says so"
    greedy = {"do_sample": False, "temperature": 0.6, "repetition_penalty": 1.2, "max_new_tokens": 9}
    params = SamplingParams.from_generation_config(greedy)
    assert params.greedy
    assert params.repetition_penalty == 1.2
    assert params.max_tokens == 9
    assert SamplingParams.from_generation_config(greedy, temperature=0.7).temperature == 0.7
    with pytest.raises(ValueError, match=r"^top_p is 7"):
        SamplingParams.from_generation_config({"do_sample": True, "top_p": 7})


def test_unfollowed_keys() -> None:
    off: dict[str, object] = {
        "num_beams": 1,
        "typical_p": 1.0,
        "suppress_tokens": None,
        "begin_suppress_tokens": [],
        "top_k": 5,
    }
    assert ignored_keys(off) == ()
    beams = {"num_beams": 5, "no_repeat_ngram_size": 3, "top_p": 0.5}
    assert ignored_keys(beams) == ("num_beams", "no_repeat_ngram_size")


@pytest.mark.parametrize("stop", [["x" * n for n in range(1, 300)], ["x" * 5000], ["x"] * 1_000_000])
def test_stop_strings_have_a_limit(stop: list[str]) -> None:
    """A million of them cost a million steps a character, and the message named each."""
    with pytest.raises(
        ValueError, match="stop has more than 256 strings, or a string of more than 1024 characters"
    ) as refused:
        SamplingParams(stop=tuple(stop))
    assert len(str(refused.value)) < 300
    assert len(SamplingParams(stop=tuple(f"stop {i}" for i in range(256))).stop) == 256
