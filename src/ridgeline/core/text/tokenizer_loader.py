"""Loading of the tokenizer of a model folder, in whichever format the folder contains."""

from pathlib import Path

from ridgeline.core.text.bpe import read_bpe
from ridgeline.core.text.byte_tokenizer import ByteTokenizer
from ridgeline.core.text.fast_tokenizer import FastTokenizer
from ridgeline.core.text.sentencepiece import SentencePieceTokenizer
from ridgeline.core.text.tokenizer import Tokenizer
from ridgeline.core.text.tokenizer_config import read_declared
from ridgeline.core.text.tokenizers_library import read_pipeline
from ridgeline.core.text.wordpiece import read_wordpiece

# The ids of these models differ from those in their SentencePiece files: fairseq put its own special tokens first.
_REORDERED = ("xlm-roberta", "xlmroberta", "camembert")
_MODEL_NAMES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")


def load_tokenizer(folder: Path, *, or_bytes: bool = False) -> Tokenizer:
    """Load the tokenizer of a model folder, or a single tokenizer file (a `.json` or SentencePiece `.model*`).

    Order of precedence: tokenizer.json; vocab.json with merges.txt; vocab.txt; a SentencePiece model.

    Args:
        folder: Model folder or tokenizer file.
        or_bytes: Whether to return a byte tokenizer, for models with random weights, if the folder has none of these
            and declares no tokenizer.

    Raises:
        ValueError: If there is no usable tokenizer. The message is one line that names the file and the fix.
    """
    if not folder.exists():
        raise ValueError(f"{folder}: no such folder; give the folder that holds the model")
    try:
        return _read(folder, or_bytes)
    except ValueError as error:
        if str(folder) in str(error):
            raise
        raise ValueError(f"{folder}: {error}; use another release of the tokenizer") from None


def _read(folder: Path, or_bytes: bool) -> Tokenizer:
    """Load a tokenizer from a folder or file, with errors that need not name the folder."""
    if folder.is_file():
        declared = read_declared(folder.parent)
        if folder.suffix == ".json":
            return FastTokenizer(read_pipeline(folder), declared, folder)
        return SentencePieceTokenizer(folder, declared)
    declared = read_declared(folder)
    whole = folder / "tokenizer.json"
    if whole.is_file():
        return FastTokenizer(read_pipeline(whole), declared, whole)
    vocab, merges = folder / "vocab.json", folder / "merges.txt"
    if vocab.is_file() and merges.is_file():
        pipeline, declared = read_bpe(vocab, merges, declared)
        return FastTokenizer(pipeline, declared, vocab)
    if vocab.is_file() or merges.is_file():
        present, absent = (vocab, merges) if vocab.is_file() else (merges, vocab)
        raise ValueError(f"{present}: {absent.name} is missing; copy both files of the release into one folder")
    if (folder / "vocab.txt").is_file():
        pipeline, declared = read_wordpiece(folder / "vocab.txt", declared)
        return FastTokenizer(pipeline, declared, folder / "vocab.txt")
    model = _sentencepiece_file(folder)
    if model is not None and (declared.tokenizer_class or declared.model_type).lower().startswith(_REORDERED):
        raise ValueError(f"{model}: this model shifts token ids, as only tokenizer.json says; copy that next to it")
    if model is not None:
        return SentencePieceTokenizer(model, declared)
    # A folder that declares tokens has lost its vocabulary; bytes would be wrong even for random weights.
    if declared.added or declared.tokenizer_class:
        raise ValueError(f"{folder}: tokenizer_config.json has no vocabulary; copy tokenizer.json next to it")
    if not or_bytes:
        raise ValueError(f"{folder} holds no tokenizer; copy tokenizer.json of the model's release into it")
    return ByteTokenizer(add_bos=declared.add_bos is not False)


def _sentencepiece_file(folder: Path) -> Path | None:
    """Return the SentencePiece model file of a folder, or None; raise ValueError if there are several."""
    for name in _MODEL_NAMES:
        if (folder / name).is_file():
            return folder / name
    found = sorted(path for path in folder.glob("*.model*") if path.is_file())
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise ValueError(f"{folder}: several SentencePiece models ({names}); give the path of one of them")
    return found[0] if found else None
