"""The processes of the other ranks: started by the first, joined with it, and ended with it."""

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
"""The first line of a process that has loaded; another is why it has not."""
_WAITS = timedelta(days=1)  # for others in a step; one that has ended is noticed at once, by its connection
_LAST_WORDS = 5.0  # seconds for a process to end whose connection has


class RankGone(EngineLost):
    """One of the processes that share a model has ended or failed, and the engine with it."""


@dataclass(frozen=True, slots=True)
class RankStart:
    """What another rank loads, and where all meet. model, settings, dummy_weights: as of load_engine. pages: of KV
    memory, as many as the first has. rendezvous: a file.
    """

    model: str
    settings: EngineSettings
    dummy_weights: bool
    rank: int
    pages: int
    threads: int
    rendezvous: str


class RankProcesses:
    """The other ranks, as the first one sees them. size: of all."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._children: list[subprocess.Popen[bytes]] = []
        self._frames: MessageCodec[Command] = MessageCodec(Command)
        self._folder: TemporaryDirectory[str] | None = None

    @classmethod
    def start(
        cls, model: str, settings: EngineSettings, pages: int, threads: int, *, dummy_weights: bool
    ) -> "RankProcesses":
        """Start them, wait until each has its part of the model, and meet them. Raises RankGone in one line, ValueError
        where this process shares a model already.
        """
        if distributed.is_initialized():
            raise ValueError("this process is a rank of another model already; end that, or start another process")
        followers = cls(settings.ranks)
        # There as long as they are: one that is late still looks for the others in it.
        followers._folder = folder = TemporaryDirectory(prefix="ridgeline-")
        meeting = str(Path(folder.name) / "rendezvous")
        try:
            for rank in range(1, settings.ranks):
                followers._begin(RankStart(model, settings, dummy_weights, rank, pages, threads, meeting))
            for rank, child in enumerate(followers._children, 1):
                assert child.stdout is not None
                said = child.stdout.readline().decode().strip()
                if said != READY:
                    raise RankGone(f"rank {rank} of {settings.ranks} did not start: {said or _epitaph(child)}")
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
            start_new_session=True,  # Ctrl-C is for the first alone
        )
        self._children.append(child)
        assert child.stdin is not None
        with suppress(BrokenPipeError):  # what it says, or does not say, is read next
            pickle.dump(start, child.stdin)
            child.stdin.flush()

    def tell(self, order: Command) -> None:
        """Have all of them do something. Raises BrokenPipeError where one is gone."""
        frame = self._frames.encode(order)
        for child in self._children:
            assert child.stdin is not None
            child.stdin.write(frame)
            child.stdin.flush()

    def gone(self, error: Exception) -> RankGone:
        """What to say of an error in a step; all of them are ended."""
        ended = []
        for rank, child in enumerate(self._children, 1):
            with suppress(subprocess.TimeoutExpired):
                child.wait(0.5)
            if child.returncode is not None:
                ended.append(f"rank {rank} of {self.size} is gone: {_epitaph(child)}")
        self.close()
        reason = "; ".join(ended) or " ".join(f"a step of {self.size} ranks failed: {error}".split())
        return RankGone(f"{reason}; start the engine again")

    def close(self) -> None:
        """End them."""
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
    """Refuse what several ranks do not run. Raises ModelRefused for the model, ValueError for what is asked beside
    it.
    """
    if place.type != "cpu":
        raise ValueError("tensor parallel runs on processors so far, not on cards; leave --device out, or give 1")
    if adapters:
        raise ValueError("adapters are not divided among ranks; leave them out, or run one process")
    if draws or not model.has_head:
        raise ModelRefused(f"{name} does not generate text, and runs on one process; leave --tensor-parallel out")


def join(rendezvous: str, rank: int, size: int) -> None:
    """Become one of the processes that meet at a file: on this machine, by gloo."""
    at = Path(rendezvous).as_uri()
    distributed.init_process_group("gloo", init_method=at, rank=rank, world_size=size, timeout=_WAITS)


def _epitaph(child: "subprocess.Popen[bytes]") -> str:
    """How a process ended."""
    assert child.stdout is not None
    try:
        code = child.wait(_LAST_WORDS)
    except subprocess.TimeoutExpired:
        return "it says nothing"
    said = child.stdout.readline().decode().strip()
    return said or (f"killed by signal {-code}" if code < 0 else f"exit code {code}")
