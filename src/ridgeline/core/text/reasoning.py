"""Reasoning sections: the part of an answer that a model writes for itself, between `<think>` and `</think>`.

A tag that is one token of the vocabulary counts only as that token: its letters spelled by other tokens are text.
Where the vocabulary has no such token the tags are matched as text: the opening one at the very start of the answer,
the closing one at its first occurrence, and never half a tag is released.

Line breaks between tags and text are the template's, not the answer's, and are dropped as templates drop them when
they write the answer back into a conversation (`strip('\\n')`, `lstrip('\\n')`).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ridgeline.core.text.stop_strings import StopMatcher
from ridgeline.core.text.tokenizer import Tokenizer

TAGS = (
    ("<think>", "</think>"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
)
"""Pairs in use: Qwen, DeepSeek and most others; ByteDance Seed; Cohere."""

BY_PARSER: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("deepseek_r1", "deepseek_v3", "glm45", "qwen3"), TAGS[0]),
    "seed_oss": TAGS[1],
    "cohere_command3": TAGS[2],
    "none": (),
}
"""The tags by the names that vLLM has for those who read them, and none at all."""

_TAIL = 64  # tokens of the prompt's end that are read where tags are text


class SplitText(NamedTuple):
    """New text by section."""

    answer: str = ""
    reasoning: str = ""


def tags_of(template_source: str) -> tuple[str, str] | None:
    """The tags that a chat template writes, or None: then the model's answer has no reasoning sections."""
    return next((tags for tags in TAGS if any(tag in template_source for tag in tags)), None)


class Reasoning:
    """Splits one generated stream. `reasoning_tokens` and `answer_tokens` add up to the tokens pushed; a token counts
    where its first character falls, tags as reasoning.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], tags: tuple[str, str] = TAGS[0]) -> None:
        self._tags = tags
        self._ids = [_single(tokenizer, tag) for tag in tags]
        self._by_id = None not in self._ids
        self.inside = self._prompt_is_open(tokenizer, prompt)
        """Whether the stream is in a reasoning section now."""
        self.reasoning_tokens = 0
        self.answer_tokens = 0
        self._close = StopMatcher([tags[1]])
        self._start = "" if not self.inside and not self._by_id else None  # text before it is known what it is
        self._undecided = 0  # tokens of that text
        self._after_tag = self.inside  # line breaks are dropped until text follows
        self._breaks = ""  # line breaks at the end of the reasoning so far

    @property
    def tag_ids(self) -> tuple[int, int] | None:
        """The tokens that the two tags are, where the vocabulary has both."""
        opening, closing = self._ids
        return None if opening is None or closing is None else (opening, closing)

    def push(self, token_id: int, text: str) -> SplitText:
        """The next token and the text that it released (of the detokenizer; a tag's own literal included)."""
        if self._by_id:
            return self._push_id(token_id, text)
        if self._start is not None:
            self._undecided += 1
        elif self.inside:
            self.reasoning_tokens += 1
        else:
            self.answer_tokens += 1
        return self._push_text(text)

    def finish(self, text: str = "") -> SplitText:
        """The end of the stream, with the detokenizer's last text. A half tag that never became whole is text."""
        split = self._emit(text) if self._by_id else self._push_text(text)
        if self._start is not None:
            rest, self._start = self._start, None
            self.answer_tokens += self._undecided
            return SplitText(split.answer + self._emit(rest).answer, split.reasoning)
        if self.inside and not self._by_id:
            last = self._emit(self._close.flush().safe)
            return SplitText(split.answer, split.reasoning + last.reasoning)
        return split

    def _push_id(self, token_id: int, text: str) -> SplitText:
        if token_id not in self._ids:
            if self.inside:
                self.reasoning_tokens += 1
            else:
                self.answer_tokens += 1
            return self._emit(text)
        self.reasoning_tokens += 1
        opens = token_id == self._ids[0]
        # Before the tag's own literal may stand a half character that the tag ended.
        split = self._emit(text.removesuffix(self._tags[0 if opens else 1]))
        self._enter(opens)
        return split

    def _push_text(self, text: str) -> SplitText:
        if self._start is not None:
            return self._decide(text)
        if not self.inside:
            return self._emit(text)
        result = self._close.push(text)
        split = self._emit(result.safe)
        if result.matched is None:
            return split
        self._enter(False)
        return SplitText(self._emit(result.rest).answer, split.reasoning)

    def _decide(self, text: str) -> SplitText:
        """Whether the answer begins with the opening tag; white space may precede it."""
        assert self._start is not None
        self._start += text
        begun, opening = self._start.lstrip(), self._tags[0]
        if len(begun) < len(opening) and opening.startswith(begun):
            return SplitText()
        text, self._start = self._start, None
        if begun.startswith(opening):
            self.reasoning_tokens += self._undecided
            self._enter(True)
            return self._push_text(begun[len(opening) :])
        self.answer_tokens += self._undecided
        return self._emit(text)

    def _enter(self, inside: bool) -> None:
        self.inside, self._after_tag, self._breaks = inside, True, ""

    def _emit(self, text: str) -> SplitText:
        """Text of the present section, less the line breaks beside tags."""
        if self._after_tag:
            text = text.lstrip("\n")
            self._after_tag = not text
        if not self.inside:
            return SplitText(answer=text)
        body = text.rstrip("\n")
        if not body:
            self._breaks += text
            return SplitText()
        released, self._breaks = self._breaks + body, text[len(body) :]
        return SplitText(reasoning=released)

    def _prompt_is_open(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> bool:
        """Whether the prompt ends inside a section, as templates that append `<think>` leave it."""
        if self._by_id:
            last = next((i for i in reversed(prompt) if i in self._ids), None)
            return last is not None and last == self._ids[0]
        # Typed text can spell these tags, so only one at the very end was written by the template.
        return tokenizer.decode(prompt[-_TAIL:], skip_special=False).rstrip().endswith(self._tags[0])


def _single(tokenizer: Tokenizer, tag: str) -> int | None:
    """The tag's token, if the vocabulary has one."""
    ids = tokenizer.encode(tag, add_special=False)
    return ids[0] if len(ids) == 1 else None
