"""Train `translate` for so many minutes of a CPU, in float32, whatever its speed.

The learning rate is a function of the share of the time that has passed, and only CPU time counts, as in `tales`.
SIGTERM ends a run with a checkpoint; started again it continues from there.
"""

from __future__ import annotations

import argparse
import math
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from zoo.training import Clock, Trainer, report
from zoo.translate.batches import Batch, batched, encode_pairs, passes
from zoo.translate.model import T5, Shape, state_of
from zoo.translate.pairs import divide, read_pairs
from zoo.translate.tokenizer import train_tokenizer

SMOOTHING = 0.1


def learning_rate(done: float, warm_up: float = 0.02, last: float = 0.01) -> float:
    """Factor on the peak rate: linear up, then half a cosine down to `last`."""
    if done < warm_up:
        return done / warm_up
    return last + (1 - last) * (1 + math.cos(math.pi * (done - warm_up) / (1 - warm_up))) / 2


class Translation(Trainer):
    """Of T5: its loss is a mean over the tokens of all batches of a step."""

    def __init__(self, shape: Shape, args: argparse.Namespace) -> None:
        model = T5(shape, args.dropout)
        if args.weights:
            model.load_state_dict(state_of(load_file(args.weights / "model.safetensors"), shape))
        matrices = [p for name, p in model.named_parameters() if is_matrix(name, p)]
        super().__init__(model, matrices, args, decay=0.0)

    def step(self, batches: list[Batch], factor: float) -> float:
        """One update; returns the smoothed loss in nats a token."""
        losses = [partial(self.model, batch.source, batch.target, SMOOTHING) for batch in batches]
        return self.update(losses, sum(batch.tokens for batch in batches), factor)

    @torch.no_grad()
    def validate(self, batches: list[Batch]) -> float:
        """Loss of the averaged model, in nats a token, without smoothing."""
        total = sum(self.average(batch.source, batch.target).item() for batch in batches)
        return total / sum(batch.tokens for batch in batches)


def is_matrix(name: str, parameter: Tensor) -> bool:
    """Whether Muon trains it: a matrix between hidden states."""
    return parameter.dim() == 2 and not any(part in name for part in ("shared", "lm_head", "relative_attention_bias"))


def tokenizer_of(run: Path, texts: list[str], vocab_size: int) -> Tokenizer:
    """The run's tokenizer, trained on first use."""
    path = run / "tokenizer.json"
    if not path.exists():
        train_tokenizer(texts, vocab_size).save(str(path))
    return Tokenizer.from_file(str(path))


def train(args: argparse.Namespace) -> None:
    """The loop: draw, step; now and then validate, log and save."""
    split = divide(read_pairs(args.data))
    shape = Shape()
    texts = [text for pair in split.training for text in (pair.english, pair.french)]
    if args.weights and not (args.run / "tokenizer.json").exists():
        (args.run / "tokenizer.json").write_bytes((args.weights / "tokenizer.json").read_bytes())
    tokenizer = tokenizer_of(args.run, texts, shape.vocab_size)
    trainer = Translation(shape, args)
    trainer.load()
    progress = trainer.progress
    drawn: Iterator[tuple[int, Batch]] = passes(split.training, tokenizer, args.tokens, progress.step)
    validation = list(batched(sorted(encode_pairs(split.validation, tokenizer), key=lambda r: len(r[0])), args.tokens))
    clock, smooth, saved = Clock(progress.seconds, args.threads), 0.0, progress.seconds
    signal.signal(signal.SIGTERM, clock.end)
    while (done := min(1.0, progress.seconds / (60 * args.minutes))) < 1.0 and not clock.ending:
        taken = [next(drawn) for _ in range(args.batches)]
        loss = trainer.step([batch for _, batch in taken], learning_rate(done))
        smooth = loss if not smooth else 0.95 * smooth + 0.05 * loss
        if progress.step % 20 == 0:
            report(step=progress.step, done=round(done, 4), loss=round(smooth, 4), passes=taken[-1][0])
        if progress.step % 200 == 0:
            report(step=progress.step, validation=round(trainer.validate(validation), 4))
        progress.seconds = clock.tick()
        if progress.seconds - saved > 60:
            trainer.save()
            saved = progress.seconds
    trainer.save()
    report(step=progress.step, validation=round(trainer.validate(validation), 4))


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="fra-eng.zip")
    parser.add_argument("--run", type=Path, required=True, help="folder for tokenizer and checkpoint")
    parser.add_argument("--weights", type=Path, help="exported folder to start from, tokenizer and all")
    parser.add_argument("--minutes", type=float, default=80.0, help="CPU time of a thread, all starts together")
    parser.add_argument("--tokens", type=int, default=1536, help="positions of a batch, both sides and padding counted")
    parser.add_argument("--batches", type=int, default=6, help="batches of a step")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--average", type=int, default=100, help="steps that the exported weights are averaged over")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--muon-lr", type=float, default=0.015)
    parser.add_argument("--adam-lr", type=float, default=0.004)
    args = parser.parse_args()
    args.run.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    train(args)


if __name__ == "__main__":
    main()
