"""Options of speculation and of ranks: what they do, and one line for what they refuse."""

import json
from collections.abc import Sequence

import pytest

from cli.running import OK, REFUSED, USAGE, Run, assert_one_line

ASK = (
    "run",
    "tales",
    "The cat sat. The cat sat. The cat",
    "--max-tokens",
    "24",
    "--temperature",
    "0",
    "--threads",
    "1",
)


def test_a_run_says_what_was_guessed(ridgeline: Run) -> None:
    """The text is the one without guesses; by vLLM's option too."""
    plain = json.loads(ridgeline(*ASK, "--json").out)
    asked = ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}')
    for more in (("--speculate", "ngram", "--speculate-tokens", "3"), asked):
        ended = ridgeline(*ASK, *more, "--json")
        assert ended.code == OK, ended.err
        found = json.loads(ended.out)
        assert (found["text"], found["token_ids"]) == (plain["text"], plain["token_ids"])
        counts = found["speculation"]
        assert (counts["drafts"] > 0) or more is not asked, "one token is looked up, and stood there before"
        assert counts["drafts"] <= counts["draft_tokens"] <= 3 * counts["drafts"]
        assert 0 <= counts["accepted_tokens"] <= counts["draft_tokens"]
    shown = ridgeline(*ASK, *asked)
    assert "tokens drafted" in shown.err
    assert "speculation" not in plain


CASES: tuple[tuple[Sequence[str], int, str], ...] = (
    (("--speculate-tokens", "3"), USAGE, "--speculate-tokens needs --speculate"),
    (("--speculate", ""), USAGE, "--speculate is empty"),
    (("--speculate", "ngram", "--speculate-tokens", "0"), USAGE, "from 1 to 32"),
    (("--speculate", "ngram", "--speculate-tokens", "33"), USAGE, "from 1 to 32"),
    (("--speculate", "ngram", "--speculate-tokens", "x"), USAGE, "x"),
    (("--speculate", "no-such-model"), REFUSED, "no-such-model"),
    (("--speculate", "digits"), REFUSED, "generates images"),
    (("--speculate", "translate"), REFUSED, "cannot continue text"),
    (("--speculate", "mixture"), REFUSED, "same tokenizer"),
    (("--speculative-config", "4"), USAGE, "not a JSON object"),
    (("--speculative-config", "{}"), USAGE, "no num_speculative_tokens"),
    (("--speculative-config", '{"method": "eagle3", "num_speculative_tokens": 2}'), USAGE, "ngram and draft_model"),
    (("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 2, "x": 1}'), USAGE, "'x'"),
    (("--speculate", "ngram", "-sc", '{"method": "ngram", "num_speculative_tokens": 2}'), USAGE, "give one of them"),
    (("--tensor-parallel", "0"), USAGE, "give 1 to 64"),
    (("-tp", "65"), USAGE, "give 1 to 64"),
    (("--tensor-parallel-size", "2"), USAGE, "do not divide over 2 devices; give --tensor-parallel 1"),
    (("--tensor-parallel", "x"), USAGE, "x"),
)


@pytest.mark.parametrize(("more", "code", "says"), CASES)
def test_one_line_says_what_is_wrong(ridgeline: Run, more: Sequence[str], code: int, says: str) -> None:
    assert_one_line(ridgeline("run", "tales", "hi", *more), code, says)


def test_models_that_cannot_be_guessed_at_say_so(ridgeline: Run) -> None:
    assert_one_line(ridgeline("run", "digits-ar", "seven", "--speculate", "tales"), REFUSED, "use prompt lookup")
    assert_one_line(
        ridgeline("trace", "tales", "hi", "--tensor-parallel", "2", "--lens"), USAGE, "--lens needs the whole model"
    )
    assert_one_line(
        ridgeline("transcribe", "x.wav", "--model", "tales", "--speculative-config", "{}"),
        USAGE,
        "do not support speculative decoding",
    )
