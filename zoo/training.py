"""What every training here shares: its weights, their moving average, their optimizers, a checkpoint, its time."""

from __future__ import annotations

import argparse
import copy
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from zoo.tales.muon import Muon

MUON_DECAY = 0.02


@dataclass
class Progress:
    """What a checkpoint remembers of the run besides weights; `seconds` are those spent training."""

    step: int = 0
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


class Trainer:
    """A model, its moving average, its optimizers (Muon for the matrices that are named, AdamW for the rest), and the
    checkpoint that holds them all."""

    def __init__(
        self,
        model: nn.Module,
        matrices: Sequence[Tensor],
        args: argparse.Namespace,
        *,
        decay: float,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """args: the folder of the run, the peak rates, the steps to average over and the threads, as the command line
        has them; muon_lr only where there are matrices. decay: AdamW's. dtype: of Muon's iteration."""
        self.model, self.run, self.horizon = model, Path(args.run), int(args.average)
        self.progress = Progress()
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        own = {id(p) for p in matrices}
        rest = [p for p in self.parameters if id(p) not in own]
        self.peak, self.decay = {"adam": float(args.adam_lr)}, {"adam": decay, "muon": MUON_DECAY}
        self.optimizers: dict[str, torch.optim.Optimizer] = {
            "adam": torch.optim.AdamW(rest, lr=args.adam_lr, betas=(0.9, 0.98))
        }
        if matrices:
            self.peak["muon"] = float(args.muon_lr)
            self.optimizers["muon"] = Muon(list(matrices), lr=args.muon_lr, dtype=dtype)
        self.average = copy.deepcopy(model).eval().requires_grad_(False)
        self.pool, self.adding = ThreadPoolExecutor(args.threads), threading.Lock()

    def gradients(self, loss: Callable[[], Tensor]) -> float:
        """Add the gradients of one batch of the step to those of the others; runs in a thread of its own."""
        value = loss()
        gradients = torch.autograd.grad(value, self.parameters)
        with self.adding:
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                if parameter.grad is None:
                    parameter.grad = gradient
                else:
                    parameter.grad.add_(gradient)
        return float(value.detach())

    def update(self, losses: Sequence[Callable[[], Tensor]], count: int, factor: float) -> float:
        """One step from the losses of its batches, summed and divided by `count`, which is returned. They are dealt to
        threads of one core each as they become free, so that a core somebody else needs does not hold up the other."""
        total = sum(self.pool.map(self.gradients, losses))
        for parameter in self.parameters:
            assert parameter.grad is not None
            parameter.grad.div_(count)
        self.apply(factor)
        return total / count

    def apply(self, factor: float) -> None:
        """Move weights by their gradients, at `factor` times the optimizers' peak rates; then their average, over about
        `horizon` steps once there are that many."""
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for name, optimizer in self.optimizers.items():
            for group in optimizer.param_groups:
                group.update(lr=factor * self.peak[name], weight_decay=self.decay[name])
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            weight = max(1 / self.horizon, 1 / (self.progress.step + 1))
            for mean, value in zip(self.average.parameters(), self.model.parameters(), strict=True):
                mean.lerp_(value, weight)
        self.progress.step += 1

    def save(self) -> None:
        """Write the checkpoint so that an interruption leaves the previous one whole."""
        state = {
            "model": self.model.state_dict(),
            "average": self.average.state_dict(),
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            "progress": asdict(self.progress),
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
        self.progress = type(self.progress)(**state["progress"])


def report(**facts: object) -> None:
    """One line of JSON: where the run stands."""
    print(json.dumps({"time": time.strftime("%H:%M:%S", time.gmtime()), **facts}), flush=True)
