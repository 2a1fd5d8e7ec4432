"""The cache of encoded texts, around an encoder that counts."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ridgeline.core.models.common.model import Model
from ridgeline.media.diffusion.text_encoder import TextCache, TextEncoder


class Counting(TextEncoder):
    """Gives what no other call gives; remembers what it was asked for."""

    most_tokens, width = 100, 2

    def __init__(self) -> None:
        self.asked: list[tuple[int, ...]] = []

    @property
    def models(self) -> tuple[Model, ...]:
        return ()

    def ids(self, text: str, what: str = "prompt") -> list[int]:
        return list(text.encode())

    def encode(self, ids: Sequence[int]) -> Tensor:
        self.asked.append(tuple(ids))
        return torch.full((len(ids), 2), float(len(self.asked)))


def test_the_least_recent_goes_first() -> None:
    """Room for three texts of two tokens; one that is asked for again is recent."""
    encoder = Counting()
    cache = TextCache(encoder, most_bytes=3 * 2 * 2 * 4)
    texts = [(n, n) for n in range(4)]
    given = {text: cache.states(text) for text in texts[:3]}
    assert cache.states(texts[0]) is given[texts[0]]
    cache.states(texts[3])
    assert [text in cache for text in texts] == [True, False, True, True]
    assert cache.states(texts[1]) is not given[texts[1]]
    assert encoder.asked == [*texts[:3], texts[3], texts[1]]


def test_texts_of_other_lengths_are_other_texts() -> None:
    cache = TextCache(Counting())
    assert [len(cache.states([7] * n)) for n in (1, 2, 1)] == [1, 2, 1]
    assert torch.equal(cache.states([7]), torch.full((1, 2), 1.0))


def test_a_text_larger_than_the_cache_is_given_and_not_kept() -> None:
    """And nothing goes for it."""
    cache = TextCache(Counting(), most_bytes=16)
    small = cache.states([1])
    assert len(cache.states([1] * 9)) == 9
    assert [1] * 9 not in cache
    assert cache.states([1]) is small
