"""A backend of its own, in one file: it counts the kernel calls that ops ask for, and has PyTorch make them."""

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

import pytest
import torch
from torch import Tensor

import ridgeline
from ridgeline import backends
from ridgeline.backends import priced_backend
from ridgeline.backends.reference import ReferenceBackend
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.linear import Projections
from ridgeline.core.ops.matrix import Matrix
from ridgeline.core.ops.norm import AddRMSNorm, RMSNorm
from ridgeline.core.ops.op import Launch, Op
from ridgeline.core.ops.rotary import Angles, RotaryTable
from ridgeline.core.ops.work import RowAxis, StepSegment, Work
from ridgeline.engine.params import SamplingParams
from ridgeline.price.price import traced_calls

PROMPTS = ["Once upon a time", "The dog"]
TOKENS = 5


class CountingBackend(ReferenceBackend):
    """Counts of kernel calls by kind, from when they are cleared."""

    name = "counting"
    calls: ClassVar[Counter[str]] = Counter()

    @staticmethod
    def serves(device: torch.device) -> bool:
        return device.type == "cpu"

    def launches(self, op: Op, work: Work, space: RowAxis) -> tuple[Launch, ...]:
        return tuple(
            Launch(f"counted.{one.name}", one.number_format, one.calls, one.cost) for one in op.launches(work, space)
        )

    def product(self, matrix: Matrix, x_TI: Tensor) -> Tensor:
        self.calls["product"] += 1
        return super().product(matrix, x_TI)

    def products(self, op: Projections, x_TI: Tensor) -> Sequence[Tensor]:
        self.calls["products"] += 1
        return super().products(op, x_TI)

    def logits(self, matrix: Matrix, x_RI: Tensor) -> Tensor:
        self.calls["logits"] += 1
        return super().logits(matrix, x_RI)

    def gated(self, gate_TF: Tensor, up_TF: Tensor, activation: str) -> Tensor:
        self.calls["gated"] += 1
        return super().gated(gate_TF, up_TF, activation)

    def norm(self, op: RMSNorm, x_xD: Tensor) -> Tensor:
        self.calls["norm"] += 1
        return super().norm(op, x_xD)

    def add_norm(self, op: AddRMSNorm, x_TD: Tensor, y_TD: Tensor) -> tuple[Tensor, Tensor]:
        self.calls["add_norm"] += 1
        return super().add_norm(op, x_TD, y_TD)

    def angles(self, op: RotaryTable, positions_T: Tensor) -> Angles:
        self.calls["angles"] += 1
        return super().angles(op, positions_T)

    def rotate(self, op: Attention, q_THD: Tensor, k_TKD: Tensor, angles: Angles, start: int) -> tuple[Tensor, Tensor]:
        self.calls["rotate"] += 1
        return super().rotate(op, q_THD, k_TKD, angles, start)

    def gather(self, table_ED: Tensor, numbers_N: Tensor) -> Tensor:
        self.calls["gather"] += 1
        return super().gather(table_ED, numbers_N)


def greedy() -> tuple[list[str], int]:
    """The responses to all prompts, and the number of steps that they took."""
    llm = ridgeline.LLM("tales")
    found = llm.generate(PROMPTS, SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True))
    return [result.text for result in found], llm.engine.stats.steps


def test_a_backend_is_a_class_and_a_line_of_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    """It executes `tales` end to end, and is asked for as many kernel calls as the model's ops make in its steps."""
    own, _ = greedy()
    monkeypatch.setattr(backends, "BACKENDS", (CountingBackend, *backends.BACKENDS))
    CountingBackend.calls.clear()
    counted, steps = greedy()
    assert counted == own
    model = ridgeline.LLM("tales").loaded.model
    assert model.backend.name == "counting"
    ops = Counter(type(op).__name__ for _, op, _ in traced_calls(model))
    assert ops["Attention"] == ops["ActivatedProjections"] == 5, "tales has five layers, as the figures below assume"
    a_step = {
        "products": ops["Projections"] + ops["ActivatedProjections"],
        "product": ops["Linear"] + 3 * ops["Projections"] + 2 * ops["ActivatedProjections"] + ops["LMHead"],
        "logits": ops["LMHead"],
        "gated": ops["ActivatedProjections"],
        "norm": ops["RMSNorm"] + ops["AddRMSNorm"],  # a sum is normalised as alone
        "add_norm": ops["AddRMSNorm"],
        "angles": ops["RotaryTable"],
        "rotate": ops["Attention"],
        "gather": ops["Embedding"],
    }
    assert CountingBackend.calls == {name: count * steps for name, count in a_step.items()}


def test_prices_ask_it_for_its_kernel_classes() -> None:
    """They do without weights, and other backends' classes are other ones."""
    model = ridgeline.LLM("tales").loaded.model
    work = Work.of([StepSegment(1, 9)], model.attention_patterns)
    for _, op, space in traced_calls(model):
        counted, plain = CountingBackend().launches(op, work, space), op.launches(work, space)
        assert [one.name for one in counted] == [f"counted.{one.name}" for one in plain]
        assert [one.cost for one in counted] == [one.cost for one in plain]
    names = {
        one.name for _, op, space in traced_calls(model) for one in priced_backend("cpu").launches(op, work, space)
    }
    assert "linear.one" in names
