"""The parts of a backend that stand in the files of ops: what an op runs by until a backend is bound to it."""

import copy
import importlib
import pickle
import pkgutil
import subprocess
import sys
from collections import Counter

import pytest
import torch

from ridgeline.core import ops
from ridgeline.core.ops.backend import REFERENCE, Backend
from ridgeline.core.ops.bound import BackendModule
from ridgeline.core.ops.norm import AddRMSNorm


def parts() -> set[type]:
    """The classes of what the ops and matrices of the package call before a backend is bound to them."""
    for module in pkgutil.walk_packages(ops.__path__, "ridgeline.core.ops."):
        importlib.import_module(module.name)
    classes = [BackendModule]
    for own in classes:
        classes += [each for each in own.__subclasses__() if each.__module__.startswith("ridgeline.core.ops.")]
    return {type(own.backend) for own in classes if hasattr(own, "backend")}


def test_a_backend_has_each_part() -> None:
    """The methods that an op calls are those of every backend, so that any may be bound to it."""
    found = parts()
    assert len(found) > 10, "the search is at fault"
    assert not {part.__name__ for part in found if not issubclass(Backend, part)}


def test_no_method_is_of_two_parts() -> None:
    """One would hide the other in a backend, whichever op calls it."""
    count = Counter(name for part in Backend.__mro__[:-1] for name in vars(part) if not name.startswith("_"))
    assert {"norm", "rotate", "product", "pages"} <= count.keys(), "the search is at fault"
    assert not [name for name, owners in count.items() if owners > 1]


def test_ops_do_without_the_interface() -> None:
    """A norm, rotary angles and attention run in a process that has not imported it, and no backend."""
    code = (
        "import sys, torch\n"
        "from ridgeline.core.ops.attention import Attention\n"
        "from ridgeline.core.ops.kv_layout import KVSpec\n"
        "from ridgeline.core.ops.kv_context import Uncached\n"
        "from ridgeline.core.ops.norm import RMSNorm\n"
        "from ridgeline.core.ops.rotary import Rope, RotaryTable\n"
        "from ridgeline.core.ops.work import CAUSAL, StepSegment\n"
        "norm, rope = RMSNorm(4, 0.0, torch.float32), Rope(4, 10.0)\n"
        "norm.weight.data = torch.ones(4)\n"
        "x_THD = norm(torch.tensor([[[3.0, -3.0, 3.0, 3.0]]]))\n"
        "op = Attention(0, 1, KVSpec(1, 4, 4, CAUSAL, torch.float32), rope=rope)\n"
        "angles = RotaryTable(rope)(torch.tensor([5]))\n"
        "print(op(x_THD, x_THD, x_THD, Uncached([StepSegment(1, 1)]), angles).tolist())\n"
        "print([name for name in sys.modules if name.startswith(('ridgeline.core.ops.backend', 'ridgeline.backends'))])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines() == ["[[1.0, -1.0, 1.0, 1.0]]", "[]"]


@pytest.mark.parametrize("bound", [False, True])
def test_copies_of_an_op_compute_the_same(*, bound: bool) -> None:
    """Deep copies and pickles, before a backend is bound to it and after."""
    op = AddRMSNorm(2, 0.0, torch.float32)
    op.weight.data = torch.tensor([1.0, 10.0])
    if bound:
        REFERENCE.bind(op)
        assert copy.deepcopy(op).backend is REFERENCE
    for own in (op, copy.deepcopy(op), pickle.loads(pickle.dumps(op))):
        sum_TD, normed_TD = own(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 2.0]]))
        assert sum_TD.tolist() == [[4.0, 4.0]]
        assert normed_TD.tolist() == [[1.0, 10.0]]
        assert own.backend.name == "reference"
