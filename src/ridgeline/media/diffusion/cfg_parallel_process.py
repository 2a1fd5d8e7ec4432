"""The second process of a pair of guidance (`cfg_parallel.py`): started by the first for one plan, and ended by it."""

import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import distributed

from ridgeline.media.diffusion.cfg_parallel import CFGParallelPair
from ridgeline.media.diffusion.diffusion_request import DiffusionPlan

READY = "ready"
"""The first line of a process that has loaded; another is why it has not."""
_WAITS = timedelta(days=1)  # for the other's pass; one that has ended is noticed at once, by its connection
_LAST_WORDS = 5.0  # seconds for a process to end whose connection has


@dataclass(frozen=True, slots=True)
class CFGParallelStart:
    """What the second process does. model, dtype, threads: of `load_pipeline`. rendezvous: where both meet, a file."""

    model: str
    dtype: torch.dtype | None
    threads: int
    rendezvous: str
    plan: DiffusionPlan


@contextmanager
def second_process(
    model: str, dtype: torch.dtype | None, threads: int, plan: DiffusionPlan
) -> Iterator[CFGParallelPair]:
    """This process as the first of a pair, while another draws the same plan from the same folder. Ctrl-C is for this
    one alone. Raises ValueError in one line where the other cannot begin, or ends before it should.
    """
    with TemporaryDirectory(prefix="ridgeline-") as folder:
        start = CFGParallelStart(model, dtype, threads, str(Path(folder) / "rendezvous"), plan)
        child = subprocess.Popen(
            [sys.executable, "-m", "ridgeline.media.diffusion.cfg_parallel_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            if said := _started(child, start):
                raise ValueError(f"the second process of the pair did not start: {said}")
            try:
                join(start.rendezvous, 0)
                yield CFGParallelPair()
            except ConnectionError as error:
                raise ValueError(f"the second process of the pair is gone: {_epitaph(child) or error}") from error
        finally:
            child.kill()
            child.communicate()
            if distributed.is_initialized():
                distributed.destroy_process_group()


def join(rendezvous: str, rank: int) -> None:
    """Become one of two processes that meet at a file."""
    at = Path(rendezvous).as_uri()
    distributed.init_process_group("gloo", init_method=at, rank=rank, world_size=2, timeout=_WAITS)


def _started(child: "subprocess.Popen[bytes]", start: CFGParallelStart) -> str:
    """Why it has not; empty where it has."""
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        pickle.dump(start, child.stdin)
        child.stdin.flush()
        said = child.stdout.readline().decode().strip()
    except BrokenPipeError:
        said = ""
    return "" if said == READY else said or _epitaph(child) or "it says nothing"


def _epitaph(child: "subprocess.Popen[bytes]") -> str | None:
    """How a process ended that has, or is about to; None for one that goes on."""
    assert child.stdout is not None
    try:
        code = child.wait(_LAST_WORDS)
    except subprocess.TimeoutExpired:
        return None
    said = child.stdout.readline().decode().strip()
    return said or (f"killed by signal {-code}" if code < 0 else f"exit code {code}")
