"""Training by the clock, for every model here: its weights, their moving average, their optimizers, a checkpoint.

As in `tales` the learning rate is a function of the share of the time that has passed, only CPU time counts, and
SIGTERM ends a run with a checkpoint; started again it continues from there. As in `translate` a step's batches are
dealt to threads of one core each as they become free, so that a core somebody else needs does not hold up the other.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor, nn

from zoo.tales.muon import Muon
from zoo.tales.train import Clock, learning_rate

Loss = Callable[[torch.Generator, int], Tensor]
"""Draws a batch of so many images, and all that is left to chance, and gives its mean loss."""
Validate = Callable[[nn.Module], dict[str, float]]
"""Measures the averaged model."""
DECAY = {"muon": 0.02, "adam": 0.01}
PARTS = 2  # batches of a step


class Training:
    """A model, its moving average and its optimizers: Muon for the matrices that are named, AdamW for the rest."""

    def __init__(self, model: nn.Module, args: argparse.Namespace, matrices: list[nn.Parameter] | None = None) -> None:
        self.model, self.run, self.horizon = model, Path(args.run), int(args.average)
        own = {id(p) for p in matrices or []}
        rest = [p for p in model.parameters() if p.requires_grad and id(p) not in own]
        self.peak = {"adam": float(args.adam_lr)}
        self.optimizers: dict[str, torch.optim.Optimizer] = {
            "adam": torch.optim.AdamW(rest, lr=args.adam_lr, betas=(0.9, 0.98))
        }
        if matrices:
            self.peak["muon"] = float(args.muon_lr)
            self.optimizers["muon"] = Muon(list(matrices), lr=args.muon_lr, dtype=torch.float32)
        self.average = copy.deepcopy(model).eval().requires_grad_(False)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.step, self.seconds = 0, 0.0
        self.pool, self.adding = ThreadPoolExecutor(args.threads), threading.Lock()

    def gradients(self, loss: Loss, part: int, rows: int) -> float:
        """Add the gradients of one batch of the step to those of the others; runs in a thread of its own."""
        value = loss(torch.Generator().manual_seed(self.step * PARTS + part), rows)
        gradients = torch.autograd.grad(value, self.parameters)
        with self.adding:
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                if parameter.grad is None:
                    parameter.grad = gradient
                else:
                    parameter.grad.add_(gradient)
        return float(value.detach())

    def update(self, loss: Loss, rows: int, factor: float) -> float:
        """One step of all optimizers at `factor` times their peak rate, and of the average; returns the loss."""
        losses = list(self.pool.map(lambda part: self.gradients(loss, part, rows // PARTS), range(PARTS)))
        for parameter in self.parameters:
            assert parameter.grad is not None
            parameter.grad.div_(PARTS)
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for name, optimizer in self.optimizers.items():
            for group in optimizer.param_groups:
                group.update(lr=factor * self.peak[name], weight_decay=DECAY[name])
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            weight = max(1 / self.horizon, 1 / (self.step + 1))
            for mean, value in zip(self.average.parameters(), self.model.parameters(), strict=True):
                mean.lerp_(value, weight)
        self.step += 1
        return sum(losses) / PARTS

    def save(self) -> None:
        """Write the checkpoint so that an interruption leaves the previous one whole."""
        state = {
            "model": self.model.state_dict(),
            "average": self.average.state_dict(),
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            "progress": {"step": self.step, "seconds": self.seconds},
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
        self.step, self.seconds = state["progress"]["step"], state["progress"]["seconds"]

    def fit(self, loss: Loss, validate: Validate, args: argparse.Namespace) -> None:
        """Train until the time is over or SIGTERM comes, and leave a checkpoint."""
        self.load()
        clock, smooth, saved = Clock(self.seconds, args.threads), 0.0, self.seconds
        signal.signal(signal.SIGTERM, clock.end)
        while (done := min(1.0, self.seconds / (60 * args.minutes))) < 1.0 and not clock.ending:
            value = self.update(loss, args.rows, learning_rate(done))
            smooth = value if not smooth else 0.98 * smooth + 0.02 * value
            self.seconds = clock.tick()
            if self.step % 50 == 0:
                speed = self.step * args.rows / self.seconds
                report(step=self.step, done=round(done, 4), loss=round(smooth, 5), images_per_s=round(speed))
            if self.step % args.validate == 0:
                report(step=self.step, **validate(self.average))
            if self.seconds - saved > 60:
                self.save()
                saved = self.seconds
        self.save()
        report(step=self.step, **validate(self.average))


def report(**facts: float) -> None:
    """One line of JSON: where the run stands."""
    print(json.dumps({"time": time.strftime("%H:%M:%S", time.gmtime()), **facts}), flush=True)


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
