"""The config.json of a model as the config class of the installed `transformers` reads it.

Importing transformers takes seconds, so functions import it when no family of Ridgeline builds a config.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.from_transformers.config_values import FLOAT_TAG, refuse_numbers, refuse_sizes
from ridgeline.core.models.from_transformers.installed_package import (
    package_name,
    require_package,
    stated_architecture,
    without_warnings,
)

if TYPE_CHECKING:
    from transformers.configuration_utils import PreTrainedConfig

# Keys of a config that choose code instead of describing the model: kernels of the hub, and backbones whose config
# transformers would fetch.
_CHOOSES_CODE = re.compile(
    r"_?(attn|experts)_implementation(_internal)?|use_kernels?|auto_map|backbone|use_(timm|pretrained)_backbone|__\w*"
)
_VALIDATOR = re.compile(r"((Class v|V)alidation error for (validator|field) '\w+': \w+: )+")  # before an error's text
_TEXT = "text_config"


def transformers_config(fields: Fields) -> "PreTrainedConfig":
    """Return a config.json as the config class of transformers for its `model_type` reads it.

    Keys that choose code (an attention kernel, a backbone of the hub) are left out.

    Raises:
        ModelRefused: If transformers is missing or too old, has no such `model_type`, or if its config class refuses a
            value.
    """
    require_package(fields)
    model_type = _model_type(fields)
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config_class = CONFIG_MAPPING[model_type]
    # These reads refuse values of other types, for which config classes raise errors that name no field.
    _ = fields.section("quantization_config"), fields.section(_TEXT), fields.stated_dtype
    refuse_sizes(fields, fields.values, config_class)
    text = fields.values.get(_TEXT)
    if isinstance(text, Mapping):
        refuse_sizes(fields, text, config_class.sub_configs.get(_TEXT, config_class), f"{_TEXT}.")
    refuse_numbers(fields)
    try:
        with without_warnings():
            return config_class.from_dict(_without_code(fields.values))
    except Exception as error:  # config classes raise errors of many types
        problem = _VALIDATOR.sub("", " ".join(str(error).split())) or type(error).__name__
        raise fields.refuse(f"the config class of {package_name()} for {model_type} refuses it: {problem}") from None


def known_type(fields: Fields) -> str | None:
    """Return the `model_type` of transformers that a config states or whose class it names; None if there is none."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    stated, architecture = fields.values.get("model_type"), fields.architecture
    if stated is None:
        return next((key for key, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items() if name == architecture), None)
    return stated if isinstance(stated, str) and stated in CONFIG_MAPPING else None


def unknown_architecture(fields: Fields) -> str:
    """Return why a config whose model transformers does not know is refused."""
    return f"{package_name()} has no class for {stated_architecture(fields)}{checkpoint_code(fields)}"


def checkpoint_code(fields: Fields) -> str:
    """Return a clause of an error that names the files with a model's code next to its weights; "" if there are none.

    A config names them in `auto_map`.
    """
    stated = fields.values.get("auto_map")
    named = [value for value in stated.values() if isinstance(value, str)] if isinstance(stated, dict) else []
    modules = sorted({f"{name.rpartition('--')[2].partition('.')[0]}.py" for name in named})
    return f": it needs code of the checkpoint ({', '.join(modules)}), which is never run" if modules else ""


def _model_type(fields: Fields) -> str:
    """Return the `model_type` of transformers that a config states, or the one whose class it names.

    Raises:
        ModelRefused: If transformers has no such type.
    """
    found = known_type(fields)
    if found is None:
        raise fields.refuse(unknown_architecture(fields))
    return found


def _without_code(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a config without the keys that choose code, also in its sections."""
    return {name: _plain(value) for name, value in values.items() if not _CHOOSES_CODE.fullmatch(name)}


def _plain(value: Any) -> Any:
    """Return a value of a config without keys that choose code, and with the numbers that JSON cannot express."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    return float(value[FLOAT_TAG]) if value.keys() == {FLOAT_TAG} else _without_code(value)
