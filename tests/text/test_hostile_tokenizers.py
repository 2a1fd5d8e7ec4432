"""tokenizer.json files and texts that a stranger made to hurt: each is refused in one line, cheaply."""

import base64
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_tokenizers import byte_level, metaspace
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE, Unigram, WordLevel, WordPiece

from ridgeline.core.text import load_tokenizer
from ridgeline.core.text import tokenizers_library as pipeline_module

MakeFolder = Callable[..., Path]
GIB = 1 << 30


def state(**changes: Any) -> dict[str, Any]:
    """A small byte-level tokenizer.json with other parts."""
    return {**json.loads(byte_level().to_str()), **changes}


def folder_of(path: Path, content: dict[str, Any] | str) -> Path:
    (path / "tokenizer.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def charsmap(blob: bytes) -> dict[str, str]:
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(blob).decode()}


def in_sequence(*stages: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(stages)}


DOUBLE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
ADDED = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
FAR = {"id": 2**32 - 6, "content": "<|far|>", **ADDED}
BYTES = state()["model"]
NESTED = [{"id": 256 + i, "content": "<" * (i + 1), **ADDED} for i in range(1200)]

CASES: dict[str, Any] = {
    "replace": state(normalizer=in_sequence(*[DOUBLE] * 40)),
    "replace by a regular expression": state(
        normalizer={"type": "Replace", "pattern": {"Regex": ""}, "content": "x" * 10_000}
    ),
    "prepend": state(normalizer=in_sequence(*[{"type": "Prepend", "prepend": "x" * 100}] * 40)),
    "prepend without a type": state(normalizer={"prepend": "x" * 100_000}),
    "a name that is there twice": json.dumps(state()).replace(
        '"normalizer":', f'"normalizer": {json.dumps(charsmap(bytes([255] * 4)))}, "normalizer":', 1
    ),
    "byte levels": state(
        pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "ByteLevel", "add_prefix_space": False}] * 40}
    ),
    "stages": state(normalizer=in_sequence(*[{"type": "Nmt"}] * 5000)),
    "empty charsmap": state(normalizer=charsmap(b"")),
    "charsmap cut off": state(normalizer=charsmap(b"\x40\0\0\0abcd")),
    "charsmap of 4 GiB": state(normalizer=charsmap(b"\xff\xff\xff\xff")),
    "charsmap not UTF-8": state(normalizer=charsmap(b"\x04\0\0\0abcd\xff\xfe")),
    "charsmap not base64": state(normalizer={"type": "Precompiled", "precompiled_charsmap": "?"}),
    "piece id near 2^32": state(model={**BYTES, "vocab": {**BYTES["vocab"], "zz": 2**32 - 7}}),
    "added id near 2^32": state(model={**BYTES, "vocab": {**BYTES["vocab"], "zz": 2**32 - 7}}, added_tokens=[FAR]),
    "1200 nested literals": state(added_tokens=NESTED),
    "an expression that is none": state(
        pre_tokenizer={"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_hostile_files_are_refused_in_one_line(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Before they cost anything. (Nothing here may take memory: what would is refused before the library sees it.)"""
    with pytest.raises(ValueError, match=r"tokenizer\.json") as refused:
        load_tokenizer(folder_of(tmp_path, CASES[name]))
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 600
    assert capfd.readouterr().err == ""


PROBE = """
import resource, sys
from pathlib import Path
from ridgeline.core.text import load_tokenizer
for folder in sys.argv[1:]:
    try:
        load_tokenizer(Path(folder)).encode("a banana")
    except ValueError as error:
        print(Path(folder).name, "refused")
"""


def test_hostile_files_take_no_memory(tmp_path: Path) -> None:
    """All of them in one process that may have 2 GiB: what the library allocates beyond that ends it."""
    folders = []
    for index, content in enumerate(CASES.values()):
        folder = tmp_path / str(index)
        folder.mkdir()
        folders.append(str(folder_of(folder, content)))
    ended = subprocess.run(
        [sys.executable, "-c", PROBE, *folders],
        capture_output=True,
        check=False,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2 * GIB, 2 * GIB)),
    )
    assert ended.returncode == 0, ended.stderr[-300:]
    assert ended.stdout.splitlines() == [f"{index} refused" for index in range(len(CASES))]


@pytest.mark.parametrize(
    "model",
    [
        WordLevel({"a": 0}, unk_token="<none>"),
        WordPiece({"a": 0}, unk_token="<none>"),
        Unigram([("a", -1.0)], unk_id=None),
    ],
    ids=["WordLevel", "WordPiece", "Unigram"],
)
def test_models_without_an_unknown_token(model: Any, make_folder: MakeFolder) -> None:
    """The library raises its bare Exception for a text outside the vocabulary."""
    pipeline = Tokenizer(model)
    pipeline.decoder = decoders.ByteLevel()
    tokenizer = load_tokenizer(make_folder(pipeline))
    assert tokenizer.decode(tokenizer.encode("a", add_special=False)) == "a"
    for parse in (True, False):
        with pytest.raises(ValueError, match="cannot encode this text") as refused:
            tokenizer.encode("b", parse_special=parse)
        assert "\n" not in str(refused.value)


def exploding(pattern: str) -> Tokenizer:
    """Splits by a regular expression."""
    pipeline = byte_level()
    pipeline.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return pipeline


def test_a_panic_is_one_line(
    make_folder: MakeFolder, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An expression beyond the retries that its library allows: a PanicException, which is no Exception, and a report
    on stderr that is kept from it, as long as no other thread writes there."""
    monkeypatch.setattr("threading.active_count", lambda: 1)  # other tests' servers may run in this process
    tokenizer = load_tokenizer(make_folder(exploding("(x+)+y")))
    assert tokenizer.encode("tea", add_special=False) == load_tokenizer(make_folder(byte_level())).encode(
        "tea", add_special=False
    )
    with pytest.raises(ValueError, match=r"cannot encode this text \(.*retry-limit") as refused:
        tokenizer.encode("x" * 40)
    assert "\n" not in str(refused.value)
    assert capfd.readouterr().err == ""


def test_an_expression_that_takes_too_long(make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each place just below that limit: it would take seconds a place, and is given up."""
    tokenizer = load_tokenizer(make_folder(exploding("(x+)+y")))
    monkeypatch.setattr(pipeline_module, "ENCODE_TIMEOUT", 0.05)
    with pytest.raises(ValueError, match="takes longer than"):
        tokenizer.encode(("x" * 21 + " ") * 4)


def test_what_ends_a_program_is_not_caught() -> None:
    for error in (KeyboardInterrupt, SystemExit, GeneratorExit):
        with pytest.raises(error), pipeline_module.boundary("no", "no"):
            raise error
    with pytest.raises(ValueError, match=r"problem \(first\); fix"), pipeline_module.boundary("problem", "fix"):
        raise BaseException("first\nsecond")


def test_a_text_that_grows_too_long(make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The normalizer is one that is allowed; this text is what it makes most of."""
    pipeline = byte_level()
    pipeline.normalizer = normalizers.Sequence([normalizers.Replace("a", "b" * 50), normalizers.NFKC()])
    tokenizer = load_tokenizer(make_folder(pipeline))
    monkeypatch.setattr(pipeline_module, "_SURE", 10_000)
    assert len(tokenizer.encode("c" * 5000, add_special=False)) == 5000
    with pytest.raises(ValueError, match="normalizer expands 5000 bytes to more than 20000"):
        tokenizer.encode("a" * 5000)


def test_a_text_of_too_many_bytes(make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_module, "MAX_TEXT", 100)
    tokenizer = load_tokenizer(make_folder(byte_level()))
    assert len(tokenizer.encode("a" * 100, add_special=False)) == 100
    with pytest.raises(ValueError, match="101 bytes, more than 100"):
        tokenizer.encode("a" * 101)


def test_dropout_is_off(make_folder: MakeFolder) -> None:
    """BPE's dropout, stored by who trained with it, gave other ids for the same text each time."""
    merges = [("t", "h"), ("th", "e")]
    pipeline = byte_level(merges)
    pipeline.model.dropout = 0.5
    folder = make_folder(pipeline)
    assert json.loads((folder / "tokenizer.json").read_text())["model"]["dropout"] == 0.5
    tokenizer, plain = load_tokenizer(folder), load_tokenizer(make_folder(byte_level(merges)))
    text = "the " * 50
    assert tokenizer.encode(text) == plain.encode(text)
    hostile = text + "<eos>"  # through the sealed copy
    assert tokenizer.encode(hostile, parse_special=False) == plain.encode(hostile, parse_special=False)


@pytest.mark.parametrize("kind", ["Unigram", "BPE"])
def test_the_unknown_token_that_only_the_model_names(kind: str, make_folder: MakeFolder) -> None:
    """Its side files say nothing of it, as Flux's T5: ordinary text outside the vocabulary was refused."""
    if kind == "Unigram":
        model: Any = Unigram([("<unk>", 0.0), ("▁", -2.0), ("a", -1.0)], unk_id=0)
    else:
        model = BPE(vocab={"<unk>": 0, "▁": 1, "a": 2}, merges=[], unk_token="<unk>")
    pipeline = Tokenizer(model)
    pipeline.pre_tokenizer = pre_tokenizers.Metaspace()
    pipeline.decoder = decoders.Metaspace()
    folder = make_folder(pipeline, ["<unk>"])
    tokenizer = load_tokenizer(folder)
    assert "unk_token" not in tokenizer.names
    assert tokenizer.encode("a é", add_special=False, parse_special=False) == [1, 2, 1, 0]
    assert not set(tokenizer.encode("a <eos>", parse_special=False)) & {tokenizer.control["<eos>"]}


def test_deep_literals_that_are_allowed(make_folder: MakeFolder) -> None:
    """Gemma has 31 runs of line breaks, each the beginning of the next."""
    pipeline = byte_level()
    pipeline.add_special_tokens([AddedToken("<" * n, normalized=False) for n in range(1, 32)])
    tokenizer = load_tokenizer(make_folder(pipeline))
    assert tokenizer.encode("<" * 33, add_special=False) == [tokenizer.control["<" * 31], tokenizer.control["<<"]]


@pytest.mark.parametrize("kind", ["byte", "legacy", "qwen2"])
def test_texts_far_over_the_context(kind: str, make_folder: MakeFolder, request: pytest.FixtureRequest) -> None:
    """Refused without being encoded; and never one that fits, here the longest token many times over."""
    if kind == "qwen2":
        tokenizer = load_tokenizer(request.getfixturevalue("data_dir") / "tokenizers/qwen2")
    else:
        pipeline = byte_level([("t", "h"), ("th", "e")]) if kind == "byte" else metaspace("legacy")
        tokenizer = load_tokenizer(make_folder(pipeline))
    longest = max((tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)), key=len).decode("utf-8", "ignore")
    for text in (longest * 50, "▁▁the" * 50, "e\u0301\u1100\u1161\u11a8" * 50):
        tokenizer.check_length(text, len(tokenizer.encode(text, add_special=False)))
    with pytest.raises(ValueError, match=r"at least \d+ tokens, the model's context is 32768; shorten it"):
        tokenizer.check_length("the " * 3_000_000, 32768)


def test_texts_that_may_shrink_are_not_refused(make_folder: MakeFolder) -> None:
    """White space that is removed, or taken by a special token, costs no tokens: then length says nothing."""
    shrinking = byte_level()
    shrinking.normalizer = normalizers.Strip()
    swallowing = byte_level()
    swallowing.add_special_tokens([AddedToken("<|end|>", rstrip=True, normalized=False)])
    for pipeline in (shrinking, swallowing):
        tokenizer = load_tokenizer(make_folder(pipeline))
        text = "<|end|>" + " " * 10_000
        tokenizer.check_length(text, 8)
