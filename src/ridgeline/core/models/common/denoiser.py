"""Denoiser: the contract of models that say which way noise lies in a picture."""

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
"""Tokens of pictures: patches of latents, padding included."""
TEXT: RowAxis = "text"
"""Tokens of texts, padding included."""
JOINT: RowAxis = "joint"
"""Both, of each picture beside its text."""
PICTURES: RowAxis = "pictures"
"""One row a picture: what comes of its noise level."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a denoiser made of texts that is the same at every noise level (`Denoiser.prepare`).

    lengths: tokens of each text. rows: what it made of all of them, for itself to read.
    """

    lengths: tuple[int, ...]
    rows: tuple[Tensor, ...]


Texts = Sequence[Tensor] | Prepared
"""The states of each text [tokens, text_width], or what was prepared of them."""


@dataclass(frozen=True, slots=True)
class _LastTexts:
    """The texts of the latest call that was given texts, the weights by which they were prepared, and the result.

    texts: copies of the texts. tables: the parameters of each module. weights: their `_versions`.
    """

    texts: tuple[Tensor, ...]
    tables: Sequence[Mapping[str, Tensor | None]]
    weights: list[tuple[int, int]]
    prepared: Prepared

    def holds(self, texts: Sequence[Tensor]) -> bool:
        """Whether preparing these texts now would give the same."""
        return (
            len(texts) == len(self.texts)
            and all(map(_same, texts, self.texts))
            and _versions(self.tables) == self.weights
        )


def _versions(tables: Sequence[Mapping[str, Tensor | None]]) -> list[tuple[int, int]]:
    """Return where each parameter lies, and its version, which counts changes in place; -1 where none are counted."""
    every = (own for table in tables for own in table.values() if own is not None)
    return [(own.data_ptr(), -1 if own.is_inference() else own._version) for own in every]


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two texts have the same numbers."""
    return one.dtype == other.dtype and one.device == other.device and torch.equal(one, other)


class Denoiser(PricedModule):
    """Latents and texts in, velocities out, in one convention whatever a release has: latents are
    (1 - t) x picture + t x noise, t from 0 to 1, and the velocity is their derivative by t, noise - picture (Lipman et
    al., arXiv:2210.02747; Liu et al., arXiv:2209.03003).

    channels: of latents.
    patch: latents on a side of what is one token.
    hidden: numbers of each row between blocks.
    text_width: numbers of each token of a text.
    predicts: noise, where it predicts that and no velocity: latents are then alpha x picture + sigma x noise with
        alpha^2 + sigma^2 = 1, and t is a step of its training divided by all of them (Ho et al., arXiv:2006.11239).
    clips: whether latents have frames, [pictures, channels, frames, height, width]; a size then has them first, too.
    pooled_width: numbers of the vector that it takes of a text beside its tokens; None where it takes none.
    takes_guidance: whether the scale of guidance is an input (distilled from two passes; Meng et al.,
        arXiv:2210.03142).
    text_first: whether a text stands before its picture among joint rows.
    block_lists: names of the modules that hold the blocks of a pass.
    """

    channels: int
    patch: int
    hidden: int
    text_width: int
    predicts: Literal["velocity", "noise"] = "velocity"
    clips = False
    pooled_width: int | None = None
    takes_guidance = False
    text_first = False
    block_lists: tuple[str, ...] = ()
    _last_texts: _LastTexts | None = None

    @override
    def __call__(self, *given: Any, **named: Any) -> Any:
        """Call `forward` as a pipeline calls it: our kernels use as many threads as torch does now, and nothing is kept
        for gradients, which our kernels do not have.
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
        """latents_PCHW [pictures, channels, height, width]; t: the noise level of all of them, or of each; texts:
        the states of each one's text [tokens, text_width], or what `prepare` made of them; pooled [pictures,
        pooled_width] and guidance, a scale for all of them or for each, where the model takes them; walk: which of
        its blocks run -> velocities, or what it `predicts`, as latents. Raises ValueError for sizes that do not
        divide into patches, or that the model has no positions for, and for an input that the model wants and is
        not given, or that it would not read.
        """

    @abstractmethod
    def work(self, size: tuple[int, ...], texts: Sequence[int]) -> Work:
        """A pass over pictures of `size` latents (height, width; of clips frames before these), whose texts have so
        many tokens. Raises ValueError as `forward`.
        """

    def prepare(self, texts: Sequence[Tensor]) -> Prepared:
        """What becomes of texts whatever the noise level is. It is made once a request and given to the passes in place
        of the texts; results are the same bit for bit. A model in which all of it depends on the level gives the texts
        themselves.
        """
        return Prepared(tuple(map(len, texts)), tuple(texts))

    def prepared(self, texts: Texts, pictures: int) -> Prepared:
        """What was prepared of a text for each picture, or is now where it was not."""
        prepared = texts if isinstance(texts, Prepared) else self._prepared_once(texts)
        assert len(prepared.lengths) == pictures, "a text for each picture"
        return prepared

    def _prepared_once(self, texts: Sequence[Tensor]) -> Prepared:
        """Return the result of `prepare`, and keep it, because a caller gives the same texts at each noise level.

        Nothing is kept for texts on meta, and if changes of the weights cannot be seen.
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
        """The work of `prepare`, of texts with so many tokens."""
        return Work({}, len(texts), {reach: AttentionWork() for reach in self.reaches})

    def pass_work(self, size: tuple[int, ...], texts: Sequence[int]) -> Work:
        """As `work`, of a pass that is given what was prepared: a request is one `prepare_work` and its passes."""
        return self.work(size, texts)

    def check_conditions(self, pictures: int, pooled: Tensor | None, guidance: float | Sequence[float] | None) -> None:
        """Raises ValueError as `forward`, for what it is given beside latents and texts."""
        if (pooled is None) != (self.pooled_width is None):
            raise ValueError(
                "this denoiser takes no pooled vector of a text; leave it out"
                if self.pooled_width is None
                else f"this denoiser takes a pooled vector of each text; give [{pictures}, {self.pooled_width}]"
            )
        if pooled is not None and pooled.shape != (pictures, self.pooled_width):
            raise ValueError(
                f"pooled vectors are {list(pooled.shape)}; give one a picture, [{pictures}, {self.pooled_width}]"
            )
        if (guidance is not None) != self.takes_guidance:
            raise ValueError(
                "this denoiser takes the scale of guidance as an input; give it one"
                if self.takes_guidance
                else "this denoiser takes no scale of guidance as an input; guide it in two passes, or leave it out"
            )


def for_each(value: float | Sequence[float], pictures: int) -> Sequence[float]:
    """A number for each picture, of one that holds for all or of one for each."""
    each = [value] * pictures if isinstance(value, int | float) else value
    assert len(each) == pictures, "a number for each picture"
    return each


def only(work: Work, space: RowAxis) -> Work:
    """The part of a step's work that runs over rows of this space."""
    attention = {reach: own if reach.space == space else AttentionWork() for reach, own in work.attention.items()}
    return Work({space: work.rows[space]}, work.sequences, attention)


def without(work: Work, space: RowAxis) -> Work:
    """A step's work but for what runs over rows of this space."""
    rows = {other: count for other, count in work.rows.items() if other != space}
    attention = {reach: AttentionWork() if reach.space == space else own for reach, own in work.attention.items()}
    return Work(rows, work.sequences, attention)


def patched(size: tuple[int, ...], side: int) -> tuple[int, int]:
    """Rows and columns of the patches of `size` latents (height, width), `side` x `side` each. Raises ValueError where
    there are none that fit.
    """
    height, width = size
    if not height or not width or height % side or width % side:
        raise ValueError(
            f"latents of {height} x {width} do not divide into patches of {side} x {side}; "
            f"give a height and a width that {side} divides"
        )
    return height // side, width // side


def check_texts(texts: Sequence[int]) -> None:
    """Raises ValueError unless each picture has a text, of so many tokens."""
    if not texts or min(texts) < 1:
        raise ValueError("a text has no tokens; give at least one for each picture")
