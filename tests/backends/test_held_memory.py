"""The memory that backends hold next to weights, activations, and keys and values: engines leave room for it."""

from collections.abc import Mapping
from typing import ClassVar

import pytest
import torch
from torch import nn

from models.configs import CONFIGS
from ridgeline import backends
from ridgeline.backends import priced_backend, priced_backends
from ridgeline.backends.reference import ReferenceBackend
from ridgeline.core.checkpoint import open_source
from ridgeline.core.ops.backend import Backend, ReplayedSteps, ReplayShape
from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.engine import kv_budget
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.kv_budget import fit_kv_layout
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.speculation.speculation_setup import Draft
from ridgeline.price.activations import activation_peak, replayed_bytes
from ridgeline.price.price import Price
from support.checkpoints import random_ours

CPU = torch.device("cpu")


class Steps:
    """Steps of up to three rows, which hold so many bytes, or as many as their activations."""

    title: ClassVar[str] = "steps on tape"
    how: ClassVar[str] = "taped"

    def __init__(self, held: int | None) -> None:
        self._held = held

    def shape_of(self, work: Work) -> ReplayShape | None:
        return None

    def largest(self, tokens: int) -> ReplayShape:
        return ReplayShape(min(3, tokens), 2)

    def held_bytes(self, model: nn.Module) -> int | None:
        return self._held


class HoldingBackend(ReferenceBackend):
    """A backend that holds memory of its own."""

    name = "holding"
    workspace: ClassVar[Mapping[str, int]] = {"a workspace": 700, "another one": 30}
    steps: ClassVar[Steps] = Steps(5)

    def replayed_steps(self, model: nn.Module) -> ReplayedSteps:
        return self.steps


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_engine_leaves_room_for_it_by_its_names(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a rank; a draft model is in one of them, with the steps that are its own."""
    monkeypatch.setattr(backends, "BACKENDS", (HoldingBackend, *backends.BACKENDS))
    kept: list[Mapping[str, float]] = []
    monkeypatch.setattr(kv_budget, "remaining_memory", lambda _, taken, memory: kept.append(taken) or 1e9)
    model, source = random_ours(CONFIGS["llama"]), open_source("tales")
    settings = EngineSettings(limits=Limits(tokens=16), kv_bytes=1e6, ranks=ranks)
    fit_kv_layout(source, model, Price(model), settings, 64, [], CPU, Draft(source, model))
    (taken,) = kept
    held = {"steps on tape": 5, "a workspace": 700, "another one": 30}
    assert {name: taken[name] for name in held} == {name: ranks * nbytes for name, nbytes in held.items()}
    assert taken["taped steps of the draft model"] == 5
    assert len(taken) == 2 + len(held) + 3, "weights and activations too, of both models"


def test_steps_that_share_memory_hold_the_activations_of_the_largest() -> None:
    model = random_ours(CONFIGS["llama"])
    price = Price(model)
    assert replayed_bytes(None, model, price, 16) == 0
    assert replayed_bytes(Steps(5), model, price, 16) == 5
    assert replayed_bytes(Steps(None), model, price, 16) == activation_peak(price, 3, 2)
    assert replayed_bytes(Steps(None), model, price, 2) == activation_peak(price, 2, 2)


@pytest.mark.parametrize("tokens", [256, 1000, 2048, 5000])
@pytest.mark.parametrize("backend", priced_backends(), ids=lambda backend: str(backend.name))
def test_no_step_is_replayed_that_is_larger_than_the_largest(backend: Backend, tokens: int) -> None:
    """And one is as large: decode steps, and steps with prompts of so many tokens at most."""
    steps = backend.replayed_steps(random_ours(CONFIGS["llama"]))
    assert steps is not None
    works = [Work.decode([9] * count) for count in range(1, 301)]
    works += [Work.of([StepSegment(rows, rows)]) for rows in range(1, tokens + 1, 3)]
    works += [Work.of([StepSegment(tokens, tokens)])]
    shapes = [shape for work in works if (shape := steps.shape_of(work)) is not None]
    assert (max(shape.rows for shape in shapes), max(shape.logits for shape in shapes)) == steps.largest(tokens)


def test_only_the_cpu_backend_counts_results_alone() -> None:
    """Graphs of a GPU share memory, as its price says too."""
    model = random_ours(CONFIGS["llama"])
    cpu, gpu = (priced_backend(kind).replayed_steps(model) for kind in ("cpu", "gpu"))
    assert cpu is not None
    assert gpu is not None
    assert (cpu.held_bytes(model) or 0) > 0
    assert gpu.held_bytes(model) is None
