"""Two processes that run every family through corners of the metamorphic suite, each with its part of the model."""

import json
import traceback
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

from engine.test_metamorphic import Subject, Way, check_guessed, check_way
from ridgeline.backends.model_loader import load_model
from ridgeline.core.models.common.fields import ModelRefused
from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.kv_layout import KVLayout, StateSpec, group_layers
from ridgeline.core.ops.shard import Shard
from ridgeline.engine.ranks.leader import FollowerRanks
from ridgeline.engine.ranks.rank_child import FollowerRunner
from ridgeline.engine.ranks.rank_commands import Command
from ridgeline.engine.ranks.rank_processes import RankGone, RankProcesses
from ridgeline.engine.runner import Runner
from ridgeline.util.frames import MessageCodec
from support.engines import MakeRunner, RecordingRunner

SUBJECTS = "subjects.pt"


class Piped(RankProcesses):
    """The other process, which is not this one's child."""

    def __init__(self, pipe: Connection) -> None:
        super().__init__(2)
        self._pipe = pipe

    def begin(self, folder: str, layout: KVLayout) -> None:
        """Have it load a folder, with as much KV memory."""
        self._pipe.send((folder, layout.page_size, layout.pages))

    def send(self, order: Command) -> None:
        self._pipe.send(self._frames.encode(order))

    def gone(self, error: Exception) -> RankGone:
        return RankGone(traceback.format_exception_only(error)[-1])

    def close(self) -> None: ...


def leading(pipe: Connection, folder: str) -> MakeRunner:
    """A runner that records what the first rank computes of a folder, and leads the other."""

    def lead(model: Model, layout: KVLayout) -> Runner:
        followers = Piped(pipe)
        followers.begin(folder, layout)
        return RecordingRunner(model, layout, others=FollowerRanks(model, followers))

    return lead


def run_rank(rank: int, folder: str, ways: Sequence[Way], pipes: tuple[Connection, Connection]) -> None:
    """What each process does."""
    torch.set_num_threads(1)
    store = distributed.FileStore(f"{folder}/meeting", 2)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=120))
    if rank:
        _follow(pipes[1])
    else:
        found = {name: _found(f"{folder}/{name}", own, ways, pipes[0]) for name, own in _subjects(folder).items()}
        pipes[0].send(None)
        (Path(folder) / "found.json").write_text(json.dumps(found))
    distributed.destroy_process_group()


def _subjects(folder: str) -> dict[str, Any]:
    return dict(torch.load(f"{folder}/{SUBJECTS}", weights_only=False))


def _found(folder: str, subject: Subject, ways: Sequence[Way], pipe: Connection) -> list[str]:
    """What came of each way: "" where all was equal; and of guesses, in the first of them."""
    try:
        subject = replace(subject, model=load_model(folder, shard=Shard(0, 2)))
    except ModelRefused as error:
        return [f"refused: {error}"]
    runner, found = leading(pipe, folder), []
    state = any(isinstance(spec, StateSpec) for spec in subject.model.kv_specs)
    for way, check in [*((way, check_way) for way in ways), *([] if state else [(ways[0], check_guessed)])]:
        with pytest.MonkeyPatch.context() as patch:
            try:
                check(subject, way, patch, runner=runner)  # type: ignore[operator]
                found.append("")
            except (AssertionError, RankGone):
                found.append(f"{way}: {traceback.format_exc(limit=-2)}")
    return found


def _follow(pipe: Connection) -> None:
    following: FollowerRunner | None = None
    frames: MessageCodec[Command] = MessageCodec(Command)
    while (said := pipe.recv()) is not None:
        if isinstance(said, bytes):
            assert following is not None
            for order in frames.feed(said):
                following.follow(order)
            continue
        folder, page_size, pages = said
        model = load_model(folder, shard=Shard(1, 2))
        layout = group_layers(model.kv_specs, page_size, model.context)
        following = FollowerRunner(Runner(model, replace(layout, pages=pages)))
