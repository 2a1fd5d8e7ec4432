"""Log-probabilities as clients read them: OpenAI's two shapes, and vLLM's for the prompt's own tokens."""

from collections.abc import Iterable, Sequence

from ridgeline.engine.sampling.row import PromptLogprob, Sampled
from ridgeline.text import Tokenizer

Scores = Sequence[PromptLogprob | None]
"""Of a prompt's tokens; None for the first, which comes after nothing."""

MIN_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON does not have; vLLM's number."""


class TokenNames:
    """How tokens are written in an answer: as text, or as `token_id:7` where a request asks for it."""

    def __init__(self, tokenizer: Tokenizer, *, as_ids: bool = False) -> None:
        self._tokenizer, self._as_ids = tokenizer, as_ids

    def text(self, token: int) -> str:
        """A token; half characters as U+FFFD."""
        return f"token_id:{token}" if self._as_ids else self.data(token).decode("utf-8", "replace")

    def distinct(self, tokens: Iterable[int]) -> dict[int, str]:
        """Return a name for each of several tokens, no two of them alike.

        The first of those that read alike has its text. A further one is spelled by its bytes as OpenAI spells half
        characters, or by its id if these bytes are taken too.
        """
        names: dict[str, int] = {}
        for token in dict.fromkeys(tokens):
            spelled = "bytes:" + "".join(f"\\x{byte:02x}" for byte in self.data(token))
            name = next((name for name in (self.text(token), spelled) if name not in names), f"token_id:{token}")
            names[name] = token
        return {token: name for name, token in names.items()}

    def data(self, token: int) -> bytes:
        """Its exact bytes; a control token as it is spelled."""
        return self._tokenizer.token_bytes(token, skip_special=False)


def chat_logprobs(tokens: Iterable[Sampled], names: TokenNames) -> dict[str, object]:
    """Of chat: a list of tokens, each with its likeliest alternatives."""
    content = [
        {**_entry(one.token, one.logprob_raw, names), "top_logprobs": [_entry(*pair, names) for pair in one.top_raw]}
        for one in tokens
    ]
    return {"content": content, "refusal": None}


def _entry(token: int, logprob: float | None, names: TokenNames) -> dict[str, object]:
    return {"token": names.text(token), "logprob": _finite(logprob), "bytes": list(names.data(token))}


class CompletionLogprobs:
    """The log-probabilities of completions: parallel lists."""

    def __init__(self, names: TokenNames) -> None:
        self._names = names

    def of_prompt(self, prompt: Sequence[int], scores: Scores, offsets: Sequence[int]) -> dict[str, list[object]]:
        """Return the lists of an echoed prompt, whose first token comes after nothing.

        Args:
            prompt: The ids of the prompt.
            scores: One for each token of the prompt.
            offsets: The places of the tokens in the text that is sent, in characters.
        """
        rows = [(s.token, s.logprob, s.top) if s is not None else None for s in scores]
        return self._columns([row or (token, None, None) for token, row in zip(prompt, rows, strict=True)], offsets)

    def of_output(self, tokens: Iterable[Sampled], offsets: Sequence[int]) -> dict[str, list[object]]:
        """Return the lists of the tokens that come next, whose places in the text are `offsets`."""
        return self._columns([(one.token, one.logprob_raw, one.top_raw) for one in tokens], offsets)

    def _columns(
        self, rows: Iterable[tuple[int, float | None, tuple[tuple[int, float], ...] | None]], offsets: Sequence[int]
    ) -> dict[str, list[object]]:
        columns: dict[str, list[object]] = {"tokens": [], "token_logprobs": [], "top_logprobs": []}
        for token, logprob, top in rows:
            columns["tokens"].append(self._names.text(token))
            columns["token_logprobs"].append(None if logprob is None else _finite(logprob))
            columns["top_logprobs"].append(None if top is None else self._top(token, logprob, top))
        return {**columns, "text_offset": list(offsets)}

    def _top(self, token: int, logprob: float | None, top: tuple[tuple[int, float], ...]) -> dict[str, float]:
        """Return the likeliest tokens and the one that is there, which has the name that `tokens` gives it."""
        names = self._names.distinct((token, *(other for other, _ in top)))
        return {names[other]: _finite(own) for other, own in (*top, (token, logprob))}


def joined(columns: Sequence[dict[str, list[object]]]) -> dict[str, list[object]]:
    """Lists one after the other."""
    return {name: [value for part in columns for value in part[name]] for name in columns[0]}


def prompt_logprobs(scores: Scores, names: TokenNames) -> list[dict[str, object] | None]:
    """vLLM's `prompt_logprobs`: for each token of the prompt, by id, itself and the likeliest there.

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
