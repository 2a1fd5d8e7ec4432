"""The second process of a CFG-parallel pair (`cfg_parallel.py`), which the first starts for one plan and ends."""

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
"""The first line that the second process prints once it has loaded; any other line is an error."""
_WAITS = timedelta(days=1)  # for the other's pass; if a process ends, its connection closes at once
_LAST_WORDS = 5.0  # seconds for a process to end after its connection closed


@dataclass(frozen=True, slots=True)
class CFGParallelStart:
    """The message that tells the second process of a CFG-parallel pair what to run."""

    model: str
    """The model argument of `load_pipeline` in the second process."""
    dtype: torch.dtype | None
    """The dtype argument of `load_pipeline` in the second process."""
    threads: int
    """The threads argument of `load_pipeline` in the second process."""
    rendezvous: str
    """The path of the file through which both processes connect."""
    plan: DiffusionPlan
    """The diffusion plan that both processes run."""


@contextmanager
def second_process(
    model: str, dtype: torch.dtype | None, threads: int, plan: DiffusionPlan
) -> Iterator[CFGParallelPair]:
    """Start a second process that runs the same diffusion plan, and yield the pair with this process as rank 0.

    The other process loads the pipeline from the same folder. Ctrl-C reaches only this process.

    Raises:
        ValueError: If the other process cannot start or ends too early.
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
            if failure := _started(child, start):
                raise ValueError(f"the second CFG-parallel process did not start: {failure}")
            try:
                join(start.rendezvous, 0)
                yield CFGParallelPair()
            except ConnectionError as error:
                raise ValueError(
                    f"the second CFG-parallel process has ended: {_exit_reason(child) or error}"
                ) from error
        finally:
            child.kill()
            child.communicate()
            if distributed.is_initialized():
                distributed.destroy_process_group()


def join(rendezvous: str, rank: int) -> None:
    """Join a torch.distributed group of two processes that connect through a file."""
    at = Path(rendezvous).as_uri()
    distributed.init_process_group("gloo", init_method=at, rank=rank, world_size=2, timeout=_WAITS)


def _started(child: "subprocess.Popen[bytes]", start: CFGParallelStart) -> str:
    """Return the reason why the second process has not started, "" if it has."""
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        pickle.dump(start, child.stdin)
        child.stdin.flush()
        ready_line = child.stdout.readline().decode().strip()
    except BrokenPipeError:
        ready_line = ""
    return "" if ready_line == READY else ready_line or _exit_reason(child) or "it gave no reason"


def _exit_reason(child: "subprocess.Popen[bytes]") -> str | None:
    """Return a description of how the second process ended, or None if it runs on after a short wait."""
    assert child.stdout is not None
    try:
        code = child.wait(_LAST_WORDS)
    except subprocess.TimeoutExpired:
        return None
    last_line = child.stdout.readline().decode().strip()
    return last_line or (f"killed by signal {-code}" if code < 0 else f"exit code {code}")
