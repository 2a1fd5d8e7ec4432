"""Every family over two ranks; and a rank that dies."""

import json
import os
import random
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import multiprocessing

from engine import rank_pair
from engine.folders import write_model
from engine.test_metamorphic import make_trace, uncached_subject
from engine.test_metamorphic_families import CORNERS
from models.configs import CONFIGS
from ridgeline.backends.model_loader import load_model
from ridgeline.core.models import ModelRefused
from ridgeline.core.models.common.model import Model
from ridgeline.engine import LLM, EngineSettings, SamplingParams
from ridgeline.engine.ranks.leader import FollowerRanks
from ridgeline.engine.ranks.rank_processes import RankGone
from ridgeline.engine.runner import Runner
from support.checkpoints import random_ours, random_tensors, write_folder

TWO_CORNERS = CORNERS[1], CORNERS[3]
OTHERWISE = "has tensors that the model lacks"
"""What is said of folders of families whose checkpoints store the experts of a layer in one tensor, which these do not:
their parts are compared in models/test_tensor_parallel.py."""


def of_folder(folder: Path, values: Mapping[str, Any]) -> Model:
    """The model of a folder on one process; of one that is refused as ranks refuse it, one like it. A tensor may lie
    otherwise in a folder than in a module (the channels of Qwen3-Next's convolutions), so that it has to be read."""
    try:
        return load_model(str(folder))
    except ModelRefused:
        return random_ours(values, seed=1)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """By family, what came of each way."""
    folder, subjects = tmp_path_factory.mktemp("families"), {}
    for name, config in CONFIGS.items():
        values = config | ({"n_positions": 128} if name == "gpt2" else {})
        (folder / name).mkdir()
        write_folder(folder / name, values, random_tensors(values, 1))
        model = of_folder(folder / name, values)
        every = make_trace(random.Random(1).choices(range(model.vocabulary), k=120))
        subject = uncached_subject(model, (*every[:2], every[3], every[8]))
        subjects[name] = replace(subject, model=None)
    torch.save(subjects, folder / rank_pair.SUBJECTS)
    context = multiprocessing.get_context("spawn")
    multiprocessing.spawn(rank_pair.run_rank, (str(folder), TWO_CORNERS, context.Pipe()), nprocs=2)
    return dict(json.loads((folder / "found.json").read_text()))


@pytest.mark.parametrize("family", CONFIGS)
def test_the_same_tokens_over_two_ranks(family: str, found: dict[str, list[str]]) -> None:
    """In two corners of the metamorphic suite, and with guesses: every token, and every logit to 1e-5."""
    said = found[family]
    if OTHERWISE in said[0]:
        pytest.skip("its checkpoints store experts otherwise")
    assert len(said) >= len(TWO_CORNERS)
    assert not any(said), said


def test_most_families_were_run(found: dict[str, list[str]]) -> None:
    assert sum(OTHERWISE not in said[0] for said in found.values()) >= 25


def test_a_rank_that_dies_ends_the_engine(tmp_path: Path) -> None:
    llm = LLM(str(write_model(tmp_path / "m")), EngineSettings(kv_bytes=2**22, ranks=2), threads=1)
    executor = llm.engine.executor
    assert isinstance(executor, Runner)
    assert isinstance(executor.others, FollowerRanks)
    (child,) = executor.others.followers._children
    os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(RankGone, match="rank 1 of 2 has ended: killed by signal 9; start the engine again") as error:
        llm.generate(["abc"], SamplingParams(max_tokens=4))
    assert "\n" not in str(error.value)
    assert child.returncode == -signal.SIGKILL
