"""A byte tokenizer for models that have no tokenizer of their own, such as models with random weights."""

from collections.abc import Sequence

from typing_extensions import override

from ridgeline.core.text.tokenizer import PromptPart, Tokenizer
from ridgeline.core.text.vocabulary import Vocabulary

END_OF_TEXT = "<|endoftext|>"
"""The literal of the end-of-text token, which is both BOS and EOS."""
BYTE_SYMBOLS = 257
"""The vocabulary size of the byte tokenizer: 256 bytes and the end-of-text token."""


class ByteTokenizer(Tokenizer):
    """A tokenizer with 257 symbols: ids 0 to 255 are the bytes, and 256 is both BOS and EOS.

    `add_bos` says whether encoding puts BOS before a text.
    """

    def __init__(self, *, add_bos: bool = False) -> None:
        tokens = [bytes([byte]) for byte in range(256)] + [END_OF_TEXT.encode()]
        vocabulary = Vocabulary(tokens, frozenset({256}), {END_OF_TEXT: 256})
        names = {"bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT}
        super().__init__(vocabulary, names, prefix=(256,) if add_bos else (), most_bytes=1)

    @override
    def _encode_parts(self, parts: Sequence[PromptPart]) -> list[int]:
        ids: list[int] = []
        for part in parts:
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += part.encode("utf-8")
        return ids
