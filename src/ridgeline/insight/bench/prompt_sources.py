"""The sources of a benchmark's prompts, which are the same for a seed and a session number in any process."""

import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Protocol

import msgspec

from ridgeline.insight.bench.job import LoadTarget, PromptDataset
from ridgeline.insight.traffic.lengths import parse_lengths
from ridgeline.insight.traffic.workload_trace import TraceRequest, read_trace
from ridgeline.util.untrusted import first_line, read_json

# Common words that are a single token in most vocabularies.
_COMMON = (
    "the of and to in is you that it he was for on are as with his they at be this have from or one had by word but "
    "not what all were we when your can said there use an each which she do how their if will up other about out many "
    "then them these so some her would make like him into time has look two more write go see number no way could "
    "people my than first water been call who oil its now find long down day did get come made may part over new "
    "sound take only little work know place year live me back give most very after thing our just name good sentence "
    "man think say great where help through much before line right too mean old any same tell boy follow came want"
)
_WORDS = _COMMON.split(" ")

Prompt = str | list[int] | list[dict[str, Any]]
"""A prompt: text, token ids, or chat messages."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a conversation, with the number of output tokens; None lets the model end the response."""

    prompt: Prompt
    output: int | None


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation, mostly of one turn; the request for a later turn includes the conversation so far."""

    turns: tuple[Turn, ...]


class PromptSource(Protocol):
    """A source of conversations whose prompts a benchmark sends."""

    def items(self) -> Iterator[TraceRequest | None]:
        """Yield one entry per session: its request in a trace, or None for a source without a trace.

        It makes no text and is cheap, because every process iterates over all sessions.
        """

    def session(self, index: int, item: TraceRequest | None) -> Session:
        """Build the conversation of a session number, including its prompts (text, token ids or messages).

        Args:
            index: The session number.
            item: The entry that `items` yields for the session.
        """

    def check(self, target: LoadTarget) -> None:
        """Check that a target's endpoint accepts these prompts.

        Raises:
            ValueError: If it does not.
        """


def open_prompts(data: PromptDataset) -> PromptSource:
    """Return the prompt source that a data set describes.

    Raises:
        ValueError: If its file or lengths cannot be read.
    """
    if data.kind == "trace":
        return TracePrompts(data)
    return SyntheticPrompts(data) if data.kind == "random" else FilePrompts(data)


class SyntheticPrompts:
    """Prompts of random words or token ids with lengths from a distribution, and optionally a shared prefix."""

    def __init__(self, data: PromptDataset) -> None:
        self.data = data
        self._input = parse_lengths(data.input, "--input")
        self._output = None if data.output is None else parse_lengths(data.output, "--output")

    def check(self, target: LoadTarget) -> None:
        """Accept any server endpoint: all take text, and `body_of` reports token ids that an endpoint does not take."""

    def items(self) -> Iterator[TraceRequest | None]:
        """Yield None once per session without end, because random prompts depend only on the session number."""
        return repeat(None)

    def session(self, index: int, item: TraceRequest | None) -> Session:
        """Return a session whose turns are drawn independently; only the first has the shared prefix."""
        draw = random.Random(f"{self.data.seed}/{index}")
        return Session(tuple(self._turn(draw, first=not turn) for turn in range(self.data.turns)))

    def _turn(self, draw: random.Random, *, first: bool) -> Turn:
        pieces = []
        if first and self.data.prefix:
            name = f"{self.data.seed}/prefix/{draw.randrange(self.data.prefixes)}"
            pieces.append((name, self.data.prefix))
        pieces.append((str(draw.getrandbits(64)), self._input.draw(draw)))
        return Turn(build_prompt(pieces, self.data), None if self._output is None else self._output.draw(draw))


class TracePrompts:
    """Prompts with the lengths of a trace; blocks to which the trace gives the same name have the same text."""

    def __init__(self, data: PromptDataset) -> None:
        self.data = data
        next(self.items())  # reports an unreadable file before anything is sent

    def check(self, target: LoadTarget) -> None:
        """Accept any server endpoint: all take text, and `body_of` reports token ids that an endpoint does not take."""

    def items(self) -> Iterator[TraceRequest | None]:
        """Yield the requests of the trace as recorded."""
        return iter(read_trace(Path(self.data.path)))

    def session(self, index: int, item: TraceRequest | None) -> Session:
        """Return a session of one turn: the named blocks of its prompt, then unique text."""
        assert item is not None
        left, pieces = item.input, []
        for name in item.blocks[: math.ceil(item.input / item.block) if item.block else 0]:
            pieces.append((f"{self.data.seed}/block/{name}", min(item.block, left)))
            left -= pieces[-1][1]
        if left:
            pieces.append((f"{self.data.seed}/{index}", left))
        return Session((Turn(build_prompt(pieces, self.data), item.output),))


class FilePrompts:
    """A source of prompts that reads them from a file in order and starts over at its end.

    The file is a JSON list of conversations in ShareGPT format, or JSON lines with `prompt` or `messages` (and
    `max_tokens`).
    """

    def __init__(self, data: PromptDataset) -> None:
        self.data = data
        path = Path(data.path)
        self._output = None if data.output is None else parse_lengths(data.output, "--output")
        found = _share_gpt(path) if path.suffix == ".json" else _json_lines(path)
        self.prompts = [pair for pair in found if pair[0]]
        if not self.prompts:
            raise ValueError(f"{path} contains no prompt")

    def check(self, target: LoadTarget) -> None:
        """Check that the endpoint takes these prompts: messages need a chat, token ids a completion.

        Raises:
            ValueError: If it does not.
        """
        for prompt, output in self.prompts:
            body_of(target, [], Turn(prompt, output))

    def items(self) -> Iterator[TraceRequest | None]:
        """Yield None once per session without end, because the session number selects the prompt of the file."""
        return repeat(None)

    def session(self, index: int, item: TraceRequest | None) -> Session:
        """Return a conversation of one turn, with a prompt of the file."""
        prompt, output = self.prompts[index % len(self.prompts)]
        if output is None and self._output is not None:
            output = self._output.draw(random.Random(f"{self.data.seed}/{index}"))
        return Session((Turn(prompt, output),))


# -- words ------------------------------------------------------------------------------------------------------------


def build_prompt(pieces: list[tuple[str, int]], data: PromptDataset) -> Prompt:
    """Return a prompt made of named pieces with token counts; equal names and counts give equal text.

    A prompt of token ids has exactly these counts, one of random words approximately. From the last piece of words, the
    tokens that the server adds to every prompt (`TokensPerWord.fixed`) are deducted.
    """
    if data.vocabulary is not None:
        return list(chain.from_iterable(_ids(name, tokens, data.vocabulary) for name, tokens in pieces))
    *shared, (last, tokens) = pieces
    texts = [words(name, max(1, round(count / data.wording.per_word))) for name, count in shared]
    own = max(1, round((tokens - data.wording.fixed) / data.wording.per_word))
    return " ".join([*texts, words(last, own)])


@lru_cache(maxsize=4096)
def words(name: str, count: int) -> str:
    """Return a number of random words, always the same for one name and count."""
    return " ".join(random.Random(name).choices(_WORDS, k=count))


def _ids(name: str, count: int, vocabulary: int) -> list[int]:
    draw = random.Random(name)
    return [draw.randrange(vocabulary) for _ in range(count)]


def _share_gpt(path: Path) -> Iterator[tuple[Prompt, int | None]]:
    """Yield the first message of each conversation that a human begins in a ShareGPT file, without an output length."""
    found = read_json(path)
    if not isinstance(found, list):
        raise ValueError(f"{path} is not a list of conversations; give ShareGPT JSON or JSONL of prompts")
    for number, conversation in enumerate(found, 1):
        try:
            first = next(iter(conversation["conversations"]), None)
            if first is not None and first["from"] in ("human", "user"):
                yield str(first["value"]), None
        except (KeyError, TypeError, AttributeError):
            raise ValueError(f"{path}, conversation {number}: it is not in ShareGPT's format") from None


class _PromptLine(msgspec.Struct):
    prompt: str | list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    max_tokens: int | None = None


def _json_lines(path: Path) -> Iterator[tuple[Prompt, int | None]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _line(path, number, line)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None


def _line(path: Path, number: int, line: bytes) -> tuple[Prompt, int | None]:
    try:
        read = msgspec.json.decode(line, type=_PromptLine)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"{path}, line {number}: {first_line(error)}") from None
    prompt = read.prompt if read.prompt is not None else read.messages
    if prompt is None:
        raise ValueError(f"{path}, line {number}: it has neither `prompt` nor `messages`")
    return prompt, read.max_tokens


# -- bodies -----------------------------------------------------------------------------------------------------------


def body_of(target: LoadTarget, chat_messages: list[dict[str, Any]], turn: Turn) -> bytes:
    """Return the JSON body of a request.

    Args:
        target: The server and the common fields.
        chat_messages: The messages of previous turns; a completion of text gets them as lines of text, one of token ids
            not at all.
        turn: The turn to send.

    Raises:
        ValueError: If the endpoint takes no messages or no token ids.
    """
    fields: dict[str, Any] = {"model": target.model, "stream": True, "stream_options": {"include_usage": True}}
    if target.endpoint == "chat":
        fields["messages"] = [*chat_messages, *messages(turn.prompt)]
    else:
        if turn.prompt and isinstance(turn.prompt[0], dict):
            raise ValueError("messages need --endpoint chat, because completions take a prompt")
        before = "".join(f"{message['content']}\n" for message in chat_messages)
        fields["prompt"] = before + turn.prompt if isinstance(turn.prompt, str) else turn.prompt
    if turn.output is not None:
        fields["max_tokens"] = turn.output
    if target.ignore_eos:
        fields["ignore_eos"] = True
    return json.dumps({**fields, "temperature": 0.0, **target.more}).encode()


def messages(prompt: Prompt) -> list[dict[str, Any]]:
    """Return a prompt as chat messages.

    Raises:
        ValueError: If the prompt is token ids, which no chat takes.
    """
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    if prompt and isinstance(prompt[0], int):
        raise ValueError("token ids need --endpoint completions, because chat takes text")
    return [message for message in prompt if isinstance(message, dict)]
