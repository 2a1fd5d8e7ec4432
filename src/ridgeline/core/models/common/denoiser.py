"""Denoiser: the contract of diffusion models, which predict the velocity or the noise of noisy latents."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from typing_extensions import override

from ridgeline.core.models.common.block_runner import BlockRunner, every_block
from ridgeline.core.models.common.priced_module import PricedModule
from ridgeline.core.ops.work import AttentionWork, RowAxis, Work

LATENTS: RowAxis = "latents"
"""The name of one kind of a denoiser's rows: patches of latents, padding included."""
TEXT: RowAxis = "text"
"""The name of one kind of a denoiser's rows: text tokens, padding included."""
JOINT: RowAxis = "joint"
"""The name of one kind of a denoiser's rows: latent and text tokens, each image's next to its text's."""
CONDITIONS: RowAxis = "pictures"
"""The name of one kind of a denoiser's rows: one condition per image, computed from its noise level."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """The part of a denoiser's work on texts that is the same at every noise level (`Denoiser.prepare`)."""

    lengths: tuple[int, ...]
    """Number of tokens of each text."""
    rows: tuple[Tensor, ...]
    """The tensors that a denoiser computed from all texts, in a form that only it knows."""


Texts = Sequence[Tensor] | Prepared
"""The texts of a denoising pass: encoder states [tokens, text_width] of each, or what `prepare` made of them."""


@dataclass(frozen=True, slots=True)
class _LastTexts:
    """A cache of the texts that a denoiser prepared last, with the versions of its weights and the result."""

    texts: tuple[Tensor, ...]
    """Copies of the encoder states of the texts in the cache."""
    tables: Sequence[Mapping[str, Tensor | None]]
    """The parameters of each module of the denoiser, by name."""
    weights: list[tuple[int, int]]
    """The addresses and versions of the denoiser's parameters when the cached texts were prepared."""
    prepared: Prepared
    """The cached result of `prepare` for the last texts."""

    def holds(self, texts: Sequence[Tensor]) -> bool:
        """Return whether the cache is valid for these texts: same encoder states, and unchanged weights."""
        return (
            len(texts) == len(self.texts)
            and all(map(_same, texts, self.texts))
            and _versions(self.tables) == self.weights
        )


def _versions(tables: Sequence[Mapping[str, Tensor | None]]) -> list[tuple[int, int]]:
    """Return each parameter's address and count of in-place changes (-1 if not counted), to detect changes."""
    every = (own for table in tables for own in table.values() if own is not None)
    return [(own.data_ptr(), -1 if own.is_inference() else own._version) for own in every]


def _same(one: Tensor, other: Tensor) -> bool:
    """Return whether two texts have the same encoder states on the same device."""
    return one.dtype == other.dtype and one.device == other.device and torch.equal(one, other)


class Denoiser(PricedModule):
    """A diffusion model: noisy latents and texts in, velocities or noise out, as `predicts` says.

    A model that predicts velocities reads latents (1 - t) x image + t x noise, with t from 0 to 1. The velocity is
    their derivative by t, noise - image (Lipman et al., arXiv:2210.02747; Liu et al., arXiv:2209.03003).
    """

    channels: int
    """The number of channels of a denoiser's latents."""
    patch: int
    """Height and width in latents of the patch that is one token."""
    hidden: int
    """The width of a denoiser's residual stream."""
    text_width: int
    """Numbers per token of the text encoder's states."""
    predicts: Literal["velocity", "noise"] = "velocity"
    """The quantity that the denoiser predicts: the velocity or the noise.

    A model that predicts noise reads latents alpha x image + sigma x noise with alpha^2 + sigma^2 = 1, and t is a
    training step divided by the number of all steps (Ho et al., arXiv:2006.11239).
    """
    generates_video = False
    """Whether the model generates video instead of images.

    Latents are then [videos, channels, frames, height, width], and sizes begin with the frames.
    """
    pooled_width: int | None = None
    """Numbers of the pooled text vector that the model reads besides the text's tokens; None if it reads none."""
    takes_guidance = False
    """Whether the guidance scale is an input (distilled from two passes; Meng et al., arXiv:2210.03142)."""
    text_first = False
    """Whether the text's tokens precede its image's tokens among joint rows."""
    block_lists: tuple[str, ...] = ()
    """The names of the modules that hold the transformer blocks of a pass."""
    _last_texts: _LastTexts | None = None

    @override
    def __call__(self, *given: Any, **named: Any) -> Any:
        """Run `forward` as a pipeline needs it: in inference mode, with torch's number of threads.

        Our kernels use as many threads as torch does now. They have no gradients, so that nothing is stored for them.
        """
        self.backend.share_threads()
        with torch.inference_mode():
            return super().__call__(*given, **named)

    @abstractmethod
    @override
    def forward(
        self,
        latents_PCHW: Tensor,
        t: float | Sequence[float],
        texts: Texts,
        *,
        pooled: Tensor | None = None,
        guidance: float | Sequence[float] | None = None,
        walk: BlockRunner = every_block,
    ) -> Tensor:
        """Return the predicted velocities of noisy latents, or the noise, as `predicts` says, in the latents' shape.

        Args:
            latents_PCHW: Latents [images, channels, height, width], with frames before the height for video.
            t: The noise level of all images, or one for each.
            texts: The states of each image's text [tokens, text_width], or the result of `prepare`.
            pooled: Pooled text vectors [images, pooled_width], if the model reads them.
            guidance: The guidance scale of all images or one for each, if the model reads it.
            walk: The function that runs the blocks; a step cache skips some.

        Raises:
            ValueError: If the size does not divide into patches or exceeds the model's positions, or if an input is
                missing or not used by the model.
        """

    @abstractmethod
    def work(self, size: tuple[int, ...], texts: Sequence[int]) -> Work:
        """Return the rows and the attention of a denoising pass over images of `size` latents with these texts.

        The texts are given by their numbers of tokens. The size is (height, width), for video (frames, height, width).

        Raises:
            ValueError: If the size or a text does not fit the model, as in `forward`.
        """

    def prepare(self, texts: Sequence[Tensor]) -> Prepared:
        """Compute the part of a denoiser's work on texts that does not depend on the noise level.

        A request computes it once and passes it to each `forward` call instead of the texts; results are the same bit
        for bit. A model without such a part returns the texts themselves.
        """
        return Prepared(tuple(map(len, texts)), tuple(texts))

    def prepared(self, texts: Texts, images: int) -> Prepared:
        """Return one prepared text per image, prepared now if the caller did not do so."""
        prepared = texts if isinstance(texts, Prepared) else self._prepared_once(texts)
        assert len(prepared.lengths) == images, "a text for each image"
        return prepared

    def _prepared_once(self, texts: Sequence[Tensor]) -> Prepared:
        """Return prepared texts, and cache them, because a caller passes the same texts at each noise level.

        Nothing is cached for texts on meta, or if changes of the weights cannot be detected.
        """
        last = self._last_texts
        if last is not None and last.holds(texts):
            return last.prepared
        prepared = self.prepare(texts)
        seen = not any(text.is_meta for text in texts) and not any(own.is_inference() for own in self.parameters())
        if seen and type(self).prepare is not Denoiser.prepare:
            tables = [module._parameters for module in self.modules() if module._parameters]
            copies = tuple(text.clone() for text in texts)
            self._last_texts = _LastTexts(copies, tables, _versions(tables), prepared)
        return prepared

    def prepare_work(self, texts: Sequence[int]) -> Work:
        """Return the rows and the attention of preparing texts with these numbers of tokens."""
        return Work({}, len(texts), {reach: AttentionWork() for reach in self.attention_patterns})

    def pass_work(self, size: tuple[int, ...], texts: Sequence[int]) -> Work:
        """Return the rows and the attention of one denoising pass whose texts are already prepared.

        A request's work is one `prepare_work` and one `pass_work` per pass.
        """
        return self.work(size, texts)

    def check_conditions(self, images: int, pooled: Tensor | None, guidance: float | Sequence[float] | None) -> None:
        """Raise ValueError if `pooled` or `guidance` is missing, misshapen, or not an input of the denoiser."""
        if (pooled is None) != (self.pooled_width is None):
            raise ValueError(
                "this denoiser takes no pooled text vector; leave it out"
                if self.pooled_width is None
                else f"this denoiser needs a pooled vector of each text; give [{images}, {self.pooled_width}]"
            )
        if pooled is not None and pooled.shape != (images, self.pooled_width):
            raise ValueError(
                f"pooled vectors have shape {list(pooled.shape)}; give one per image, [{images}, {self.pooled_width}]"
            )
        if (guidance is not None) != self.takes_guidance:
            raise ValueError(
                "this denoiser takes the guidance scale as an input; give a guidance scale"
                if self.takes_guidance
                else "this denoiser takes no guidance scale as an input; run guidance in two passes, or leave it out"
            )


def for_each(value: float | Sequence[float], images: int) -> Sequence[float]:
    """Return a list with one number per image, from one number for all images or one for each."""
    each = [value] * images if isinstance(value, int | float) else value
    assert len(each) == images, "a number for each image"
    return each


def only(work: Work, space: RowAxis) -> Work:
    """Return the rows and attention of a step that belong to one kind of rows (row axis)."""
    attention = {reach: own if reach.query_axis == space else AttentionWork() for reach, own in work.attention.items()}
    return Work({space: work.rows[space]}, work.sequences, attention)


def without(work: Work, space: RowAxis) -> Work:
    """Return the rows and attention of a step except those of one kind of rows (row axis)."""
    rows = {other: count for other, count in work.rows.items() if other != space}
    attention = {reach: AttentionWork() if reach.query_axis == space else own for reach, own in work.attention.items()}
    return Work(rows, work.sequences, attention)


def patch_grid(size: tuple[int, ...], side: int) -> tuple[int, int]:
    """Return the rows and columns of patches, `side` x `side` latents each, of a size (height, width) in latents.

    Raises:
        ValueError: If the size is empty or does not divide into patches.
    """
    height, width = size
    if not height or not width or height % side or width % side:
        raise ValueError(
            f"latents of {height} x {width} do not divide into patches of {side} x {side}; "
            f"give a height and a width that are multiples of {side}"
        )
    return height // side, width // side


def check_texts(texts: Sequence[int]) -> None:
    """Raise ValueError unless there is a text and every text has a token, given the number of tokens of each."""
    if not texts or min(texts) < 1:
        raise ValueError("a text has no tokens; give at least one for each image")
