"""Train `tales` for so many minutes of a CPU, whatever its speed, from nothing or from an exported folder.

The learning rate is a function of the share of the time that has passed, not of the step, so the run ends annealed on a
slow or a busy machine too. Only CPU time counts: a process that waits or is stopped (SIGSTOP) loses none. SIGTERM ends
a run with a checkpoint and an export of what it has; started again it continues from there.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from zoo.tales.corpus import Corpus, Mixture, Stream, documents, pack, read_corpus, read_held_out, read_sampled
from zoo.tales.export import export
from zoo.tales.grammar import tell_many
from zoo.tales.model import Llama, Shape
from zoo.tales.muon import Muon
from zoo.tales.rename import rename
from zoo.tales.text import remove_overlap
from zoo.tales.tokenizer import train_tokenizer

# Stories, grammar, sampled stories, classics.
FIRST_SHARES = (0.48, 0.42, 0.06, 0.04)
LAST_SHARES = (0.52, 0.45, 0.02, 0.01)
TOLD = 4000  # stories of the grammar a pass; every pass tells new ones
Row = tuple[list[int], list[int]]
"""Inputs and targets."""
WEIGHT_DECAY = {"muon": 0.02, "adam": 0.01}
# Of products: without instructions for it, bfloat16 takes several times as long as float32.
PRECISION = torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32


@dataclass
class Progress:
    """What a checkpoint remembers of the run besides weights; `seconds` are those spent training."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0


class Clock:
    """Seconds of CPU a thread has spent training: what others take of a busy machine, and pauses, are left out."""

    def __init__(self, seconds: float, threads: int) -> None:
        self.seconds, self.threads, self.since, self.ending = seconds, threads, time.process_time(), False

    def end(self, *_: object) -> None:
        """Ask the loop to stop after its step; handles SIGTERM."""
        self.ending = True

    def tick(self) -> float:
        """Count the time since the last tick; returns the sum."""
        now = time.process_time()
        self.seconds, self.since = self.seconds + (now - self.since) / self.threads, now
        return self.seconds


def learning_rate(done: float, warm_up: float = 0.02) -> float:
    """Factor on the peak rate: linear up, then linear to zero at the deadline."""
    return done / warm_up if done < warm_up else (1.0 - done) / (1.0 - warm_up)


def shares(done: float) -> tuple[float, ...]:
    """Shares of the four sources; the first two gain from 30 % to 60 % of the time."""
    blend = min(1.0, max(0.0, done / 0.3 - 1))
    return tuple((1 - blend) * a + blend * b for a, b in zip(FIRST_SHARES, LAST_SHARES, strict=True))


class Trainer:
    """The model, its two optimizers, its moving average, and the checkpoint that holds them all."""

    def __init__(self, model: Llama, args: argparse.Namespace, *, compiled: bool = True) -> None:
        """compiled: whether steps go through torch.compile, which takes minutes at first."""
        self.run, self.peak = args.run, {"muon": args.muon_lr, "adam": args.adam_lr}
        self.horizon: int = args.average
        self.model = model
        if args.weights:
            self.model.load_state_dict(load_file(args.weights / "model.safetensors"))
        named = list(self.model.named_parameters())
        matrices: list[Tensor] = [p for name, p in named if p.dim() == 2 and "embed" not in name]
        rest = [p for name, p in named if p.dim() != 2 or "embed" in name]
        self.optimizers = {
            "muon": Muon(matrices, lr=args.muon_lr, dtype=PRECISION),
            "adam": torch.optim.AdamW(rest, lr=args.adam_lr, betas=(0.9, 0.98)),
        }
        self.average = copy.deepcopy(self.model)
        self.compiled = torch.compile(self.model) if compiled else self.model

    def step(self, inputs: Tensor, targets: Tensor, factor: float) -> float:
        """One update; returns the loss in nats."""
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=PRECISION is torch.bfloat16):
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
        """Move the average towards the weights, over about `horizon` steps once there are that many."""
        weight = max(1 / self.horizon, 1 / (step + 1))
        for mean, value in zip(self.average.parameters(), self.model.parameters(), strict=True):
            mean.lerp_(value, weight)

    @torch.no_grad()
    def validate(self, rows: list[Row]) -> float:
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


def tokenizer_of(args: argparse.Namespace, corpus: Corpus, vocab_size: int) -> Tokenizer:
    """The run's tokenizer: that of the weights it starts from, or one trained on first use."""
    path = args.run / "tokenizer.json"
    if args.weights and not path.exists():
        path.write_bytes((args.weights / "tokenizer.json").read_bytes())
    if not path.exists():
        # Classics count little, as their words are rarer in what is told.
        train_tokenizer(corpus.stories + corpus.sampled[:3000] + corpus.classics[::4], vocab_size).save(str(path))
    return Tokenizer.from_file(str(path))


def sources(corpus: Corpus, args: argparse.Namespace, seed: int) -> list[Callable[[], list[str]]]:
    """The texts of a pass, by source: stories under other names, new ones of the grammar, samples, classics."""
    drawn, known = random.Random(seed), read_held_out(args.held_out)
    return [
        lambda: [rename(story, drawn) for story in corpus.stories],
        lambda: remove_overlap(tell_many(TOLD, drawn.getrandbits(32)), known),
        lambda: remove_overlap(read_sampled(args.sampled), known),
        lambda: corpus.classics,
    ]


def train(args: argparse.Namespace) -> None:
    """Read, make ready, train, export."""
    corpus = read_corpus(args.data, args.sampled, args.held_out)
    shape = Shape()
    context = shape.max_position_embeddings
    tokenizer = tokenizer_of(args, corpus, shape.vocab_size)
    (args.run / "corpus.json").write_text(json.dumps(corpus.facts(), indent=2) + "\n")
    trainer = Trainer(Llama(shape, args.dropout), args)
    progress = trainer.load() or Progress()
    texts = sources(corpus, args, progress.step)
    mixture = Mixture([Stream(s, tokenizer, context, progress.step + i) for i, s in enumerate(texts)], progress.step)
    validation = list(pack(documents(corpus.validation, tokenizer, context), context))
    loop(trainer, progress, mixture, {"validation": validation}, shares, args)
    export(trainer.average.state_dict(), shape, tokenizer, args.run / "final")


def loop(
    trainer: Trainer,
    progress: Progress,
    mixture: Mixture,
    validation: dict[str, list[Row]],
    shares: Callable[[float], tuple[float, ...]],
    args: argparse.Namespace,
) -> None:
    """Train until the time is over or SIGTERM comes, and leave a checkpoint. validation: held-back rows by what they
    are called. shares: of the mixture's streams, by the share of the time that has passed."""
    clock, smooth, saved = Clock(progress.seconds, args.threads), 0.0, progress.seconds
    signal.signal(signal.SIGTERM, clock.end)
    while (done := min(1.0, progress.seconds / (60 * args.minutes))) < 1.0 and not clock.ending:
        inputs, targets = mixture.batch(args.rows, shares(done))
        loss = trainer.step(inputs, targets, learning_rate(done))
        trainer.update_average(progress.step)
        progress.step, progress.tokens = progress.step + 1, progress.tokens + int((targets >= 0).sum())
        progress.seconds = clock.tick()
        smooth = loss if not smooth else 0.98 * smooth + 0.02 * loss
        if progress.step % 25 == 0:
            report(progress, smooth, done, [s.passes for s in mixture.streams])
        if progress.step % 250 == 0:
            validate(trainer, progress.step, validation)
        if progress.seconds - saved > 150:
            trainer.save(progress)
            saved = progress.seconds
    trainer.save(progress)
    validate(trainer, progress.step, validation)


def validate(trainer: Trainer, step: int, validation: dict[str, list[Row]]) -> None:
    """One line of JSON: the averaged model's loss on rows that are held back."""
    losses = {name: round(trainer.validate(rows), 4) for name, rows in validation.items()}
    print(json.dumps({"step": step, **losses}), flush=True)


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


def begin(parser: argparse.ArgumentParser, train: Callable[[argparse.Namespace], None]) -> None:
    """Parse the command line, with what every such training can be told; make the folder of the run, and the run one
    that can be repeated; train."""
    parser.add_argument("--run", type=Path, required=True, help="folder for tokenizer, checkpoint and the final model")
    parser.add_argument("--weights", type=Path, help="exported folder to start from, tokenizer and all")
    parser.add_argument("--minutes", type=float, default=95.0, help="CPU time of a thread, all starts together")
    parser.add_argument("--rows", type=int, default=8, help="rows of 512 tokens a step")
    parser.add_argument("--dropout", type=float, default=0.05)
    parser.add_argument("--average", type=int, default=200, help="steps that the exported weights are averaged over")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--muon-lr", type=float, default=0.012)
    parser.add_argument("--adam-lr", type=float, default=0.004)
    args = parser.parse_args()
    args.run.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    train(args)


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with tinystories-4MB.txt and classic-books/")
    parser.add_argument("--sampled", type=Path, required=True, help="JSON lines from zoo.tales.sample")
    parser.add_argument("--held-out", type=Path, required=True, help="stories never to train on")
    begin(parser, train)


if __name__ == "__main__":
    main()
