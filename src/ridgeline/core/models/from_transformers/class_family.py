"""The family of a config whose model is a class of the installed `transformers` package."""

from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from functools import cache, cached_property, lru_cache
from typing import Any, TypeVar

import torch

from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.from_transformers.attention_bridge import IMPLEMENTATION
from ridgeline.core.models.from_transformers.cache_layers import BORROWED, kept_besides_kv
from ridgeline.core.models.from_transformers.class_construction import class_module, context_of
from ridgeline.core.models.from_transformers.class_decoder import ClassDecoder
from ridgeline.core.models.from_transformers.class_division import Shapes, build_part, shapes_of
from ridgeline.core.models.from_transformers.class_lookup import FoundClass, find_class, whole_class
from ridgeline.core.models.from_transformers.class_priced import ClassPriced
from ridgeline.core.models.from_transformers.class_probe import probe
from ridgeline.core.models.from_transformers.division_probe import probe_division
from ridgeline.core.models.from_transformers.encoder_family import encoder_family
from ridgeline.core.models.from_transformers.expert_names import single_expert_names
from ridgeline.core.models.from_transformers.installed_package import package_name, without_warnings
from ridgeline.core.models.from_transformers.not_bridged import NotBridged
from ridgeline.core.models.from_transformers.rank_part import RankPart
from ridgeline.core.models.from_transformers.released_family import ReleasedFamily
from ridgeline.core.models.from_transformers.released_names import ReleasedNames
from ridgeline.core.models.from_transformers.routed_experts import routed_experts
from ridgeline.core.models.from_transformers.text_names import TextNames

DecoderT = TypeVar("DecoderT", bound=ClassDecoder)


@lru_cache(maxsize=8)  # a command asks for the family of its config a dozen times, and a probe takes seconds
def class_family(fields: Fields) -> Family:
    """Return the family of a config that no other family builds: the class of transformers that it names.

    Raises:
        ModelRefused: If transformers is missing or too old, or has no class for the config.
    """
    found = find_class(fields)
    if found.kind == "encoder":
        return encoder_family(found)
    builder = _DecoderBuilder(found, fields)
    return ReleasedFamily(
        found.name,
        found.config.model_type,
        builder.build,
        backbone_prefix=f"{found.type.base_model_prefix}.",
        names=lambda: builder.names,
    )


class _DecoderBuilder:
    """The builder of a decoder class's models, which finds out about the class once."""

    def __init__(self, found: FoundClass, fields: Fields) -> None:
        self._found, self._fields = found, fields
        self._probed = cache(self._probe)

    @without_warnings()
    def build(self, fields: Fields, storage: StorageConfig) -> Model:
        """Build the model of the class on the meta device.

        Raises:
            ModelRefused: If the class cannot be traced.
            Indivisible: If the model does not divide equally over the devices.
        """
        fields.ignore(*fields.values)  # the config class of transformers reads them
        try:
            model: ClassDecoder = self._decoder(storage)
        except NotBridged as error:
            model = self._priced(fields, storage, str(error))
        if not self._found.has_head:
            model.drop_head()
        model.traced_from = package_name()
        return model

    def _decoder(self, storage: StorageConfig) -> ClassDecoder:
        """Build the model of a class whose attention goes through the interface of transformers.

        Raises:
            NotBridged: If the class keeps more of a sequence than keys and values, cannot be traced, or attends in a
                way that the ops do not.
        """
        if kept := kept_besides_kv(self._found.type, self._found.config):
            raise NotBridged(kept)
        context = context_of(self._found.config)

        def build(*, latents: bool) -> ClassDecoder:
            model = self._part(
                storage,
                IMPLEMENTATION,
                lambda module, part: ClassDecoder(module, storage, context, part, latents=latents),
            )
            model.probe = lambda: self._probed(latents)
            model.probe_division = lambda: self._problem_of_ranks
            return model

        model = build(latents=True)
        if model.latent and self._probed(True):  # its code may compute keys from latents in another way than our op
            unused = model.latent
            model = build(latents=False)
            model.unused_latent = unused
        return model

    def _priced(self, fields: Fields, storage: StorageConfig, reason: str) -> ClassPriced:
        """Build the model of a class that the engine cannot run, to be priced.

        Raises:
            ModelRefused: If the class cannot be traced either.
        """
        context = context_of(self._found.config)
        try:
            return self._part(
                storage, "eager", lambda module, part: ClassPriced(module, storage, context, reason, part)
            )
        except NotBridged as error:
            both = f"it is not run, because {reason}, and not priced, because {error}"
            problem = reason if reason in (str(error), BORROWED) else both
            raise fields.refuse(f"{self._found.name} of {package_name()} has no family here; {problem}") from None

    def _part(self, storage: StorageConfig, attention: str, convert: Callable[[Any, RankPart], DecoderT]) -> DecoderT:
        """Build the model of the part of the class that this rank holds.

        Args:
            storage: The dtype, the rank and the KV format.
            attention: The attention implementation of transformers.
            convert: Returns the model of a module of the class, and the part that it is.
        """

        def construct(config: Any) -> Any:
            module = class_module(self._found.type, config, storage.dtype, attention)
            if self._found.section:  # the config of the whole model says whether the head is tied
                module.all_tied_weights_keys = dict(self.names.ties)
            return module

        return build_part(self._found.config, storage, construct, lambda: self._shapes, convert)

    @without_warnings()
    def _probe(self, latents: bool) -> str:
        """Return why the engine cannot run the class, keeping its latents or keys and values; "" if it can."""
        with torch.device("cpu"):  # a model may be being built on the meta device
            return probe(self._found, latents=latents)

    @cached_property
    def _problem_of_ranks(self) -> str:
        """Why the engine cannot divide the class over devices; "" if it can."""
        with without_warnings(), torch.device("cpu"):
            return probe_division(self._found, latents=not self._probed(True))

    @cached_property
    def _shapes(self) -> Shapes:
        """The shapes of the parameters of the whole class, by name."""
        return shapes_of(class_module(self._found.type, self._found.config, torch.float32, "eager"))

    @cached_property
    def names(self) -> ReleasedNames:
        """The tensor names in checkpoints of the class, or of a multimodal model whose text model the class is."""
        module = class_module(self._found.type, self._found.config, torch.float32)
        apart = [
            path
            for path, names in single_expert_names(module).items()
            if routed_experts(module.get_submodule(path), names) is not None
        ]
        whole = whole_class(self._fields) if self._found.section else None
        if whole is not None:
            cls: Any = whole[0]
            # Another part of the model may need a package that is not installed, and may fail in any way without it.
            with suppress(Exception), torch.device("meta"):
                return TextNames(module, cls._from_config(deepcopy(whole[1]), dtype=torch.float32), apart)
        return ReleasedNames(module, apart)
