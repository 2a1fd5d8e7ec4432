"""What the benchmark of a card found: rows, roofs, and the page and the file that they are written to."""

import json
import time
from dataclasses import asdict, dataclass, fields, replace
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import torch

from ridgeline.core.ops.work import AttentionPattern, AttentionSum, AttentionWork, Work

PAGE = Path(__file__).with_name("gpu.md")
_BY_HAND = "## About these figures"  # from there on the page is written by hand


@dataclass(frozen=True, slots=True)
class Row:
    """A step of a model. seconds: measured, the median. spread: between the quartiles, over the median. expected: its
    price; None where the card is not calibrated. host: the part of that which no op has. moved: bytes of weights, keys
    and values. flops: of the step. work: what it asked. theirs: transformers' seconds, None where it was not run."""

    model: str
    step: str
    tokens: int
    seconds: float
    spread: float
    expected: float | None
    host: float | None
    moved: float
    flops: float
    work: Work
    theirs: float | None = None


@dataclass(frozen=True, slots=True)
class Roofs:
    """What the card does now: bytes a second, read plus written, of a copy; of reading; FLOP/s in bf16."""

    copy: float
    read: float
    bf16: float


def tables(rows: list[Row], around: dict[str, Roofs], title: str, command: str) -> str:
    """The page: roofs, then a line for each step."""
    lines = [
        f"# Steps on a GPU: {title}",
        "",
        "This page compares the measured with the predicted time of the engine's steps on a GPU, for readers who want "
        "to know how near",
        f"they are to its roofs. {date.today()}, torch {torch.__version__}; `{command}`.",
        "",
    ]
    heads = "step|ms|spread|expected ms|off|GB/s of weights and KV|of copy|TFLOP/s|of bf16|transformers ms"
    for name, roof in around.items():
        lines += [
            f"## {name}",
            "",
            f"Probed in the same run: copy {roof.copy / 1e12:.2f} TB/s (read plus written), "
            f"read {roof.read / 1e12:.2f} TB/s, bf16 {roof.bf16 / 1e12:.0f} TFLOP/s.",
            "",
            f"|{heads}|",
            "|---|" + "---:|" * heads.count("|"),
        ]
        for row in rows:
            if row.model == name:
                lines.append("|" + "|".join(_cells(row, roof)) + "|")
        lines.append("")
    priced = [row for row in rows if row.expected is not None]
    if priced:
        near = sum(abs(row.expected / row.seconds - 1) <= 0.1 for row in priced if row.expected)
        lines += [f"Predicted within 10 %: {near} of {len(priced)}.", ""]
    return "\n".join(lines)


def _cells(row: Row, roof: Roofs) -> list[str]:
    bandwidth, rate = row.moved / row.seconds, row.flops / row.seconds
    expected = ["", ""] if row.expected is None else [
        f"{row.expected * 1e3:.3f}", f"{row.expected / row.seconds - 1:+.1%}"
    ]  # fmt: skip
    return [
        row.step, f"{row.seconds * 1e3:.3f}", f"{row.spread:.1%}", *expected, f"{bandwidth / 1e9:.0f}",
        f"{bandwidth / roof.copy:.1%}", f"{rate / 1e12:.1f}", f"{rate / roof.bf16:.1%}",
        "" if row.theirs is None else f"{row.theirs * 1e3:.3f}",
    ]  # fmt: skip


def _by_hand() -> str:
    """The sections of the page that are not this benchmark's."""
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    return text[text.index(_BY_HAND) :] if _BY_HAND in text else ""


class Report:
    """What was measured so far, on the screen and in files."""

    def __init__(self, page: bool, out: Path | None) -> None:
        """page: whether gpu.md is written. out: the figures as JSON."""
        self.rows: list[Row] = []
        self.roofs: dict[str, Roofs] = {}
        self._page, self._out, self._began = page, out, time.perf_counter()

    def say(self, text: str) -> None:
        """A line, with the seconds since the beginning."""
        print(f"{time.perf_counter() - self._began:5.0f} s  {text}", flush=True)

    def add(self, row: Row) -> None:
        """Say a row, and keep it in the files."""
        told = "" if row.expected is None else f", expected {row.expected * 1e3:.3f}"
        self.say(f"{row.model}: {row.step}: {row.seconds * 1e3:.3f} ms{told}")
        self.rows.append(row)
        self.write()

    def set_theirs(self, name: str, step: str, seconds: float) -> None:
        """Transformers' seconds of a step that has a row."""
        self.say(f"{name}: {step}: transformers {seconds * 1e3:.3f} ms")
        same = (name, step)
        self.rows = [replace(row, theirs=seconds) if (row.model, row.step) == same else row for row in self.rows]
        self.write()

    def page(self) -> str:
        """The tables."""
        return tables(self.rows, self.roofs, torch.cuda.get_device_name(), "make bench-gpu")

    def write(self) -> None:
        """Both files, as far as they are wanted."""
        if self._page:
            PAGE.write_text(f"{self.page()}\n{_by_hand()}", encoding="utf-8")
        if self._out is not None:
            figures: dict[str, Any] = {
                "card": torch.cuda.get_device_name(),
                "roofs": {name: asdict(roof) for name, roof in self.roofs.items()},
                "rows": [
                    {each.name: getattr(row, each.name) for each in fields(row)} | {"work": told(row.work)}
                    for row in self.rows
                ],
            }
            self._out.write_text(json.dumps(figures, indent=1), encoding="utf-8")


def told(work: Work) -> dict[str, Any]:
    """What a step asked as JSON has it."""
    attention = [[asdict(reach), msgspec.to_builtins(own)] for reach, own in work.attention.items()]
    return {"rows": dict(work.rows), "sequences": work.sequences, "attention": attention}


def heard(told: dict[str, Any]) -> Work:
    """The opposite."""
    attention = {
        AttentionPattern(**reach): AttentionWork(**{name: AttentionSum(**each) for name, each in own.items()})
        for reach, own in told["attention"]
    }
    return Work(told["rows"], told["sequences"], attention)
