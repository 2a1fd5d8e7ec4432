"""Network: what is wired from ops, whatever its rows are of: how it is run through, loaded and priced."""

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

Told = Callable[[str, Op, tuple[Any, ...], Any], None]
"""What is told of an op's call: its path, the op, its inputs and what it gave."""


class PricedModule(BackendModule, ABC):
    """A tree of ops, filled or on meta.

    spaces: what rows of it are rows of; `trace_calls` is given a number for each. ties: parameters that are others, by
    path: a head that is the embedding. tables: its tables of tokens, if checkpoints may hold them in several ways.
    passed_over: patterns of tensors that a checkpoint has beside its own. recipe: the name of the format in which its
    matrices are stored, "" for the model's dtype.
    """

    backend: Backend = REFERENCE
    storage: StorageConfig
    spaces: tuple[RowAxis, ...]
    ties: Mapping[str, str] = {}
    tables: TokenTables | None = None
    passed_over: tuple[str, ...] = ()
    recipe: str = ""
    unnamed = False  # as of Stored: what is around it may have the names of its parts

    @property
    @override
    def model_dtype(self) -> torch.dtype:
        """The dtype of the numbers that no format narrows."""
        return self.storage.dtype

    def trace_calls(self, rows: Mapping[RowAxis, int], told: Told) -> None:
        """Run every part of a step once, over so many rows of each space, without weights (on meta, filled or not), and
        tell of each op's call, in the order in which they run: for the price to see which there are, over which
        rows.
        """
        with self.outlined(told):
            self._outline(rows)

    @contextmanager
    def outlined(self, told: Told) -> Iterator[None]:
        """While it lasts, tensors are made on meta and the network has no weights; `told` is told of each call."""
        with listening(self.ops(), told), torch.device("meta"), torch.inference_mode(), _emptied(self):
            yield

    @abstractmethod
    def _outline(self, rows: Mapping[RowAxis, int]) -> None:
        """Run every part of a step once, on tensors that are made on meta."""

    @property
    def adapter_bytes(self) -> float:
        """Bytes of the adapters beside its matrices."""
        return float(sum(weight.nbytes for weight in self.adapter_weights()))

    def adapter_weights(self) -> list[Tensor]:
        """Return the weights that adapters have brought."""
        return [own for _, module in self.stored_modules() if module.is_adapter for own in module.parameters()]

    @property
    def reaches(self) -> frozenset[AttentionPattern]:
        """What its attention and its recurrences reach, as Work wants it."""
        return frozenset(op.reach for _, op in self.ops() if op.reach is not None)

    @property
    def tied(self) -> bool:
        """Whether some parameter is another."""
        return bool(self.ties)

    def tie(self) -> None:
        """Make tied parameters one, again after a loader has put new ones there."""
        for path, source in self.ties.items():
            module, _, name = path.rpartition(".")
            owner, _, of_source = source.rpartition(".")
            table = self.get_submodule(owner)
            assert isinstance(table, StoredModule)
            for own, parameter in table.tied_parameters().items():
                setattr(self.get_submodule(module), name if own == of_source else own, parameter)

    def arrange_tables(self, held: Mapping[str, str], there: Iterable[str]) -> None:
        """Create and tie the modules of the tables of tokens as a checkpoint holds them, before they are filled.

        Args:
            held: the tensor that each table is, by name.
            there: the names of all tensors of the tables that the checkpoint has.
        """
        tables = self.tables
        assert tables is not None
        homes: dict[str | None, str] = {}
        places, ties = dict[str, str](), dict[str, str]()
        for name, path in tables.uses.items():
            tensor = held.get(name)
            home = homes.setdefault(tensor, path)
            if home != path:
                if self._has(path):
                    ties[f"{path}.weight"] = f"{home}.weight"
                continue
            if f"{path}.weight" in self.ties:
                said = f"{name} is not the embedding, though tie_word_embeddings says so; each is used as it is stored"
                tables.notes = (*tables.notes, said)
            self._part_table(path, next(iter(tables.uses.values())))
            if tensor is not None:
                places[tensor] = self.checkpoint_name(f"{path}.weight")
        self.ties = ties
        self.tie()
        tables.renamed = {tensor: places.get(tensor, "") for tensor in there}
        tables.settled = True

    def _has(self, path: str) -> bool:
        """Whether there is a module at a path."""
        parent, _, name = path.rpartition(".")
        return name in self.get_submodule(parent)._modules

    def _part_table(self, path: str, first: str) -> None:
        """Give the module at a path an unfilled table of its own; if there is no module, create one like `first`."""
        there = self._has(path)
        if there and f"{path}.weight" not in self.ties:
            return
        parent, _, name = path.rpartition(".")
        table = self.get_submodule(path if there else first)
        assert isinstance(table, StoredModule)
        with torch.device("meta"):
            self.get_submodule(parent).add_module(name, table.another())

    def module_name(self, path: str) -> str:
        """What a checkpoint calls the module at a path whose tensor is `weight`, but for the renames of its family."""
        return self.checkpoint_name(f"{path}.weight").removesuffix(".weight")

    @property
    def runs(self) -> bool:
        """Whether it can run as it is stored, or is only priced."""
        return (self.storage.kv is None or bool(self.storage.kv.code)) and self.weights_run

    @property
    def weights_run(self) -> bool:
        """The same of its weights alone."""
        return all(module.runs for _, module in self.stored_modules())

    def refuse_division(self) -> None:
        """Raise Indivisible if ranks would cut what a checkpoint's quantiser stored in one piece."""
        for _, module in self.stored_modules():
            module.refuse_division()

    def expand(self) -> None:
        """Create the parameters that pricing does without, before a loader fills them."""
        for _, module in self.stored_modules():
            module.create_parameters()

    def stored_modules(self) -> list[tuple[str, StoredModule]]:
        """Return every module that may have parameters of its own with its path, in the order of the module tree."""
        return [(path, module) for path, module in self.named_modules() if isinstance(module, StoredModule)]

    def ops(self) -> list[tuple[str, Op]]:
        """Every op with its path, in the order of the module tree."""
        return [(path, module) for path, module in self.named_modules() if isinstance(module, Op)]

    def ops_of(self, kind: type[OpT]) -> list[tuple[str, OpT]]:
        """Return every op of a class with its path, for a view that is about that class."""
        return [(path, op) for path, op in self.ops() if isinstance(op, kind)]

    def weighted_ops(self) -> Iterator[tuple[str, Op]]:
        """The ops that hold parameters of their own, with their paths: a tied head's are the embedding's."""
        for path, op in self.ops():
            if op.parameter_count() and not any(tied.startswith(f"{path}.") for tied in self.ties):
                yield path, op

    @property
    def repacked_bytes(self) -> float:
        """As Stored.repacked_bytes, of all ops, a tied head counted once."""
        return sum(op.repacked_bytes for _, op in self.weighted_ops())

    def tensors(self) -> dict[str, tuple[StoredModule, str]]:
        """The checkpoint's tensors that fill the model, by their full names: the module that takes each, and its name
        there. What is tied has no tensor of its own, and neither has what lies in a module that takes all of it.
        """
        within = tuple(f"{path}." for path, module in self.stored_modules() if module.takes_all)
        return {
            self.checkpoint_name(f"{path}.{name}"): (module, name)
            for path, module in self.stored_modules()
            if not path.startswith(within)
            for name in module.tensors()
            if name == "bias" or f"{path}.weight" not in self.ties
        }

    def checkpoint_name(self, path: str) -> str:
        """What a checkpoint calls the tensor at a path of the model: the path without the modules that are unnamed."""
        module: nn.Module = self
        named = []
        *above, name = path.split(".")
        for segment in above:
            module = getattr(module, segment)
            if not getattr(module, "unnamed", False):
                named.append(segment)
        return ".".join([*named, name])


@contextmanager
def listening(ops: Iterable[tuple[str, OpT]], told: Callable[[str, OpT, tuple[Any, ...], Any], None]) -> Iterator[None]:
    """While it lasts, `told` is told of each call of these ops, as it ends."""
    handles = [
        op.register_forward_hook(lambda op, inputs, output, path=path: told(path, op, inputs, output))
        for path, op in ops
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _emptied(model: nn.Module) -> Iterator[None]:
    """While it lasts, the model's parameters are on meta: shapes without numbers."""
    held = [(module, dict(module._parameters)) for module in model.modules()]
    for module, parameters in held:
        for name, parameter in parameters.items():
            if parameter is not None and not parameter.is_meta:
                module._parameters[name] = nn.Parameter(parameter.to("meta"), requires_grad=False)
    try:
        yield
    finally:
        for module, parameters in held:
            module._parameters.update(parameters)
