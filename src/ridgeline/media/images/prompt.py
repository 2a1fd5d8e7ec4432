"""Where images stand in a prompt: each is a token that begins it, a place for each of its rows, and a token that ends
it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.core.models import ModelRefused
from ridgeline.core.models.common.model import PlacedRows
from ridgeline.core.text import Tokenizer
from ridgeline.util import untrusted

_BEGIN, _END = ("boi_token", "<begin_of_image>"), ("eoi_token", "<end_of_image>")


@dataclass(frozen=True, slots=True)
class ImageTokens:
    """The ids around an image."""

    begin: int
    end: int

    @classmethod
    def read(cls, folder: Path, tokenizer: Tokenizer) -> "ImageTokens":
        """As the folder's tokenizer_config.json names them, or as Janus does. Raises ModelRefused."""
        path = folder / "tokenizer_config.json"
        said = untrusted.read_object(path) if path.is_file() else {}
        nested = said.get("extra_special_tokens")
        named = {**(nested if isinstance(nested, dict) else {}), **said}
        return cls(*(_id(named.get(name), usual, tokenizer, folder) for name, usual in (_BEGIN, _END)))

    def placed(self, ids: Iterable[int], rows: PlacedRows, images: int) -> list[int]:
        """The ids of a prompt, with so many images: each placeholder in it becomes an image. Raises ValueError where
        there are not as many of them.
        """
        ids = list(ids)
        found = ids.count(rows.placeholder)
        if found != images:
            raise ValueError(
                f"the prompt has {found} place{'' if found == 1 else 's'} for images, and {images} "
                f"{'is' if images == 1 else 'are'} given; give as many as it has"
            )
        image = (self.begin, *[rows.placeholder] * rows.rows, self.end)
        return [one for token in ids for one in (image if token == rows.placeholder else (token,))]


def with_images(text: str, images: int) -> list[dict[str, Any]]:
    """The content of a message of images and a text after them, as chat templates take it."""
    return [*({"type": "image"} for _ in range(images)), {"type": "text", "text": text}]


def before(ids: Sequence[int], tokenizer: Tokenizer, rows: PlacedRows, images: int) -> list[int]:
    """The ids of a text without a template, with places for images before it, after what begins every text."""
    prefix = len(tokenizer.prefix) if tuple(ids[: len(tokenizer.prefix)]) == tokenizer.prefix else 0
    return [*ids[:prefix], *[rows.placeholder] * images, *ids[prefix:]]


def _id(said: Any, usual: str, tokenizer: Tokenizer, folder: Path) -> int:
    """The id of a token that is named so, or as usual. Raises ModelRefused."""
    literal = said.get("content") if isinstance(said, dict) else said
    literal = literal if isinstance(literal, str) else usual
    found = tokenizer.control.get(literal)
    if found is None:
        raise ModelRefused(
            f"{folder}: its tokenizer has no token {literal}, which stands beside images; fetch it again"
        )
    return found
