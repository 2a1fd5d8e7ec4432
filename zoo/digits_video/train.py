"""Train what draws `digits-video`: the denoiser and its text encoder together, by flow matching on the latents of
clips, frame by frame those of the autoencoder of `digits`."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from zoo.digits.autoencoder import Autoencoder, autoencoder_in, latents_of
from zoo.digits.data import Digits, read_digits
from zoo.digits.pairs import picked
from zoo.digits.train import EMPTY, Batch, flow_loss, tokenizer_of
from zoo.digits.training import PARTS, Training, arguments
from zoo.digits_video.data import DIRECTIONS, FRAMES, clips
from zoo.digits_video.export import load_weights
from zoo.digits_video.model import TEXT_SHAPE, ClipDrawer, Shape
from zoo.digits_video.prompts import caption
from zoo.digits_video.tokenizer import encoded, tokenizer_of_prompts

SHIFT = 3.0  # of noise levels: nine frames show what one would not
MATRICES = ("to_q", "to_k", "to_v", "to_out", ".ffn.", *(f"Attention.{name}." for name in "qkvo"), "DenseReluDense.")


@dataclass(frozen=True)
class Taught:
    """What is learned from: digits, the autoencoder that makes latents of their frames, the tokenizer that reads their
    prompts."""

    digits: Digits
    vae: Autoencoder
    tokenizer: Tokenizer

    def batch(self, rows: int, generator: torch.Generator) -> Batch:
        """So many clips, half of them of images that were moved, to sides that are drawn."""
        own, random = picked(self.digits, rows, generator)
        ways = random.choices(list(DIRECTIONS), k=rows)
        prompts = [
            "" if random.random() < EMPTY else caption(random, int(label), way)
            for label, way in zip(own.labels, ways, strict=True)
        ]
        frames = latents_of(self.vae, clips(own.images, ways).flatten(0, 1)).unflatten(0, (rows, FRAMES))
        return frames.transpose(1, 2).contiguous(), *encoded(self.tokenizer, prompts)


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    start = parser.add_mutually_exclusive_group(required=True)
    start.add_argument("--pipeline", type=Path, help="folder of `digits`, whose autoencoder is used")
    start.add_argument("--weights", type=Path, help="exported pipeline to start from, autoencoder and all")
    parser.add_argument("--muon-lr", type=float, default=0.01)
    args = arguments(parser, minutes=30, rows=16, average=200, validate=250, adam_lr=2e-3)
    taught, held = read_digits(args.data)
    tokenizer = tokenizer_of(args, lambda: tokenizer_of_prompts(TEXT_SHAPE.vocab_size))
    vae = autoencoder_in(args.weights or args.pipeline)
    learned, kept = Taught(taught, vae, tokenizer), Taught(held, vae, tokenizer)

    def loss(generator: torch.Generator, rows: int) -> Tensor:
        return flow_loss(drawer, learned.batch(rows, generator), generator, SHIFT)

    def validate(average: nn.Module) -> dict[str, float]:
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            return {"held_out": round(float(flow_loss(average, kept.batch(128, generator), generator, SHIFT)), 5)}

    drawer = ClipDrawer(Shape(), TEXT_SHAPE)
    if args.weights:
        load_weights(drawer, args.weights)
    matrices = [p for name, p in drawer.named_parameters() if p.dim() == 2 and any(part in name for part in MATRICES)]
    training = Training(drawer, args, matrices)
    drawer.transformer.compile_blocks()
    # Compiled here, as the threads of a step would both begin to.
    loss(torch.Generator(), args.rows // PARTS).backward()  # type: ignore[no-untyped-call]
    drawer.zero_grad()
    training.fit(loss, validate, args)


if __name__ == "__main__":
    main()
