"""Whose experts: shares against a count by hand, chance against chance, experts touched against the formula."""

import math
from collections.abc import Sequence
from dataclasses import astuple
from itertools import chain
from pathlib import Path

import pytest
import torch
from trace_models import Maker

from ridgeline.core.ops.experts import Experts
from ridgeline.insight.trace import TraceOptions
from ridgeline.insight.trace.expert_sources import PIECE, SourceLayer, expert_sources
from ridgeline.insight.trace.request_trace import check
from ridgeline.insight.trace.views.report import WIDTH, ReportOptions, build_report
from ridgeline.util.document.terminal_renderer import plain
from support.adapters import adapted, merged, write_adapter

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
        assert own.apart.found == pytest.approx(sum(abs(a - b) for a, b in zip(first, second, strict=True)) / 2)
        together = [(a + b) / 2 for a, b in zip(first, second, strict=True)]
        of_pick, of_both = entropy(together), entropy([share / 2 for share in (*first, *second)])
        assert own.information.found == pytest.approx((1 + of_pick - of_both) / 1)
        for effect in (own.apart, own.information):
            assert 0 < max(effect.deviation, effect.shuffled) < effect.most < 1
    picked: list[torch.Tensor] = []
    op = next(op for _, op in model.ops() if isinstance(op, Experts))
    handle = op.register_forward_pre_hook(lambda _, inputs: picked.append(inputs[2]))
    expert_sources(model, ids)
    handle.remove()
    assert len(picked[0]) == len(ids["ridges"]) // PIECE * PIECE
    counted = torch.bincount(picked[0].flatten(), minlength=5) / picked[0].numel()
    assert found.layers[0].shares[0] == pytest.approx(counted.tolist())
    for row in found.touched:
        assert row.formula == pytest.approx(op.touched(row.batch))
        assert 2 <= row.alone <= 5
    assert found.touched[0].mixed == found.touched[0].alone == 2


def entropy(shares: Sequence[float]) -> float:
    """In bits."""
    return -sum(share * math.log2(share) for share in shares if share)


def test_what_is_alike_is_no_farther_apart_than_chance(tiny: Maker) -> None:
    """The same text under two names has the same shares; three texts of the same chance letters have nearly."""
    subject = tiny("mixtral")
    model, ids = subject.llm.loaded.model, subject.llm.encode(TEXTS["ridges"])
    for own in expert_sources(model, {"one": ids, "other": ids}).layers:
        assert own.apart.found == own.information.found == 0 <= own.apart.shuffled
    letters = torch.randint(97, 123, (3, 1280), generator=torch.Generator().manual_seed(2)).tolist()
    for own in expert_sources(model, dict(zip("abc", letters, strict=True))).layers:
        assert abs(own.apart.found - own.apart.shuffled) < 3 * own.apart.deviation
        assert abs(own.information.found - own.information.shuffled) < 3 * own.information.deviation
        assert all(marks(own).count(mark) <= 1 for mark in "+-")


def marks(own: SourceLayer) -> str:
    """Of each share: + above, - under all shares by chance, else =."""
    every = zip(*(chain(*rows) for rows in (own.shares, own.least, own.most)), strict=True)
    return "".join("+" if share > most else "-" if share < least else "=" for share, least, most in every)


def test_texts_that_are_routed_apart_are_told_apart(tiny: Maker) -> None:
    """Texts of one token each, which the first layer cannot but route alike within a text."""
    model = tiny("mixtral").llm.loaded.model
    found = expert_sources(model, {"a": [65] * 1600, "b": [120] * 1600})
    assert max(own.apart.found / own.apart.most for own in found.layers) > 2
    assert {"+", "-"} <= set(marks(found.layers[0]))
    letters = [65] * 1600
    (batch,) = [row for row in expert_sources(model, {"a": letters, "b": [120] * 128}).touched if row.batch == 64]
    assert batch.mixed > batch.alone == 2, "a short text has as many tokens in a batch as a long one"


def test_an_adapter_routes_as_the_model_that_it_is_merged_into(tiny: Maker, tmp_path: Path) -> None:
    """Its texts' experts are those of the request beside them, which asks it too."""
    subject = tiny("mixtral")
    folder = write_adapter(tmp_path / "adapter", subject.theirs, ["q_proj", "o_proj"])
    merged(subject.theirs, folder).save_pretrained(tmp_path / "merged")
    ids = {name: subject.llm.encode(text) for name, text in TEXTS.items()}
    (model, _), (whole, _) = adapted(subject.folder, {"a": folder}), adapted(tmp_path / "merged", {})
    found = expert_sources(model, ids, 1)
    assert found == expert_sources(whole, ids) != expert_sources(model, ids)


def test_a_trace_has_them_and_short_texts_are_refused(tiny: Maker) -> None:
    subject = tiny("qwen3-moe")
    ledger = subject.trace(TraceOptions(experts=True, repeats=1, sources=tuple(TEXTS.items())))
    assert ledger.sources is not None
    assert [own.layer for own in ledger.sources.layers] == [0, 2]
    page = plain(build_report(ledger, ReportOptions()), WIDTH).splitlines()
    own = ledger.sources.layers[1]
    written = [f"{100 * share:.1f}{mark}".strip("=") for share, mark in zip(own.shares[0], marks(own), strict=False)]
    assert any(line.split() == ["2", "ridges", *written] for line in page)
    effects = [f"{value:.3f}" for effect in (own.apart, own.information) for value in astuple(effect)]
    assert any(line.split() == ["2", *effects] for line in page)
    with pytest.raises(ValueError, match="the text short has only 2 tokens; give one of 128 or more"):
        expert_sources(subject.llm.loaded.model, {"long": list(range(200)), "short": [1, 2]})
    with pytest.raises(ValueError, match=r"the text short has only \d tokens"):  # before anything is measured
        check(subject.llm, subject.ids, TraceOptions(experts=True, sources=(("long", "a" * 200), ("short", "pebbles"))))
