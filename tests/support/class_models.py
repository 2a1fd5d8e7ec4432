"""Models that say that a class of transformers defines them, and that a family of ours builds."""

from collections.abc import Mapping
from typing import Any

import pytest

from engine.small_models import LLAMA
from ridgeline.core.models import registry
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.priced_module import PricedModule
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.families import llama
from ridgeline.core.ops.norm import AddRMSNorm
from ridgeline.core.ops.op import NOT_MODELLED

ARCHITECTURE = "StrangerForCausalLM"
"""The architecture of these models, which has neither a family nor a class."""
CLASS_LLAMA: Mapping[str, Any] = {**LLAMA, "architectures": [ARCHITECTURE], "model_type": "stranger"}
FROM = "transformers 5.24"


class ShapedNorm(AddRMSNorm):
    """A norm that stands for the operations of a class of which only the shapes are known."""

    kind = NOT_MODELLED
    traced = "elementwise"


def register_class(monkeypatch: pytest.MonkeyPatch, *, priced_only: str = "", unmodelled: bool = True) -> None:
    """Make `ARCHITECTURE` a model that is traced from its class, for the duration of a test."""

    def build(fields: Fields, storage: StorageConfig) -> PricedModule:
        model = llama.FAMILY.build(fields, storage)
        assert isinstance(model, Model)
        model.traced_from, model.priced_only = FROM, priced_only
        for _, op in model.ops():
            if unmodelled and isinstance(op, AddRMSNorm):
                op.__class__ = ShapedNorm
        return model

    families = (Family(ARCHITECTURE, "stranger", build), *registry.FAMILIES)
    monkeypatch.setattr(registry, "FAMILIES", families)
