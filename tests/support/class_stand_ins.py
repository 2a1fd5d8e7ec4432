"""A stand-in for a model whose parameters are those of a class of transformers, without its ops."""

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForMultimodalLM, PreTrainedModel
from typing_extensions import override

from ridgeline.core.models.common.priced_module import PricedModule
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.common.token_tables import TokenTables
from ridgeline.core.models.from_transformers.released_family import ReleasedFamily
from ridgeline.core.models.from_transformers.released_names import ReleasedNames
from ridgeline.core.models.from_transformers.small_config import small_config
from ridgeline.core.ops.stored_module import StoredModule, weight
from ridgeline.core.ops.work import RowAxis


class Held(StoredModule):
    """A module with parameters that are loaded under their own names."""

    @override
    def unfilled_copy(self) -> StoredModule:
        copy = Held()
        copy.weight = weight(*self.get_parameter("weight").shape, dtype=self.get_parameter("weight").dtype)
        return copy


class StandIn(PricedModule):
    """Parameters at the paths that their names say."""

    def __init__(self, tensors: Mapping[str, Tensor], ties: Mapping[str, str], dtype: torch.dtype) -> None:
        super().__init__()
        self.storage = StorageConfig(dtype)
        for name, tensor in tensors.items():
            module: nn.Module = self
            *above, own = name.split(".")
            for segment in above:
                if segment not in module._modules:
                    module.add_module(segment, Held())
                module = module.get_submodule(segment)
            held = dtype if tensor.is_floating_point() else tensor.dtype
            parameter = torch.empty(tensor.shape, dtype=held, device="meta")
            setattr(module, own, nn.Parameter(parameter, requires_grad=False))
        if ties:
            self.ties = dict(ties)
            of_tables = {name: held for name, held in ties.items() if name.endswith(".weight")}
            uses = (*of_tables.values(), *of_tables)
            self.tables = TokenTables({name: name.removesuffix(".weight") for name in uses}, of_tables)
            self.tie()

    @override
    def _run_on_meta(self, rows: Mapping[RowAxis, int]) -> None:
        raise NotImplementedError


def small_class(model_type: str) -> PreTrainedModel:
    """Return the causal class of a model type, small, on the current device and without values."""
    return _small(AutoModelForCausalLM, model_type)


def small_multimodal(model_type: str) -> PreTrainedModel:
    """Return the multimodal class of a model type, in the same way."""
    return _small(AutoModelForMultimodalLM, model_type)


def _small(registered: Any, model_type: str) -> PreTrainedModel:
    config = small_config(CONFIG_MAPPING[model_type]())
    return cast(PreTrainedModel, registered.from_config(config, dtype=torch.float32))


def stand_in(model_type: str, dtype: torch.dtype = torch.float32) -> tuple[StandIn, ReleasedFamily]:
    """Return a stand-in for a small causal class, on meta, and its family."""
    with torch.device("meta"):
        names = ReleasedNames(small_class(model_type))
    model = StandIn(names.tensors, names.ties, dtype)
    return model, named_family(names)


def named_family(names: ReleasedNames) -> ReleasedFamily:
    """Return a family with these names, which builds nothing."""

    def build(*_: object) -> PricedModule:
        raise NotImplementedError

    return ReleasedFamily("Class", "class", build, names.prefix, names=lambda: names)
