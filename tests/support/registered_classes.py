"""Small models of the classes that transformers registers for text generation, as their releases are stored."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

from ridgeline.backends.model_loader import prepare_on_cpu
from ridgeline.core.checkpoint.source import open_source
from ridgeline.core.checkpoint.weight_loader import load_weights
from ridgeline.core.models import FAMILIES
from ridgeline.core.models.building import build_to_run
from ridgeline.core.models.common.architecture_alias import alias_of
from ridgeline.core.models.common.fields import Fields, ModelRefused
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.from_transformers.class_family import class_family
from ridgeline.core.models.from_transformers.class_lookup import registered_causal_types
from ridgeline.core.models.from_transformers.small_config import small_config
from ridgeline.core.models.registry import VISION
from support.checkpoints import fill_random
from support.small_transformers import ALL_KINDS, NEEDED

COMPLETED: Mapping[str, Mapping[str, Any]] = {
    "bamba": ALL_KINDS["bamba"],
    "granitemoehybrid": ALL_KINDS["granitemoehybrid"],
    "gemma4_assistant": NEEDED["gemma4_assistant"],
    "emu3": {"vocabulary_map": {"<|extra_200|>": 5, "<image>": 6}},
    "lfm2": {"full_attn_idxs": [2, 5, 8, 10, 12, 14], "num_hidden_layers": 16},
    "minimax_m3_vl_text": {
        "num_hidden_layers": 6,
        "sparse_attention_config": {"sparse_attention_freq": [0] * 3 + [1] * 3},
    },
}
"""Arguments without which the config class of a `model_type` makes no config, or none like those of releases."""
NATIVE = {name for family in (*FAMILIES, *VISION) for name in (family.architecture, *family.also)}
"""The architectures that a family here builds."""

READS = "it reads a text and generates none (`ridgeline embed`)"
"""The remark on a class that runs as an encoder."""

Group = Literal["native", "generic", "priced only", "refused"]


@dataclass(frozen=True)
class Standing:
    """The group of a registered class, and why the engine does not run it if it does not."""

    name: str
    group: Group
    reason: str = ""


def registered_config(model_type: str, **changes: Any) -> PreTrainedConfig:
    """Return a small config of a registered `model_type`, with each choice that its default config makes.

    Args:
        model_type: A model type that transformers registers for text generation.
        changes: Fields that are set to other values.
    """
    config = CONFIG_MAPPING[model_type](**COMPLETED.get(model_type, {}))
    if hasattr(config, "is_decoder") and not config.is_encoder_decoder:
        config.is_decoder = True  # the classes of encoders are registered too
    small = small_config(config)
    return type(small).from_dict({**small.to_dict(), **changes}) if changes else small


def registered_fields(model_type: str, **changes: Any) -> Fields:
    """Return the config.json of a small model of a registered `model_type`."""
    values = json.loads(registered_config(model_type, **changes).to_json_string(use_diff=False))
    return Fields({**values, "architectures": [registered_causal_types()[model_type]]}, "config.json")


def standing(model_type: str, **changes: Any) -> Standing:
    """Return what the engine does with the class that transformers registers for a `model_type`."""
    name = registered_causal_types()[model_type]
    if name in NATIVE or alias_of(name, model_type):
        return Standing(name, "native")
    fields = registered_fields(model_type, **changes)
    try:
        family = class_family(fields)
        with torch.device("meta"):
            model = family.build(fields, StorageConfig(torch.float32))
    except ModelRefused as error:
        return Standing(name, "refused", str(error))
    assert isinstance(model, Model)
    if model.priced_only:
        return Standing(name, "priced only", model.priced_only)
    return Standing(name, "generic", "" if family.generates else READS)


def random_class_model(model_type: str, seed: int, **changes: Any) -> PreTrainedModel:
    """Return a small model of a registered class in fp32, with random weights that matter.

    A class with further inputs, such as images, is whole.
    """
    config = registered_config(model_type, **changes)
    cls: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if not issubclass(type(config), cls.config_class):  # a text model, which is released inside a larger one
        cls = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING.get(type(config), cls)
    if not issubclass(type(config), cls.config_class):
        config = config.get_text_config()
    config._attn_implementation = config._experts_implementation = "eager"
    model: PreTrainedModel = cls._from_config(config).float().eval()
    fill_random(model, seed)
    return model


def load_class(folder: Path) -> Model:
    """Return the model of a folder, defined by its class in transformers even if a family here builds it."""
    source = open_source(str(folder))
    family = class_family(source.config)
    model = build_to_run(source.config, family=family)
    load_weights(model, source, family=family)
    prepare_on_cpu(model)
    return model
