"""The byte-level BPE of `translate`, one for both languages, laid out as T5's: `</s>` ends every text."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Tokenizer, processors

from zoo.bpe import byte_level_bpe

PAD, EOS = 0, 1
PAD_TOKEN, EOS_TOKEN = "<pad>", "</s>"


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A tokenizer of exactly `vocab_size` tokens; `<pad>`, with which decoding starts, is 0 and `</s>` is 1."""
    tokenizer = byte_level_bpe(texts, vocab_size, (PAD_TOKEN, EOS_TOKEN))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {EOS_TOKEN}", pair=f"$A {EOS_TOKEN} $B {EOS_TOKEN}", special_tokens=[(EOS_TOKEN, EOS)]
    )
    return tokenizer
