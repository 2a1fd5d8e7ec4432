"""Distil `digits` into one that needs a few steps: latent consistency (arXiv:2310.04378) at one scale of guidance.

The student's guess of the picture at a noise level is to be the one that it makes a little way down the path, where the
teacher's guided step leads. So in the end it guesses at once what the teacher comes to in many steps, in one pass for
the teacher's two. Autoencoder and text encoder stay as they are.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from zoo.digits.autoencoder import autoencoder_of
from zoo.digits.data import read_digits
from zoo.digits.measures import Bounds
from zoo.digits.model import Drawer, Shape, TextShape, ZImage
from zoo.digits.tokenizer import encoded
from zoo.digits.train import MATRICES, Batch, Taught, load_weights
from zoo.digits.training import Training, arguments

SCALE = 4.0  # of guidance, the textbook's w; 3 as Z-Image counts
STRIDE = 0.05  # of the teacher's steps, of which 20 go from noise to picture
_ROUND = 0.03  # where the loss turns from squares to distances, as a root of mean squares


def velocity(model: ZImage, x: Tensor, t: Tensor, states: Tensor, own: Tensor) -> Tensor:
    """noise - picture at noise levels t [B]."""
    out: Tensor = -model(x, 1 - t, states, own)
    return out


@torch.no_grad()
def guided(teacher: Drawer, x: Tensor, t: Tensor, states: Tensor, own: Tensor, empty: tuple[Tensor, Tensor]) -> Tensor:
    """The teacher's velocity with guidance. empty: tokens of the empty prompt [1, 32], and which are no padding."""
    tokens, mask = (each.expand(len(x), -1) for each in empty)
    positive = velocity(teacher.transformer, x, t, states, own)
    negative = velocity(teacher.transformer, x, t, teacher.text_encoder(tokens), mask)
    return negative + SCALE * (positive - negative)


def consistency_loss(
    student: ZImage, teacher: Drawer, batch: Batch, empty: tuple[Tensor, Tensor], generator: torch.Generator
) -> Tensor:
    """How far the student's guesses at both ends of a step of the teacher are apart, those at its end taken for true
    (pseudo-Huber, arXiv:2310.14189). At level 0 a guess is what it is shown."""
    latents, tokens, own = batch
    t = (torch.rand(len(latents), generator=generator) * (1 + STRIDE)).clamp(max=1.0)  # some at pure noise
    s = (t - STRIDE).clamp(min=0.0)
    here, there = t[:, None, None, None], s[:, None, None, None]
    x = (1 - here) * latents + here * torch.randn(latents.shape, generator=generator)
    with torch.no_grad():
        states = teacher.text_encoder(tokens)
        y = x + (there - here) * guided(teacher, x, t, states, own, empty)
        target = y - there * velocity(student, y, s, states, own)
    guess = x - here * velocity(student, x, t, states, own)
    squares = (guess - target).square().mean(dim=(1, 2, 3))
    loss: Tensor = (squares + _ROUND**2).sqrt().mean() - _ROUND
    return loss


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, required=True, help="the pipeline that is distilled")
    parser.add_argument("--student", type=Path, help="a distilled pipeline to go on from")
    parser.add_argument("--muon-lr", type=float, default=0.003)
    args = arguments(parser, minutes=60, rows=32, average=100, validate=250, adam_lr=5e-4)
    taught, held = read_digits(args.data)
    tokenizer = Tokenizer.from_file(str(args.weights / "tokenizer/tokenizer.json"))
    bounds, vae = Bounds.of(taught), autoencoder_of(taught.images, None, args.weights)
    learned, kept = (Taught(digits, bounds, vae, tokenizer, empty=0.0) for digits in (taught, held))
    teacher, start = Drawer(Shape(), TextShape()), Drawer(Shape(), TextShape())
    load_weights(teacher, args.weights)
    load_weights(start, args.student or args.weights)
    teacher.eval().requires_grad_(False)
    student, nothing = start.transformer, encoded(tokenizer, [""])

    def loss(generator: torch.Generator, rows: int) -> Tensor:
        return consistency_loss(student, teacher, learned.batch(rows, generator), nothing, generator)

    def validate(average: nn.Module) -> dict[str, float]:
        assert isinstance(average, ZImage)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            apart = consistency_loss(average, teacher, kept.batch(128, generator), nothing, generator)
        return {"apart": round(float(apart), 5)}

    matrices = [p for name, p in student.named_parameters() if p.dim() == 2 and any(part in name for part in MATRICES)]
    Training(student, args, matrices).fit(loss, validate, args)


if __name__ == "__main__":
    main()
