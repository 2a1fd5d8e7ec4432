r"""Separation of reasoning sections, between `<think>` and `</think>`, from the response text.

If both tags are single tokens of the vocabulary, they count only as those tokens: the same characters spelled by other
tokens are text. Otherwise the tags are matched as text: the opening tag only at the start of the output, the closing
tag at its first occurrence. Text that can be the start of a tag is then held back.

Line breaks between tags and text belong to the template, not to the response. They are dropped, as templates drop them
when they write the response back into a conversation (`strip('\n')`, `lstrip('\n')`).
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
"""The pairs of reasoning tags in use: Qwen, DeepSeek and most others; ByteDance Seed; Cohere."""

BY_PARSER: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("deepseek_r1", "deepseek_v3", "glm45", "qwen3"), TAGS[0]),
    "seed_oss": TAGS[1],
    "cohere_command3": TAGS[2],
    "none": (),
}
"""The reasoning tags by the names of vLLM's reasoning parsers; "none" has no tags."""

_TAIL = 64  # tokens at the end of the prompt that are searched if tags are text


class SplitText(NamedTuple):
    """New text, separated into response and reasoning."""

    response: str = ""
    """The new text of the response that a token releases."""
    reasoning: str = ""
    """The new text of the reasoning section that a token releases."""


def tags_of(template_source: str) -> tuple[str, str] | None:
    """Return the reasoning tags that occur in the source of a chat template, or None if none occur."""
    return next((tags for tags in TAGS if any(tag in template_source for tag in tags)), None)


class ReasoningSplitter:
    """A splitter that separates one generated stream into reasoning and response.

    `reasoning_tokens` and `response_tokens` add up to the number of pushed tokens. A token counts for the section that
    contains its first character; tags count as reasoning.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], tags: tuple[str, str] = TAGS[0]) -> None:
        """Start splitting a generated stream at its reasoning tags.

        Args:
            tokenizer: Tokenizer of the model.
            prompt: Token ids of the prompt, which can end inside a reasoning section.
            tags: Opening and closing tag.
        """
        self._tags = tags
        self._ids = [_single(tokenizer, tag) for tag in tags]
        self._by_id = None not in self._ids
        self.inside = self._prompt_is_open(tokenizer, prompt)
        """Whether the stream is currently in a reasoning section."""
        self.reasoning_tokens = 0
        self.response_tokens = 0
        self._close = StopMatcher([tags[1]])
        self._start = "" if not self.inside and not self._by_id else None  # text that may be an opening tag
        self._undecided = 0  # tokens of that text
        self._after_tag = self.inside  # drop line breaks until text follows
        self._breaks = ""  # line breaks at the end of the reasoning so far

    @property
    def tag_ids(self) -> tuple[int, int] | None:
        """The token ids of the two reasoning tags, or None if the vocabulary lacks one of them."""
        opening, closing = self._ids
        return None if opening is None or closing is None else (opening, closing)

    def push(self, token_id: int, text: str) -> SplitText:
        """Split the next token's text into response and reasoning.

        Args:
            token_id: The token.
            text: Text that the detokenizer released, including the literal of a tag.
        """
        if self._by_id:
            return self._push_id(token_id, text)
        if self._start is not None:
            self._undecided += 1
        elif self.inside:
            self.reasoning_tokens += 1
        else:
            self.response_tokens += 1
        return self._push_text(text)

    def finish(self, text: str = "") -> SplitText:
        """Split the text that is held back at the end of the stream.

        An incomplete opening tag is ordinary text. An incomplete closing tag is dropped: the stream was cut there.
        """
        split = self._emit(text) if self._by_id else self._push_text(text)
        if self._start is not None:
            rest, self._start = self._start, None
            self.response_tokens += self._undecided
            return SplitText(split.response + self._emit(rest).response, split.reasoning)
        return split

    def _push_id(self, token_id: int, text: str) -> SplitText:
        """Split a token's text into reasoning and response if the reasoning tags are single tokens."""
        if token_id not in self._ids:
            if self.inside:
                self.reasoning_tokens += 1
            else:
                self.response_tokens += 1
            return self._emit(text)
        self.reasoning_tokens += 1
        opens = token_id == self._ids[0]
        # An incomplete character that the tag ended can precede the tag's own literal.
        split = self._emit(text.removesuffix(self._tags[0 if opens else 1]))
        self._enter(opens)
        return split

    def _push_text(self, text: str) -> SplitText:
        """Split text into reasoning and response if the reasoning tags are matched as text."""
        if self._start is not None:
            return self._decide(text)
        if not self.inside:
            return self._emit(text)
        result = self._close.push(text)
        split = self._emit(result.safe)
        if result.matched is None:
            return split
        self._enter(False)
        return SplitText(self._emit(result.rest).response, split.reasoning)

    def _decide(self, text: str) -> SplitText:
        """Determine whether the output begins with the opening tag, which white space can precede."""
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
        self.response_tokens += self._undecided
        return self._emit(text)

    def _enter(self, inside: bool) -> None:
        """Switch to the reasoning section or to the response."""
        self.inside, self._after_tag, self._breaks = inside, True, ""

    def _emit(self, text: str) -> SplitText:
        """Return text of the current section (reasoning or response), without the line breaks next to tags."""
        if self._after_tag:
            text = text.lstrip("\n")
            self._after_tag = not text
        if not self.inside:
            return SplitText(response=text)
        body = text.rstrip("\n")
        if not body:
            self._breaks += text
            return SplitText()
        released, self._breaks = self._breaks + body, text[len(body) :]
        return SplitText(reasoning=released)

    def _prompt_is_open(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> bool:
        """Return whether the prompt ends inside a reasoning section, as with templates that append `<think>`."""
        if self._by_id:
            last = next((i for i in reversed(prompt) if i in self._ids), None)
            return last is not None and last == self._ids[0]
        # Typed text can spell these tags, so only one at the very end was written by the template.
        return tokenizer.decode(prompt[-_TAIL:], skip_special=False).rstrip().endswith(self._tags[0])


def _single(tokenizer: Tokenizer, tag: str) -> int | None:
    """Return the token id of a reasoning tag, or None if the vocabulary has no single token for it."""
    ids = tokenizer.encode(tag, add_special=False)
    return ids[0] if len(ids) == 1 else None
