"""The family of a config whose model is a class of the installed `transformers` package."""

from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from functools import cache, lru_cache, partial
from typing import Any

import torch

from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.from_transformers.attention_bridge import IMPLEMENTATION
from ridgeline.core.models.from_transformers.cache_layers import kept_besides_kv
from ridgeline.core.models.from_transformers.class_construction import class_module, context_of
from ridgeline.core.models.from_transformers.class_decoder import ClassDecoder
from ridgeline.core.models.from_transformers.class_lookup import FoundClass, find_class, whole_class, without_warnings
from ridgeline.core.models.from_transformers.class_priced import ClassPriced
from ridgeline.core.models.from_transformers.class_probe import probe
from ridgeline.core.models.from_transformers.encoder_family import encoder_family
from ridgeline.core.models.from_transformers.expert_names import single_expert_names
from ridgeline.core.models.from_transformers.installed_package import package_name
from ridgeline.core.models.from_transformers.not_bridged import NotBridged
from ridgeline.core.models.from_transformers.released_family import ReleasedFamily, refuse_division
from ridgeline.core.models.from_transformers.released_names import ReleasedNames
from ridgeline.core.models.from_transformers.routed_experts import routed_experts
from ridgeline.core.models.from_transformers.text_names import TextNames


@lru_cache(maxsize=8)  # a command asks for the family of its config a dozen times, and a probe takes seconds
def class_family(fields: Fields) -> Family:
    """Return the family of a config that no other family builds: the class of transformers that it names.

    Raises:
        ModelRefused: If transformers is missing or too old, or has no class for the config.
    """
    found = find_class(fields)
    if found.kind == "encoder":
        return encoder_family(found)
    names = cache(partial(_names, found, fields))
    return ReleasedFamily(
        found.name,
        found.config.model_type,
        partial(_build, found, names, cache(partial(_probed, found))),
        backbone_prefix=f"{found.type.base_model_prefix}.",
        names=names,
    )


def _names(found: FoundClass, fields: Fields) -> ReleasedNames:
    """Return the tensor names in checkpoints of a class, or of a multimodal model whose text model the class is."""
    module = class_module(found.type, found.config, torch.float32)
    apart = [
        path
        for path, names in single_expert_names(module).items()
        if routed_experts(module.get_submodule(path), names) is not None
    ]
    whole = whole_class(fields) if found.section else None
    if whole is not None:
        cls: Any = whole[0]
        # Another part of the model may need a package that is not installed, and may fail in any way without it.
        with suppress(Exception), torch.device("meta"):
            return TextNames(module, cls._from_config(deepcopy(whole[1]), dtype=torch.float32), apart)
    return ReleasedNames(module, apart)


@without_warnings()
def _build(
    found: FoundClass,
    names: Callable[[], ReleasedNames],
    probed: Callable[[], str],
    fields: Fields,
    storage: StorageConfig,
) -> Model:
    """Build the model of a class on the meta device.

    Raises:
        ModelRefused: If the class cannot be traced.
        Indivisible: If the model would be divided over devices.
    """
    refuse_division(found.name, storage)
    fields.ignore(*fields.values)  # the config class of transformers reads them
    reason = kept_besides_kv(found.type, found.config)
    try:
        if not reason:
            module = _constructed(found, storage, names, IMPLEMENTATION)
            model = ClassDecoder(module, storage, context_of(found.config))
            model.probe = probed
    except NotBridged as error:
        reason = str(error)
    if reason:
        model = _priced(found, fields, storage, names, reason)
    model.traced_from = package_name()
    return model


def _priced(
    found: FoundClass, fields: Fields, storage: StorageConfig, names: Callable[[], ReleasedNames], reason: str
) -> ClassPriced:
    """Build the model of a class that the engine cannot run, to be priced.

    Raises:
        ModelRefused: If the class cannot be traced either.
    """
    try:
        module = _constructed(found, storage, names, "eager")
        return ClassPriced(module, storage, context_of(found.config), reason)
    except NotBridged as error:
        problem = ", and ".join(dict.fromkeys((reason, str(error))))
        raise fields.refuse(f"{found.name} of {package_name()} has no family here; {problem}") from None


@without_warnings()
def _probed(found: FoundClass) -> str:
    """Return why the engine cannot run a class; "" if it can."""
    return probe(found)


def _constructed(found: FoundClass, storage: StorageConfig, names: Callable[[], ReleasedNames], attention: str) -> Any:
    """Return the class's module on the meta device, with an attention implementation of this name."""
    module = class_module(found.type, found.config, storage.dtype, attention)
    if found.section:  # the config of the whole model says whether the head is tied
        module.all_tied_weights_keys = dict(names().ties)
    return module
