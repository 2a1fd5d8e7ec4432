"""Measure a distilled `digits` in the engine beside the pipeline that it was distilled from, and write its model card:
whether a reader finds the digit that was asked for, and how much pictures of one prompt differ, by steps."""

from __future__ import annotations

import argparse
from pathlib import Path
from string import Template

import torch
from torch import Tensor

from ridgeline.media.diffusion.pipeline_loader import load_pipeline
from zoo.digits.classifier import classifier
from zoo.digits.data import Digits, read_digits
from zoo.digits.evaluate import (
    EACH,
    GUIDANCE,
    Drawers,
    Judge,
    asked,
    drawn,
    nearest,
    parts_of,
    percent,
    sheet,
    training,
)
from zoo.digits.measures import Bounds
from zoo.digits.training import averaged

CARD = Path(__file__).parent / "card_fast.md"
STEPS = 4
STEP_MENU, TEACHER_MENU = (8, 4, 2, 1), (20, 8, 4, 2)


def variety(images: Tensor) -> float:
    """Mean distance between two images of a group, root of the mean square of pixels. images: [G, N, ...]."""
    flat = images.flatten(2)
    groups, count, pixels = flat.shape
    return float(torch.cdist(flat, flat).sum() / (groups * count * (count - 1) * pixels**0.5))


def of_each_digit(digits: Digits) -> Tensor:
    """EACH images of every digit, [10, EACH, ...]."""
    return torch.stack([digits.images[digits.labels == digit][:EACH] for digit in range(10)])


def row(name: str, judge: Judge, digits: Digits, *facts: object) -> str:
    """A row of the table: what drew, how, and what is said of its pictures."""
    groups = digits.images.unflatten(0, (-1, EACH))
    return "| " + " | ".join([name, *map(str, facts), percent(judge.right(digits)), f"{variety(groups):.3f}"]) + " |"


def main() -> None:
    """Parse the command line, measure, write README.md and the sheet into the model's folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with t10k-images-idx3-ubyte.gz and labels")
    parser.add_argument("--model", type=Path, required=True, help="the distilled pipeline")
    parser.add_argument("--teacher", type=Path, required=True, help="the pipeline that it was distilled from")
    parser.add_argument("--classifier", type=Path, required=True, help="folder of the reader's run")
    parser.add_argument("--run", type=Path, required=True, help="folder of the run that distilled it")
    parser.add_argument("--processes", type=int, default=2, help="that draw side by side")
    args = parser.parse_args()
    taught, held = read_digits(args.data)
    judge = Judge(averaged(classifier(), args.classifier), Bounds.of(taught))
    student, teacher = (Drawers(folder, args.processes) for folder in (args.model, args.teacher))
    sheet(student, args.model / "samples.png")
    known, new = asked(trained=True), asked(trained=False)
    plain = drawn(student, known, STEPS, 0.0)
    rows = [row("digits-fast", judge, drawn(student, known, steps, 0.0), steps, "off", steps) for steps in STEP_MENU]
    rows += [
        row("digits", judge, drawn(teacher, known, steps, GUIDANCE), steps, f"{GUIDANCE:g}", 2 * steps)
        for steps in TEACHER_MENU
    ]
    rows.append(row("digits", judge, drawn(teacher, known, STEPS, 0.0), STEPS, "off", STEPS))
    said = {
        **training(parts_of(load_pipeline(str(args.model), threads=1)), args.model, {"distil": args.run}),
        "right": percent(judge.right(plain)),
        "right_new": percent(judge.right(drawn(student, new, STEPS, 0.0))),
        "rows": "\n".join(rows),
        "held": f"{variety(of_each_digit(held)):.3f}",
        "near": f"{nearest(plain.images, taught.images):.3f}",
        "near_held": f"{nearest(held.images, taught.images):.3f}",
    }
    (args.model / "README.md").write_text(Template(CARD.read_text()).substitute(said))
    print("\n\n".join(f"{name}: {value}" for name, value in said.items()))


if __name__ == "__main__":
    main()
