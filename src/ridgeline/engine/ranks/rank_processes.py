"""The processes of the other ranks, which the first rank starts, joins in a process group, and ends."""

import pickle
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import distributed

from ridgeline.core.models import ModelRefused
from ridgeline.core.models.common.model import Model
from ridgeline.engine.engine import EngineLost
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.ranks.rank_commands import Command
from ridgeline.util.frames import MessageCodec

READY = "ready"
"""The first line on the stdout of a process that has loaded its part; any other line is the error."""
_WAITS = timedelta(days=1)  # timeout of a collective; the closed pipe of a rank that ended is noticed at once
_LAST_WORDS = 5.0  # seconds for a process to end after its pipe has closed


class RankGone(EngineLost):
    """The error that one of the processes that share a model has ended or failed, which ends the engine."""


@dataclass(frozen=True, slots=True)
class RankStart:
    """The message that tells another rank's process which part of the model to load and where the ranks meet."""

    model: str
    """The name of the model to load, as in load_engine."""
    settings: EngineSettings
    """The settings of the engine, which hold the number of ranks and the weight formats."""
    dummy_weights: bool
    """Whether to use random weights instead of loading the checkpoint's."""
    rank: int
    """The number of this rank, counted from 1; the first rank is 0."""
    pages: int
    """The number of KV pages of this rank, the same as on the first rank."""
    threads: int
    """The number of threads that torch computes with."""
    rendezvous: str
    """The path of the file through which the ranks find each other."""


class RankProcesses:
    """The processes of the other ranks, as the first rank sees them. `size` is the number of all ranks."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._children: list[subprocess.Popen[bytes]] = []
        self._frames: MessageCodec[Command] = MessageCodec(Command)
        self._folder: TemporaryDirectory[str] | None = None

    @classmethod
    def start(
        cls, model: str, settings: EngineSettings, pages: int, threads: int, *, dummy_weights: bool
    ) -> "RankProcesses":
        """Start the processes of the other ranks, wait until each has its part of the model, and join them.

        Args:
            model: The name of the model.
            settings: The settings of the engine.
            pages: The number of KV pages of each rank.
            threads: The number of threads of each rank.
            dummy_weights: Whether to use random weights.

        Raises:
            RankGone: If a process does not start; in one line.
            ValueError: If this process is already a rank of another model.
        """
        if distributed.is_initialized():
            raise ValueError(
                "this process is already a rank of another model: close that engine, or start another process"
            )
        followers = cls(settings.ranks)
        # The folder lives as long as the processes: a late one still looks for the others in it.
        followers._folder = folder = TemporaryDirectory(prefix="ridgeline-")
        meeting = str(Path(folder.name) / "rendezvous")
        try:
            for rank in range(1, settings.ranks):
                followers._begin(RankStart(model, settings, dummy_weights, rank, pages, threads, meeting))
            for rank, child in enumerate(followers._children, 1):
                assert child.stdout is not None
                ready_line = child.stdout.readline().decode().strip()
                if ready_line != READY:
                    raise RankGone(f"rank {rank} of {settings.ranks} did not start: {ready_line or _epitaph(child)}")
            join(meeting, 0, settings.ranks)
        except BaseException:
            followers.close()
            raise
        return followers

    def _begin(self, start: RankStart) -> None:
        child = subprocess.Popen(
            [sys.executable, "-m", "ridgeline.engine.ranks.rank_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # only the first rank handles Ctrl-C
        )
        self._children.append(child)
        assert child.stdin is not None
        with suppress(BrokenPipeError):  # `start` reads next what the process reports
            pickle.dump(start, child.stdin)
            child.stdin.flush()

    def send(self, order: Command) -> None:
        """Send a command to the processes of all other ranks.

        Raises:
            BrokenPipeError: If one of them is gone.
        """
        frame = self._frames.encode(order)
        for child in self._children:
            assert child.stdin is not None
            child.stdin.write(frame)
            child.stdin.flush()

    def gone(self, error: Exception) -> RankGone:
        """Return the error to raise for a step that failed, after ending the processes of the other ranks."""
        ended = []
        for rank, child in enumerate(self._children, 1):
            with suppress(subprocess.TimeoutExpired):
                child.wait(0.5)
            if child.returncode is not None:
                ended.append(f"rank {rank} of {self.size} has ended: {_epitaph(child)}")
        self.close()
        reason = "; ".join(ended) or " ".join(f"a step of {self.size} ranks failed: {error}".split())
        return RankGone(f"{reason}; start the engine again")

    def close(self) -> None:
        """End the processes of the other ranks and leave the process group."""
        for child in self._children:
            child.kill()
            with suppress(BrokenPipeError):
                child.communicate()
        self._children.clear()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
            if distributed.is_initialized():
                distributed.destroy_process_group()

    def __del__(self) -> None:
        self.close()


def check_ranks(model: Model, adapters: Mapping[str, str], place: torch.device, name: str, *, draws: bool) -> None:
    """Check that a model can run on several ranks.

    Args:
        model: The model.
        adapters: The LoRA adapters to load.
        place: The device to run on.
        name: The name of the model.
        draws: Whether it generates the tokens of images.

    Raises:
        ModelRefused: If the model cannot.
        ValueError: If a setting excludes it.
    """
    if place.type != "cpu":
        raise ValueError(
            "tensor parallelism runs on CPUs only, not yet on GPUs: leave --device out, or give --tensor-parallel 1"
        )
    if adapters:
        raise ValueError(
            "LoRA adapters do not work with tensor parallelism: leave the adapters out, or leave --tensor-parallel out"
        )
    if draws or not model.has_head:
        raise ModelRefused(f"{name} does not generate text, so it runs in one process: leave --tensor-parallel out")


def join(rendezvous: str, rank: int, size: int) -> None:
    """Join a torch.distributed process group over gloo, with the processes that meet at a file of this machine."""
    at = Path(rendezvous).as_uri()
    distributed.init_process_group("gloo", init_method=at, rank=rank, world_size=size, timeout=_WAITS)


def _epitaph(child: "subprocess.Popen[bytes]") -> str:
    """Return how a process ended: the error that it printed, or its exit code or signal."""
    assert child.stdout is not None
    try:
        code = child.wait(_LAST_WORDS)
    except subprocess.TimeoutExpired:
        return "it does not respond"
    last_line = child.stdout.readline().decode().strip()
    return last_line or (f"killed by signal {-code}" if code < 0 else f"exit code {code}")
