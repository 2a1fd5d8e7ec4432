"""Classes of transformers that are only priced, next to the class's own model, which their prices are compared with."""

from typing import Any

import torch

from ridgeline.core.models import Fields, build
from ridgeline.core.models.from_transformers.class_family import class_family
from ridgeline.core.models.from_transformers.class_lookup import find_class
from ridgeline.core.models.from_transformers.class_priced import ClassPriced
from ridgeline.price.price import Price


def priced_class(fields: Fields) -> tuple[ClassPriced, Price]:
    """Return the model of a config in bf16, built as its class, and its price."""
    model = build(fields, torch.bfloat16, family=class_family(fields))
    assert isinstance(model, ClassPriced)
    return model, Price(model)


def eager_class(fields: Fields) -> Any:
    """Return the class's own model in bf16, with random weights and without fused kernels."""
    found = find_class(fields)
    found.config._attn_implementation, found.config._experts_implementation = "eager", "eager"
    return found.type._from_config(found.config, dtype=torch.bfloat16).eval()
