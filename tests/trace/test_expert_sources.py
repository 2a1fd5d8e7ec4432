"""Whose experts: shares against a count by hand, chance against chance, experts touched against the formula."""

import pytest
import torch
from trace_models import Maker

from ridgeline.ops.experts import Experts
from ridgeline.trace import Wanted
from ridgeline.trace.expert_sources import RUN, expert_sources

TEXTS = {"ridges": "A ridge line rises over the plain. " * 12, "digits": "0123456789 9876543210 55 " * 16}


def test_shares_are_counted_and_touched_experts_simulated(tiny: Maker) -> None:
    """Every layer of a mixture; the picks of one text are those that its router makes in one pass."""
    subject = tiny("mixtral")
    model = subject.llm.loaded.model
    ids = {name: subject.llm.encode(text) for name, text in TEXTS.items()}
    found = expert_sources(model, ids)
    assert found.names == tuple(TEXTS)
    assert found.tokens == tuple(map(len, ids.values()))
    assert [own.layer for own in found.layers] == [0, 1, 2]
    for own in found.layers:
        assert all(sum(shares) == pytest.approx(1) for shares in own.shares)
        first, second = own.shares
        assert own.apart == pytest.approx(sum(abs(a - b) for a, b in zip(first, second, strict=True)) / 2)
        assert 0 < own.shuffled <= own.most < 1
    picked: list[torch.Tensor] = []
    op = next(op for _, op in model.ops() if isinstance(op, Experts))
    handle = op.register_forward_pre_hook(lambda _, inputs: picked.append(inputs[2]))
    expert_sources(model, ids)
    handle.remove()
    whole = picked[0][: len(picked[0]) // RUN * RUN].flatten()
    counted = torch.bincount(whole, minlength=5) / len(whole)
    assert found.layers[0].shares[0] == pytest.approx(counted.tolist())
    for row in found.touched:
        assert row.formula == pytest.approx(op.touched(row.batch))
        assert 2 <= row.alone <= 5
    assert found.touched[0].mixed == found.touched[0].alone == 2


def test_one_text_twice_is_no_farther_apart_than_chance(tiny: Maker) -> None:
    """The same text under two names has the same shares, so that nothing is told apart."""
    subject = tiny("mixtral")
    ids = subject.llm.encode(TEXTS["ridges"])
    found = expert_sources(subject.llm.loaded.model, {"one": ids, "other": ids})
    assert all(own.apart == 0 <= own.shuffled for own in found.layers)


def test_texts_that_are_routed_apart_are_told_apart(tiny: Maker) -> None:
    """Texts of one token each, which the first layer cannot but route alike within a text."""
    subject = tiny("mixtral")
    found = expert_sources(subject.llm.loaded.model, {"a": [65] * 1600, "b": [120] * 1600})
    assert max(own.apart / own.most for own in found.layers) > 2


def test_a_trace_has_them_and_short_texts_are_refused(tiny: Maker) -> None:
    subject = tiny("qwen3-moe")
    ledger = subject.trace(Wanted(experts=True, repeats=1, sources=tuple(TEXTS.items())))
    assert ledger.sources is not None
    assert [own.layer for own in ledger.sources.layers] == [0, 2]
    with pytest.raises(ValueError, match="the text short has 2 tokens; at least 64"):
        expert_sources(subject.llm.loaded.model, {"long": list(range(100)), "short": [1, 2]})
