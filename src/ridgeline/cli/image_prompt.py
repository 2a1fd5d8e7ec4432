"""The images of a text prompt (`--image`), from files to the inputs of a request."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from ridgeline.core.checkpoint import ModelSource
from ridgeline.core.models import family_of
from ridgeline.core.models.common.model import ImagePlaceholders
from ridgeline.core.models.registry import VISION
from ridgeline.engine import LLM
from ridgeline.engine.encoder_features import EncoderFeatures
from ridgeline.media.images.preprocess import Preprocessing, read_image, read_preprocessing
from ridgeline.media.images.prompt import ImageTokens, prepend_placeholders, with_images


@dataclass(frozen=True, slots=True)
class ImagePrompt:
    """The images of a prompt, with the preprocessing that the model's folder specifies."""

    images: Sequence[Image.Image]
    folder: Path
    preprocessing: Preprocessing

    @classmethod
    def read(cls, source: ModelSource, paths: Sequence[Path]) -> "ImagePrompt":
        """Open the image files before a model is loaded.

        Raises:
            ValueError: If a file is not an image or the model reads none.
        """
        if family_of(source.config) not in VISION:
            names = ", ".join(family.architecture for family in VISION)
            raise ValueError(
                f"{source.name} reads no images; give a model with a vision tower ({names}), or leave out --image"
            )
        if source.folder is None:
            raise ValueError(f"{source.name} is a config without weights; give a checkpoint folder")
        return cls([read_image(path) for path in paths], source.folder, read_preprocessing(source.folder))

    def ids(self, llm: LLM, text: str, system: str | None, *, raw: bool) -> list[int]:
        """Return the token ids of a message with the images followed by a text.

        Without a chat template or with `raw`, the text alone follows the images.

        Raises:
            ValueError: If --system is given without a chat template or with `raw`.
        """
        tokens, count = ImageTokens.read(self.folder, llm.tokenizer), len(self.images)
        if raw or llm.loaded.templates is None:
            if system is not None:
                raise ValueError(
                    "--system needs a chat template, but this model has none or --raw is given; leave out --system"
                )
            ids = prepend_placeholders(llm.encode(text), llm.tokenizer, self._rows(llm), count)
        else:
            messages = [{"role": "system", "content": system}] if system is not None else []
            ids = llm.encode_chat([*messages, {"role": "user", "content": with_images(text, count)}])
        return tokens.expand_placeholders(ids, self._rows(llm), count)

    def features(self, llm: LLM) -> EncoderFeatures:
        """Return the preprocessed image patches, which are the input of the vision tower."""
        return self.preprocessing.patches(self.images, self._rows(llm))

    @staticmethod
    def _rows(llm: LLM) -> ImagePlaceholders:
        rows = llm.loaded.model.images
        assert rows is not None, "an earlier check refuses families without images"
        return rows
