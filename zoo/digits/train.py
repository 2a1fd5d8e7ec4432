"""Train what draws `digits`: the denoiser and its text encoder together, by flow matching on the autoencoder's latents.

Flow matching (arXiv:2210.02747): latents are (1 - t) picture + t noise, and what is learned is noise - picture. Some of
the prompts are left empty, for guidance (arXiv:2207.12598).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from zoo.digits.autoencoder import Autoencoder, autoencoder_of, latents_of
from zoo.digits.data import Digits, read_digits
from zoo.digits.measures import Bounds
from zoo.digits.model import Drawer, Shape, TextShape
from zoo.digits.pairs import pairs
from zoo.digits.tokenizer import encoded, train_tokenizer
from zoo.digits.training import PARTS, Training, arguments

EMPTY = 0.1  # share of prompts that are left empty
MATRICES = ("to_q", "to_k", "to_v", "to_out", "feed_forward", "_proj.")


Batch = tuple[Tensor, Tensor, Tensor]
"""Latents, the tokens of their prompts, and which of those are no padding."""


@dataclass(frozen=True)
class Taught:
    """What is learned from: digits, where their traits begin, the autoencoder that makes latents of them, the tokenizer
    that reads their prompts. empty: share of prompts that are left empty."""

    digits: Digits
    bounds: Bounds
    vae: Autoencoder
    tokenizer: Tokenizer
    empty: float = EMPTY

    def batch(self, rows: int, generator: torch.Generator) -> Batch:
        """So many images, half of them moved."""
        images, prompts = pairs(self.digits, self.bounds, rows, generator, self.empty)
        return latents_of(self.vae, images), *encoded(self.tokenizer, prompts)


def levels(rows: int, generator: torch.Generator, shift: float = 1.0) -> Tensor:
    """Noise levels to learn at: half of them even, half logit-normal (arXiv:2403.03206), as most is decided midway.
    shift: towards noise, of what many latents show even through much of it."""
    even, normal = torch.rand(rows, generator=generator), torch.randn(rows, generator=generator).sigmoid()
    t = torch.where(torch.arange(rows) % 2 == 0, even, normal)
    return shift * t / (1 + (shift - 1) * t)


def flow_loss(drawer: nn.Module, batch: Batch, generator: torch.Generator, shift: float = 1.0) -> Tensor:
    """Mean square error of the velocity. shift: of the levels."""
    latents, tokens, own = batch
    t = levels(len(latents), generator, shift)
    noise = torch.randn(latents.shape, generator=generator)
    part = t.view(-1, *[1] * (latents.dim() - 1))
    velocity = drawer((1 - part) * latents + part * noise, t, tokens, own)
    error: Tensor = velocity - (noise - latents)
    return error.square().mean()


def tokenizer_of(args: argparse.Namespace, train: Callable[[], Tokenizer]) -> Tokenizer:
    """The run's tokenizer: that of the weights it starts from, or one trained on first use."""
    path = args.run / "tokenizer.json"
    if args.weights and not path.exists():
        path.write_bytes((args.weights / "tokenizer/tokenizer.json").read_bytes())
    if not path.exists():
        train().save(str(path))
    return Tokenizer.from_file(str(path))


def load_weights(drawer: Drawer, folder: Path) -> None:
    """Start from an exported pipeline."""
    drawer.transformer.load_state_dict(load_file(folder / "transformer/diffusion_pytorch_model.safetensors"))
    text = load_file(folder / "text_encoder/model.safetensors")
    own = drawer.text_encoder.state_dict()
    drawer.text_encoder.load_state_dict({name: text[f"model.{name}"] for name in own})


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    start = parser.add_mutually_exclusive_group(required=True)
    start.add_argument("--autoencoder", type=Path, help="folder of the autoencoder's run")
    start.add_argument("--weights", type=Path, help="exported pipeline to start from, autoencoder and all")
    parser.add_argument("--muon-lr", type=float, default=0.01)
    args = arguments(parser, minutes=60, rows=32, average=200, validate=250, adam_lr=2e-3)
    taught, held = read_digits(args.data)
    bounds, tokenizer = Bounds.of(taught), tokenizer_of(args, lambda: train_tokenizer(TextShape().vocab_size))
    vae = autoencoder_of(taught.images, args.autoencoder, args.weights)
    learned, kept = Taught(taught, bounds, vae, tokenizer), Taught(held, bounds, vae, tokenizer)

    def loss(generator: torch.Generator, rows: int) -> Tensor:
        return flow_loss(drawer, learned.batch(rows, generator), generator)

    def validate(average: nn.Module) -> dict[str, float]:
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            return {"held_out": round(float(flow_loss(average, kept.batch(256, generator), generator)), 5)}

    drawer = Drawer(Shape(), TextShape())
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
