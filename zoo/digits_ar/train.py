"""Train what draws `digits-ar`: a decoder that writes the tokens of an image behind a prompt."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from zoo.digits.data import Digits, read_digits
from zoo.digits.measures import Bounds
from zoo.digits.pairs import pairs
from zoo.digits.training import Training, arguments
from zoo.digits_ar.autoencoder import Autoencoder, tokenized, trained
from zoo.digits_ar.model import Drawer, Shape
from zoo.digits_ar.tokenizer import rows_of, train_tokenizer

MATRICES = "_proj."


@dataclass(frozen=True)
class Taught:
    """What is learned from: digits, where their traits begin, the autoencoder that makes tokens of them, the tokenizer
    of their prompts."""

    digits: Digits
    bounds: Bounds
    vq: Autoencoder
    tokenizer: Tokenizer

    def batch(self, rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Inputs and targets of so many images, half of them moved."""
        images, prompts = pairs(self.digits, self.bounds, rows, generator)
        return rows_of(self.tokenizer, prompts, tokenized(self.vq, images))


def tokenizer_of(run: Path) -> Tokenizer:
    """The run's tokenizer, trained on first use."""
    path = run / "tokenizer.json"
    if not path.exists():
        train_tokenizer(Shape().vocab_size).save(str(path))
    return Tokenizer.from_file(str(path))


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--autoencoder", type=Path, required=True, help="folder of the autoencoder's run")
    parser.add_argument("--muon-lr", type=float, default=0.01)
    args = arguments(parser, minutes=7.5, rows=16, average=200, validate=250, adam_lr=3e-3)
    taught, held = read_digits(args.data)
    bounds, tokenizer, vq = Bounds.of(taught), tokenizer_of(args.run), trained(args.autoencoder)
    learned, kept = Taught(taught, bounds, vq, tokenizer), Taught(held, bounds, vq, tokenizer)

    def loss(generator: torch.Generator, rows: int) -> Tensor:
        out: Tensor = drawer(*learned.batch(rows, generator))
        return out

    def validate(average: nn.Module) -> dict[str, float]:
        with torch.no_grad():
            batch = kept.batch(256, torch.Generator().manual_seed(0))
            return {"held_out": round(float(average(*batch)), 5)}

    drawer = Drawer(Shape())
    matrices = [p for name, p in drawer.named_parameters() if p.dim() == 2 and MATRICES in name]
    Training(drawer, args, matrices).fit(loss, validate, args)


if __name__ == "__main__":
    main()
