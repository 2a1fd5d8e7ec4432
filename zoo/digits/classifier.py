"""Train the reader of digits: a small convolutional network, by which what is drawn is judged. It is no part of the
built-in."""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional

from zoo.digits.data import moved, read_digits
from zoo.digits.training import Training, arguments


def classifier() -> nn.Sequential:
    """Images [B, 1, 32, 32] from -1 to 1 -> logits of the ten digits [B, 10]."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((1, 24), (24, 48), (48, 96)):
        layers += [nn.Conv2d(inputs, outputs, 5 if inputs == 1 else 3, padding="same"), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Dropout(0.3), nn.Linear(96 * 16, 128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, 10)
    )


@torch.inference_mode()
def read(reader: nn.Module, images: Tensor) -> Tensor:
    """The digits that it reads, int64 [B]."""
    return torch.cat([reader(part).argmax(dim=1) for part in torch.split(images, 250)])


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    args = arguments(parser, minutes=3, rows=128, average=100, validate=250, adam_lr=2e-3)
    taught, held = read_digits(args.data)

    def loss(generator: torch.Generator, rows: int) -> Tensor:
        picked = torch.randint(len(taught), (rows,), generator=generator)
        images = moved(taught.images[picked], generator, turn=15.0, scale=0.15)
        return functional.cross_entropy(model(images), taught.labels[picked], label_smoothing=0.05)

    def validate(average: nn.Module) -> dict[str, float]:
        return {"read_right": float((read(average, held.images) == held.labels).float().mean())}

    model = classifier()
    Training(model, args).fit(loss, validate, args)


if __name__ == "__main__":
    main()
