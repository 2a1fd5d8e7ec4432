"""The family of an encoder of text whose model is a class of the installed `transformers` package."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import torch
from typing_extensions import override

from ridgeline.core.models.common.embedder import Embedder, read_labels
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.from_transformers.class_encoder import ClassEncoder, encoder_module
from ridgeline.core.models.from_transformers.class_lookup import FoundClass
from ridgeline.core.models.from_transformers.cost_fit import NotLinear
from ridgeline.core.models.from_transformers.encoder_costs import trace_costs
from ridgeline.core.models.from_transformers.encoder_probe import OTHER_INPUTS, EncoderProbe, probe_encoder
from ridgeline.core.models.from_transformers.installed_package import package_name, without_warnings
from ridgeline.core.models.from_transformers.not_bridged import NotBridged
from ridgeline.core.models.from_transformers.released_family import ReleasedFamily
from ridgeline.core.models.from_transformers.released_names import ReleasedNames
from ridgeline.core.ops.shard import Indivisible


@dataclass(frozen=True, slots=True)
class ClassEncoderFamily(ReleasedFamily):
    """The family of an encoder that a class of transformers defines."""

    @override
    def ignores(self, name: str) -> bool:
        """Return whether a checkpoint tensor that fills no parameter belongs to a head or pooler of an encoder."""
        names = self.names()
        own = names.model_name(name).removeprefix(self.backbone_prefix)
        parts = {known.partition(".")[0] for known in names.tensors}
        return own.partition(".")[0] not in parts or names.is_ignored(name)


def encoder_family(found: FoundClass) -> Family:
    """Return the family of the encoders that a class defines."""
    return ClassEncoderFamily(
        found.name,
        found.config.model_type,
        partial(_build, found, cache(partial(_probed, found))),
        f"{found.type.base_model_prefix}.",
        kind="encoder",
        names=cache(lambda: ReleasedNames(encoder_module(found.type, found.config, torch.float32, packed=False))),
    )


@without_warnings()
def _probed(found: FoundClass) -> EncoderProbe:
    """Return how the engine runs an encoder's class."""
    return probe_encoder(found)


@without_warnings()
def _build(found: FoundClass, probed: Callable[[], EncoderProbe], fields: Fields, storage: StorageConfig) -> Model:
    """Build the model of an encoder's class on the meta device, to run in the way that the probe finds.

    A classifier is an embedder whose results are the scores of labels.

    Raises:
        ModelRefused: If the class needs other inputs than the ids of tokens, or cannot be traced.
        Indivisible: If the model would be divided over devices.
    """
    if storage.shard.size > 1 or storage.experts is not None:
        raise Indivisible(f"{found.name} is an encoder of transformers, which runs on one device; give --devices 1")
    fields.ignore(*fields.values)  # the config class of transformers reads them
    called = f"{found.name} of {package_name()} has no family here, and"
    if found.config.model_type in OTHER_INPUTS:
        raise fields.refuse(f"{called} {OTHER_INPUTS[found.config.model_type]}")
    probe = probed()
    try:
        module = encoder_module(found.type, found.config, storage.dtype, packed=probe.run.packed)
        model = ClassEncoder(module, storage, probe.run)
        trace_costs(model)
    except (NotBridged, NotLinear) as error:
        raise fields.refuse(f"{called} {error}") from None
    model.traced_from, model.priced_only = package_name(), probe.problem
    return Embedder(model, "last", model.result_width, {}, **read_labels(fields)) if model.pooled else model
