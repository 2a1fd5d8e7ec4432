"""A tokenizer for models with random weights and none of their own: 256 bytes and end-of-text, BOS too."""

from collections.abc import Sequence

from typing_extensions import override

from ridgeline.core.text.tokenizer import Part, Tokenizer
from ridgeline.core.text.vocabulary import Vocabulary

END_OF_TEXT = "<|endoftext|>"
BYTE_SYMBOLS = 257
"""Size of the vocabulary: 256 bytes and the end of a text."""


class ByteTokenizer(Tokenizer):
    """257 symbols: id 0-255 is that byte, 256 both BOS and EOS. `add_bos` as the folder states."""

    def __init__(self, *, add_bos: bool = False) -> None:
        tokens = [bytes([byte]) for byte in range(256)] + [END_OF_TEXT.encode()]
        vocabulary = Vocabulary(tokens, frozenset({256}), {END_OF_TEXT: 256})
        names = {"bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT}
        super().__init__(vocabulary, names, prefix=(256,) if add_bos else (), most_bytes=1)

    @override
    def _encode_parts(self, parts: Sequence[Part]) -> list[int]:
        ids: list[int] = []
        for part in parts:
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += part.encode("utf-8")
        return ids
