"""The search for the classes of the installed `transformers` that define the model of a config.json.

Only classes of the package are used. Code that lies next to a checkpoint (`auto_map`) is never imported. Importing
transformers takes seconds, so functions import it when no family of Ridgeline builds a config.
"""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.from_transformers.class_config import known_type, transformers_config, unknown_architecture
from ridgeline.core.models.from_transformers.installed_package import (
    package_name,
    package_problem,
    stated_architecture,
    without_warnings,
)

if TYPE_CHECKING:
    from transformers.configuration_utils import PreTrainedConfig
    from transformers.modeling_utils import PreTrainedModel

_HEADED = re.compile(r"\w+(ForCausalLM|LMHeadModel|ModelWithLMHead|WithLMHeadModel|GenerationDecoder)")


@dataclass(frozen=True, slots=True)
class FoundClass:
    """The class of transformers that defines a config's model, and the config to construct it with."""

    name: str
    """The name of the class."""
    kind: Literal["decoder", "encoder"]
    """Whether the class generates text, or returns the hidden states of a text that it reads in one pass."""
    type: "type[PreTrainedModel]"
    config: "PreTrainedConfig"
    """The config of the class: that of the text model if the whole one also describes other inputs."""
    section: str = ""
    """The section of config.json that `config` was read from, such as `text_config`; "" for the whole file."""
    has_head: bool = True
    """Whether checkpoints have the head of the class; embedding models are often released without it."""


def find_class(fields: Fields) -> FoundClass:
    """Return the class of transformers that defines a config's model.

    Raises:
        ModelRefused: If transformers is missing or too old, if it does not know the architecture, or if the class is
            neither a decoder nor an encoder of text.
    """
    config = transformers_config(fields)
    if not _defines(type(config), fields.architecture):
        raise fields.refuse(unknown_architecture(fields))
    whole = _registered_class(type(config))
    text, section = _text_part(config)
    architecture = "" if section else fields.architecture
    causal = causal_class(text, architecture)
    if causal is None and section and whole is not None and whole.config_class is type(text):
        causal = whole
    if causal is not None:
        return FoundClass(causal.__name__, "decoder", causal, text, section)
    if whole is not None and not section and headless_class(config, architecture) is not None:
        return FoundClass(architecture, "decoder", whole, config, has_head=False)
    encoder = None if section else encoder_class(config, architecture)
    if encoder is not None:
        return FoundClass(encoder.__name__, "encoder", encoder, config)
    raise fields.refuse(_no_class(fields, text, section))


def is_known(fields: Fields) -> bool:
    """Return whether a usable transformers is installed that has the `model_type` and the class of a config."""
    model_type = known_type(fields) if package_problem() is None else None
    if model_type is None:
        return False
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return _defines(CONFIG_MAPPING[model_type], fields.architecture)


def contradiction(fields: Fields) -> str:
    """Return why a config that `is_known` denies names a class of another `model_type`; "" if it does not."""
    types = _types_of(fields.architecture) if fields.architecture and package_problem() is None else []
    stated = fields.values.get("model_type")
    if not types or stated in types:
        return ""
    given = "no model_type" if stated is None else f"model_type {stated}"
    return (
        f"the config states {given}, but {fields.architecture} of {package_name()} is a class of model_type "
        f"{' or '.join(types)}; correct model_type or architectures"
    )


def _types_of(name: str) -> list[str]:
    """Return the model types for which transformers registers a class of this name."""
    from transformers.models.auto import modeling_auto

    mappings = (
        modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
        modeling_auto.MODEL_MAPPING_NAMES,
    )
    found = set()
    for names in mappings:
        found |= {kind for kind, held in names.items() if name in (held if isinstance(held, tuple) else (held,))}
    return sorted(found)


def causal_class(config: "PreTrainedConfig", architecture: str) -> "type[PreTrainedModel] | None":
    """Return the class that generates text with a config's model, or None if it has none.

    Args:
        config: The config, as its class reads it.
        architecture: The class that config.json names; "" if it names none. A class without a head for the next token
            gives None, and so does a class of another model.
    """
    if config.is_encoder_decoder:
        return None
    registered = _registered_class(type(config))
    if not architecture:
        return None if _predicts_masked(type(config)) else registered
    named = _class_named(architecture, registered or _base_class(type(config)))
    if named is None or (named is _masked_class(type(config)) and not getattr(config, "causal", False)):
        return None
    return named if named is registered or _HEADED.fullmatch(named.__name__) else None


def headless_class(config: "PreTrainedConfig", architecture: str) -> "type[PreTrainedModel] | None":
    """Return the class that config.json names if it is a decoder's without a head, such as MistralModel; else None."""
    base = _base_class(type(config))
    if base is None or config.is_encoder_decoder or _predicts_masked(type(config)):
        return None
    return base if architecture and _class_named(architecture, base) is base else None


def encoder_class(config: "PreTrainedConfig", architecture: str) -> "type[PreTrainedModel] | None":
    """Return the class of a config's encoder of text that the engine runs, or None if its model is no such encoder.

    An encoder is a model that transformers also registers for masked tokens, such as DistilBERT or MPNet. The heads of
    its training are left out. A class that classifies texts is whole.

    Args:
        config: The config, as its class reads it.
        architecture: The class that config.json names; "" if it names none.
    """
    base = _base_class(type(config))
    if base is None or config.is_encoder_decoder or not _predicts_masked(type(config)):
        return None
    if not architecture:
        return base
    named = _class_named(architecture, base)
    if named is not None and is_classifier(named):
        return named
    trained = named is base or named is _masked_class(type(config)) or architecture.endswith("ForPreTraining")
    return base if named is not None and trained else None


def is_classifier(cls: "type[PreTrainedModel]") -> bool:
    """Return whether a class gives the scores of a text's labels."""
    return cls.__name__.endswith("ForSequenceClassification")


def whole_class(fields: Fields) -> "tuple[type[PreTrainedModel], PreTrainedConfig] | None":
    """Return the class of a whole multimodal model and its config; None if transformers cannot import the class.

    Args:
        fields: The config, for which `find_class` found the class of the text model.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIMODAL_LM_MAPPING

    config = transformers_config(fields)
    found = _class_named(fields.architecture, _base_class(type(config))) if fields.architecture else None
    found = found or _mapped(MODEL_FOR_MULTIMODAL_LM_MAPPING, type(config))
    return None if found is None else (found, config)


def registered_causal_types() -> dict[str, str]:
    """Return the name of the class that transformers registers for text generation, by `model_type`."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return dict(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def _text_part(config: "PreTrainedConfig") -> "tuple[PreTrainedConfig, str]":
    """Return the config of the text model inside that of a multimodal model, and the section's name.

    For a model of text only, they are the config itself and "".
    """
    text = getattr(config, "text_config", None)
    return (config, "") if text is None or config.is_encoder_decoder else (text, "text_config")


def _no_class(fields: Fields, config: "PreTrainedConfig", section: str) -> str:
    """Return why no class of a known `model_type` is used."""
    called = f"{stated_architecture(fields)} of {package_name()}"
    if section:
        return f"{called}: its text model ({config.model_type}) has no class that generates text"
    if config.is_encoder_decoder:
        return f"{called} is an encoder-decoder; only decoders and encoders of text are supported"
    if _predicts_masked(type(config)):
        return (
            f"{called} has a head that is not supported: use a checkpoint without a head, or with one for masked "
            "tokens or for the classification of texts"
        )
    return f"{called} is neither a model that generates text nor an encoder of text"


def _defines(config_class: "type[PreTrainedConfig]", architecture: str) -> bool:
    """Return whether transformers has a class of a name for a model type; "" names the type's own class."""
    known = _registered_class(config_class) or _base_class(config_class)
    return not architecture or _class_named(architecture, known) is not None


def _mapped(mapping: Any, config_class: "type[PreTrainedConfig]") -> "type[PreTrainedModel] | None":
    """Return a mapping's class for a config class; None if there is none that can be imported."""
    try:
        with without_warnings():
            found = mapping.get(config_class, None)
    except (ImportError, AttributeError):  # the file needs a package that is not installed
        return None
    return found[0] if isinstance(found, tuple) else found


def _registered_class(config_class: "type[PreTrainedConfig]") -> "type[PreTrainedModel] | None":
    """Return the class that transformers registers for text generation with a config class."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    return _mapped(MODEL_FOR_CAUSAL_LM_MAPPING, config_class)


def _masked_class(config_class: "type[PreTrainedConfig]") -> "type[PreTrainedModel] | None":
    """Return the class that transformers registers for masked tokens with a config class."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING

    return _mapped(MODEL_FOR_MASKED_LM_MAPPING, config_class)


def _predicts_masked(config_class: "type[PreTrainedConfig]") -> bool:
    """Return whether transformers registers a model for masked tokens: it reads a text in both directions."""
    return _masked_class(config_class) is not None


def _base_class(config_class: "type[PreTrainedConfig]") -> "type[PreTrainedModel] | None":
    """Return the class of a model without a head."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    return _mapped(MODEL_MAPPING, config_class)


def _class_named(name: str, sibling: "type[PreTrainedModel] | None") -> "type[PreTrainedModel] | None":
    """Return the model class of a name that the file of another class defines; None if there is none.

    Some configs spell the name with other underscores or capitals than transformers.
    """
    from importlib import import_module

    from transformers.modeling_utils import PreTrainedModel

    if sibling is None:
        return None
    for known, found in vars(import_module(sibling.__module__)).items():
        is_model = isinstance(found, type) and issubclass(found, PreTrainedModel)
        if is_model and found.__module__ == sibling.__module__ and _letters(known) == _letters(name):
            return found
    return None


def _letters(name: str) -> str:
    """Return a class name in lower case without underscores."""
    return name.replace("_", "").lower()
