"""The text encoders of FLUX.1: T5's hidden states of a prompt, and CLIP's pooled vector."""

import torch
from torch import Tensor
from typing_extensions import override

from ridgeline.backends.model_loader import bind_on_cpu
from ridgeline.core.checkpoint.folder import open_checkpoint
from ridgeline.core.checkpoint.source import Component, ModelSource
from ridgeline.core.checkpoint.weight_loader import Progress, load_tensors
from ridgeline.core.models import Fields, ModelRefused, build_to_run, family_of
from ridgeline.core.models.common.encoder import Encoder
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.sizes import sizes_of
from ridgeline.core.text import Tokenizer, load_tokenizer
from ridgeline.media.diffusion.t5_encoder import T5TextEncoder
from ridgeline.media.diffusion.text_encoder import padding_of


class FluxTextEncoder(T5TextEncoder):
    """The pair of T5 and CLIP that encodes FLUX.1's prompts.

    T5 reads a prompt and its padding, none of which is masked. CLIP reads as much of the prompt as it has positions
    for; its last state, that of the end-of-text token, is the pooled vector.
    """

    def __init__(
        self, model: Encoder, tokenizer: Tokenizer, most_tokens: int, padding: int, clip: Encoder, pairs: Tokenizer
    ) -> None:
        """Store T5 and CLIP with their tokenizers.

        Args:
            model: T5's encoder.
            tokenizer: Tokenizer of T5.
            most_tokens: Maximum tokens of a text.
            padding: Padding token of T5.
            clip: CLIP's text encoder.
            pairs: Tokenizer of CLIP, which adds a start and an end token.
        """
        super().__init__(model, tokenizer, str, most_tokens)
        self.padding, self.clip, self._pairs = padding, clip, pairs
        self.pooled_width = sizes_of(clip).hidden

    @property
    @override
    def models(self) -> tuple[Model, ...]:
        return self.model, self.clip

    @torch.inference_mode()
    @override
    def pooled(self, text: str) -> Tensor:
        return self.states(self.clip, self.pooled_ids(text), first=-1)[0]

    @override
    def pooled_ids(self, text: str) -> list[int]:
        """Return the token ids that CLIP reads, truncated to its context.

        T5 refuses a text that is too long, but for CLIP truncation is fine: its vector summarises what T5 reads
        completely.
        """
        ids = self._pairs.encode(text, parse_special=False)
        return ids if len(ids) <= self.clip.context else [*ids[: self.clip.context - 1], ids[-1]]


def load_flux_encoder(pipeline: ModelSource, progress: Progress | None = None, *, most_tokens: int) -> FluxTextEncoder:
    """Load CLIP from `text_encoder` and T5 from `text_encoder_2`, each with its tokenizer.

    Raises:
        ModelRefused: If a part is missing, broken or not supported.
    """
    first, second = (pipeline.components[name] for name in ("text_encoder", "text_encoder_2"))
    before = open_checkpoint(first.folder).nbytes

    def on_load(done: int, every: int) -> None:
        assert progress is not None
        progress(before + done, before + every)

    clip = _encoder(first, progress)
    t5 = _encoder(second, None if progress is None else on_load)
    folders = [pipeline.components[name].folder for name in ("tokenizer", "tokenizer_2")]
    try:
        pairs, tokenizer = map(load_tokenizer, folders)
    except ValueError as error:
        raise ModelRefused(str(error)) from None
    return FluxTextEncoder(t5, tokenizer, most_tokens, padding_of(tokenizer, folders[1]), clip, pairs)


def _encoder(part: Component, progress: Progress | None) -> Encoder:
    """Load T5 or CLIP from its folder.

    The class that the pipeline's index states and the dtype of the stored tensors replace those of config.json.
    """
    if part.config is None:
        raise ModelRefused(f"{part.folder} has no config.json; fetch the folder again")
    checkpoint = open_checkpoint(part.folder)
    stated = {"architectures": [part.kind], "dtype": str(checkpoint.dtype).removeprefix("torch.")}
    fields = Fields({**part.config.values, **stated}, part.config.source)
    model = build_to_run(fields)
    if not isinstance(model, Encoder):
        raise ModelRefused(f"{part.folder} has a {part.kind}, which is not a text encoder")
    load_tensors(model, checkpoint, family_of(fields), progress)
    bind_on_cpu(model)
    return model
