"""Measure an exported `digits-video` in the engine, and write its model card: whether clips show the digit that was
asked for and move where they were to, by steps, guidance and wording, and a sheet of their frames."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from string import Template

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from ridgeline.media.diffusion.diffusion_request import DiffusionRequest
from ridgeline.media.diffusion.pipeline_loader import load_pipeline
from zoo.digits.classifier import classifier
from zoo.digits.data import read_digits
from zoo.digits.evaluate import Drawers, parts_of, percent, table, training
from zoo.digits.prompts import DIGITS, called
from zoo.digits.training import averaged
from zoo.digits_video.data import DIRECTIONS, clips
from zoo.digits_video.measures import directions, shown, speeds, unsteady
from zoo.digits_video.prompts import prompt

CARD = Path(__file__).parent / "card.md"
STEPS, GUIDANCE = 20, 4.0
STEP_MENU, GUIDANCE_MENU = (40, 20, 8, 4, 2), (1.0, 2.0, 4.0, 8.0)
CLIPS, TABLED = 100, 40  # clips of a measurement; those of them that are asked at other steps and guidance too
_GAP = 2  # pixels between the frames of the sheet
Way = tuple[int, float]
"""Steps and guidance."""


@dataclass(frozen=True)
class Asked:
    """A digit, where it is to move, and the words in which both are asked for."""

    digit: int
    direction: str
    prompt: str


def asked(count: int, *, trained: bool) -> list[Asked]:
    """So many, each digit to each side before any comes again, in wordings that were trained on or held back."""
    random, ways = Random(0), list(DIRECTIONS)
    pairs = [(number % len(DIGITS), ways[(number + number // len(DIGITS)) % len(ways)]) for number in range(count)]
    return [Asked(digit, way, prompt(random, digit, way, trained=trained)) for digit, way in pairs]


def drawn(draw: Drawers, texts: Sequence[Asked], steps: int = STEPS, guidance: float = GUIDANCE) -> Tensor:
    """A clip of each of these [B, F, 1, S, S]; seeds count through."""
    requests = [
        DiffusionRequest(text.prompt, steps=steps, guidance=guidance, seed=seed) for seed, text in enumerate(texts)
    ]
    return draw(requests).transpose(1, 2)


def right(reader: nn.Module, texts: Sequence[Asked], found: Tensor) -> tuple[float, float]:
    """Shares of clips that show the digit that was asked for, and that move where they were to."""
    digits = shown(reader, found) == torch.tensor([text.digit for text in texts])
    ways = [way == text.direction for way, text in zip(directions(found), texts, strict=True)]
    return float(digits.float().mean()), sum(ways) / len(ways)


def compared(
    reader: nn.Module, draw: Drawers, texts: Sequence[Asked], usual: Tensor, name: str, menu: Mapping[float, Way]
) -> str:
    """A table of both shares at other steps or guidance. usual: the clips at the usual ones."""
    shares = []
    for steps, guidance in menu.values():
        found = usual if (steps, guidance) == (STEPS, GUIDANCE) else drawn(draw, texts, steps, guidance)
        shares.append(right(reader, texts, found))
    digits, ways = zip(*shares, strict=True)
    return table(name, list(menu), {"digit right": digits, "direction right": ways})


def drawing(reader: nn.Module, draw: Drawers) -> dict[str, str]:
    """What the card says of what is drawn."""
    known, new = (asked(CLIPS, trained=trained) for trained in (True, False))
    plain = drawn(draw, known)
    few, usual = known[:TABLED], plain[:TABLED]
    (digit, way), (digit_new, way_new) = right(reader, known, plain), right(reader, new, drawn(draw, new))
    return {
        "digit": percent(digit),
        "direction": percent(way),
        "digit_new": percent(digit_new),
        "direction_new": percent(way_new),
        "speed": f"{float(speeds(plain).abs().amax(-1).median()):.2f}",
        "unsteady": f"{float(unsteady(plain).median()):.2f}",
        "known": ", ".join(f'"{text.prompt}"' for text in known[:5]),
        "new": ", ".join(f'"{text.prompt}"' for text in new[:5]),
        "steps": compared(reader, draw, few, usual, "steps", {n: (n, GUIDANCE) for n in STEP_MENU}),
        "guidance": compared(reader, draw, few, usual, "guidance", {w: (STEPS, w) for w in GUIDANCE_MENU}),
    }


def real(reader: nn.Module, data: Path) -> dict[str, str]:
    """What it says of real digits that were made to move, which nothing was trained on."""
    held = read_digits(data)[1]
    digits, ways = held.labels[:400].tolist(), list(DIRECTIONS) * 100
    texts = [Asked(digit, way, "") for digit, way in zip(digits, ways, strict=True)]
    moving = clips(held.images[:400], ways)
    digit, way = right(reader, texts, moving)
    return {"digit_held": percent(digit), "direction_held": percent(way)}


def sheet(draw: Drawers, path: Path) -> None:
    """A picture of a clip of each digit, a row each, its frames from left to right."""
    ways = list(DIRECTIONS)
    texts = [f"{called('{a}{name}', name)} moving {ways[number % len(ways)]}" for number, name in enumerate(DIGITS)]
    frames = draw([DiffusionRequest(text, seed=0) for text in texts])[:, 0]
    apart = functional.pad(frames, (0, _GAP, 0, _GAP), value=0.0)
    gray = ((apart.transpose(1, 2).flatten(2).flatten(0, 1) + 1) * 127.5).round().byte()
    Image.fromarray(gray.numpy()).save(path, optimize=True)


def main() -> None:
    """Parse the command line, measure, write README.md and the sheet into the model's folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with t10k-images-idx3-ubyte.gz and labels")
    parser.add_argument("--model", type=Path, required=True, help="the exported pipeline")
    parser.add_argument("--classifier", type=Path, required=True, help="folder of the run of the reader of digits")
    parser.add_argument("--run", type=Path, required=True, help="folder of the run")
    parser.add_argument("--processes", type=int, default=2, help="that draw side by side")
    args = parser.parse_args()
    reader, draw = averaged(classifier(), args.classifier), Drawers(args.model, args.processes)
    sheet(draw, args.model / "samples.png")
    said = {
        **real(reader, args.data),
        **drawing(reader, draw),
        **training(parts_of(load_pipeline(str(args.model), threads=1)), args.model, {"drawer": args.run}),
    }
    (args.model / "README.md").write_text(Template(CARD.read_text()).substitute(said))
    print("\n\n".join(f"{name}: {value}" for name, value in said.items()))


if __name__ == "__main__":
    main()
