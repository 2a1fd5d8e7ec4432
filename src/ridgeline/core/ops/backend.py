"""The interface of a backend: the code that executes ops on one kind of hardware.

An op asks its backend for each piece of work that a kernel may do. The methods for it stand in the op's file, as the
part of the interface that the op calls (`NormBackend` in norm.py). They run the op's own mathematics in PyTorch: the
reference for all backends. `Backend` is all of these parts, with the methods that models, steps and prices call.
`ridgeline.backends` has the backends with kernels of their own, which override what they have kernels for. Meta
tensors, which only have shapes, never reach a backend.

Shapes: R rows of logits, V vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from typing_extensions import override

from ridgeline.core.ops.activation import ActivationBackend
from ridgeline.core.ops.attention import AttentionBackend
from ridgeline.core.ops.bound import BackendModule
from ridgeline.core.ops.embedding import EmbeddingBackend
from ridgeline.core.ops.experts import ExpertsBackend
from ridgeline.core.ops.kv_layout import KVGroup
from ridgeline.core.ops.layer_pages import LayerPages
from ridgeline.core.ops.linear import HeadBackend
from ridgeline.core.ops.matrix.quantised import QuantisedMatrixBackend
from ridgeline.core.ops.norm import NormBackend
from ridgeline.core.ops.op import Launch, Op
from ridgeline.core.ops.paged_attention import KVPages
from ridgeline.core.ops.paged_state import StatePages
from ridgeline.core.ops.rotary import RotaryBackend
from ridgeline.core.ops.router import RouterBackend
from ridgeline.core.ops.row_ops import RowPickerBackend
from ridgeline.core.ops.step_graphs import StepGraphs
from ridgeline.core.ops.work import RowAxis, Work

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

    def shape_of(self, work: Work) -> ReplayShape | None:
        """Return the size as which a step of `work` is replayed, or None for a step that is not."""
        ...

    def largest(self, tokens: int) -> ReplayShape:
        """Return the size of the largest of them, if no step of the engine has more than so many tokens."""
        ...

    def held_bytes(self, model: nn.Module) -> int | None:
        """Return the bytes that they hold between steps, if the result of each op has memory of its own. Return None
        if results share memory, as in any step: then they hold the activations of the largest of them.
        """
        ...


class Backend(
    ActivationBackend,
    AttentionBackend,
    EmbeddingBackend,
    ExpertsBackend,
    HeadBackend,
    NormBackend,
    QuantisedMatrixBackend,
    RotaryBackend,
    RouterBackend,
    RowPickerBackend,
):
    """The base of all backends, without kernels of its own: each op computes in PyTorch what its file says.

    kind: the kind of devices that it is made for ("cpu", "gpu"), "" for all. noted: where this thread's kernel calls
    are kept as it makes them, if they can be replayed; None for nowhere. workspace: the bytes that it takes on a
    device, whatever the model is, by what they are for.
    """

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
        that the backend does not have stay with the reference.
        """
        dtype = part.model_dtype if isinstance(part, BackendModule) else None
        backend = self if dtype is None or self.has_dtype(dtype) else REFERENCE
        for module in part.modules():
            if isinstance(module, BackendModule):
                module.backend = self if module is part else backend
            if isinstance(module, Op):
                module.use_parts(backend.parts_of(module))

    def has_dtype(self, dtype: torch.dtype) -> bool:
        """Return whether this backend runs models in a dtype."""
        return True

    def parts_of(self, op: Op) -> tuple[str, ...] | None:
        """Return the methods of an op that launch this backend's kernels, ("forward",) if one kernel does all of it;
        None if they are those of PyTorch.
        """
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

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the class alone: a model that is read from a pickle has a backend of its own."""
        return type(self), ()

    takes: ClassVar[tuple[type[Op], ...]] = ()
    """The classes of ops that it has kernels for, if it has any of its own."""

    # -- prices -------------------------------------------------------------------------------------------------------

    def launches(self, op: Op, work: Work, space: RowAxis) -> tuple[Launch, ...]:
        """Return the kernel calls that one call of `op` over the rows of `space` makes in a step of `work`, with their
        kernel classes. The op may be on meta, and the backend's hardware absent.
        """
        return op.launches(work, space)

    def replayed_steps(self, model: nn.Module) -> ReplayedSteps | None:
        """Return which steps of a model are recorded once and replayed, or None if none are. The model may be on meta,
        and the backend's hardware absent.
        """
        return None

    # -- steps --------------------------------------------------------------------------------------------------------

    def pages(
        self, layers: Mapping[int, LayerPages], groups: Sequence[KVGroup], states: Mapping[int, StatePages]
    ) -> KVPages:
        """Return the pages of a KV store as this backend attends over them. layers, states: what each layer keeps."""
        raise AssertionError("a model is prepared before it keeps anything in pages")

    def step_graphs(self, model: nn.Module, pages: KVPages) -> StepGraphs:
        """Return the steps of a prepared model that are replayed over pages of this backend."""
        return StepGraphs()

    # -- sampling -----------------------------------------------------------------------------------------------------

    @property
    def sampling_kernel(self) -> SamplingKernel | None:
        """The kernel that samples from logits in this machine's memory, or None if there is none."""
        return None

    def likeliest(self, logits_RV: Tensor) -> Tensor:
        """Return the token with the largest logit of each row, the first among equals, and that logit twice: float64
        [R, 3]. A row's first NaN is its largest.
        """
        top_R1, token_R1 = logits_RV.max(dim=1, keepdim=True)
        top_R1 = top_R1.double()
        return torch.cat((token_R1.double(), top_R1, top_R1), dim=1)


REFERENCE = Backend()
"""The backend of every model that no other one has prepared."""
