"""BERT's WordPiece tokenizer (Devlin et al., arXiv:1810.04805), read from vocab.txt in folders without tokenizer.json.

Each line is a piece, and its line number is the token id. `##` marks a piece that continues a word. Before the split
into pieces, text is cleaned, lower-cased (unless the folder disables it), and split at white space and punctuation.
"""

from dataclasses import replace
from pathlib import Path

import tokenizers
from tokenizers import decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece

from ridgeline.core.text.tokenizer_config import TokenizerConfig
from ridgeline.util.untrusted import refuse_pointer

CONTINUES = "##"
"""The prefix of WordPiece pieces that continue a word."""
_LONGEST_WORD = 100  # characters; a longer word becomes the unknown token, as in BERT's own code
_NAMES = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}


def read_wordpiece(path: Path, declared: TokenizerConfig) -> tuple[tokenizers.Tokenizer, TokenizerConfig]:
    """Build a WordPiece tokenizer from vocab.txt.

    Returns:
        The pipeline, and the tokenizer config completed with BERT's special tokens.

    Raises:
        ValueError: If the file is unreadable or lacks the unknown, start or separator token.
    """
    names = {**_NAMES, **declared.names}
    vocabulary = _read(path)
    absent = [names[role] for role in ("unk_token", "cls_token", "sep_token") if names[role] not in vocabulary]
    if absent:
        raise ValueError(f"{path}: the line {absent[0]!r} is missing; copy vocab.txt of the model's release")
    pipeline = tokenizers.Tokenizer(
        WordPiece(
            vocabulary,
            unk_token=names["unk_token"],
            max_input_chars_per_word=_LONGEST_WORD,
            continuing_subword_prefix=CONTINUES,
        )
    )
    settings = declared.settings
    accents = settings.get("strip_accents")
    pipeline.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars") is not False,
        strip_accents=accents if isinstance(accents, bool) else None,
        lowercase=settings.get("do_lower_case") is not False,
    )
    pipeline.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    pipeline.decoder = decoders.WordPiece(prefix=CONTINUES)
    first, last = names["cls_token"], names["sep_token"]
    pipeline.post_processor = processors.TemplateProcessing(
        single=f"{first}:0 $A:0 {last}:0",
        pair=f"{first}:0 $A:0 {last}:0 $B:1 {last}:1",
        special_tokens=[(first, vocabulary[first]), (last, vocabulary[last])],
    )
    return pipeline, replace(declared, names={role: name for role, name in names.items() if name in vocabulary})


def _read(path: Path) -> dict[str, int]:
    """Return the token ids of the pieces in a vocab.txt file; raise ValueError if it is unreadable or not UTF-8."""
    refuse_pointer(path)
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: the file is not UTF-8 text; copy the file again") from error
    if lines and not lines[-1]:
        lines.pop()
    return {line.rstrip("\r"): index for index, line in enumerate(lines)}
