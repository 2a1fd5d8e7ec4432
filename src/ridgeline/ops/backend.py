"""The interface of a backend: the code that executes ops on one kind of hardware.

An op asks its backend for each piece of work that a kernel may do. The methods below are the reference for all of
them: they run the op's own mathematics in PyTorch. `ridgeline.backends` has the backends with kernels of their own,
which override what they have kernels for. Meta tensors, which only have shapes, never reach a backend.

Shapes: T rows of a step, N rows of any kind, I inputs, O outputs, F columns of an MLP, D hidden, K experts a row,
V vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from ridgeline.ops.nonlinearity import ACTIVATIONS
from ridgeline.ops.step_graphs import StepGraphs

if TYPE_CHECKING:
    from ridgeline.ops.activation import ActivatedProjections
    from ridgeline.ops.attention import Attention
    from ridgeline.ops.experts import Experts
    from ridgeline.ops.kv import KVGroup
    from ridgeline.ops.layer_pages import LayerPages
    from ridgeline.ops.linear import Projections
    from ridgeline.ops.matrix import Matrix, QuantisedMatrix
    from ridgeline.ops.norm import AddRMSNorm, RMSNorm
    from ridgeline.ops.op import Launch, Op
    from ridgeline.ops.paged import Pages
    from ridgeline.ops.paged_state import StatePages
    from ridgeline.ops.rotary import Angles, RotaryTable
    from ridgeline.ops.router import Router
    from ridgeline.ops.work import Space, Work


SamplingKernel = Callable[[int, int, int], None]
"""A kernel that takes all steps of sampling for rows of logits in this machine's memory.

Its arguments are the address of the rows' structures (`Sampling` in backends/cpu/native/kernels.h), their number, and
the size of the vocabulary.
"""


class ReplayShape(NamedTuple):
    """The size as which a step is replayed: so many rows, and rows of logits."""

    rows: int
    logits: int


class ReplayedSteps(Protocol):
    """The steps of a model that a backend records once and replays.

    title: what messages call them. how: what is done to them, as messages on a draft model call it.
    """

    title: ClassVar[str]
    how: ClassVar[str]

    def shape_of(self, work: "Work") -> ReplayShape | None:
        """Return the size as which a step of `work` is replayed, or None for a step that is not."""
        ...

    def largest(self, tokens: int) -> ReplayShape:
        """Return the size of the largest of them, if no step of the engine has more than so many tokens."""
        ...

    def held_bytes(self, model: nn.Module) -> int | None:
        """Return the bytes that they hold between steps, if the result of each op has memory of its own. Return None
        if results share memory, as in any step: then they hold the activations of the largest of them."""
        ...


class Backend:
    """The base of all backends, without kernels of its own: each op computes in PyTorch what its file says.

    name: what `env`, `trace` and errors call it. kind: the kind of devices that it is made for ("cpu", "gpu"), "" for
    all. noted: where this thread's kernel calls are kept as it makes them, if they can be replayed; None for nowhere.
    workspace: the bytes that it takes on a device, whatever the model is, by what they are for.
    """

    name: ClassVar[str] = "reference"
    kind: ClassVar[str] = ""
    noted: list[Any] | None = None
    workspace: ClassVar[Mapping[str, int]] = {}

    @staticmethod
    def serves(device: torch.device) -> bool:
        """Return whether this process can execute models on a device with this backend."""
        return True

    # -- binding ------------------------------------------------------------------------------------------------------

    def prepare(self, model: nn.Module) -> None:
        """Bind each op of a model that is loaded, once. The parameters are where they stay.

        Raises:
            OSError: the memory to lay out weights for this backend is refused.
        """
        self.bind(model)

    def bind(self, part: nn.Module) -> None:
        """Have this backend execute the modules of a part of a model from now on. The ops of a whole model in a dtype
        that the backend does not have stay with the reference."""
        if isinstance(part, Bound) and part.model_dtype is not None and not self.has_dtype(part.model_dtype):
            part.bound_to(self)
            return
        for module in part.modules():
            if isinstance(module, Bound):
                module.bound_to(self)

    def has_dtype(self, dtype: torch.dtype) -> bool:
        """Return whether this backend runs models in a dtype."""
        return True

    def parts_of(self, op: "Op") -> tuple[str, ...] | None:
        """Return the methods of an op that launch this backend's kernels, ("forward",) if one kernel does all of it;
        None if they are those of PyTorch."""
        return None

    @property
    def kernel_set(self) -> str:
        """The name of the kernels that run in this process, such as an instruction set's."""
        return "torch's"

    def share_threads(self) -> None:
        """Use as many threads as PyTorch does now."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "Backend":
        """Return this backend itself: copies of a model have the same one."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the class alone: a model that is read from a pickle has a backend of its own."""
        return type(self), ()

    takes: "ClassVar[tuple[type[Op], ...]]" = ()
    """The classes of ops that it has kernels for, if it has any of its own."""

    def covers(self, op: "Op") -> bool:
        """Return whether kernels of this backend do all of an op. PyTorch does at least a part of any other."""
        return True

    # -- prices -------------------------------------------------------------------------------------------------------

    def launches(self, op: "Op", work: "Work", space: "Space") -> "tuple[Launch, ...]":
        """Return the kernel calls that one call of `op` over the rows of `space` makes in a step of `work`, with their
        kernel classes. The op may be on meta, and the backend's hardware absent."""
        return op.launches(work, space)

    def replayed_steps(self, model: nn.Module) -> ReplayedSteps | None:
        """Return which steps of a model are recorded once and replayed, or None if none are. The model may be on meta,
        and the backend's hardware absent."""
        return None

    # -- steps --------------------------------------------------------------------------------------------------------

    def pages(
        self, layers: "Mapping[int, LayerPages]", groups: "Sequence[KVGroup]", states: "Mapping[int, StatePages]"
    ) -> "Pages":
        """Return the pages of a KV store as this backend attends over them. layers, states: what each layer keeps."""
        raise AssertionError("a model is prepared before it keeps anything in pages")

    def step_graphs(self, model: nn.Module, pages: "Pages") -> StepGraphs:
        """Return the steps of a prepared model that are replayed over pages of this backend."""
        return StepGraphs()

    # -- products -----------------------------------------------------------------------------------------------------

    def product(self, matrix: "Matrix", x_TI: Tensor) -> Tensor:
        """Return x W^T + b of a stored matrix: [T, O]."""
        return matrix.computed(x_TI)

    def products(self, op: "Projections", x_TI: Tensor) -> Sequence[Tensor]:
        """Return the product of the same rows with each matrix of an op: [T, O] each."""
        return [matrix.product(x_TI) for matrix in op.matrices]

    def logits(self, matrix: "Matrix", x_RI: Tensor) -> Tensor:
        """Return the product of a head: [R, V], in the model's dtype, as the reference has it, or in fp32."""
        return matrix.product(x_RI)

    def linear(self, x_NI: Tensor, weight_OI: Tensor) -> Tensor:
        """Return x W^T of a weight in the dtype of the rows: [N, O]."""
        return functional.linear(x_NI, weight_OI)

    def activated_products(self, op: "ActivatedProjections", x_TI: Tensor) -> Tensor:
        """Return act(x W), or act(x Wg) * (x Wu) of an op with a gate: [T, F]."""
        return op.in_parts(x_TI)

    def gated_products(self, gate: "Matrix", up: "Matrix", activation: str, x_NI: Tensor) -> Tensor:
        """Return act(x Wg) * (x Wu) of two matrices: [N, F]. activation: its name in config.json."""
        return self.gated(gate.product(x_NI), up.product(x_NI), activation)

    def gated(self, gate_TF: Tensor, up_TF: Tensor, activation: str) -> Tensor:
        """Return act(gate) * up: [T, F]. activation: its name in config.json."""
        return ACTIVATIONS[activation](gate_TF) * up_TF

    # -- between products ---------------------------------------------------------------------------------------------

    def norm(self, op: "RMSNorm", x_xD: Tensor) -> Tensor:
        """Return the RMS norm of vectors [..., D]."""
        return op.computed(x_xD)

    def add_norm(self, op: "AddRMSNorm", x_TD: Tensor, y_TD: Tensor) -> tuple[Tensor, Tensor]:
        """Add y to x in its place, and return x and its RMS norm."""
        return op.in_parts(x_TD, y_TD)

    def angles(self, op: "RotaryTable", positions_T: Tensor) -> "Angles":
        """Return cos and sin of the angles of int64 positions: each fp32 [T, 1, dim / 2]."""
        return op.computed(positions_T)

    def rotate(
        self, op: "Attention", q_THD: Tensor, k_TKD: Tensor, angles: "Angles", start: int
    ) -> tuple[Tensor, Tensor]:
        """Return queries and keys rotated by their positions' angles, from entry `start` of each head on."""
        return op.rotated(q_THD, k_TKD, angles, start)

    def gather(self, table_ED: Tensor, numbers_N: Tensor) -> Tensor:
        """Return the rows of a table that have these numbers, int64 [N]: [N, D]."""
        return functional.embedding(numbers_N, table_ED)

    def pick(self, x_TD: Tensor, rows_R: Tensor) -> Tensor:
        """Return some rows of a step's, int64 [R]: [R, D]."""
        return x_TD[rows_R]

    def gather_coded(self, table: "QuantisedMatrix", numbers_N: Tensor) -> Tensor:
        """Return the rows of a table of codes in the model's dtype: [N, D]."""
        return table.dense(numbers_N).to(table.spec.dtype)

    # -- mixtures of experts ------------------------------------------------------------------------------------------

    def route(self, op: "Router", x_TI: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights fp32 and ids int64 of the experts that each row picks: [T, K] each."""
        return op.rule.route(op.logits(x_TI), op.e_score_correction_bias)

    def experts(
        self, op: "Experts", x_TD: Tensor, weights_TK: Tensor, picked_TK: Tensor, onto_TD: Tensor | None
    ) -> Tensor:
        """Return the weighed sum of the experts of each row, added to `onto_TD` if there is one: [T, D]."""
        return op.computed(x_TD, weights_TK, picked_TK, onto_TD)

    # -- sampling -----------------------------------------------------------------------------------------------------

    @property
    def sampling_kernel(self) -> SamplingKernel | None:
        """The kernel that samples from logits in this machine's memory, or None if there is none."""
        return None

    def likeliest(self, logits_RV: Tensor) -> Tensor:
        """Return the token with the largest logit of each row, the first among equals, and that logit twice: float64
        [R, 3]. A row's first NaN is its largest."""
        top_R1, token_R1 = logits_RV.max(dim=1, keepdim=True)
        top_R1 = top_R1.double()
        return torch.cat((token_R1.double(), top_R1, top_R1), dim=1)


REFERENCE = Backend()
"""The backend of every module that no other one was bound to."""


class Bound(nn.Module):
    """A module whose work a backend executes: the reference, until another one prepares the model."""

    backend: Backend = REFERENCE

    @property
    def model_dtype(self) -> torch.dtype | None:
        """The dtype of a whole model; None for a part of one."""
        return None

    def bound_to(self, backend: Backend) -> None:
        """Have a backend execute this module's work from now on."""
        self.backend = backend


class RowPicker(Bound):
    """The choice of the rows of a step that are wanted. It has no price: whatever reads the rows counts them."""

    def forward(self, x_TD: Tensor, rows_R: Tensor) -> Tensor:
        """x_TD [T, D], int64 [R] -> [R, D]."""
        # On meta any so many do, because an index there has torch import half a second of symbolic algebra.
        return x_TD[: len(rows_R)] if x_TD.is_meta else self.backend.pick(x_TD, rows_R)
