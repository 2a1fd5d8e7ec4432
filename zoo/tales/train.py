"""Train `tales` for so many minutes of a CPU, whatever its speed, from nothing or from an exported folder.

The learning rate is a function of the share of the time that has passed, not of the step, so the run ends annealed on a
slow or a busy machine too. Only CPU time counts: a process that waits or is stopped (SIGSTOP) loses none. SIGTERM ends
a run with a checkpoint and an export of what it has; started again it continues from there.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from zoo import training
from zoo.tales.corpus import Corpus, Mixture, Stream, documents, pack, read_corpus, read_held_out, read_sampled
from zoo.tales.export import export
from zoo.tales.grammar import tell_many
from zoo.tales.model import Llama, Shape
from zoo.tales.rename import rename
from zoo.tales.text import remove_overlap
from zoo.tales.tokenizer import train_tokenizer
from zoo.training import Clock, report

# Stories, grammar, sampled stories, classics.
FIRST_SHARES = (0.48, 0.42, 0.06, 0.04)
LAST_SHARES = (0.52, 0.45, 0.02, 0.01)
TOLD = 4000  # stories of the grammar a pass; every pass tells new ones
Row = tuple[list[int], list[int]]
"""Inputs and targets."""
# Of products: without instructions for it, bfloat16 takes several times as long as float32.
PRECISION = torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32


@dataclass
class Progress(training.Progress):
    """With the tokens that were learned from."""

    tokens: int = 0


def learning_rate(done: float, warm_up: float = 0.02) -> float:
    """Factor on the peak rate: linear up, then linear to zero at the deadline."""
    return done / warm_up if done < warm_up else (1.0 - done) / (1.0 - warm_up)


def shares(done: float) -> tuple[float, ...]:
    """Shares of the four sources; the first two gain from 30 % to 60 % of the time."""
    blend = min(1.0, max(0.0, done / 0.3 - 1))
    return tuple((1 - blend) * a + blend * b for a, b in zip(FIRST_SHARES, LAST_SHARES, strict=True))


class Trainer(training.Trainer):
    """Of a decoder, a batch a step, in the precision that the processor is fast in."""

    progress: Progress

    def __init__(self, model: Llama, args: argparse.Namespace, *, compiled: bool = True) -> None:
        """compiled: whether steps go through torch.compile, which takes minutes at first."""
        if args.weights:
            model.load_state_dict(load_file(args.weights / "model.safetensors"))
        matrices = [p for name, p in model.named_parameters() if p.dim() == 2 and "embed" not in name]
        super().__init__(model, matrices, args, decay=0.01, dtype=PRECISION)
        self.progress = Progress()
        self.compiled = torch.compile(model) if compiled else model

    def step(self, inputs: Tensor, targets: Tensor, factor: float) -> float:
        """One update; returns the loss in nats."""
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=PRECISION is torch.bfloat16):
            loss: Tensor = self.compiled(inputs, targets)
        loss.backward()  # type: ignore[no-untyped-call]
        self.apply(factor)
        self.progress.tokens += int((targets >= 0).sum())
        return float(loss.detach())

    @torch.no_grad()
    def validate(self, rows: list[Row]) -> float:
        """Loss of the averaged model on held-back rows, in nats a token."""
        losses: list[float] = [self.average(torch.tensor([x]), torch.tensor([y])).item() for x, y in rows]
        return sum(losses) / len(losses)


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
    trainer.load()
    first = trainer.progress.step
    texts = sources(corpus, args, first)
    mixture = Mixture([Stream(s, tokenizer, context, first + i) for i, s in enumerate(texts)], first)
    validation = list(pack(documents(corpus.validation, tokenizer, context), context))
    loop(trainer, mixture, {"validation": validation}, shares, args)
    export(trainer.average.state_dict(), shape, tokenizer, args.run / "final")


def loop(
    trainer: Trainer,
    mixture: Mixture,
    validation: dict[str, list[Row]],
    shares: Callable[[float], tuple[float, ...]],
    args: argparse.Namespace,
) -> None:
    """Train until the time is over or SIGTERM comes, and leave a checkpoint. validation: held-back rows by what they
    are called. shares: of the mixture's streams, by the share of the time that has passed."""
    progress = trainer.progress
    clock, smooth, saved = Clock(progress.seconds, args.threads), 0.0, progress.seconds
    signal.signal(signal.SIGTERM, clock.end)
    while (done := min(1.0, progress.seconds / (60 * args.minutes))) < 1.0 and not clock.ending:
        inputs, targets = mixture.batch(args.rows, shares(done))
        loss = trainer.step(inputs, targets, learning_rate(done))
        progress.seconds = clock.tick()
        smooth = loss if not smooth else 0.98 * smooth + 0.02 * loss
        if progress.step % 25 == 0:
            report(
                step=progress.step,
                done=round(done, 4),
                loss=round(smooth, 4),
                tokens=progress.tokens,
                tokens_per_s=round(progress.tokens / progress.seconds),
                passes=[s.passes for s in mixture.streams],
            )
        if progress.step % 250 == 0:
            validate(trainer, progress.step, validation)
        if progress.seconds - saved > 150:
            trainer.save()
            saved = progress.seconds
    trainer.save()
    validate(trainer, progress.step, validation)


def validate(trainer: Trainer, step: int, validation: dict[str, list[Row]]) -> None:
    """One line of JSON: the averaged model's loss on rows that are held back."""
    losses = {name: round(trainer.validate(rows), 4) for name, rows in validation.items()}
    print(json.dumps({"step": step, **losses}), flush=True)


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
