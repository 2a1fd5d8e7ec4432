"""A trace of a model that runs on a card."""

from time import perf_counter

import pytest

from ridgeline.engine import LLM, SamplingParams
from ridgeline.roofline.cards import load_card
from ridgeline.trace.card import card_clock
from ridgeline.trace.request import Subject, Wanted, trace
from support.cards import needs_card


@needs_card
@pytest.mark.parametrize("repeats", [None, 3])
def test_ops_and_what_lies_between_them_are_the_step(repeats: int | None) -> None:
    """Each op takes some time, and no more in all than the step; a captured step gives the tokens of the processor."""
    llm, here = LLM("tales", device="cuda"), LLM("tales", threads=1)
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    ids = llm.encode("Once upon a time")
    ledger = trace(
        llm, Subject("tales", "", lambda: ids), params, load_card("h100-sxm"), Wanted(repeats=repeats),
        clock=card_clock(perf_counter),
    )  # fmt: skip
    assert [token.id for token in ledger.written] == [
        one.token for one in here.generate([ids], params)[0].choices[0].tokens
    ]
    decode = next(step for step in ledger.steps if step.name == "decode")
    assert decode.recorded
    for step in ledger.steps:
        seconds = [row.entries[step.name].measured for row in ledger.rows]
        assert min(seconds) > 0
        assert sum(seconds) <= 1.05 * step.unhooked
