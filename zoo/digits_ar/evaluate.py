"""Measure an exported `digits-ar` in the engine, and write its model card: whether a reader finds the digit that was
asked for, by temperature, top-p and wording, whether traits come out, and a sheet of samples."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from string import Template

import torch
from torch import Tensor

from ridgeline.core.checkpoint.source import open_source
from ridgeline.media.images.image_generator import TokenImageGenerator, load_image_generator
from zoo.digits.classifier import classifier
from zoo.digits.data import Digits, read_digits
from zoo.digits.evaluate import (
    EACH,
    SHEET,
    TABLED,
    Asked,
    Judge,
    asked,
    nearest,
    percent,
    save_sheet,
    training,
    trait_rows,
)
from zoo.digits.evaluate_fast import of_each_digit, variety
from zoo.digits.measures import Bounds
from zoo.digits.prompts import DIGITS
from zoo.digits.training import averaged
from zoo.digits_ar.autoencoder import entropy

CARD = Path(__file__).parent / "card.md"
TEMPERATURES, TOP_PS = (1.0, 0.85, 0.7), (1.0, 0.9, 0.8)


def images_of(drawer: TokenImageGenerator, prompt: str, seed: int, count: int) -> Tensor:
    """So many pictures of a prompt, side by side [count, 1, 32, 32]."""
    finished: dict[int, list[int]] = {}
    for step in drawer.draw(drawer.plan(prompt, count, seed)):
        finished |= step.finished
    return torch.stack([drawer.decode(finished[image]) for image in range(count)]).clamp(-1, 1)


def drawn(drawer: TokenImageGenerator, texts: Sequence[Asked]) -> Digits:
    """EACH images of each of these, with the digits that they were to be; seeds count through."""
    images = [images_of(drawer, text.prompt, EACH * number, EACH) for number, text in enumerate(texts)]
    return Digits(torch.cat(images), torch.tensor([text.digit for text in texts]).repeat_interleave(EACH))


def sampling_table(drawer: TokenImageGenerator, judge: Judge, texts: Sequence[Asked]) -> str:
    """Shares that are read right, and how much pictures of one prompt differ, a row a temperature, a column a top-p."""
    usual, rows = drawer.params, []
    for temperature in TEMPERATURES:
        cells = []
        for top_p in TOP_PS:
            drawer.params = replace(usual, temperature=temperature, top_p=top_p)
            found = drawn(drawer, texts)
            cells.append(f"{percent(judge.right(found))}, {variety(found.images.unflatten(0, (-1, EACH))):.2f}")
        rows.append(" | ".join([f"{temperature:g}", *cells]))
    drawer.params = usual
    head = " | ".join(["temperature", *(f"top-p {top_p:g}" for top_p in TOP_PS)])
    rule = " | ".join(["---"] * (1 + len(TOP_PS)))
    return "\n".join(f"| {row} |" for row in (head, rule, *rows))


def drawing(drawer: TokenImageGenerator, judge: Judge, taught: Digits, held: Digits) -> dict[str, str]:
    """What the card says of what is drawn."""
    known, new = asked(trained=True), asked(trained=False)
    plain = drawn(drawer, known)
    return {
        "right": percent(judge.right(plain)),
        "right_new": percent(judge.right(drawn(drawer, new))),
        "temperature": f"{drawer.params.temperature:g}",
        "top_p": f"{drawer.params.top_p:g}",
        "sampling": sampling_table(drawer, judge, known[:TABLED]),
        "traits": trait_rows(lambda texts: drawn(drawer, texts), judge, plain),
        "held": f"{variety(of_each_digit(held)):.2f}",
        "near": f"{nearest(plain.images, taught.images):.3f}",
        "near_held": f"{nearest(held.images, taught.images):.3f}",
    }


def autoencoding(drawer: TokenImageGenerator, judge: Judge, held: Digits) -> dict[str, str]:
    """What it says of the autoencoder."""
    model = drawer.autoencoder
    with torch.inference_mode():
        tokens = torch.cat([model.encode(part) for part in torch.split(held.images, 100)])
        images = torch.cat([model.decode(part).float() for part in torch.split(tokens, 100)])
    return {
        "read_held": percent(judge.right(held)),
        "read_through": percent(judge.right(Digits(images, held.labels))),
        "square": f"{float((images - held.images).square().mean()):.4f}",
        "used": f"{len(tokens.unique()):,}",
        "bits": f"{entropy(tokens) / torch.log(torch.tensor(2.0)).item():.1f}",
    }


def main() -> None:
    """Parse the command line, measure, write README.md and the sheet into the model's folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with t10k-images-idx3-ubyte.gz and labels")
    parser.add_argument("--model", type=Path, required=True, help="the exported model")
    parser.add_argument("--classifier", type=Path, required=True, help="folder of the reader's run")
    parser.add_argument("--autoencoder", type=Path, required=True, help="folder of the autoencoder's run")
    parser.add_argument("--run", type=Path, required=True, help="folder of the decoder's run")
    args = parser.parse_args()
    taught, held = read_digits(args.data)
    drawer = load_image_generator(open_source(str(args.model)))
    torch.set_num_threads(1)
    judge = Judge(averaged(classifier(), args.classifier), Bounds.of(taught))
    sheet = [images_of(drawer, f"a handwritten {name}", 0, SHEET) for name in DIGITS]
    save_sheet(torch.cat(sheet), args.model / "samples.png")
    parts = {"decoder": drawer.loaded.model, "vq": drawer.autoencoder}
    runs = {"decoder": args.run, "vq": args.autoencoder}
    said = {
        **autoencoding(drawer, judge, held),
        **drawing(drawer, judge, taught, held),
        **training(parts, args.model, runs),
    }
    (args.model / "README.md").write_text(Template(CARD.read_text()).substitute(said))
    print("\n\n".join(f"{name}: {value}" for name, value in said.items()))


if __name__ == "__main__":
    main()
