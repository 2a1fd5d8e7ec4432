"""Ops that do not read the context are priced by the rows of their space, whichever rows of others came with them."""

import itertools
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.linear import Projections
from ridgeline.core.ops.matrix import AdapterRows, LoraWeights
from ridgeline.core.ops.work import CAUSAL, StepSegment, Work, adapter_axis
from ridgeline.price.plan.scenario import Deployment, ModelCache
from ridgeline.price.price import Price
from support.planned import H100, TINY, card, fields

CARDS = (card(), H100)


def adapted(model: Model) -> int:
    """Two adapters beside the query matrices, of other ranks."""
    rows = AdapterRows()
    for op in model.modules():
        if isinstance(op, Projections) and "q_proj" in op.names:
            matrix = op.matrix("q_proj")
            for number, rank in ((1, 4), (2, 16)):
                with torch.device("meta"):
                    added = LoraWeights(matrix.inputs, matrix.outputs, rank, 1.0, matrix.spec.dtype)
                op.attach_adapter(number, "q_proj", added, rows)
    return 2


def work(decodes: int, prompt: int, first: int, second: int) -> Work:
    """So many decodes beside a prompt, some rows of which ask two adapters."""
    mixed = Work.decode([50] * decodes) + Work.of([StepSegment(prompt, prompt)], (CAUSAL,), logit_rows=prompt % 2)
    asked = {adapter_axis(number): rows for number, rows in ((1, first), (2, second)) if rows}
    return replace(mixed, rows={**mixed.rows, **asked})


@pytest.mark.parametrize("beside", [None, adapted])
def test_a_price_that_knows_much_is_that_of_one_that_knows_nothing(beside: Callable[[Model], int] | None) -> None:
    """Every figure and row of a step, on two cards in turn, whatever came before."""
    model = ModelCache(fields(TINY), beside).scenario(Deployment(card())).model
    asked = itertools.product((1, 3, 4), (2, 3, 31), (0, 1, 2), (0, 2))
    steps = [(on, step) for step in asked if beside is not None or step[2:] == (0, 0) for on in CARDS]
    random.Random(3).shuffle(steps)
    seen = Price(model)
    found: dict[str, set[float]] = {on.name: set() for on in CARDS}
    for on, step in steps:
        known, fresh = seen.price_step(on, work(*step)), Price(model).price_step(on, work(*step))
        for name in ("cost", "floor", "bound", "expected", "working_set", "host"):
            assert getattr(known, name) == getattr(fresh, name), (name, step)
        assert [(row.cost, row.time) for row in known.rows] == [(row.cost, row.time) for row in fresh.rows]
        assert seen.step(work(*step)) == fresh.cost
        found[on.name].add(known.expected)
    assert all(len(each) > len(steps) // 4 for each in found.values()), "steps differ"
