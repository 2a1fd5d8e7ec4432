"""PricedModule: a tree of ops that can be run, loaded from a checkpoint and priced, whatever its rows stand for."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.common.token_tables import TokenTables
from ridgeline.core.ops.backend import REFERENCE, Backend
from ridgeline.core.ops.bound import BackendModule
from ridgeline.core.ops.op import Op
from ridgeline.core.ops.stored_module import StoredModule
from ridgeline.core.ops.work import AttentionPattern, RowAxis

OpT = TypeVar("OpT", bound=Op)

CallListener = Callable[[str, Op, tuple[Any, ...], Any], None]
"""The callback for a call of an op: it receives the op's path, the op, its inputs and its result."""


class PricedModule(BackendModule, ABC):
    """A model as a tree of ops that can be run, loaded and priced, with weights or on the meta device."""

    backend: Backend = REFERENCE
    """The backend that executes a model's ops."""
    storage: StorageConfig
    """The dtype, the KV format and the tensor-parallel rank of a model."""
    row_axes: tuple[RowAxis, ...]
    """The kinds of rows (row axes) that a step has; `trace_calls` needs a number of rows for each."""
    ties: Mapping[str, str] = {}
    """The parameters that share another's tensor, such as a head that is the embedding: path to path."""
    tables: TokenTables | None = None
    """The token tables of a model, if checkpoints may store them in several ways."""
    ignored_tensors: tuple[str, ...] = ()
    """Patterns of checkpoint tensors that a model does not load."""
    recipe: str = ""
    """The name of the quantisation recipe of a model's matrices; "" if they are in the model's dtype."""
    unnamed = False  # as StoredModule.unnamed; parts may then lie directly in the parent

    @property
    @override
    def model_dtype(self) -> torch.dtype:
        """The dtype of all the model's numbers that no weight format quantises."""
        return self.storage.dtype

    def trace_calls(self, rows: Mapping[RowAxis, int], listener: CallListener) -> None:
        """Run every part of one step on meta tensors, without weights, and report the op calls to `listener` in order.

        The cost model uses it to see which ops run over which rows. It works whether or not weights are loaded. `rows`
        is the number of rows by row axis.
        """
        with self.on_meta(listener):
            self._run_on_meta(rows)

    @contextmanager
    def on_meta(self, listener: CallListener) -> Iterator[None]:
        """Report each op's call to `listener` while the context is open, in which the model runs on the meta device.

        A subclass adds to this context what its code needs there.
        """
        with call_hooks(self.ops(), listener), emptied(self):
            yield

    @abstractmethod
    def _run_on_meta(self, rows: Mapping[RowAxis, int]) -> None:
        """Run every part of a step once, on tensors that are created on the meta device."""

    @property
    def adapter_bytes(self) -> float:
        """The bytes of the LoRA adapters that are attached to a model's matrices."""
        return float(sum(weight.nbytes for weight in self.adapter_weights()))

    def adapter_weights(self) -> list[Tensor]:
        """Return the weights that LoRA adapters added to a model."""
        return [own for _, module in self.stored_modules() if module.is_adapter for own in module.parameters()]

    @property
    def attention_patterns(self) -> frozenset[AttentionPattern]:
        """The attention patterns of a model's attention and recurrence ops, which are the keys of `Work.attention`."""
        return frozenset(op.attention_pattern for _, op in self.ops() if op.attention_pattern is not None)

    @property
    def tied(self) -> bool:
        """Whether some parameter of a model shares another's tensor, such as a head that is the embedding."""
        return bool(self.ties)

    def tie(self) -> None:
        """Make tied parameters the same object, again after a loader replaced them."""
        for path, source in self.ties.items():
            module, _, name = path.rpartition(".")
            owner, _, of_source = source.rpartition(".")
            table = self.get_submodule(owner)
            assert isinstance(table, StoredModule)
            for own, parameter in table.tied_parameters().items():
                setattr(self.get_submodule(module), name if own == of_source else own, parameter)

    def arrange_tables(self, held: Mapping[str, str], there: Iterable[str]) -> None:
        """Create and tie a model's token tables (embeddings and head) to match a checkpoint, before they are loaded.

        Args:
            held: The checkpoint tensor that each table is, by the table's name.
            there: The names of all table tensors in the checkpoint.
        """
        tables = self.tables
        assert tables is not None
        homes: dict[str | None, str] = {}
        of_tables = {f"{path}.weight" for path in tables.uses.values()}
        places, ties = dict[str, str](), {path: held for path, held in self.ties.items() if path not in of_tables}
        for name, path in tables.uses.items():
            tensor = held.get(name)
            home = homes.setdefault(tensor, path)
            if home != path:
                if self._has(path):
                    ties[f"{path}.weight"] = f"{home}.weight"
                continue
            if f"{path}.weight" in self.ties:
                message = (
                    f"{name} differs from the embedding, although tie_word_embeddings is true; "
                    "the engine uses both as stored"
                )
                tables.notes = (*tables.notes, message)
            self._part_table(path, next(iter(tables.uses.values())))
            if tensor is not None:
                places[tensor] = self.checkpoint_name(f"{path}.weight")
        self.ties = ties
        self.tie()
        tables.renamed = {tensor: places.get(tensor, "") for tensor in there}
        tables.resolved = True

    def _has(self, path: str) -> bool:
        """Return whether the model has a module at a path."""
        parent, _, name = path.rpartition(".")
        return name in self.get_submodule(parent)._modules

    def _part_table(self, path: str, first: str) -> None:
        """Give the module at a path an unfilled token table of its own; create one like `first` if there is none."""
        there = self._has(path)
        if there and f"{path}.weight" not in self.ties:
            return
        parent, _, name = path.rpartition(".")
        table = self.get_submodule(path if there else first)
        assert isinstance(table, StoredModule)
        with torch.device("meta"):
            self.get_submodule(parent).add_module(name, table.unfilled_copy())

    def module_name(self, path: str) -> str:
        """Return the checkpoint's name of the module with a `weight` at a path, before the family's renames."""
        return self.checkpoint_name(f"{path}.weight").removesuffix(".weight")

    @property
    def runs(self) -> bool:
        """Whether ops can run in all of a model's weight and KV formats; if not, it can only be priced."""
        return (self.storage.kv is None or bool(self.storage.kv.code)) and self.weights_run

    @property
    def weights_run(self) -> bool:
        """Whether ops can run in a model's weight formats, whatever the KV format is."""
        return all(module.is_runnable for _, module in self.stored_modules())

    def refuse_division(self) -> None:
        """Raise Indivisible if ranks would cut a group or block of weights that a checkpoint stores together."""
        for _, module in self.stored_modules():
            module.check_divisible()

    def create_parameters(self) -> None:
        """Create a model's parameters that pricing does not need, before a loader fills them."""
        for _, module in self.stored_modules():
            module.create_parameters()

    def stored_modules(self) -> list[tuple[str, StoredModule]]:
        """Return a model's modules that may have parameters of their own, each with its path, in tree order."""
        return [(path, module) for path, module in self.named_modules() if isinstance(module, StoredModule)]

    def ops(self) -> list[tuple[str, Op]]:
        """Return every op of a model with its path, in the order of the module tree."""
        return [(path, module) for path, module in self.named_modules() if isinstance(module, Op)]

    def ops_of(self, kind: type[OpT]) -> list[tuple[str, OpT]]:
        """Return a model's ops of one class, each with its path."""
        return [(path, op) for path, op in self.ops() if isinstance(op, kind)]

    def weighted_ops(self) -> Iterator[tuple[str, Op]]:
        """Yield a model's ops that have parameters of their own, with their paths.

        A tied head has none: its weight is the embedding's.
        """
        for path, op in self.ops():
            if op.parameter_count() and not any(tied.startswith(f"{path}.") for tied in self.ties):
                yield path, op

    @property
    def repacked_bytes(self) -> float:
        """The bytes that a model's repacked weights take in memory beyond their stored size.

        It is negative if they take fewer. A tied head counts once.
        """
        return sum(op.repacked_bytes for _, op in self.weighted_ops())

    def tensors(self) -> dict[str, tuple[StoredModule, str]]:
        """Return the checkpoint tensors that fill a model, each with the module that loads it and its name there.

        Tied parameters have no tensor of their own. Neither have modules inside a module that loads all of its tensors
        itself (`loads_submodules`).
        """
        within = tuple(f"{path}." for path, module in self.stored_modules() if module.loads_submodules)
        return {
            self.checkpoint_name(f"{path}.{name}"): (module, name)
            for path, module in self.stored_modules()
            if not path.startswith(within)
            for name in module.tensors()
            if f"{path}.{name}" not in self.ties and (name == "bias" or f"{path}.weight" not in self.ties)
        }

    def shown_path(self, path: str) -> str:
        """Return the path of an op as reports show it."""
        return path

    def checkpoint_name(self, path: str) -> str:
        """Return the checkpoint's name of a model's tensor: its path without the modules that are `unnamed`."""
        module: nn.Module = self
        named = []
        *above, name = path.split(".")
        for segment in above:
            module = getattr(module, segment)
            if not getattr(module, "unnamed", False):
                named.append(segment)
        return ".".join([*named, name])


@contextmanager
def call_hooks(
    ops: Iterable[tuple[str, OpT]], listener: Callable[[str, OpT, tuple[Any, ...], Any], None]
) -> Iterator[None]:
    """Report each call of some ops to `listener` when the call ends, while the context is open."""
    handles = [
        op.register_forward_hook(lambda op, inputs, output, path=path: listener(path, op, inputs, output))
        for path, op in ops
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def emptied(model: nn.Module) -> Iterator[None]:
    """Let a model run on the meta device while the context is open, whether or not weights are loaded.

    Meta tensors of the same shapes replace its parameters and buffers. New tensors are on the meta device too.
    """
    held: list[tuple[dict[str, Any], str, Tensor]] = [
        (tensors, name, tensor)
        for module in model.modules()
        for tensors in (module._parameters, module._buffers)
        for name, tensor in tensors.items()
        if tensor is not None and not tensor.is_meta
    ]
    for tensors, name, tensor in held:
        empty = tensor.to("meta")
        tensors[name] = nn.Parameter(empty, requires_grad=False) if isinstance(tensor, nn.Parameter) else empty
    try:
        with torch.device("meta"), torch.inference_mode():
            yield
    finally:
        for tensors, name, tensor in held:
            tensors[name] = tensor
