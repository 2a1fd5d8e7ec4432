"""A wrapper of the `tokenizers` library that limits the time and memory of an untrusted tokenizer.json.

The library is compiled code. It panics with an exception that `except Exception` does not catch, aborts the process
when an allocation fails, and has no timeout. So this module rejects files that would make it allocate without limit,
encodes each text in a thread that it can abandon, and turns every error into one line.
"""

import base64
import binascii
import json
import math
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

from ridgeline.util.untrusted import PointerFile, first_line, read_object

MAX_TEXT = 1 << 24
"""The longest text to tokenize at once, in bytes; encoding takes about 100 bytes of memory per byte."""
ENCODE_TIMEOUT = 30.0
"""The base time limit for encoding any text, in seconds."""
PATIENCE_PER_BYTE = 30e-6
"""The additional time limit per byte of text, in seconds: ten times what a slow tokenizer takes on a slow machine."""
MAX_STAGES = 256
"""The maximum number of a tokenizer's normalizer and pre-tokenizer stages."""
MAX_GROWTH = 4096
"""The maximum number of bytes that a tokenizer's stages before the model can produce from one byte.

The largest factor in use is 2904, in ALBERT's worst case.
"""
_SURE = 1 << 26  # bytes of normalised text that are always safe to hold

# Maximum growth factors from Unicode's tables: U+FDFA has 3 bytes, 33 under NFKC; U+0390 has 2 bytes, 6 under NFD.
_GROWTH = {
    "NFC": 3, "NFD": 3, "NFKC": 11, "NFKD": 11, "BertNormalizer": 5, "Lowercase": 2, "ByteLevel": 2, "Metaspace": 4,
    "Nmt": 1, "Strip": 1, "StripAccents": 1, "Split": 1, "Digits": 1, "Punctuation": 1, "Whitespace": 1,
    "WhitespaceSplit": 1, "BertPreTokenizer": 1, "CharDelimiterSplit": 1, "UnicodeScripts": 1, "FixedLength": 1,
}  # fmt: skip


def read_pipeline(path: Path) -> tokenizers.Tokenizer:
    """Load a tokenizer.json file.

    Raises:
        ValueError: If the file is malformed or exceeds the limits. The message names the file.
    """
    try:
        state = read_object(path, unique=True)  # the library might read the other value of a duplicate key
    except PointerFile:
        raise
    except ValueError as error:
        raise ValueError(f"{error}; copy the file again") from None
    with boundary(
        f"{path}: the tokenizers library cannot read this file",
        "copy it again, or update tokenizers (`pip install -U tokenizers`)",
    ):
        _total_growth([state.get("normalizer"), state.get("pre_tokenizer")])
        return tokenizers.Tokenizer.from_file(str(path))


def encode(pipeline: tokenizers.Tokenizer, text: str, most_growth: int) -> list[int]:
    """Return the token ids of a text, without the special tokens of the post-processor.

    The library releases Python's global lock only for a batch, hence a batch of one.

    Args:
        pipeline: The tokenizer.
        text: The text to encode.
        most_growth: Result of `max_expansion` for this pipeline.

    Raises:
        ValueError: If the text is too long, cannot be encoded, or takes too much time.
    """
    size = len(text.encode("utf-8"))
    _check_size(pipeline, text, size, most_growth)
    ids: list[int] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            ids.extend(pipeline.encode_batch_fast([text], add_special_tokens=False)[0].ids)
        except BaseException as error:
            errors.append(error)

    patience = ENCODE_TIMEOUT + PATIENCE_PER_BYTE * size
    with boundary("the tokenizer cannot encode this text", "change the text, or use another release of the tokenizer"):
        worker = threading.Thread(target=work, name="encode", daemon=True)
        started = time.process_time()
        worker.start()
        # Both clocks: on a busy or suspended machine wall time alone would abort an encoding that has not run.
        while worker.is_alive() and (left := patience - (time.process_time() - started)) > 0:
            worker.join(left)
        if worker.is_alive():
            raise ValueError(
                f"it takes longer than {patience:.0f} s, because a pattern of the tokenizer backtracks; shorten it"
            )
        if errors:
            raise errors[0]
    return ids


@contextmanager
def boundary(problem: str, fix: str) -> Iterator[None]:
    """Convert every error of the `tokenizers` library in this context to a ValueError: `problem`, reason, `fix`.

    The library's panics are not subclasses of Exception, so everything is caught except what ends a program.
    """
    try:
        with _quiet():
            yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise ValueError(f"{problem} ({first_line(error, 400)}); {fix}") from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the report and backtrace that the `tokenizers` library writes to stderr before it panics.

    This happens only while the process has one thread, because output of other threads would be lost.
    """
    if threading.active_count() > 1:
        yield
        return
    saved = None
    with suppress(OSError):  # stderr may be closed
        saved = os.dup(2)
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, 2)
        os.close(sink)
    try:
        yield
    finally:
        if saved is not None:
            os.dup2(saved, 2)
            os.close(saved)


def max_expansion(pipeline: tokenizers.Tokenizer) -> int:
    """Return how many bytes a tokenizer's stages before the model can produce at most from one byte of text.

    Raises:
        ValueError: If that is more than `MAX_GROWTH`, or the stages are malformed or too many.
    """
    return _total_growth([*stages(pipeline.normalizer), *stages(pipeline.pre_tokenizer)])


def stages(part: Normalizer | PreTokenizer | None) -> list[dict[str, Any]]:
    """Return the stages of a tokenizer's normalizer or pre-tokenizer, in order, as JSON objects."""
    return [] if part is None else _stages(json.loads(part.__getstate__()))


def _total_growth(before_model: Sequence[object]) -> int:
    """Return the growth factor of a normalizer and a pre-tokenizer given as JSON.

    Raises:
        ValueError: If the factor exceeds `MAX_GROWTH`, or the stages are malformed or too many.
    """
    leaves = [leaf for stage in before_model for leaf in _stages(stage)]
    if len(leaves) > MAX_STAGES:
        raise ValueError(f"it has {len(leaves)} stages, more than {MAX_STAGES}")
    total = math.prod(map(_growth, leaves))
    if total > MAX_GROWTH:
        raise ValueError("its normalizer may make a text thousands of times longer")
    return total


def _stages(stage: object) -> list[dict[str, Any]]:
    """Return the stages of a normalizer or pre-tokenizer, with nested sequences flattened.

    The library also reads older forms of a stage that no release uses: without a type, or as a list.

    Raises:
        ValueError: If a stage has no type.
    """
    if stage is None:
        return []
    if not isinstance(stage, dict) or not isinstance(stage.get("type"), str):
        raise ValueError("it has a stage without a type")
    if stage["type"] != "Sequence":
        return [stage]
    inner = stage.get("normalizers", stage.get("pretokenizers"))
    return [leaf for each in inner for leaf in _stages(each)] if isinstance(inner, list) else []


def _growth(stage: Mapping[str, Any]) -> int:
    """Return how many bytes one tokenizer stage can produce at most from one byte."""
    kind = stage.get("type")
    if kind == "Replace":
        pattern, content = stage.get("pattern"), _size(stage.get("content"))
        literal = pattern.get("String") if isinstance(pattern, dict) else None
        return max(1, -(-content // _size(literal))) if literal else 1 + content
    if kind == "Prepend":
        return 1 + _size(stage.get("prepend"))
    if kind == "Precompiled":
        return _longest_replacement(_decoded(stage.get("precompiled_charsmap")))
    return _GROWTH.get(str(kind), 4)


def _size(text: object) -> int:
    """Return the length of a string in bytes; 0 for anything else."""
    return len(text.encode("utf-8", "replace")) if isinstance(text, str) else 0


def _decoded(charsmap: object) -> bytes:
    """Decode a SentencePiece charsmap from base64; raise ValueError if it is malformed."""
    try:
        return base64.b64decode(charsmap or "", validate=True)  # type: ignore[arg-type]
    except (TypeError, ValueError, binascii.Error):
        raise ValueError("its charsmap is not base64") from None


def _longest_replacement(charsmap: bytes) -> int:
    """Return the length in bytes of the longest replacement in a SentencePiece charsmap.

    The format (sentencepiece/src/normalizer.cc): 4 bytes little-endian, the size of a trie of 4-byte units; the trie;
    the replacements, each followed by a zero byte. The library allocates whatever the size says.

    Raises:
        ValueError: If the charsmap is truncated or not UTF-8.
    """
    size, rest = int.from_bytes(charsmap[:4], "little"), charsmap[4:]
    if len(charsmap) < 4 or size % 4 or size > len(rest):
        raise ValueError("its charsmap is truncated")
    replacements = rest[size:]
    try:
        replacements.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("its charsmap holds replacements that are not UTF-8") from None
    return max(1, *(len(text) for text in replacements.split(b"\0")))


def _check_size(pipeline: tokenizers.Tokenizer, text: str, size: int, most_growth: int) -> None:
    """Raise ValueError if a text is too long, or becomes too long when it is normalised."""
    if size > MAX_TEXT:
        raise ValueError(f"the text has {size} bytes, more than {MAX_TEXT}; send it in parts")
    if size * most_growth <= _SURE or pipeline.normalizer is None:
        return
    # This may not be the worst case: normalise the text in pieces that are small enough in any case.
    step, total = max(1, _SURE // (4 * most_growth)), 0
    with boundary("the tokenizer cannot normalize this text", "change the text"):
        for start in range(0, len(text), step):
            total += len(pipeline.normalizer.normalize_str(text[start : start + step]).encode())
            if total > 2 * _SURE:
                raise ValueError(f"its normalizer expands {size} bytes to more than {2 * _SURE}")
