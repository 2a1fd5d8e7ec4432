"""Byte-level BPE tokenizers from vocab.json and merges.txt, for folders without tokenizer.json.

All of them merge in the same way. The classes of tokenizers differ in how they split text before merging and in the
special tokens they add. The rules below are those of the released tokenizer.json files of GPT-2, Qwen2, CLIP and
RoBERTa (Liu et al., arXiv:1907.11692), whose special tokens BART shares.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import tokenizers
from tokenizers import Regex, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from ridgeline.core.text.tokenizer_config import TokenizerConfig
from ridgeline.util.untrusted import refuse_pointer

# Unlike GPT-2: contractions in any case, one digit per piece, line breaks joined to the punctuation before them.
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
"""The pattern by which Llama 3 splits text: that of Qwen 2, but with up to three digits per piece."""
_CLIP = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


_END = "<|endoftext|>"
_ROBERTA = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "cls_token": "<s>",
    "mask_token": "<mask>",
}

Scheme = Callable[[tokenizers.Tokenizer, TokenizerConfig], None]
"""A function that sets a pipeline's normalizer, pre-tokenizer and post-processor for one class of tokenizers."""


def read_bpe(vocab: Path, merges: Path, declared: TokenizerConfig) -> tuple[tokenizers.Tokenizer, TokenizerConfig]:
    """Build a byte-level BPE tokenizer for the tokenizer class of a folder.

    Returns:
        The pipeline, and the tokenizer config completed with the default special tokens of the class.

    Raises:
        ValueError: If the files are malformed or the tokenizer class is unknown.
    """
    for path in (vocab, merges):
        refuse_pointer(path)
    scheme = _scheme(declared, vocab)
    suffix = "</w>" if scheme is _clip else ""
    unknown = declared.names.get("unk_token") if scheme is _clip else None
    try:
        model = BPE.from_file(str(vocab), str(merges), end_of_word_suffix=suffix, unk_token=unknown)
    except Exception as error:  # the library raises bare Exception
        reason = (str(error).splitlines() or ["unknown"])[0][:200]
        raise ValueError(f"{vocab}, {merges.name}: not a byte-level BPE ({reason}); copy both files again") from error
    pipeline = tokenizers.Tokenizer(model)
    pipeline.decoder = decoders.ByteLevel()
    declared = _with_defaults(pipeline, declared, scheme)
    try:
        scheme(pipeline, declared)
    except ValueError as error:
        raise ValueError(f"{vocab}: {error}") from None
    return pipeline, declared


def bytes_split_by(pattern: str) -> pre_tokenizers.PreTokenizer:
    """Return a pre-tokenizer that splits text by a pattern and writes the pieces as bytes."""
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False)
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _scheme(declared: TokenizerConfig, source: Path) -> Scheme:
    """Return the function that sets up a tokenizer pipeline as a folder's tokenizer_class defines.

    Without one, the model_type of config.json decides, or else GPT-2 is the default.

    Raises:
        ValueError: If the class is unknown.
    """
    name = (declared.tokenizer_class or declared.model_type).lower()
    for start, scheme in _SCHEMES.items():
        if name.startswith(start):
            return scheme
    if not name:
        return _gpt2
    known = ", ".join(_SCHEMES)
    raise ValueError(
        f"{source}: the rule by which {name!r} splits text is not known (known: {known}); add its tokenizer.json"
    )


def _gpt2(pipeline: tokenizers.Tokenizer, declared: TokenizerConfig) -> None:
    """Set up a tokenizer pipeline with GPT-2's split rule."""
    pipeline.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)


def _qwen2(pipeline: tokenizers.Tokenizer, declared: TokenizerConfig) -> None:
    """Set up a tokenizer pipeline with Qwen2's normalizer and split rule."""
    pipeline.normalizer = normalizers.NFC()
    pipeline.pre_tokenizer = bytes_split_by(QWEN2)


def _clip(pipeline: tokenizers.Tokenizer, declared: TokenizerConfig) -> None:
    """Set up a tokenizer pipeline with CLIP's normalizer, split rule and special tokens."""
    pipeline.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    pipeline.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_CLIP), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    bos, eos = (declared.names.get(name, "") for name in ("bos_token", "eos_token"))
    first, last = pipeline.token_to_id(bos), pipeline.token_to_id(eos)
    if first is not None and last is not None:
        pipeline.post_processor = processors.RobertaProcessing(
            (eos, last), (bos, first), trim_offsets=False, add_prefix_space=False
        )


def _roberta(pipeline: tokenizers.Tokenizer, declared: TokenizerConfig) -> None:
    """Set up a tokenizer pipeline with RoBERTa's split rule and special tokens."""
    spaced = declared.settings.get("add_prefix_space") is True
    pipeline.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=spaced)
    around = []
    for name in (declared.names["sep_token"], declared.names["cls_token"]):
        index = pipeline.token_to_id(name)
        if index is None:
            raise ValueError(f"it lacks the token {name!r}; copy vocab.json and merges.txt of the model's release")
        around.append((name, index))
    last, first = around
    # A pair is framed as `<s> a </s></s> b </s>`, all of one type.
    pipeline.post_processor = processors.RobertaProcessing(last, first, add_prefix_space=spaced)


# Rules by the start of the class name; Whisper splits text as GPT-2 does, and BART as RoBERTa does.
_SCHEMES: Mapping[str, Scheme] = {
    "qwen": _qwen2, "clip": _clip, "gpt2": _gpt2, "whisper": _gpt2, "roberta": _roberta, "bart": _roberta,
}  # fmt: skip


def _with_defaults(pipeline: tokenizers.Tokenizer, declared: TokenizerConfig, scheme: Scheme) -> TokenizerConfig:
    """Add the default special tokens of a tokenizer class that a model folder does not declare.

    RoBERTa has default names for all special tokens. In the other classes `<|endoftext|>`, if it is in the vocabulary
    and the folder declares no EOS, is EOS, and for GPT-2 also BOS.
    """
    if scheme is _roberta:
        return replace(declared, names={**_ROBERTA, **declared.names})
    if "eos_token" in declared.names or pipeline.token_to_id(_END) is None:
        return declared
    names = {"bos_token": _END, "eos_token": _END} if scheme is _gpt2 else {"eos_token": _END}
    return replace(declared, names={**names, **declared.names})
