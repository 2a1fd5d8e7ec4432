"""Image placeholders in a prompt: a begin token, one placeholder token for each patch of the image, an end token."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.core.models import ModelRefused
from ridgeline.core.models.common.model import ImagePlaceholders
from ridgeline.core.text import Tokenizer
from ridgeline.util import untrusted

_BEGIN, _END = ("boi_token", "<begin_of_image>"), ("eoi_token", "<end_of_image>")


@dataclass(frozen=True, slots=True)
class ImageTokens:
    """The ids of the tokens before and after an image."""

    begin: int
    end: int

    @classmethod
    def read(cls, folder: Path, tokenizer: Tokenizer) -> "ImageTokens":
        """Return the ids of the tokens that tokenizer_config.json names, or else of those with the names in Janus.

        Raises:
            ModelRefused: If the tokenizer does not have a token.
        """
        path = folder / "tokenizer_config.json"
        fields = untrusted.read_object(path) if path.is_file() else {}
        nested = fields.get("extra_special_tokens")
        named = {**(nested if isinstance(nested, dict) else {}), **fields}
        return cls(*(_id(named.get(name), usual, tokenizer, folder) for name, usual in (_BEGIN, _END)))

    def expand_placeholders(self, ids: Iterable[int], rows: ImagePlaceholders, images: int) -> list[int]:
        """Return the ids of a prompt with each placeholder expanded to the tokens of an image.

        Raises:
            ValueError: If the number of placeholders is not the number of images.
        """
        ids = list(ids)
        found = ids.count(rows.placeholder)
        if found != images:
            raise ValueError(
                f"the prompt has {found} image placeholder{'' if found == 1 else 's'}, but {images} "
                f"image{' is' if images == 1 else 's are'} given; make the numbers equal"
            )
        image = (self.begin, *[rows.placeholder] * rows.rows, self.end)
        return [one for token in ids for one in (image if token == rows.placeholder else (token,))]


def with_images(text: str, images: int) -> list[dict[str, Any]]:
    """Return the content of a chat message with images followed by a text, as chat templates take it."""
    return [*({"type": "image"} for _ in range(images)), {"type": "text", "text": text}]


def prepend_placeholders(ids: Sequence[int], tokenizer: Tokenizer, rows: ImagePlaceholders, images: int) -> list[int]:
    """Return the token ids of a text without a chat template, with image placeholders in front of the text.

    The placeholders come after the tokens that begin every text.
    """
    prefix = len(tokenizer.prefix) if tuple(ids[: len(tokenizer.prefix)]) == tokenizer.prefix else 0
    return [*ids[:prefix], *[rows.placeholder] * images, *ids[prefix:]]


def _id(value: Any, usual: str, tokenizer: Tokenizer, folder: Path) -> int:
    """Return the id of a token by its configured name, or else by its usual one.

    Raises:
        ModelRefused: If the tokenizer does not have the token.
    """
    literal = value.get("content") if isinstance(value, dict) else value
    literal = literal if isinstance(literal, str) else usual
    found = tokenizer.control.get(literal)
    if found is None:
        raise ModelRefused(
            f"{folder}: its tokenizer has no token {literal}, which the model needs around images; fetch it again"
        )
    return found
