"""A vocabulary as llguidance sees it, and the masks over it that need no grammar.

A mask is uint32 [W], token t being bit t % 32 of word t // 32. W words cover the model's rows, which may be more than
the tokenizer's ids: padding is never allowed. The library requires an end token. It gets an id one past the model's
rows, which is no token: its bit tells whether the grammar is complete. Which tokens end a text is up to the request.
"""

from collections.abc import Iterable

import llguidance
import numpy as np
from llguidance.numpy import fill_next_token_bitmask
from numpy.typing import NDArray

from ridgeline.core.text import Tokenizer

Mask = NDArray[np.uint32]


class LLGuidanceTokenizer:
    """The tokenizer interface that llguidance requires: the bytes of every token, and the tokens of a forced text."""

    def __init__(self, tokenizer: Tokenizer, rows: int) -> None:
        self._tokenizer = tokenizer
        control = {token for token in tokenizer.control.values() if token < rows}
        self.tokens = [tokenizer.token_bytes(token, skip_special=False) for token in range(rows)] + [b"<end>"]
        self.special_token_ids = [*sorted(control | {t for t in tokenizer.special_ids if t < rows}), rows]
        self.eos_token_id, self.bos_token_id = rows, None
        hidden = set(self.special_token_ids)
        self._by_bytes = {data: token for token, data in enumerate(self.tokens) if data and token not in hidden}
        self._longest = max(map(len, self._by_bytes), default=0)

    def __call__(self, text: bytes | str) -> list[int]:
        """Return token ids whose bytes are those of a text, as far as the vocabulary can spell it.

        They are those of the model's own tokenizer if their bytes equal the text, else the longest tokens from left to
        right (an encoder may add a space, or compose characters).
        """
        data = text.encode() if isinstance(text, str) else text
        try:
            ids = self._tokenizer.encode(data.decode(), add_special=False, parse_special=False)
        except ValueError:  # half a character, or a text that this tokenizer refuses
            return self._greedy(data)
        return ids if b"".join([self.tokens[i] for i in ids if i < len(self.tokens)]) == data else self._greedy(data)

    def _greedy(self, data: bytes) -> list[int]:
        ids, at = [], 0
        while at < len(data):
            sizes = range(min(self._longest, len(data) - at), 0, -1)
            size = next((size for size in sizes if data[at : at + size] in self._by_bytes), 0)
            if not size:
                break  # the vocabulary cannot spell it
            ids.append(self._by_bytes[data[at : at + size]])
            at += size
        return ids


class GrammarVocabulary:
    """A model's vocabulary, prepared for grammars once: half a second and some 60 MB for 152k tokens."""

    def __init__(self, tokenizer: Tokenizer, rows: int) -> None:
        """Prepare the vocabulary of a model's tokenizer for grammars.

        Args:
            tokenizer: The model's tokenizer.
            rows: The number of token ids of the model.
        """
        spelling = LLGuidanceTokenizer(tokenizer, rows)
        self.rows, self.words = rows, (rows + 31) // 32
        self.tokens = spelling.tokens[:rows]
        self.library = llguidance.LLTokenizer(llguidance.TokenizerWrapper(spelling), n_vocab=rows + 1)
        self.control = frozenset(spelling.special_token_ids[:-1])
        self.every = self.mask(token for token, data in enumerate(self.tokens) if data)
        """The mask that allows all tokens of the vocabulary."""
        self.breaks = self.mask(t for t, data in enumerate(self.tokens) if data and not data.strip(b"\n"))
        """The mask that allows the tokens that consist of line breaks only."""

    def mask(self, tokens: Iterable[int]) -> Mask:
        """Return a bitmask over the vocabulary that allows only these tokens."""
        bits = np.zeros(self.words * 32, np.uint8)
        bits[[token for token in tokens if 0 <= token < self.rows]] = 1
        return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32, copy=False)

    def next_of(self, matcher: llguidance.LLMatcher) -> tuple[Mask, bool]:
        """Return which tokens a grammar allows next, and whether its text may end here.

        A matcher that has failed allows none.
        """
        row = np.zeros((1, (self.rows + 1 + 31) // 32), np.int32)
        fill_next_token_bitmask(matcher, row)
        words = row[0].view(np.uint32)
        end_word, end_bit = divmod(self.rows, 32)
        complete = bool(words[end_word] >> np.uint32(end_bit) & np.uint32(1))
        words[end_word] &= ~np.uint32(1 << end_bit)
        if matcher.is_error():
            words[:] = 0
        return words[: self.words], complete and matcher.is_accepting()
