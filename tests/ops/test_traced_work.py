"""Work that no op of ours does, as ops of a price: linear in rows, or in the queries, pairs and keys of a step."""

from collections.abc import Mapping

import pytest
import torch

from ridgeline.backends import priced_backends
from ridgeline.core.models.common.priced_module import PricedModule
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.ops.backend import REFERENCE, Backend
from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.traced_work import TracedAttention, TracedCode, TracedWork
from ridgeline.core.ops.work import CAUSAL, LOGITS, RECURRENT, TOKENS, RowAxis, StepSegment, Work
from ridgeline.learn.page.op_table import LinePool, op_table
from ridgeline.price.devices import load_device
from ridgeline.price.price import Price

GATE = TracedCode("NewMLP", "elementwise", ("silu", "mul"), "bf16")
ADD = TracedCode("NewLayer", "elementwise", ("add",), "bf16")
SCORES = TracedCode("NewAttention", "matrix product", ("bmm",), "bf16")
SOFTMAX = TracedCode("NewAttention", "reduction", ("_softmax",), "bf16")
FIXED, ROW = Cost(weight_bytes=12.0), Cost({"fp32": 5.0}, activation_bytes=7.0)
SEQUENCE = Cost({"fp32": 1.0}, activation_bytes=11.0)
PAIR, KEY = Cost({"bf16": 64.0}, activation_bytes=4.0), Cost(activation_bytes=3.0)


class Traced(PricedModule):
    """A model of which nothing is modelled: two layers with a gate and attention, and a function of logits."""

    row_axes = (TOKENS, LOGITS)

    def __init__(self) -> None:
        super().__init__()
        self.storage = StorageConfig(dtype=torch.bfloat16)
        self.layers = torch.nn.ModuleList(
            torch.nn.ModuleList(
                [
                    TracedWork(GATE, FIXED, ROW),
                    TracedAttention(SCORES, CAUSAL, FIXED, sequence=SEQUENCE, query=ROW, pair=PAIR, key=KEY),
                    TracedAttention(SOFTMAX, CAUSAL, Cost(), sequence=Cost(), query=ROW, pair=PAIR, key=Cost()),
                ]
            )
            for _ in range(2)
        )
        self.cap = TracedWork(ADD, Cost(), ROW)

    def _run_on_meta(self, rows: Mapping[RowAxis, int]) -> None:
        for layer in self.layers:
            for op in layer:
                op(torch.empty(rows[TOKENS]))
        self.cap(torch.empty(rows[LOGITS]))


@pytest.fixture(scope="module")
def price() -> Price:
    return Price(Traced())


def test_rows_cost_a_fixed_part_and_each_the_same() -> None:
    op = TracedWork(GATE, FIXED, ROW)
    assert op.cost(Work({TOKENS: 3}, 1)) == Cost({"fp32": 15.0}, weight_bytes=12.0, activation_bytes=21.0)
    assert op.cost(Work({TOKENS: 3}, 1), LOGITS) == Cost()
    assert (op.kind, op.traced, str(op)) == ("not modelled", "elementwise", "TracedWork(NewMLP elementwise: silu, mul)")


def test_attention_costs_by_its_pairs_and_keys_without_a_score_matrix() -> None:
    """Check that a chunk of 3 positions after 4 has 5 + 6 + 7 pairs."""
    op = TracedAttention(SCORES, CAUSAL, FIXED, sequence=SEQUENCE, query=ROW, pair=PAIR, key=KEY)
    work = Work.of([StepSegment(3, 7)])
    moved = 11.0 + 3 * 7.0 + 7 * 3.0
    assert op.cost(work) == Cost({"fp32": 16.0, "bf16": 64.0 * 18}, weight_bytes=12.0, activation_bytes=moved)
    assert op.score_matrix_bytes(work) == 4.0 * 18


def test_a_recurrence_costs_by_its_sequences_and_states() -> None:
    """Check that pairs of a chunk move bytes, and that the first step of a sequence reads no state."""
    op = TracedAttention(SCORES, RECURRENT, FIXED, sequence=SEQUENCE, query=ROW, pair=PAIR, key=KEY)
    first, later = Work.of([StepSegment(3, 3)], [RECURRENT]), Work.of([StepSegment(3, 7)], [RECURRENT])
    assert op.cost(first).activation_bytes == 11.0 + 3 * 7.0 + 6 * 4.0
    assert op.cost(later).activation_bytes == 11.0 + 3 * 7.0 + 6 * 4.0 + 3.0
    assert op.score_matrix_bytes(later) == 0.0


def test_a_price_adds_up_the_calls(price: Price) -> None:
    work = Work.of([StepSegment(3, 7), StepSegment(1, 5)])
    assert sum(priced.count for priced in price.ops) == 7
    assert len(price.ops) == 4
    cost = price.step(work)
    assert cost.weight_bytes == 2 * 2 * 12.0
    assert cost.flops == {"fp32": 5.0 * (3 * 2 * 4 + 2) + 2 * 2 * 1.0, "bf16": 2 * 2 * 64.0 * (18 + 5)}
    assert cost.activation_bytes == 7.0 * (3 * 2 * 4 + 2) + 2 * 3.0 * (7 + 5) + 2 * 2 * 11.0


def test_a_device_takes_time_for_it(price: Price) -> None:
    step = price.price_step(load_device("h100-sxm"), Work.of([StepSegment(3, 7)]))
    assert all(row.time.expected > 0 for row in step.rows)


@pytest.mark.parametrize("backend", [REFERENCE, *priced_backends()], ids=lambda each: each.name)
def test_launches_together_do_the_work_of_the_op(price: Price, backend: Backend) -> None:
    """Check that prompts and decodes are products of two classes."""
    work = Work.of([StepSegment(3, 7), StepSegment(1, 5), StepSegment(20, 20)])
    names = []
    for priced in price.ops:
        launches = priced.launches(work, backend)
        names += [launch.name for launch in launches]
        moved = sum(launch.cost.activation_bytes for launch in launches)
        assert moved == priced.cost(work).activation_bytes
    kernels = ["attention.decode", "attention.prefill", "elementwise.add", "elementwise.plain", "elementwise.plain"]
    assert sorted(names) == kernels


def test_the_page_has_the_same_functions(price: Price) -> None:
    """Check that the page's table is compared with the op at random steps while it is made."""
    pool = LinePool()
    tables = [op_table(priced, [CAUSAL], pool) for priced in price.ops]
    assert [table["kind"] for table in tables] == ["not modelled"] * 4
    assert tables[0]["shape"] == "NewMLP elementwise: silu, mul"


def test_equal_costs_of_other_code_are_other_ops() -> None:
    other = TracedCode("NewMLP", "elementwise", ("gelu",), "bf16")
    assert TracedWork(GATE, FIXED, ROW).signature() == TracedWork(GATE, FIXED, ROW).signature()
    assert TracedWork(GATE, FIXED, ROW).signature() != TracedWork(other, FIXED, ROW).signature()
    assert TracedWork(GATE, FIXED, ROW).signature() != TracedWork(GATE, FIXED, Cost()).signature()


def test_no_op_runs_the_code() -> None:
    with pytest.raises(AssertionError, match="not modelled code has no op that runs it"):
        TracedWork(GATE, FIXED, ROW)(torch.zeros(3))
