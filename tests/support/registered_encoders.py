"""The groups of the encoders of text that transformers registers: run by their classes, priced only, or refused."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from ridgeline.core.models.common.fields import Fields, ModelRefused
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.from_transformers.class_encoder import ClassEncoder
from ridgeline.core.models.from_transformers.class_lookup import find_class
from ridgeline.core.models.from_transformers.encoder_family import encoder_family

_STATED: Mapping[str, Mapping[str, Any]] = {
    "albert": {"num_hidden_groups": 1, "inner_group_num": 1},
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
}
"""Fields that every released config of a model type states, and without which the default config is no model."""


@dataclass(frozen=True, slots=True)
class EncoderGroup:
    """The group of a registered encoder."""

    architecture: str
    """The name of the encoder's class."""
    group: Literal["generic", "priced only", "refused"]
    """Whether the engine runs the class, only prices it, or refuses it."""
    packed: bool = False
    """Whether all texts of a step run as one sequence, instead of those of one length at a time."""
    reason: str = ""
    """The reason why it does not run; "" if it does."""


def registered_encoders() -> dict[str, str]:
    """Return the name of the class without a head of each model that transformers registers for masked tokens, by type.

    Encoder-decoders are left out.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES, MODEL_MAPPING_NAMES

    found = {}
    for model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        names = MODEL_MAPPING_NAMES[model_type]
        if not CONFIG_MAPPING[model_type]().is_encoder_decoder:
            found[model_type] = names if isinstance(names, str) else names[0]
    return found


def encoder_group(model_type: str, architecture: str) -> EncoderGroup:
    """Return the group of a registered encoder, judged by its default config.

    Args:
        model_type: Its `model_type`.
        architecture: The name of its class without a head.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = CONFIG_MAPPING[model_type](**_STATED.get(model_type, {}))
    values = json.loads(config.to_json_string(use_diff=False))
    fields = Fields({**values, "architectures": [architecture]}, "config.json")
    try:
        with torch.device("meta"):
            model = encoder_family(find_class(fields)).build(fields, StorageConfig(torch.float32))
    except ModelRefused as error:
        return EncoderGroup(architecture, "refused", reason=str(error).removeprefix("config.json: "))
    assert isinstance(model, ClassEncoder)
    group: Literal["generic", "priced only"] = "priced only" if model.priced_only else "generic"
    return EncoderGroup(architecture, group, model.run.packed, model.priced_only)
