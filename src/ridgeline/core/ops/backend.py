"""The interface of a backend: the code that executes ops on one kind of hardware.

An op calls its backend for every piece of work that a kernel may do. The op's file defines these methods, as the part
of the interface that the op calls (`NormBackend` in norm.py). There they run the op's own mathematics in PyTorch, the
reference for all backends. `Backend` combines all parts, and adds the methods that models, steps and prices call. The
backends in `ridgeline.backends` override the methods for which they have kernels. Meta tensors, which only have shapes,
never reach a backend.

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
"""A kernel that performs all sampling steps for rows of logits in this machine's memory.

Its arguments are the address of the rows' structures (`Sampling` in backends/cpu/native/kernels.h), their number, and
the size of the vocabulary.
"""


class ReplayShape(NamedTuple):
    """The size of a replayed step, padding included."""

    rows: int
    """The number of token rows of a replayed step, padding included."""
    logits: int
    """The number of rows of logits of a replayed step, padding included."""


class ReplayedSteps(Protocol):
    """The description of the steps of a model that a backend records once and replays."""

    title: ClassVar[str]
    """The term for replayed steps in messages to users, such as "captured steps"."""
    how: ClassVar[str]
    """The participle for replayed steps in messages about a draft model, such as "captured"."""

    def shape_of(self, work: Work) -> ReplayShape | None:
        """Return the size with which a step of `work` is replayed, padding included, or None if it is not replayed."""

    def largest(self, tokens: int) -> ReplayShape:
        """Return the size of the largest replayed step, if no step of the engine has more than `tokens` tokens."""

    def held_bytes(self, model: nn.Module) -> int | None:
        """Return the bytes of op results that replayed steps hold between steps, if each result has memory of its own.

        Return None if results share memory, as in any other step: the replayed steps then keep the activations of the
        largest.
        """


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
    """The base class of all backends, without kernels of its own: each op runs its PyTorch implementation."""

    kind: ClassVar[str] = ""
    """The kind of device that the backend is made for: "cpu", "gpu", or "" for all."""
    noted: list[Any] | None = None
    """The list that records this thread's kernel calls for replay while a step runs; None if nothing is recorded."""
    workspace: ClassVar[Mapping[str, int]] = {}
    """The bytes that the backend allocates on a device for any model, by purpose."""

    @staticmethod
    def serves(device: torch.device) -> bool:
        """Return whether this process can execute models on a device with this backend."""
        return True

    # -- binding ------------------------------------------------------------------------------------------------------

    def prepare(self, model: nn.Module) -> None:
        """Bind each op of a loaded model, once, when its parameters are in their final place.

        Raises:
            OSError: If the memory to lay out weights for this backend is refused.
        """
        self.bind(model)

    def bind(self, part: nn.Module) -> None:
        """Make this backend execute the modules of a part of a model from now on.

        If the part is a whole model in a dtype that the backend does not support, its ops stay with the reference.
        """
        dtype = part.model_dtype if isinstance(part, BackendModule) else None
        backend = self if dtype is None or self.has_dtype(dtype) else REFERENCE
        for module in part.modules():
            if isinstance(module, BackendModule):
                module.backend = self if module is part else backend
            if isinstance(module, Op):
                module.set_kernel_methods(backend.parts_of(module))

    def has_dtype(self, dtype: torch.dtype) -> bool:
        """Return whether this backend runs models in a dtype."""
        return True

    def parts_of(self, op: Op) -> tuple[str, ...] | None:
        """Return the names of an op's methods that launch this backend's kernels; None if they are those of PyTorch.

        The result is ("forward",) if one kernel does the whole op.
        """
        return None

    @property
    def kernel_set(self) -> str:
        """The name of the kernel variant that runs in this process, such as an instruction set."""
        return "torch's"

    def share_threads(self) -> None:
        """Let this backend's kernels use as many threads as PyTorch currently does."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "Backend":
        """Return this backend itself, so that copies of a model share it."""
        return self

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the class: an unpickled model gets a backend of its own."""
        return type(self), ()

    takes: ClassVar[tuple[type[Op], ...]] = ()
    """The classes of ops for which the backend has kernels of its own."""

    # -- prices -------------------------------------------------------------------------------------------------------

    def launches(self, op: Op, work: Work, space: RowAxis) -> tuple[Launch, ...]:
        """Return the kernel launches of one call of an op over the rows of one kind (`space`) in a step of size `work`.

        The op may be on the meta device, and the backend's hardware absent.
        """
        return op.launches(work, space)

    def replayed_steps(self, model: nn.Module) -> ReplayedSteps | None:
        """Return a description of the model's replayed steps, or None if the backend replays none.

        The model may be on the meta device, and the backend's hardware absent.
        """
        return None

    # -- steps --------------------------------------------------------------------------------------------------------

    def pages(
        self, layers: Mapping[int, LayerPages], groups: Sequence[KVGroup], states: Mapping[int, StatePages]
    ) -> KVPages:
        """Return the pages of a KV cache in the form in which this backend's attention reads them.

        Args:
            layers: The pages of each attention layer's keys and values.
            groups: The KV groups of the layers.
            states: The pages of each recurrent layer's states.
        """
        raise AssertionError("prepare the model before it stores anything in pages")

    def step_graphs(self, model: nn.Module, pages: KVPages) -> StepGraphs:
        """Return the object that replays a prepared model's steps over KV pages of this backend."""
        return StepGraphs()

    # -- sampling -----------------------------------------------------------------------------------------------------

    @property
    def sampling_kernel(self) -> SamplingKernel | None:
        """The kernel that samples from logits in this machine's memory; None if there is none."""
        return None

    def likeliest(self, logits_RV: Tensor) -> Tensor:
        """Return the token with the largest logit of each row, and that logit twice: float64 [R, 3].

        The first of equal logits wins. The first NaN of a row counts as its largest logit.
        """
        top_R1, token_R1 = logits_RV.max(dim=1, keepdim=True)
        top_R1 = top_R1.double()
        return torch.cat((token_R1.double(), top_R1, top_R1), dim=1)


REFERENCE = Backend()
"""The backend of every model that no other backend has prepared."""
