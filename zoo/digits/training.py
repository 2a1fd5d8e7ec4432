"""Training by the clock, for every model here.

As in `tales` the learning rate is a function of the share of the time that has passed, only CPU time counts, and
SIGTERM ends a run with a checkpoint; started again it continues from there.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from zoo.tales.train import learning_rate
from zoo.training import Clock, Trainer, report

Loss = Callable[[torch.Generator, int], Tensor]
"""Draws a batch of so many images, and all that is left to chance, and gives its mean loss."""
Validate = Callable[[nn.Module], dict[str, float]]
"""Measures the averaged model."""
PARTS = 2  # batches of a step


class Training(Trainer):
    """Whose matrices, where any are named, Muon trains."""

    def __init__(self, model: nn.Module, args: argparse.Namespace, matrices: Sequence[nn.Parameter] = ()) -> None:
        super().__init__(model, matrices, args, decay=0.01)

    def step(self, loss: Loss, rows: int, factor: float) -> float:
        """One update from batches of `rows` images together; returns the mean loss."""
        first = self.progress.step * PARTS
        parts = [torch.Generator().manual_seed(first + part) for part in range(PARTS)]
        return self.update([partial(loss, generator, rows // PARTS) for generator in parts], PARTS, factor)

    def fit(self, loss: Loss, validate: Validate, args: argparse.Namespace) -> None:
        """Train until the time is over or SIGTERM comes, and leave a checkpoint."""
        self.load()
        progress = self.progress
        clock, smooth, saved = Clock(progress.seconds, args.threads), 0.0, progress.seconds
        signal.signal(signal.SIGTERM, clock.end)
        while (done := min(1.0, progress.seconds / (60 * args.minutes))) < 1.0 and not clock.ending:
            value = self.step(loss, args.rows, learning_rate(done))
            smooth = value if not smooth else 0.98 * smooth + 0.02 * value
            progress.seconds = clock.tick()
            if progress.step % 50 == 0:
                speed = progress.step * args.rows / progress.seconds
                report(step=progress.step, done=round(done, 4), loss=round(smooth, 5), images_per_s=round(speed))
            if progress.step % args.validate == 0:
                report(step=progress.step, **validate(self.average))
            if progress.seconds - saved > 60:
                self.save()
                saved = progress.seconds
        self.save()
        report(step=progress.step, **validate(self.average))


def arguments(parser: argparse.ArgumentParser, **defaults: float) -> argparse.Namespace:
    """Parse the command line with what every training here can be told; make the folder of the run, and the run one
    that can be repeated."""
    parser.add_argument("--data", type=Path, required=True, help="folder with t10k-images-idx3-ubyte.gz and labels")
    parser.add_argument("--run", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--minutes", type=float, help="CPU time of a thread, all starts together")
    parser.add_argument("--rows", type=int, help="images a step")
    parser.add_argument("--average", type=int, help="steps that the exported weights are averaged over")
    parser.add_argument("--validate", type=int, help="steps from one measurement to the next")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--adam-lr", type=float)
    parser.set_defaults(**defaults)
    args = parser.parse_args()
    args.run.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # each of the trainer's own
    torch.manual_seed(0)
    return args


def averaged(model: nn.Module, run: Path) -> nn.Module:
    """The model with the averaged weights of a run's checkpoint, finished or not."""
    model.load_state_dict(torch.load(run / "checkpoint.pt", weights_only=True)["average"])
    return model.eval().requires_grad_(False)
