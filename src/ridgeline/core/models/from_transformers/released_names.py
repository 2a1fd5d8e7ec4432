"""ReleasedNames: the names of tensors in released checkpoints, and of the parameters that they fill in a class.

A class of transformers often names and groups its parameters differently from the checkpoints that were released.
transformers lists the changes by model type (conversion_mapping.py): renamed tensors (`WeightRenaming`), and tensors
that are converted (`WeightConverter`), such as experts that are stacked into one tensor. This module applies
transformers' own objects to names; a `TensorConversion` applies them to tensors.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from torch import Tensor, nn

from ridgeline.core.models.common.fields import ModelRefused
from ridgeline.core.models.from_transformers.tensor_conversion import (
    Converter,
    TensorConversion,
    describe_quantised_part,
)

# A tensor's name as its module and the part of the module: `weight_scale_inv`, or `weight.absmax` of bitsandbytes.
_PART = re.compile(r"(?P<module>.+?)\.(?P<part>weight\..+|[^.]+)")
# Buffers that old checkpoints have and no class loads.
_OLD_BUFFERS = (r"rotary_emb\.inv_freq", r"(^|\.)position_ids$")


@dataclass(frozen=True, slots=True)
class _Parameters:
    """The parameters of a class on meta, for operations that ask the model for shapes."""

    tensors: Mapping[str, Tensor]

    def get_parameter(self, name: str) -> Tensor:
        """Return a parameter on meta by its name."""
        return self.tensors[name]


@dataclass(frozen=True, slots=True)
class _TensorPlace:
    """The place of a checkpoint tensor in a class."""

    name: str
    """The parameter that a tensor fills, alone or with others."""
    part: str
    """The name of a tensor after all renamings and before any conversion."""
    pattern: str | None
    """The pattern of the converter that a tensor is a source of; None if it fills its parameter alone."""
    is_known: bool
    """Whether the model has the parameter."""


class ReleasedNames:
    """The map from the tensors of a released checkpoint to the parameters of a class of transformers."""

    def __init__(self, module: nn.Module, apart: Collection[str] = ()) -> None:
        """Read the names and changes of names of a class.

        Args:
            module: The class's module (a `PreTrainedModel`) on meta, as transformers built it: before any of its
                modules is replaced by an op.
            apart: The paths of modules in whose place an op loads the sources of conversions one by one, such as
                experts.
        """
        self._apart = frozenset(apart)
        self._loading = import_module("transformers.core_model_loading")
        pretrained: Any = module
        self.tensors: Mapping[str, Tensor] = module.state_dict()
        """The parameters and persistent buffers of a class, on meta, by name; tied ones too."""
        self.prefix: str = f"{pretrained.base_model_prefix}." if pretrained.base_model_prefix else ""
        """The prefix of the names that checkpoints of the bare model (without a head) leave out."""
        self.ties: Mapping[str, str] = dict(pretrained.all_tied_weights_keys)
        """The parameters that share another's tensor by the config: name to name."""
        self._config = pretrained.config
        mapping = import_module("transformers.conversion_mapping")
        changes = mapping.get_model_conversion_mapping(module)
        self._renamings = [each for each in changes if isinstance(each, self._loading.WeightRenaming)]
        self._converters = [each for each in changes if isinstance(each, self._loading.WeightConverter)]
        today = mapping.get_model_conversion_mapping(module, add_legacy=False)
        self._reverse = [each.reverse_transform() for each in reversed(today)]
        ignored = pretrained._keys_to_ignore_on_load_unexpected or ()
        self._ignored = re.compile("|".join(f"({pattern})" for pattern in (*ignored, *_OLD_BUFFERS)))
        self._places: dict[str, _TensorPlace] = {}

    def model_name(self, name: str) -> str:
        """Return the class's name of a checkpoint's tensor or module.

        For a source of a conversion, it is the tensor that the source is a part of. A tensor of a quantised module,
        such as `q_proj.weight_scale`, is renamed as the module's weight.
        """
        place = self._place(name)
        if place.is_known:
            return place.name
        for module, part in ((name, ""), _split(name)):
            weight = self._place(f"{module}.weight")
            if weight.is_known and weight.pattern is None:
                own, _ = _split(weight.name)
                return f"{own}.{part}" if part else own
        return place.name

    def knows(self, name: str) -> bool:
        """Return whether a checkpoint tensor fills a parameter, alone or with others."""
        return self._place(name).is_known

    def is_ignored(self, name: str) -> bool:
        """Return whether the class ignores a checkpoint tensor that fills no parameter, judged by its name."""
        place = self._place(name)
        if place.is_known:
            return place.name in self.ties and not place.name.endswith(".weight")  # a stored copy of a tied bias
        return self._ignored.search(place.name) is not None

    def conversions(self, names: Iterable[str]) -> list[TensorConversion]:
        """Return the conversions by which some tensors of a checkpoint together fill parameters.

        Args:
            names: The names of all tensors of the checkpoint.

        Raises:
            ModelRefused: If two tensors are the same part of a parameter, or a part is quantised.
        """
        groups: dict[str, dict[str, dict[str, str]]] = {}  # by parameter, pattern and part: the source
        for name in sorted(names, key=self._loading.dot_natural_key):
            place = self._place(name)
            if not place.is_known:
                self._refuse_quantised(name)
            elif place.pattern is not None:
                group = groups.setdefault(place.name, {}).setdefault(place.pattern, {})
                if (other := group.setdefault(place.part, name)) != name:
                    raise ModelRefused(
                        f"tensor {name} is the same part of {place.name} as {other}; fetch the checkpoint again"
                    )
        return [self._conversion(target, group) for target, group in groups.items()]

    def _conversion(self, target: str, group: Mapping[str, Mapping[str, str]]) -> TensorConversion:
        """Return the conversion of the source tensors of one target, in the order of its converter's patterns.

        Args:
            target: The name of the first tensor that the conversion makes.
            group: The source tensors by the converter's pattern and by part.
        """
        converter = self._converter_of(next(iter(group)))
        sources = {pattern: tuple(group[pattern].values()) for pattern in converter.source_patterns if pattern in group}
        stored = {part: name for each in group.values() for part, name in each.items()}
        expected = {self._place(name).part: name for name in self.released_tensors(target)}
        known = not stored.keys().isdisjoint(expected)  # otherwise the checkpoint spells its tensors in another way
        missing = [name for part, name in expected.items() if known and part not in stored]
        extra = [name for part, name in stored.items() if known and part not in expected]
        parameters = _Parameters(self.tensors)
        return TensorConversion(
            target, sources, converter, parameters, self._config, missing=tuple(missing), extra=tuple(extra)
        )

    def _converter_of(self, pattern: str) -> Converter:
        """Return the converter with a source pattern; if several have it, the last, as in transformers."""
        return next(each for each in reversed(self._converters) if pattern in each.source_patterns)

    def _refuse_quantised(self, name: str) -> None:
        """Raise ModelRefused if a tensor is a quantised part of a parameter that would have to be merged."""
        weight = self._place(f"{_split(name)[0]}.weight")
        if weight.is_known and weight.pattern is not None and not self.is_ignored(name):
            raise ModelRefused(describe_quantised_part(name, weight.name))

    def released_tensors(self, name: str) -> tuple[str, ...]:
        """Return the tensors of a released checkpoint that fill a parameter of the class, in their usual spelling.

        It is the first of several parameters that one tensor fills together. The reverse of some changes of names is
        not unique: `checkpoint_names` tries several.
        """
        return self._reversed(
            name, [each for each in self._reverse if not isinstance(each, self._loading.PrefixChange)]
        )

    def checkpoint_names(self, module: str) -> tuple[str, ...]:
        """Return every name that released checkpoints and lists of modules use for a module that has a weight.

        The usual name is first. A module whose weight is merged from several has the names of these. Some changes of
        names have no unique reverse, so names without one of the changes are tried too; each name leads back.
        """
        name = module if module in self.tensors else f"{module}.weight"
        spelt = [*self.released_tensors(name), *self._reversed(name, self._reverse), name]
        for left_out in self._reverse:
            spelt += self._reversed(name, [each for each in self._reverse if each is not left_out])
        spelt += [each.removeprefix(self.prefix) for each in spelt]
        known = [each for each in dict.fromkeys(spelt) if self._place(each).name == name] or [name]
        return tuple(each.removesuffix(".weight") for each in known)

    def _reversed(self, name: str, reverse: Sequence[Any]) -> tuple[str, ...]:
        """Return the names that reversed changes of names give for a parameter, as `save_pretrained` would."""
        renamings = [each for each in reverse if isinstance(each, self._loading.WeightRenaming)]
        converters = [each for each in reverse if isinstance(each, self._loading.WeightConverter)]
        own, pattern = self._loading.apply_converters(name, converters)
        made: Iterable[str] = (own,)
        if pattern is not None and name in self.tensors:
            converter = next(each for each in reversed(converters) if pattern in each.source_patterns)
            conversion = TensorConversion(own, {pattern: (name,)}, converter, _Parameters(self.tensors), self._config)
            with suppress(ValueError):  # several parameters fill the tensor together
                made = conversion.convert(self.tensors.__getitem__)
        return tuple(self._loading.apply_renamings(each, renamings) for each in made)

    def _place(self, name: str) -> _TensorPlace:
        """Return the place of a checkpoint tensor."""
        if name not in self._places:
            self._places[name] = self._find(name)
        return self._places[name]

    def _find(self, name: str) -> _TensorPlace:
        """Return the place of a checkpoint tensor by the rule of `convert_and_load_state_dict_in_model`.

        transformers adds the prefix that checkpoints of the bare model leave out after all changes of names. Some of
        these only apply to names with the prefix.
        """
        base, rename = self.prefix.removesuffix("."), self._loading.rename_source_key
        for spelt in (name, self.prefix + name):
            own, pattern = rename(spelt, self._renamings, self._converters, base, self.tensors)
            if own not in self.tensors and spelt in self.tensors:
                own, pattern = rename(spelt, [], [], base, self.tensors)
            if own in self.tensors:
                break
        else:
            own, _ = rename(name, self._renamings, self._converters)
            return _TensorPlace(own, own, None, is_known=False)
        part: str = self._loading.apply_renamings(spelt, self._renamings).removeprefix(self.prefix)
        part = self.prefix + part if own.startswith(self.prefix) else part
        is_apart = pattern is not None and own.rpartition(".")[0] in self._apart
        return _TensorPlace(part if is_apart else own, part, None if is_apart else pattern, is_known=True)


def _split(name: str) -> tuple[str, str]:
    """Return the name of a tensor's module, and the tensor's name in the module."""
    match = _PART.fullmatch(name)
    return ("", name) if match is None else (match["module"], match["part"])
