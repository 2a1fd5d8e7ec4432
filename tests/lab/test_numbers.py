"""`lab numbers`: each figure of the ledger is the one that the project's list of statements has. The list is written
out here, so that a figure that moves is seen; tests/price/test_seed_hardware.py says where each comes from."""

import json
import re
from itertools import chain

import pytest

from ridgeline.learn.lab import statement_report
from ridgeline.learn.lab.cost_calculator import CostCalculator
from ridgeline.learn.lab.statement import Statement
from ridgeline.util.document.terminal_renderer import plain

LIST = {
    "ops-per-byte": (1, {"ridge": 295.2}),
    "batch-150": (2, {
        "at_1": 156, "at_128": 188, "at_256": 237, "at_512": 489, "at_700": 2249, "never": 753, "never_h100": 393,
        "endless": 61.2,
    }),
    "kv-of-a-token": (3, {"token": 131_072, "mha": 524_288, "mqa": 16_384, "mib": 250}),
    "kv-of-70b": (4, {"token": 327_680, "total": 70.554e9, "nbytes": 141.1e9, "fits": 0}),
    "users-on-24-gb": (5, {"users": 21, "texts": 30}),
    "one-user": (6, {"weights": 15.01e9, "seconds": 7.505e-3, "rate": 133.2, "arithmetic": 0.0481e-3, "times": 156}),
    "large-model": (7, {"weights": 139.0e9, "seconds": 41.5e-3, "arithmetic": 0.1406e-3, "share": 0.003388}),
    "haiku": (8, {"memory": 4.48e-3, "whole": 0.1344, "intensity": 7.51}),
    "405b": (9, {
        "attention": 0.5704e9, "ffn": 2.617e9, "layer": 3.188e9, "total": 405_853_388_800, "nbytes": 811.7e9,
        "embedding": 2.101e9, "walked": 469.2e9,
    }),
    "active-experts": (10, {
        "total": 235.09e9, "active": 22.19e9, "touched_1": 8, "touched_8": 51.6, "touched_32": 111.8,
        "touched_64": 125.9,
    }),
    "name": (11, {"version": 3}),
    "guidance": (12, {"passes": 100, "eight": 0.84, "four": 0.92, "turbo": 8}),
    "latent": (13, {"tokens": 4096, "wide": 1024, "fewer": 64}),
    "attention-by-hand": (14, {"first": 6.0167, "second": 3.9833, "share": 0.4011}),
    "kv-cache": (15, {"positions": 500_500, "times": 500.5}),
    "little": (16, {"under_way": 32}),
    "concurrency": (17, {"pages": 8787, "times": 68.65}),
    "batching-32": (18, {"at_128": 30.9, "at_512": 28.1, "at_2000": 20.9}),
    "byte-tokenizer": (19, {"symbols": 257}),
    "characters-a-token": (20, {"characters": 3.75, "words": 0.75}),
    "feed-forward": (21, {"share": 0.702, "of_layer": 0.808, "with_two": 0.468}),
    "embedding": (22, {"embedding": 525_336_576}),
    "products-by-hand": (23, {"product": 32, "first": 4, "second": 5}),
    "impossible-chances": (24, {"times": 73.7}),
    "tying": (25, {"gpt2": 1, "llama-2-7b": 0}),
    "prefill": (26, {"a100": 168, "h100": 318, "overtakes": 53_248}),
    "attention-dearest": (None, {
        "attention": 0.88e-3, "all": 47.5e-3, "z-image": 0.15, "flux.2-klein-4b": 0.187, "flux.1-dev": 0.197,
        "pixart-sigma-xl-2-1024-ms": 0.35, "wan2.2-ti2v-5b": 0.54, "wan2.1-t2v-14b": 0.72,
    }),
    "attention-of-eight": (None, {"attention": 1.2e-6, "all": 4.49e-3}),
    "linear-with-cache": (None, {"step": 2, "all": 4}),
    "small-are-dense": (None, {"total": 30.53e9, "active": 3.35e9}),
    "words-are-runs": (None, {"runs": 1333}),
    "experts-specialise": (None, {}),
    "single-pass-pictures": (None, {"passes": 64}),
}  # fmt: skip
"""Rows and figures."""


@pytest.fixture(scope="module")
def found() -> list[Statement]:
    return statement_report.statements(CostCalculator())


def test_every_row_of_the_list_is_there(found: list[Statement]) -> None:
    assert [one.row for one in found if one.row is not None] == list(range(1, 27))
    assert {one.id: one.row for one in found} == {name: row for name, (row, _) in LIST.items()}


def test_figures_are_the_lists(found: list[Statement]) -> None:
    off = [
        f"{one.id}: {name} is {one.figures[name]:.5g}, not {wanted:.5g}"
        for one in found
        for name, wanted in LIST[one.id][1].items()
        if one.figures[name] != pytest.approx(wanted, rel=6e-3 if one.row else 0.02)
    ]
    assert not off, "\n".join(off)


def test_each_says_what_the_text_says_the_ledger_and_why(found: list[Statement]) -> None:
    """Sentences, none of them empty, and no two alike."""
    said = list(chain.from_iterable((one.text, one.ledger, one.why) for one in found))
    assert all(re.fullmatch(r"[^\n]{8,}\.", text) for text in said), [t for t in said if not t.endswith(".")]
    assert len(set(said)) == len(said)


def test_an_experts_share_of_a_text_is_measured(found: list[Statement]) -> None:
    """It tells something, and far from all."""
    figures = next(one for one in found if one.id == "experts-specialise").figures
    assert 0 < figures["least"] < figures["most"] < 0.3


def test_page_and_json(found: list[Statement]) -> None:
    text = plain(statement_report.document(found))
    assert all(f"{one.id}\n" in text for one in found)
    assert "no batch from 753 tokens on" in " ".join(text.split())
    assert json.loads(json.dumps(statement_report.as_json(found)))["statements"][0]["row"] == 1
