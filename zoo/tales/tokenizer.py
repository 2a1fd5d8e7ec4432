"""The byte-level BPE tokenizer of `tales`, trained on the text the model will read."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Tokenizer, processors

from zoo.bpe import byte_level_bpe

BOS, EOS = "<s>", "</s>"


def train_tokenizer(texts: Iterable[str], vocab_size: int, special: tuple[str, ...] = ()) -> Tokenizer:
    """A tokenizer of exactly `vocab_size` tokens; it puts `<s>` before every text, as Llama's do. special: tokens
    beside `<s>` and `</s>`."""
    tokenizer = byte_level_bpe(texts, vocab_size, (BOS, EOS, *special))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return tokenizer


def ends(tokenizer: Tokenizer) -> tuple[int, int]:
    """Ids of `<s>` and `</s>`."""
    bos, eos = tokenizer.token_to_id(BOS), tokenizer.token_to_id(EOS)
    if bos is None or eos is None:
        raise ValueError(f"the tokenizer lacks {BOS} or {EOS}; train it with zoo.tales.tokenizer")
    return bos, eos
