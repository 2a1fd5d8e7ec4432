"""The process of another rank, `python -m ridgeline.engine.ranks.rank_child`, which executes the first rank's commands.

rank_processes.py starts it. The commands come in the order in which the first rank executes them itself.
"""

import os
import pickle
import select
import sys
import threading
from dataclasses import replace

import torch

from ridgeline.backends.model_loader import prepare_on_cpu
from ridgeline.core.checkpoint.source import open_source
from ridgeline.core.checkpoint.weight_loader import load_weights
from ridgeline.core.models.building import build_to_run
from ridgeline.core.ops.forward_batch import ForwardBatch
from ridgeline.core.ops.kv_layout import group_layers
from ridgeline.core.ops.shard import Shard
from ridgeline.engine.ranks.leader import time_all_reduces
from ridgeline.engine.ranks.rank_commands import (
    Command,
    ComputeHiddenStates,
    ComputeLogits,
    PrepareBatch,
    Rewind,
    SaveStates,
    TimeLink,
)
from ridgeline.engine.ranks.rank_processes import READY, RankStart, join
from ridgeline.engine.runner import Runner
from ridgeline.util.frames import MessageCodec
from ridgeline.util.host import keep_freed_memory

_RECEIVED = 1 << 16


class FollowerRunner:
    """The runner of a later rank's part of a model, which executes the first rank's commands."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._batch: ForwardBatch | None = None
        self._x_RD = torch.empty(0)

    def follow(self, order: object) -> None:
        """Execute one command that the first rank has sent."""
        runner = self._runner
        match order:
            case PrepareBatch(plan):
                self._batch = runner.prepare(plan)
            case ComputeHiddenStates():
                assert self._batch is not None, "ComputeHiddenStates came before PrepareBatch"
                self._x_RD = runner.hidden(self._batch)
            case ComputeLogits(first, count):
                with torch.inference_mode():
                    runner.head(self._x_RD[first : first + count], first)
            case SaveStates():
                runner.save_states()
            case Rewind():
                runner.rewind()
            case TimeLink(sizes, rounds):
                time_all_reduces(tuple(sizes), rounds)
            case _:
                raise AssertionError(f"{order} is not a command")


def main() -> None:
    """Load the part of the model described on stdin, report that it is ready, and execute commands until they end."""
    keep_freed_memory()
    start = pickle.load(sys.stdin.buffer)
    assert isinstance(start, RankStart)
    threading.Thread(target=_end_with_first, daemon=True).start()
    torch.set_num_threads(start.threads)
    try:
        following = FollowerRunner(_runner(start))
        print(READY, flush=True)
        join(start.rendezvous, start.rank, start.settings.ranks)
        frames: MessageCodec[Command] = MessageCodec(Command)
        while data := os.read(sys.stdin.fileno(), _RECEIVED):
            for order in frames.feed(data):
                following.follow(order)
    except Exception as error:  # the first rank reports any error
        print(" ".join(str(error).split()) or type(error).__name__, flush=True)
        sys.exit(1)


def _end_with_first() -> None:
    """End this process when the first rank's has ended, even while it waits for ranks that will not come."""
    gone = select.poll()
    gone.register(sys.stdin, 0)  # poll reports a hang-up without being asked to
    gone.poll()
    os._exit(1)


def _runner(start: RankStart) -> Runner:
    settings, source = start.settings, open_source(start.model).with_rope(start.settings.rope)
    shard = Shard(start.rank, settings.ranks)
    model = build_to_run(source.config, shard=shard, weights=settings.weights, kv=settings.kv)
    load_weights(model, source, dummy_weights=start.dummy_weights)
    prepare_on_cpu(model)
    layout = group_layers(model.kv_specs, settings.page_size, model.context)
    return Runner(model, replace(layout, pages=start.pages))


if __name__ == "__main__":
    main()
