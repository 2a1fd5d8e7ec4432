"""The aten operations of a module that run outside our ops: their reads, writes and FLOPs, counted on the meta device.

`AtenTrace` watches a forward pass below autograd. A view costs nothing. Any other operation reads its inputs and writes
its results; `aten_fusion.py` says which of these tensors pass through memory. An operation belongs to the innermost
module of the release that runs it, whose class the listing names. While one of our ops runs, nothing is counted: the op
states its own cost.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from typing_extensions import override

from ridgeline.core.models.from_transformers.aten_table import (
    COPY,
    FILLS,
    GATHERS,
    category_of,
    flops_of,
    is_free,
    is_whole,
)
from ridgeline.core.ops.op import Op

_ITEM = torch.ops.aten._local_scalar_dense
"""The operation of `Tensor.item`, and of `bool` and `float` of a tensor."""
_ITEMS: Mapping[torch.dtype, bool | float] = MappingProxyType(
    {torch.bool: True, torch.float16: 1.0, torch.bfloat16: 1.0, torch.float32: 1.0}
)
"""The values of `Tensor.item` on meta, where tensors have none: True makes "all positions are in order" true."""


class TensorKey(NamedTuple):
    """The identity of a tensor's data: its memory, and how often that was overwritten."""

    storage: int
    version: int


@dataclass(frozen=True, slots=True)
class Extent:
    """The part of a tensor's data that an operation reads or writes."""

    key: TensorKey
    first: int
    """The offset in bytes of the first number in the tensor's memory."""
    last: int
    """The offset in bytes of the last number in the tensor's memory."""
    nbytes: int
    """The bytes of the distinct numbers that are read or written."""


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """A running call of a module of the release."""

    path: str
    class_name: str
    number: int
    """The count of module calls before this one."""


@dataclass(frozen=True, slots=True)
class AtenCall:
    """One aten operation that was counted."""

    name: str
    category: str
    owner: ModuleCall
    """The innermost call of a module of the release, in which the operation ran."""
    within: frozenset[int]
    """The numbers of all module calls in which the operation ran."""
    reads: tuple[Extent, ...]
    writes: tuple[Extent, ...]
    flops: Mapping[str, float]


@dataclass(slots=True)
class AtenRecord:
    """The aten operations of one forward pass outside our ops, in order."""

    calls: list[AtenCall] = field(default_factory=list)
    read_by_ops: set[TensorKey] = field(default_factory=set)
    """The tensors that our ops, or a cache, read from memory."""
    fused_into_ops: set[TensorKey] = field(default_factory=set)
    """The inputs of those ops of ours that can run in the kernel that makes the input (`Op.fuses_inputs`)."""
    weights: frozenset[int] = frozenset()
    """The memory of the module's parameters."""
    cached: set[int] = field(default_factory=set)
    """The memory of keys, values and states that come from a cache, whose traffic its own op counts."""
    made_by_ops: set[TensorKey] = field(default_factory=set)
    """The results of our ops, which these write to memory."""
    joined: dict[int, int] = field(default_factory=dict)
    """The memory that has rows of a cache and new rows, with the bytes of the new ones."""


class AtenTrace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The record of a module's aten operations while the mode is active. `traced` makes one."""

    def __init__(self, root: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        weights = frozenset(_memory(parameter) for parameter in root.parameters())
        self.record = AtenRecord(weights=weights)
        self._running: list[ModuleCall] = [ModuleCall("", type(root).__name__, 0)]
        self._module_calls, self._paused = 0, 0
        self._versions: dict[int, int] = {}
        self._held: dict[int, Any] = {}  # an address identifies memory only while that is held

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Count no operation while the context is open."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    def mark_read(self, tensors: Any) -> None:
        """Record that a cache reads these tensors, nested in any way, from memory."""
        self.record.read_by_ops.update(self._key(tensor) for tensor in _tensors(tensors))

    def mark_cached(self, tensors: Any) -> None:
        """Record that these tensors, nested in any way, come from a cache or are kept there."""
        self.record.cached.update(self._key(tensor).storage for tensor in _tensors(tensors))

    def mark_joined(self, joined: Tensor, new: Sequence[Tensor]) -> None:
        """Record that a tensor is a cached one with new rows, which a kernel reads where both are."""
        if all(_memory(joined) != _memory(each) for each in new):
            self.record.joined[self._key(joined).storage] = sum(self._extent(each).nbytes for each in new)

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.overloadpacket is _ITEM and args[0].is_meta:
            return _ITEMS.get(args[0].dtype, 1)
        if self._paused:
            return func(*args, **kwargs)
        if not is_whole(func):  # in inference mode, functions such as linear and matmul arrive whole
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        out = func(*args, **kwargs)
        if not is_free(func):
            self._count(func, args, kwargs, out)
        return out

    def _count(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
        inputs, results = _tensors((args, kwargs)), _tensors(out)
        known = {_memory(each) for each in inputs}
        overwrites = func._schema.is_mutable
        if not results or (not overwrites and all(_memory(each) in known for each in results)):
            return  # a view, or a query of a tensor's value
        name, category = func.overloadpacket.__name__, category_of(func)
        # A copy does not read the numbers that it overwrites.
        read = [] if name.removesuffix("_") in FILLS else inputs[1:] if name == "copy_" else inputs
        reads = [self._extent(each) for each in read]
        if name in GATHERS:
            whole = reads[0].key.storage in self.record.weights and _is_list(inputs[1:])
            reads[0] = replace(reads[0], nbytes=results[0].nbytes if whole else min(reads[0].nbytes, results[0].nbytes))
        if overwrites:
            for each in results:
                self._versions[_memory(each)] = self._key(each).version + 1
        kept = [each.key.storage in self.record.cached for each in reads]
        if category == COPY and reads and all(kept):
            self.mark_cached(results)  # keys that are repeated for each query head need not be written
        elif name == "cat" and any(kept):
            self.mark_joined(results[0], [each for each, is_kept in zip(inputs, kept, strict=True) if not is_kept])
        self.record.calls.append(
            AtenCall(
                name=name.removesuffix("_") if overwrites else name,
                category=category,
                owner=self._owner,
                within=frozenset(call.number for call in self._running),
                reads=tuple(reads),
                writes=tuple(self._extent(each) for each in results),
                flops=flops_of(func, args, kwargs, out),
            )
        )

    @property
    def _owner(self) -> ModuleCall:
        """The innermost module call that is not one of PyTorch's own modules, such as an activation."""
        return next((call for call in reversed(self._running) if call.class_name), self._running[0])

    def _key(self, tensor: Tensor) -> TensorKey:
        memory = _memory(tensor)
        self._held.setdefault(memory, tensor.untyped_storage())
        return TensorKey(memory, self._versions.get(memory, 0))

    def _extent(self, tensor: Tensor) -> Extent:
        strides = [(size, stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride]
        width, first = tensor.element_size(), int(tensor.storage_offset())
        numbers = 0 if not tensor.numel() else torch.Size(size for size, _ in strides).numel()
        last = first + sum((size - 1) * stride for size, stride in strides)
        key = self._key(tensor)
        nbytes = min(numbers * width, self.record.joined.get(key.storage, numbers * width))
        return Extent(key, first * width, last * width, nbytes)

    # -- module calls -------------------------------------------------------------------------------------------------

    @contextmanager
    def hooks(self, root: nn.Module) -> Iterator[None]:
        """Follow the calls of all modules of a tree while the context is open."""
        handles: list[Any] = []
        for path, module in root.named_modules():
            enter, leave = self._op_hooks() if isinstance(module, Op) else self._module_hooks(path, module)
            handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
            handles.append(module.register_forward_hook(leave, always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _op_hooks(self) -> tuple[Callable[..., None], Callable[..., None]]:
        def enter(op: nn.Module, args: Any, kwargs: Any) -> None:
            assert isinstance(op, Op)
            if not self._paused:
                read = self.record.fused_into_ops if op.fuses_inputs else self.record.read_by_ops
                read.update(self._key(tensor) for tensor in _tensors((args, kwargs)))
            self._paused += 1

        def leave(_: nn.Module, __: Any, result: Any) -> None:
            self._paused -= 1
            if not self._paused:
                self.record.made_by_ops.update(self._key(tensor) for tensor in _tensors(result))

        return enter, leave

    def _module_hooks(self, path: str, module: nn.Module) -> tuple[Callable[..., None], Callable[..., None]]:
        own = type(module).__module__.partition(".")[0] != "torch"
        name = type(module).__name__ if own else ""

        def enter(*_: Any) -> None:
            self._module_calls += 1
            self._running.append(ModuleCall(path, name, self._module_calls))

        def leave(*_: Any) -> None:
            self._running.pop()

        return enter, leave


@contextmanager
def traced(root: nn.Module) -> Iterator[AtenTrace]:
    """Count the aten operations of a module on the meta device while the context is open.

    Tensors that are created inside the context are on the meta device too.
    """
    trace = AtenTrace(root)
    with trace.hooks(root), torch.device("meta"), torch.inference_mode(), trace:
        yield trace


def _tensors(nested: Any) -> list[Tensor]:
    return [each for each in tree_leaves(nested) if isinstance(each, Tensor)]


def _memory(tensor: Tensor) -> int:
    """Return the address of the object that describes a tensor's memory, which views share."""
    return tensor.untyped_storage()._cdata


def _is_list(indices: Sequence[Tensor]) -> bool:
    """Return whether a gather reads a row for each of a list of indices, of which there may be more than rows.

    Small tables, such as a small vocabulary, are then read as often as a large one, so that bytes grow with the list.
    """
    return len(indices) == 1 and indices[0].numel() == max(indices[0].shape, default=0)
