"""Train `tales` on one core until a time of day, whatever the machine's speed.

The learning rate is a function of the share of the time that has passed, not of the step, so the run ends annealed on a
slow or a busy machine too. A run that is stopped continues from its last checkpoint.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from zoo.tales.corpus import Corpus, Mixture, Stream, documents, pack, read_corpus, read_held_out, read_sampled
from zoo.tales.export import export
from zoo.tales.model import Llama, Shape
from zoo.tales.muon import Muon
from zoo.tales.text import remove_overlap
from zoo.tales.tokenizer import train_tokenizer

FIRST_SHARES = (0.42, 0.48, 0.10)
LAST_SHARES = (0.76, 0.20, 0.04)
WEIGHT_DECAY = {"muon": 0.02, "adam": 0.01}


@dataclass
class Progress:
    """What a checkpoint remembers of the run besides weights; times are seconds since the epoch."""

    start: float
    deadline: float
    step: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def done(self) -> float:
        """Share of the time that has passed, 0 to 1."""
        return min(1.0, (time.time() - self.start) / (self.deadline - self.start))


def learning_rate(done: float, warm_up: float = 0.02) -> float:
    """Factor on the peak rate: linear up, then linear to zero at the deadline."""
    return done / warm_up if done < warm_up else (1.0 - done) / (1.0 - warm_up)


def shares(done: float) -> tuple[float, ...]:
    """Shares of stories, sampled stories and classics; real stories gain from 30 % to 60 % of the time."""
    blend = min(1.0, max(0.0, done / 0.3 - 1))
    return tuple((1 - blend) * a + blend * b for a, b in zip(FIRST_SHARES, LAST_SHARES, strict=True))


class Trainer:
    """The model, its two optimizers, its moving average, and the checkpoint that holds them all."""

    def __init__(self, shape: Shape, run: Path, dropout: float, muon_lr: float, adam_lr: float) -> None:
        self.run, self.peak = run, {"muon": muon_lr, "adam": adam_lr}
        self.model = Llama(shape, dropout)
        named = list(self.model.named_parameters())
        matrices: list[Tensor] = [p for name, p in named if p.dim() == 2 and "embed" not in name]
        rest = [p for name, p in named if p.dim() != 2 or "embed" in name]
        self.optimizers = {
            "muon": Muon(matrices, lr=muon_lr),
            "adam": torch.optim.AdamW(rest, lr=adam_lr, betas=(0.9, 0.98)),
        }
        self.average = copy.deepcopy(self.model)
        self.compiled = torch.compile(self.model)

    def step(self, inputs: Tensor, targets: Tensor, factor: float) -> float:
        """One update; returns the loss in nats."""
        loss: Tensor = self.compiled(inputs, targets)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for name, optimizer in self.optimizers.items():
            for group in optimizer.param_groups:
                group.update(lr=factor * self.peak[name], weight_decay=WEIGHT_DECAY[name])
            optimizer.step()
            optimizer.zero_grad()
        return float(loss.detach())

    @torch.no_grad()
    def update_average(self, step: int) -> None:
        """Move the average towards the weights, over about 200 steps once there are that many."""
        weight = max(0.005, 1 / (step + 1))
        for mean, value in zip(self.average.parameters(), self.model.parameters(), strict=True):
            mean.lerp_(value, weight)

    @torch.no_grad()
    def validate(self, rows: list[tuple[list[int], list[int]]]) -> float:
        """Loss of the averaged model on held-back rows, in nats a token."""
        self.average.eval()
        losses: list[float] = [self.average(torch.tensor([x]), torch.tensor([y])).item() for x, y in rows]
        return sum(losses) / len(losses)

    def save(self, progress: Progress) -> None:
        """Write the checkpoint so that an interruption leaves the previous one whole."""
        state = {
            "model": self.model.state_dict(),
            "average": self.average.state_dict(),
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            "progress": asdict(progress),
        }
        torch.save(state, self.run / "checkpoint.new")
        os.replace(self.run / "checkpoint.new", self.run / "checkpoint.pt")

    def load(self) -> Progress | None:
        """Take up the run's checkpoint, where there is one."""
        path = self.run / "checkpoint.pt"
        if not path.exists():
            return None
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.average.load_state_dict(state["average"])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        return Progress(**state["progress"])


def tokenizer_of(run: Path, corpus: Corpus, vocab_size: int) -> Tokenizer:
    """The run's tokenizer, trained on first use; classics count little, as their words are rarer in what is told."""
    path = run / "tokenizer.json"
    if not path.exists():
        train_tokenizer(corpus.stories + corpus.sampled[:3000] + corpus.classics[::4], vocab_size).save(str(path))
    return Tokenizer.from_file(str(path))


def train(args: argparse.Namespace) -> None:
    """The loop: draw, step, average; now and then validate, log and save; at the deadline export."""
    corpus = read_corpus(args.data, args.sampled, args.held_out)
    shape = Shape()
    tokenizer = tokenizer_of(args.run, corpus, shape.vocab_size)
    (args.run / "corpus.json").write_text(json.dumps(corpus.facts(), indent=2) + "\n")
    trainer = Trainer(shape, args.run, args.dropout, args.muon_lr, args.adam_lr)
    progress = trainer.load() or Progress(time.time(), args.deadline)
    progress.deadline = args.deadline
    context = shape.max_position_embeddings
    known = read_held_out(args.held_out)
    sources = (
        lambda: corpus.stories,
        lambda: remove_overlap(read_sampled(args.sampled), known),
        lambda: corpus.classics,
    )
    mixture = Mixture([Stream(s, tokenizer, context, progress.step + i) for i, s in enumerate(sources)], progress.step)
    validation = list(pack(documents(corpus.validation, tokenizer, context), context))
    saved = began = time.time()
    before, smooth = progress.seconds, 0.0
    while (done := progress.done()) < 1.0:
        inputs, targets = mixture.batch(args.rows, shares(done))
        loss = trainer.step(inputs, targets, learning_rate(done))
        trainer.update_average(progress.step)
        progress.step, progress.tokens = progress.step + 1, progress.tokens + int((targets >= 0).sum())
        progress.seconds = before + time.time() - began
        smooth = loss if not smooth else 0.98 * smooth + 0.02 * loss
        if progress.step % 25 == 0:
            report(progress, smooth, done, [s.passes for s in mixture.streams])
        if progress.step % 200 == 0:
            print(json.dumps({"step": progress.step, "validation": round(trainer.validate(validation), 4)}), flush=True)
        if time.time() - saved > 150:
            trainer.save(progress)
            saved = time.time()
    trainer.save(progress)
    print(json.dumps({"step": progress.step, "validation": round(trainer.validate(validation), 4)}), flush=True)
    export(trainer.average.state_dict(), shape, tokenizer, args.run / "final")


def report(progress: Progress, loss: float, done: float, passes: list[int]) -> None:
    """One line of JSON: where the run stands."""
    line = {
        "time": time.strftime("%H:%M:%S", time.gmtime()),
        "step": progress.step,
        "done": round(done, 4),
        "loss": round(loss, 4),
        "tokens": progress.tokens,
        "tokens_per_s": round(progress.tokens / progress.seconds),
        "passes": passes,
    }
    print(json.dumps(line), flush=True)


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with tinystories-4MB.txt and classic-books/")
    parser.add_argument("--sampled", type=Path, required=True, help="JSON lines from zoo.tales.sample")
    parser.add_argument("--held-out", type=Path, required=True, help="stories never to train on")
    parser.add_argument("--run", type=Path, required=True, help="folder for tokenizer, checkpoint and the final model")
    parser.add_argument("--minutes", type=float, default=95.0, help="training time, from the first start")
    parser.add_argument("--until", help="UTC time of day HH:MM to end at, instead of --minutes")
    parser.add_argument("--rows", type=int, default=8, help="rows of 512 tokens a step")
    parser.add_argument("--dropout", type=float, default=0.05)
    parser.add_argument("--muon-lr", type=float, default=0.012)
    parser.add_argument("--adam-lr", type=float, default=0.004)
    args = parser.parse_args()
    args.deadline = time.time() + 60 * args.minutes
    if args.until:
        hour, minute = map(int, args.until.split(":"))
        midnight = time.time() // 86400 * 86400
        args.deadline = midnight + 3600 * hour + 60 * minute
    args.run.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    train(args)


if __name__ == "__main__":
    main()
