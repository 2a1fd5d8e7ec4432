"""Train `translate` for so many minutes of a CPU, in float32, whatever its speed.

The learning rate is a function of the share of the time that has passed, and only CPU time counts, as in `tales`. Each
step's batches are dealt to threads of one core each as they become free, so that a core somebody else needs does not
hold up the other. SIGTERM ends a run with a checkpoint; started again it continues from there.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from zoo.tales.muon import Muon
from zoo.tales.train import Clock
from zoo.translate.batches import Batch, batched, encode_pairs, passes
from zoo.translate.model import T5, Shape, state_of
from zoo.translate.pairs import divide, read_pairs
from zoo.translate.tokenizer import train_tokenizer

SMOOTHING = 0.1
DECAY = {"muon": 0.02, "adam": 0.0}


def learning_rate(done: float, warm_up: float = 0.02, last: float = 0.01) -> float:
    """Factor on the peak rate: linear up, then half a cosine down to `last`."""
    if done < warm_up:
        return done / warm_up
    return last + (1 - last) * (1 + math.cos(math.pi * (done - warm_up) / (1 - warm_up))) / 2


class Trainer:
    """The model, its optimizers, its moving average, and the checkpoint that holds them all."""

    def __init__(self, shape: Shape, args: argparse.Namespace) -> None:
        self.run: Path = args.run
        self.peak = {"muon": args.muon_lr, "adam": args.adam_lr}
        self.horizon: int = args.average
        self.model = T5(shape, args.dropout)
        if args.weights:
            self.model.load_state_dict(state_of(load_file(args.weights / "model.safetensors"), shape))
        self.parameters = list(self.model.parameters())
        matrices = [p for name, p in self.model.named_parameters() if is_matrix(name, p)]
        rest = [p for name, p in self.model.named_parameters() if not is_matrix(name, p)]
        self.optimizers: dict[str, torch.optim.Optimizer] = {
            "muon": Muon(matrices, lr=args.muon_lr, dtype=torch.float32),
            "adam": torch.optim.AdamW(rest, lr=args.adam_lr, betas=(0.9, 0.98)),
        }
        self.average = copy.deepcopy(self.model).eval()
        self.step_count, self.seconds = 0, 0.0
        self.pool = ThreadPoolExecutor(args.threads)
        self.adding = threading.Lock()

    def gradients(self, batch: Batch) -> float:
        """Add a batch's gradients of its summed loss to those of the step; runs in a thread of its own."""
        loss: Tensor = self.model(batch.source, batch.target, SMOOTHING)
        gradients = torch.autograd.grad(loss, self.parameters)
        with self.adding:
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                if parameter.grad is None:
                    parameter.grad = gradient
                else:
                    parameter.grad.add_(gradient)
        return float(loss.detach())

    def step(self, batches: list[Batch], factor: float) -> float:
        """One update; returns the smoothed loss in nats a token."""
        losses = list(self.pool.map(self.gradients, batches))
        tokens = sum(batch.tokens for batch in batches)
        for parameter in self.parameters:
            assert parameter.grad is not None
            parameter.grad.div_(tokens)
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for name, optimizer in self.optimizers.items():
            for group in optimizer.param_groups:
                group.update(lr=factor * self.peak[name], weight_decay=DECAY[name])
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            weight = max(1 / self.horizon, 1 / (self.step_count + 1))
            for mean, value in zip(self.average.parameters(), self.parameters, strict=True):
                mean.lerp_(value, weight)
        self.step_count += 1
        return sum(losses) / tokens

    @torch.no_grad()
    def validate(self, batches: list[Batch]) -> float:
        """Loss of the averaged model, in nats a token, without smoothing."""
        total = sum(self.average(batch.source, batch.target).item() for batch in batches)
        return total / sum(batch.tokens for batch in batches)

    def save(self) -> None:
        """Write the checkpoint so that an interruption leaves the previous one whole."""
        state = {
            "model": self.model.state_dict(),
            "average": self.average.state_dict(),
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            "progress": {"step": self.step_count, "seconds": self.seconds},
        }
        torch.save(state, self.run / "checkpoint.new")
        os.replace(self.run / "checkpoint.new", self.run / "checkpoint.pt")

    def load(self) -> None:
        """Take up the run's checkpoint, where there is one."""
        path = self.run / "checkpoint.pt"
        if not path.exists():
            return
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.average.load_state_dict(state["average"])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        self.step_count, self.seconds = state["progress"]["step"], state["progress"]["seconds"]


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
    trainer = Trainer(shape, args)
    trainer.load()
    drawn: Iterator[tuple[int, Batch]] = passes(split.training, tokenizer, args.tokens, trainer.step_count)
    validation = list(batched(sorted(encode_pairs(split.validation, tokenizer), key=lambda r: len(r[0])), args.tokens))
    clock, smooth, saved = Clock(trainer.seconds, args.threads), 0.0, trainer.seconds
    signal.signal(signal.SIGTERM, clock.end)
    while (done := min(1.0, trainer.seconds / (60 * args.minutes))) < 1.0 and not clock.ending:
        taken = [next(drawn) for _ in range(args.batches)]
        loss = trainer.step([batch for _, batch in taken], learning_rate(done))
        smooth = loss if not smooth else 0.95 * smooth + 0.05 * loss
        if trainer.step_count % 20 == 0:
            report(step=trainer.step_count, done=round(done, 4), loss=round(smooth, 4), passes=taken[-1][0])
        if trainer.step_count % 200 == 0:
            report(step=trainer.step_count, validation=round(trainer.validate(validation), 4))
        trainer.seconds = clock.tick()
        if trainer.seconds - saved > 60:
            trainer.save()
            saved = trainer.seconds
    trainer.save()
    report(step=trainer.step_count, validation=round(trainer.validate(validation), 4))


def report(**facts: float) -> None:
    """One line of JSON: where the run stands."""
    print(json.dumps({"time": time.strftime("%H:%M:%S", time.gmtime()), **facts}), flush=True)


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
