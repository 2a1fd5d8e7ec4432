"""The tokens of a request: its prompt, with an id per token or only per block of tokens, followed by its output."""

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

from typing_extensions import override


@dataclass(frozen=True, slots=True)
class NamedPrompt(Sequence[int]):
    """A prompt of which only the length and an id per block of tokens are known, as in a recorded traffic trace.

    Prompts share a prefix as far as their names are equal. In place of ids it has its names, as numbers below 0, so
    only an executor that reads no ids can run it. If the names of the response are known, too, that executor returns
    them as its tokens: they are then part of the prompt that continues the conversation.
    """

    length: int
    """The number of tokens in the prompt."""
    names: Sequence[int]
    """The id of each block of tokens in the prompt, in order."""
    block: int
    """The number of tokens in each block of the prompt that has an id."""
    start: int = 0
    """The number of tokens of the first block that lie before the prompt, if it is a slice of another."""

    def __post_init__(self) -> None:
        if self.block < 1 or len(self.names) != -(-(self.start + self.length) // self.block):
            raise ValueError(
                f"{len(self.names)} block names for blocks of {self.block} tokens do not match {self.length} tokens: "
                "give one name for each block, including a partial one"
            )

    @override
    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> "NamedPrompt": ...
    @override
    def __getitem__(self, index: int | slice) -> "int | NamedPrompt":
        """Return the id of a token's block as a number below 0, or a slice, which copies no tokens."""
        if not isinstance(index, slice):
            if not 0 <= index < self.length:
                index = range(self.length)[index]
            return -1 - self.names[(self.start + index) // self.block]
        part = range(self.start, self.start + self.length)[index]
        assert part.step == 1
        if not part:
            return NamedPrompt(0, (), self.block)
        first = part.start // self.block
        names = self.names[first : -(-part.stop // self.block)]
        return NamedPrompt(len(part), names, self.block, part.start - first * self.block)

    @override
    def __iter__(self) -> Iterator[int]:
        return (-1 - self.names[at // self.block] for at in range(self.start, self.start + self.length))


def token_ids(prompt: Any) -> Sequence[int]:
    """Return a prompt as a sequence of ints: a list of ints is not copied, numpy and torch integers are converted.

    Raises:
        ValueError: If the prompt does not consist of ids.
    """
    if isinstance(prompt, NamedPrompt | range):
        return prompt
    try:
        ids = prompt.tolist() if hasattr(prompt, "tolist") else prompt
        if isinstance(ids, list | tuple) and set(map(type, ids)) <= {int}:
            return ids
        return [operator.index(token) for token in ids]
    except TypeError:
        raise ValueError("the prompt is not a list of token ids: give integers") from None


def unknown_id(ids: Sequence[int], vocabulary: int) -> int | None:
    """Return an id outside a vocabulary of this size, if the ids contain one, else None."""
    ends = (min(ids), max(ids)) if ids else ()
    return next((token for token in ends if not 0 <= token < vocabulary), None)


class Tokens(Sequence[int]):
    """The tokens that a request knows: its prompt, which is not copied, and then its output.

    `block` is the block size of a NamedPrompt, otherwise 1.
    """

    __slots__ = ("block", "output", "prompt")

    def __init__(self, prompt: Sequence[int]) -> None:
        self.prompt = prompt
        self.block = prompt.block if isinstance(prompt, NamedPrompt) else 1
        self.output: list[int] = []

    @override
    def __len__(self) -> int:
        return len(self.prompt) + len(self.output)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    @override
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        """Return one token, or a slice with step 1, which the caller must not change."""
        size = len(self.prompt)
        if not isinstance(index, slice):
            if not 0 <= index < size:
                index = range(len(self))[index]
            return self.prompt[index] if index < size else self.output[index - size]
        start, stop, step = index.indices(len(self))
        assert step == 1
        if stop <= size:
            part = self.prompt[start:stop]
            return part if isinstance(part, range | NamedPrompt) else tuple(part)
        if start >= size:
            return tuple(self.output[start - size : stop - size])
        return (*self.prompt[start:], *self.output[: stop - size])

    @override
    def __iter__(self) -> Iterator[int]:
        yield from self.prompt
        yield from self.output
