"""TextNames: the tensors of a multimodal checkpoint that fill the class of the text model alone."""

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

from torch import nn
from typing_extensions import override

from ridgeline.core.models.from_transformers.class_construction import path_of
from ridgeline.core.models.from_transformers.released_names import ReleasedNames
from ridgeline.core.models.from_transformers.tensor_conversion import TensorConversion


class TextNames(ReleasedNames):
    """The map from the tensors of a multimodal model's checkpoint to the parameters of its text model's class.

    transformers knows the names of the whole model (`model.language_model.layers`), of which the text model is a part
    with other names (`model.layers`). Tensors of the other parts, such as an image encoder, fill nothing. A checkpoint
    of the text model alone has the names of the text model's class.
    """

    def __init__(self, module: nn.Module, whole: nn.Module, apart: Collection[str] = ()) -> None:
        """Read the names of both classes.

        Args:
            module: The model of the text model's class on meta, as transformers built it.
            whole: The whole model on meta, as transformers built it.
            apart: The paths of modules in the text model, as in `ReleasedNames`.

        Raises:
            LookupError: If the text model is no part of the whole one.
        """
        super().__init__(module, apart)
        self._parts = _parts_in_common(module, whole)
        self._whole = ReleasedNames(whole, [self._in_whole(f"{path}.").removesuffix(".") for path in apart])
        ties = ((self._in_text(name), self._in_text(held)) for name, held in self._whole.ties.items())
        self.ties = {name: held for name, held in ties if name is not None and held is not None}

    @override
    def model_name(self, name: str) -> str:
        own = self._in_text(self._whole.model_name(name))
        return super().model_name(name) if own is None else own

    @override
    def is_ignored(self, name: str) -> bool:
        elsewhere = self._whole.knows(name) and self._in_text(self._whole.model_name(name)) is None
        return elsewhere or self._whole.is_ignored(name) or super().is_ignored(name)

    @override
    def conversions(self, names: Iterable[str]) -> list[TensorConversion]:
        listed = list(names)
        of_whole = [name for name in listed if self._whole.knows(name)]
        found = [each for each in self._whole.conversions(of_whole) if self._in_text(each.first) is not None]
        others = super().conversions(name for name in listed if not self._whole.knows(name))
        return [*(replace(each, named=self._named) for each in found), *others]

    @override
    def released_tensors(self, name: str) -> tuple[str, ...]:
        return self._whole.released_tensors(self._in_whole(name))

    @override
    def checkpoint_names(self, module: str) -> tuple[str, ...]:
        of_whole = self._whole.checkpoint_names(self._in_whole(f"{module}.").removesuffix("."))
        return tuple(dict.fromkeys((*of_whole, *super().checkpoint_names(module))))

    def _named(self, name: str) -> str:
        """Return the text model's name of a tensor of the whole model, which is one of its tensors."""
        own = self._in_text(name)
        assert own is not None
        return own

    def _in_text(self, name: str) -> str | None:
        """Return the text model's name of a tensor of the whole model; None if it is in another part."""
        return next((ours + name.removeprefix(whole) for ours, whole in self._parts if name.startswith(whole)), None)

    def _in_whole(self, name: str) -> str:
        """Return the whole model's name of a tensor of the text model."""
        return next(whole + name.removeprefix(ours) for ours, whole in self._parts if name.startswith(ours))


def _parts_in_common(text: Any, whole: Any) -> list[tuple[str, str]]:
    """Return the prefixes of the backbone's and the head's names in the text model and in the whole model.

    Some whole models contain the text model itself, with its head.

    Raises:
        LookupError: If the text model's backbone is no part of the whole model.
    """
    for path, module in whole.named_modules():
        if type(module) is type(text):
            return [("", f"{path}.")]
    backbone = text.base_model if text.base_model is not text else getattr(text, "model", text)
    paths = [path for path, module in whole.named_modules() if type(module) is type(backbone)]
    if not paths or backbone is text:
        raise LookupError(type(backbone).__name__)
    pairs = [(backbone, whole.get_submodule(paths[0])), (text.get_output_embeddings(), whole.get_output_embeddings())]
    return [
        (f"{path_of(text, ours)}.", f"{path_of(whole, theirs)}.")
        for ours, theirs in pairs
        if ours is not None and theirs is not None
    ]
