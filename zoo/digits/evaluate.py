"""Measure an exported `digits` in the engine, and write its model card: whether a reader finds the digit that was asked
for, by steps, guidance and wording, whether traits come out, and a sheet of samples."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from random import Random
from string import Template
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from ridgeline.core.models.families.autoencoder_kl import AutoencoderKL
from ridgeline.media.diffusion.diffusion_request import DiffusionRequest
from ridgeline.media.diffusion.pipeline import Pipeline
from ridgeline.media.diffusion.pipeline_loader import load_pipeline
from zoo.digits.classifier import classifier, read
from zoo.digits.data import Digits, read_digits
from zoo.digits.measures import Bounds
from zoo.digits.prompts import DIGITS, TRAITS, prompt
from zoo.digits.training import averaged

CARD = Path(__file__).parent / "card.md"
STEPS, GUIDANCE = 20, 3.0
STEP_MENU, GUIDANCE_MENU = (50, 20, 8, 4, 2, 1), (0.0, 1.0, 2.0, 3.0, 5.0)
WORDINGS, EACH = 4, 5  # of each digit; images of each wording: 200 in all
TABLED = 20  # of those 40 prompts, which are asked at other steps and guidance too
SHEET = 10  # images of each digit on the sheet


@dataclass(frozen=True)
class Asked:
    """A digit, and the words in which it is asked for."""

    digit: int
    prompt: str


def asked(*, trained: bool, traits: Sequence[str] = (), wordings: int = WORDINGS) -> list[Asked]:
    """So many wordings of each digit, of those that were trained on or of those that were held back."""
    random = Random(0)
    return [
        Asked(digit, prompt(random, digit, traits, trained=trained)) for _ in range(wordings) for digit in range(10)
    ]


class Drawers:
    """Processes that draw side by side, each with the pipeline and a thread of its own."""

    def __init__(self, model: Path, count: int) -> None:
        self.pool = ProcessPoolExecutor(count, get_context("spawn"), _load, (str(model),))

    def __call__(self, requests: Sequence[DiffusionRequest]) -> Tensor:
        """The images of all requests, [B, 1, 32, 32]."""
        images = torch.cat([torch.from_numpy(drawn) for drawn in self.pool.map(_draw, requests)])
        return images.clamp(-1, 1)


_pipelines: list[Pipeline] = []  # of a process that draws: one


def _load(model: str) -> None:
    _pipelines.append(load_pipeline(model, threads=1))


def _draw(request: DiffusionRequest) -> NDArray[np.float32]:
    images: NDArray[np.float32] = _pipelines[0].draw(request).numpy()
    return images


def drawn(draw: Drawers, texts: Sequence[Asked], steps: int = STEPS, guidance: float = GUIDANCE) -> Digits:
    """EACH images of each of these, with the digits that they were to be; seeds count through."""
    images = draw(
        [
            DiffusionRequest(text.prompt, steps=steps, guidance=guidance, seed=EACH * number, images=EACH)
            for number, text in enumerate(texts)
        ]
    )
    return Digits(images, torch.tensor([text.digit for text in texts]).repeat_interleave(EACH))


class Judge:
    """The reader and the measures, and what they say of what was drawn."""

    def __init__(self, reader: nn.Module, bounds: Bounds) -> None:
        self.reader, self.bounds = reader, bounds

    def right(self, digits: Digits) -> float:
        """Share of images in which the reader finds the digit."""
        return float((read(self.reader, digits.images) == digits.labels).float().mean())

    def share(self, digits: Digits, trait: str) -> float:
        """Share of images that have a trait."""
        return float(self.bounds.traits(digits)[:, TRAITS.index(trait)].float().mean())


def nearest(images: Tensor, others: Tensor) -> float:
    """Median distance from an image to the most similar of the others, root of the mean square of pixels."""
    distances = torch.cdist(images.flatten(1), others.flatten(1)).min(dim=1).values
    return float(distances.median() / images[0].numel() ** 0.5)


def sheet(draw: Drawers, path: Path) -> None:
    """A picture of SHEET images of each digit, a row each, none picked."""
    save_sheet(draw([DiffusionRequest(f"a handwritten {name}", seed=0, images=SHEET) for name in DIGITS]), path)


def save_sheet(images: Tensor, path: Path) -> None:
    """SHEET images of each digit after the other [B, 1, S, S] as a picture, a row a digit."""
    side = images.shape[-1]
    gray = ((images.view(len(DIGITS), SHEET, side, side).transpose(1, 2) + 1) * 127.5).round().byte()
    Image.fromarray(gray.reshape(len(DIGITS) * side, SHEET * side).numpy()).save(path, optimize=True)


def percent(share: float) -> str:
    """A share in percent."""
    return f"{100 * share:.1f} %"


def table(name: str, values: Sequence[float], shares: Mapping[str, Sequence[float]]) -> str:
    """One row of values over rows of shares, each under what is shared."""
    head = " | ".join([name, *(f"{value:g}" for value in values)])
    rule = " | ".join(["---"] * (1 + len(values)))
    rows = [" | ".join([of, *map(percent, own)]) for of, own in shares.items()]
    return "\n".join(f"| {row} |" for row in (head, rule, *rows))


def trait_rows(draw: Callable[[Sequence[Asked]], Digits], judge: Judge, plain: Digits) -> str:
    """A row a trait: how often it is there where it was asked for, and in images of prompts that do not say; how many
    of the former are read right."""
    rows = []
    for trait in TRAITS:
        told = asked(trained=True, traits=[trait], wordings=1)
        with_it = draw(told)
        cells = (f'"{told[0].prompt}"', judge.share(with_it, trait), judge.share(plain, trait), judge.right(with_it))
        rows.append("| " + " | ".join([trait, *(percent(c) if isinstance(c, float) else c for c in cells)]) + " |")
    return "\n".join(rows)


def drawing(draw: Drawers, judge: Judge, taught: Digits, held: Digits) -> dict[str, str]:
    """What the card says of what is drawn."""
    known, new = asked(trained=True), asked(trained=False)
    plain = drawn(draw, known)
    few = known[:TABLED]
    usual = judge.right(Digits(plain.images[: EACH * TABLED], plain.labels[: EACH * TABLED]))
    by_steps = [usual if n == STEPS else judge.right(drawn(draw, few, steps=n)) for n in STEP_MENU]
    by_guidance = [usual if s == GUIDANCE else judge.right(drawn(draw, few, guidance=s)) for s in GUIDANCE_MENU]
    return {
        "right": percent(judge.right(plain)),
        "right_new": percent(judge.right(drawn(draw, new))),
        "known": ", ".join(f'"{text.prompt}"' for text in known[:6]),
        "new": ", ".join(f'"{text.prompt}"' for text in new[:6]),
        "steps": table("steps", STEP_MENU, {"read right": by_steps}),
        "guidance": table("guidance", GUIDANCE_MENU, {"read right": by_guidance}),
        "traits": trait_rows(lambda texts: drawn(draw, texts), judge, plain),
        "near": f"{nearest(plain.images, taught.images):.3f}",
        "near_held": f"{nearest(held.images, taught.images):.3f}",
    }


def autoencoding(pipeline: Pipeline, judge: Judge, held: Digits) -> dict[str, str]:
    """What it says of the autoencoder."""
    model = pipeline.autoencoder
    assert isinstance(model, AutoencoderKL)
    with torch.inference_mode():
        parts = [model.decode(model.encode(part).mean) for part in torch.split(held.images, 100)]
    images = torch.cat(parts).float()
    return {
        "read_held": percent(judge.right(held)),
        "read_through": percent(judge.right(Digits(images, held.labels))),
        "square": f"{float((images - held.images).square().mean()):.4f}",
    }


def parts_of(pipeline: Pipeline) -> dict[str, Any]:
    """Those that were trained."""
    return {"denoiser": pipeline.denoiser, "encoder": pipeline.encoder.models[0], "vae": pipeline.autoencoder}


def training(parts: Mapping[str, Any], folder: Path, runs: Mapping[str, Path]) -> dict[str, str]:
    """What it says of sizes and of the runs. parts: what was trained, by name."""
    facts = {}
    for name, part in parts.items():
        facts[f"{name}_parameters"] = f"{sum(parameter.numel() for parameter in part.parameters()):,}"
    for name, run in runs.items():
        progress = torch.load(run / "checkpoint.pt", weights_only=True)["progress"]
        facts[f"{name}_steps"] = f"{progress['step']:,}"
        facts[f"{name}_minutes"] = f"{progress['seconds'] / 60:.0f}"
    size = sum(path.stat().st_size for path in folder.rglob("*.safetensors"))
    return {**facts, "megabytes": f"{size / 1e6:.1f}"}


def main() -> None:
    """Parse the command line, measure, write README.md and the sheet into the model's folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with t10k-images-idx3-ubyte.gz and labels")
    parser.add_argument("--model", type=Path, required=True, help="the exported pipeline")
    parser.add_argument("--classifier", type=Path, required=True, help="folder of the reader's run")
    parser.add_argument("--autoencoder", type=Path, required=True, help="folder of the autoencoder's run")
    parser.add_argument("--run", type=Path, required=True, help="folder of the run of denoiser and encoder")
    parser.add_argument("--processes", type=int, default=2, help="that draw side by side")
    args = parser.parse_args()
    taught, held = read_digits(args.data)
    pipeline, draw = load_pipeline(str(args.model), threads=1), Drawers(args.model, args.processes)
    judge = Judge(averaged(classifier(), args.classifier), Bounds.of(taught))
    sheet(draw, args.model / "samples.png")
    runs = {"classifier": args.classifier, "vae": args.autoencoder, "drawer": args.run}
    said = {
        **autoencoding(pipeline, judge, held),
        **drawing(draw, judge, taught, held),
        **training(parts_of(pipeline), args.model, runs),
    }
    (args.model / "README.md").write_text(Template(CARD.read_text()).substitute(said))
    print("\n\n".join(f"{name}: {value}" for name, value in said.items()))


if __name__ == "__main__":
    main()
