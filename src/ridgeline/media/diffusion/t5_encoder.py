"""T5 as a text encoder: the encoder of T5 or UMT5 reads a prompt without a template."""

import html
import re
from collections.abc import Callable

from ridgeline.backends.model_loader import bind_on_cpu
from ridgeline.core.checkpoint.source import ModelSource, open_source
from ridgeline.core.checkpoint.weight_loader import Progress, load_weights
from ridgeline.core.models import ModelRefused, build_to_run
from ridgeline.core.models.common.encoder import Encoder
from ridgeline.core.models.common.sizes import sizes_of
from ridgeline.core.text import Tokenizer, load_tokenizer
from ridgeline.media.diffusion.text_encoder import TextEncoder

Clean = Callable[[str], str]


def lowered(text: str) -> str:
    """Return a prompt in lower case without white space around it, as PixArt reads it."""
    return text.lower().strip()


def unescaped(text: str) -> str:
    """Return a prompt as Wan reads it: HTML entities become characters, and each run of white space one space.

    Entities may be escaped twice. White space at the ends is removed.
    """
    return re.sub(r"\s+", " ", html.unescape(html.unescape(text)).strip()).strip()


class T5TextEncoder(TextEncoder):
    """The encoder of T5 or UMT5 as the text encoder of a diffusion pipeline.

    Its result is the last hidden states of a text, including that of the end-of-text token. It does not pad texts; a
    denoiser that needs padding (Wan) adds it.
    """

    def __init__(self, model: Encoder, tokenizer: Tokenizer, clean: Clean, most_tokens: int) -> None:
        """Store the T5 encoder with its tokenizer.

        Args:
            model: Encoder.
            tokenizer: Tokenizer.
            clean: Function applied to a text before tokenization.
            most_tokens: Maximum tokens of a text.
        """
        self.model, self.tokenizer, self.clean = model, tokenizer, clean
        self.most_tokens, self.width = most_tokens, sizes_of(model).hidden


def load_t5_encoder(
    pipeline: ModelSource, progress: Progress | None = None, *, clean: Clean, most_tokens: int
) -> T5TextEncoder:
    """Load T5 from the `text_encoder` of a pipeline, with its `tokenizer`.

    Raises:
        ModelRefused: If the model is not an encoder, or the tokenizer is missing.
    """
    source = open_source(str(pipeline.components["text_encoder"].folder))
    model = build_to_run(source.config)
    if not isinstance(model, Encoder):
        raise ModelRefused(
            f"{source.name} is not a T5 or UMT5 encoder, which this pipeline needs as its text encoder; fetch the "
            "pipeline again"
        )
    load_weights(model, source, progress=progress)
    bind_on_cpu(model)
    try:
        tokenizer = load_tokenizer(pipeline.components["tokenizer"].folder)
    except ValueError as error:
        raise ModelRefused(str(error)) from None
    return T5TextEncoder(model, tokenizer, clean, most_tokens)
