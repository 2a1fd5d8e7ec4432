"""The extension of a model's context by YaRN, as a model card describes it, without an edit of config.json."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from ridgeline.core.models.building import build
from ridgeline.core.models.common.fields import MAX_CONTEXT, Fields, ModelRefused
from ridgeline.core.models.registry import family_of

_TEXT, _POSITIONS = "text_config", "max_position_embeddings"
_UNSCALED = ("default", "mrope")
_FORM = "write yarn:FACTOR or yarn:FACTOR:ORIGINAL, like yarn:4 or yarn:4:32768"


class ScaledFields(Fields):
    """A config whose context --rope has scaled."""

    unscaled: Fields
    """The config as it is stored."""
    original: int | None
    """The context length before scaling, as --rope states it; None if it does not."""


@dataclass(frozen=True, slots=True)
class RopeOverride:
    """A YaRN scaling (arXiv:2309.00071) that replaces the rotary embedding of a config without scaling."""

    factor: float
    """The factor by which the scaling extends the context."""
    original: int | None = None
    """The context length before scaling; None for the length on which the model was trained."""

    @override
    def __str__(self) -> str:
        original = "" if self.original is None else f":{self.original}"
        return f"yarn:{self.factor:.10g}{original}"

    def of(self, fields: Fields) -> Fields:
        """Return the config with this scaling and the context that it gives: the original context times the factor.

        The fields are those that model cards tell users to add: `rope_scaling` with `rope_type`, `factor` and
        `original_max_position_embeddings`.

        Raises:
            ValueError: If the model has no rotary embedding or one with scaling, or if the context does not grow.
        """
        values, inner = fields.values, fields.values.get(_TEXT)
        nested = isinstance(inner, Mapping) and values.get(_POSITIONS) is None
        own: Mapping[str, Any] = inner if nested and isinstance(inner, Mapping) else values
        context = own.get(_POSITIONS)
        if not isinstance(context, int):
            raise self._refuse(fields, f"its config has no {_POSITIONS}")
        name, section = self._section(fields, own)
        original = self.original or trained_context(fields, context)
        positions = int(original * self.factor)
        if not context < positions <= MAX_CONTEXT:
            raise self._refuse(
                fields,
                f"{original:,} positions x {self.factor:.10g} are {positions:,}; they must be more than the "
                f"{context:,} of its config, and at most {MAX_CONTEXT:,}",
            )
        scaling = {"rope_type": "yarn", "factor": self.factor, "original_max_position_embeddings": original}
        kept = {key: value for key, value in section.items() if key != "type"}  # the old spelling of rope_type
        changed = {**own, name: {**kept, **scaling}, _POSITIONS: positions}
        scaled = ScaledFields({**values, _TEXT: changed} if nested else changed, fields.source, fields.elsewhere)
        scaled.unscaled, scaled.original = fields, self.original
        self._check(fields, scaled, positions)
        return scaled

    def _section(self, fields: Fields, own: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        """Return the name and the contents of the config's section about the rotary embedding.

        Raises:
            ValueError: If it already scales the context, or describes several rotary embeddings.
        """
        name = "rope_scaling" if own.get("rope_scaling") or not own.get("rope_parameters") else "rope_parameters"
        section = own.get(name) or {}
        if not isinstance(section, Mapping) or any(isinstance(value, Mapping) for value in section.values()):
            raise self._refuse(fields, "its layers have different rotary embeddings")
        kind = section.get("rope_type", section.get("type", "default"))
        if kind not in _UNSCALED:
            raise self._refuse(fields, f"its config already scales the context ({name}: {kind})")
        return name, section

    def _check(self, fields: Fields, scaled: Fields, positions: int) -> None:
        """Raise ValueError if the model's family does not read the scaling, or reads another context."""
        try:
            context = build(scaled).context
        except ModelRefused:
            build(fields)  # says so if the config is invalid even without the scaling
            raise self._refuse(fields, "its family's configs cannot have this scaling") from None
        if context != positions:
            raise self._refuse(fields, f"the context of its family is {context:,} whatever the scaling")

    def _refuse(self, fields: Fields, why: str) -> ValueError:
        return ValueError(f"--rope {self} does not suit {fields.title}: {why}")


def parse_rope(text: str) -> RopeOverride:
    """Return the scaling that `yarn:FACTOR` or `yarn:FACTOR:ORIGINAL` describes.

    Raises:
        ValueError: If the text has another form, or if the factor is not above 1.
    """
    kind, *numbers = text.strip().lower().split(":")
    if kind != "yarn" or len(numbers) not in (1, 2):
        raise ValueError(f"--rope is {text!r}; {_FORM}")
    try:
        factor = float(numbers[0])
    except ValueError:
        raise ValueError(f"--rope is {text!r}; {_FORM}") from None
    if not (math.isfinite(factor) and factor > 1):
        raise ValueError(f"--rope is {text!r}, but the factor must be a finite number above 1; {_FORM}")
    if len(numbers) == 1:
        return RopeOverride(factor)
    if not (numbers[1].isascii() and numbers[1].isdecimal() and 0 < int(numbers[1]) <= MAX_CONTEXT):
        raise ValueError(f"--rope is {text!r}, but ORIGINAL must be a number of positions up to {MAX_CONTEXT:,}")
    return RopeOverride(factor, int(numbers[1]))


def trained_context(fields: Fields, context: int) -> int:
    """Return the positions on which a model was trained, by its model card; `context`, the config's, if it agrees."""
    return dict(family_of(fields).trained_contexts).get(context, context)


def offered_rope(fields: Fields, tokens: int) -> tuple[RopeOverride, int] | None:
    """Return the smallest scaling, in hundredths, whose context holds `tokens`, and the context before scaling.

    The result is None for a model whose context cannot be scaled. A config that --rope has scaled is scaled anew.
    """
    stated = None
    if isinstance(fields, ScaledFields):
        stated = fields.original
        fields = fields.unscaled
    original = stated or trained_context(fields, build(fields).context)
    override = RopeOverride(math.ceil(100 * tokens / original) / 100, stated)
    try:
        override.of(fields)
    except ValueError:
        return None
    return override, original


def offer_longer_context(fields: Fields, tokens: int) -> str:
    """Return the --rope whose context holds `tokens`, to append to a refusal; "" if the context cannot be scaled."""
    offered = offered_rope(fields, tokens)
    if offered is None:
        return ""
    override, original = offered
    return f", or extend the context with --rope {override} ({original:,} positions x {override.factor:g})"
