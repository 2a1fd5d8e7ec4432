"""Log-probabilities as clients read them: OpenAI's two shapes, and vLLM's for the prompt's own tokens."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import msgspec

from ridgeline.core.text import Tokenizer, TokenOffsets
from ridgeline.engine.sampling.sample_row import PromptLogprob, Sampled
from ridgeline.server.event_loop import slices
from ridgeline.server.routes.long_response import EncodedList

Scores = Sequence[PromptLogprob | None]
"""Of a prompt's tokens; None for the first, which comes after nothing."""

MIN_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON does not have; vLLM's number."""


class TokenNames:
    """How tokens are written in an answer: as text, or as `token_id:7` where a request asks for it."""

    def __init__(self, tokenizer: Tokenizer, *, as_ids: bool = False) -> None:
        self.tokenizer, self._as_ids = tokenizer, as_ids

    def text(self, token: int) -> str:
        """A token; half characters as U+FFFD."""
        return f"token_id:{token}" if self._as_ids else self.data(token).decode("utf-8", "replace")

    def distinct(self, tokens: Iterable[int]) -> dict[int, str]:
        """Return a distinct name for each token.

        Of tokens with the same text, the first is named by that text. Each further one is named by its bytes, as OpenAI
        names half characters, or by its id if these bytes are taken too.
        """
        names: dict[str, int] = {}
        for token in dict.fromkeys(tokens):
            spelled = "bytes:" + "".join(f"\\x{byte:02x}" for byte in self.data(token))
            name = next((name for name in (self.text(token), spelled) if name not in names), f"token_id:{token}")
            names[name] = token
        return {token: name for name, token in names.items()}

    def data(self, token: int) -> bytes:
        """Its exact bytes; a control token as it is spelled."""
        return self.tokenizer.token_bytes(token, skip_special=False)


def chat_logprobs(tokens: Iterable[Sampled], names: TokenNames) -> dict[str, object]:
    """Of chat: a list of tokens, each with its likeliest alternatives."""
    return {"content": _chat_entries(tokens, names), "refusal": None}


async def long_chat_logprobs(tokens: Sequence[Sampled], names: TokenNames) -> dict[str, object]:
    """Return the same as `chat_logprobs`, written in slices so that the event loop is not held up."""
    content = EncodedList()
    async for part in slices(tokens):
        content.add(_chat_entries(part, names))
    return {"content": content.json(), "refusal": None}


def _chat_entries(tokens: Iterable[Sampled], names: TokenNames) -> list[dict[str, object]]:
    return [
        {**_entry(one.token, one.logprob_raw, names), "top_logprobs": [_entry(*pair, names) for pair in one.top_raw]}
        for one in tokens
    ]


def _entry(token: int, logprob: float | None, names: TokenNames) -> dict[str, object]:
    return {"token": names.text(token), "logprob": _finite(logprob), "bytes": list(names.data(token))}


class CompletionLogprobs:
    """The log-probabilities of one text of a completion: parallel lists, and where in the text each token begins."""

    def __init__(self, names: TokenNames) -> None:
        self._names = names
        self._columns = {name: EncodedList() for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}

    def copy(self) -> "CompletionLogprobs":
        """Return a copy of the lists, which grows independently."""
        other = CompletionLogprobs(self._names)
        for name, column in self._columns.items():
            other._columns[name].extend(column)
        return other

    def add_prompt(self, prompt: Sequence[int], scores: Scores, offsets: Sequence[int]) -> None:
        """Write the next tokens of an echoed prompt, each with its scores.

        Args:
            prompt: The ids of the tokens.
            scores: One for each token; None for the first token of the prompt.
            offsets: The places of the tokens in the text that is sent, in characters.
        """
        rows = [(s.token, s.logprob, s.top) if s is not None else None for s in scores]
        self._add([row or (token, None, None) for token, row in zip(prompt, rows, strict=True)], offsets)

    def add_output(self, tokens: Iterable[Sampled], offsets: Sequence[int]) -> None:
        """Write the tokens that come next, whose places in the text are `offsets`."""
        self._add([(one.token, one.logprob_raw, one.top_raw) for one in tokens], offsets)

    def json(self) -> dict[str, msgspec.Raw]:
        """Return the lists written since the last call, and begin new ones."""
        written = {name: column.json() for name, column in self._columns.items()}
        self._columns = {name: EncodedList() for name in self._columns}
        return written

    def _add(
        self, rows: Sequence[tuple[int, float | None, tuple[tuple[int, float], ...] | None]], offsets: Sequence[int]
    ) -> None:
        columns: dict[str, list[object]] = {name: [] for name in self._columns}
        columns["text_offset"] += offsets
        for token, logprob, top in rows:
            columns["tokens"].append(self._names.text(token))
            columns["token_logprobs"].append(None if logprob is None else _finite(logprob))
            columns["top_logprobs"].append(None if top is None else self._top(token, logprob, top))
        for name, column in columns.items():
            self._columns[name].add(column)

    def _top(self, token: int, logprob: float | None, top: tuple[tuple[int, float], ...]) -> dict[str, float]:
        """Return log-probabilities by name: those of the likeliest tokens and of this one, named as in `tokens`."""
        names = self._names.distinct((token, *(other for other, _ in top)))
        return {names[other]: _finite(own) for other, own in (*top, (token, logprob))}


class PromptScores:
    """The log-probabilities of one prompt's tokens in a response, written step by step as the engine computes them.

    They become vLLM's `prompt_logprobs` (a list), or the beginning of a completion that echoes its prompt. Writing
    those of a whole prompt at once would hold up the event loop for seconds.
    """

    def __init__(self, prompt: Sequence[int], names: TokenNames, *, listed: bool, echoed: bool) -> None:
        """Begin without scores. listed: whether `prompt_logprobs` has them; echoed: whether a completion has them."""
        self._prompt, self._names, self._taken = prompt, names, 0
        self._offsets = TokenOffsets(names.tokenizer)
        self._list = EncodedList() if listed else None
        self._echo = CompletionLogprobs(names) if echoed else None

    def take(self, scores: Scores) -> None:
        """Write the scores of the prompt's next tokens."""
        if self._list is not None:
            self._list.add(prompt_logprobs(scores, self._names))
        if self._echo is not None:
            tokens = self._prompt[self._taken : self._taken + len(scores)]
            self._echo.add_prompt(tokens, scores, [self._offsets.push(token) for token in tokens])
        self._taken += len(scores)

    @cached_property
    def told(self) -> Mapping[str, object]:
        """The fields of the response that hold them: `prompt_logprobs`, if the request asks for it."""
        return {} if self._list is None else {"prompt_logprobs": self._list.json()}

    def continued(self) -> CompletionLogprobs:
        """Return the log-probabilities of a completion, which begin with those of an echoed prompt."""
        return CompletionLogprobs(self._names) if self._echo is None else self._echo.copy()


def prompt_logprobs(scores: Scores, names: TokenNames) -> list[dict[str, object] | None]:
    """VLLM's `prompt_logprobs`: for each token of the prompt, by id, itself and the likeliest there.

    rank: 1 for the likeliest; null where the token is not among those.
    """
    return [None if score is None else _by_id(score.token, score.logprob, score.top, names) for score in scores]


def _by_id(token: int, logprob: float, top: tuple[tuple[int, float], ...], names: TokenNames) -> dict[str, object]:
    ranked = {other: (own, rank) for rank, (other, own) in enumerate(top, 1)}
    return {
        str(i): {"logprob": _finite(own), "rank": rank, "decoded_token": names.text(i)}
        for i, (own, rank) in ({token: (logprob, None)} | ranked).items()
    }


def _finite(logprob: float | None) -> float:
    return MIN_LOGPROB if logprob is None else max(logprob, MIN_LOGPROB)
