"""The tokens of a prompt: ids, or only the names of their blocks; and the tokens that follow them."""

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

from typing_extensions import override


@dataclass(frozen=True, slots=True)
class NamedPrompt(Sequence[int]):
    """A prompt of which only the length and the names of its blocks are known: what a recorded trace of traffic says.

    Prompts share a prefix as far as their names are equal. In place of ids it has its names, as numbers below 0: only
    an executor that reads no ids can run it. Where the names of the answer are known too, that executor gives them as
    its tokens: they are then what the prompt has that goes on with it. length: tokens. block: tokens a name stands for.
    start: in a part of another prompt, tokens of its first block that come before it.
    """

    length: int
    names: Sequence[int]
    block: int
    start: int = 0

    def __post_init__(self) -> None:
        if self.block < 1 or len(self.names) != -(-(self.start + self.length) // self.block):
            raise ValueError(
                f"{len(self.names)} names of blocks of {self.block} do not make {self.length} tokens; "
                "give one for each block begun"
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
        """A name, or a part, which is made in no time however long it is."""
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
    """A prompt as ids: a sequence of ints as it is, not copied; numpy's and torch's integers as ints.

    Raises ValueError for what holds no ids.
    """
    if isinstance(prompt, NamedPrompt | range):
        return prompt
    try:
        ids = prompt.tolist() if hasattr(prompt, "tolist") else prompt
        if isinstance(ids, list | tuple) and set(map(type, ids)) <= {int}:
            return ids
        return [operator.index(token) for token in ids]
    except TypeError:
        raise ValueError("the prompt is not a list of token ids; give whole numbers") from None


def unknown_id(ids: Sequence[int], vocabulary: int) -> int | None:
    """One of the ids that a vocabulary of so many does not have, None if it has them all."""
    ends = (min(ids), max(ids)) if ids else ()
    return next((token for token in ends if not 0 <= token < vocabulary), None)


class Tokens(Sequence[int]):
    """What a request knows: its prompt, which is not copied, and then its output. block: that of a NamedPrompt, else
    1.
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
        """One token, or a slice with step 1, which is not to be changed."""
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
