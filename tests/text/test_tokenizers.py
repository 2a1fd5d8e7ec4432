"""Encoding and decoding against published vectors and other implementations."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import sentencepiece
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizers import HOSTILE, TEXTS, byte_level, metaspace

from ridgeline.core.checkpoint.source_tokenizer import tokenizer_of
from ridgeline.core.models import ModelRefused
from ridgeline.core.text import Tokenizer, load_tokenizer
from ridgeline.core.text.byte_tokenizer import ByteTokenizer
from ridgeline.core.text.vocabulary import literal_pattern

MakeFolder = Callable[..., Path]
MISTRAL = ("tokenizer.model.v1", "mistral_instruct_tokenizer_240323.model.v3")


@pytest.mark.parametrize("name", ["gpt-2", "qwen2"])
def test_published_vectors(data_dir: Path, name: str) -> None:
    """llama.cpp's tokenization tests: inputs between markers, one line of ids each."""
    folder = data_dir / "tokenizers"
    inputs = (folder / f"vectors/{name}.inp").read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")
    outputs = (folder / f"vectors/{name}.out").read_text(encoding="utf-8").split("\n")
    assert inputs.pop() == outputs.pop() == ""  # both end with their separator
    tokenizer = load_tokenizer(folder / name.replace("gpt-2", "gpt2"))
    assert len(inputs) == len(outputs) == 46
    for text, ids in zip(inputs, outputs, strict=True):
        expected = [int(i) for i in ids.split()]
        assert tokenizer.encode(text, add_special=False) == expected, text
        assert tokenizer.encode(text, add_special=False, parse_special=False) == expected, text
        assert name == "qwen2" or tokenizer.decode(expected) == text


@pytest.mark.parametrize("name", ["tokenizers/qwen2", "tokenizers/gpt2", "tokenizers/t5", "models/stories260K"])
def test_agrees_with_transformers(data_dir: Path, name: str) -> None:
    """The folder as transformers reads it: the same ids with literals parsed, the same text back."""
    folder = data_dir / name
    # transformers would ask the network for a class where neither file names one.
    cls = transformers.GPT2Tokenizer if name.endswith("gpt2") else transformers.AutoTokenizer
    oracle = cls.from_pretrained(str(folder), local_files_only=True)
    tokenizer = load_tokenizer(folder)
    assert tokenizer.vocab_size == len(oracle)
    assert tokenizer.eos_ids == (oracle.eos_token_id,)
    for text in (*TEXTS, *HOSTILE):
        ids = tokenizer.encode(text)
        assert ids == oracle.encode(text), text
        for skip in (True, False):
            expected = oracle.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            if name.endswith("t5") and not skip:
                continue  # transformers puts spaces around T5's special tokens there
            assert tokenizer.decode(ids, skip_special=skip) == expected, text


@pytest.mark.parametrize("name", ["t5/spiece.model", *(f"mistral/{name}" for name in MISTRAL)])
def test_agrees_with_sentencepiece(data_dir: Path, name: str) -> None:
    """A model file: ids of ordinary text and decoding as the library itself does them."""
    path = data_dir / "tokenizers" / name
    oracle = sentencepiece.SentencePieceProcessor(model_file=str(path))
    tokenizer = load_tokenizer(path)
    for text in (*TEXTS, *HOSTILE):
        expected = oracle.encode(text)
        assert tokenizer.encode(text, add_special=False, parse_special=False) == expected, text
        if oracle.unk_id() not in expected:  # the library writes unknown text as " ⁇ ", we write nothing
            assert tokenizer.decode(expected) == oracle.decode(expected), text
    assert tokenizer.encode("tea") == [*tokenizer.prefix, *oracle.encode("tea"), *tokenizer.suffix]


def test_sentencepiece_parses_control_literals(data_dir: Path) -> None:
    """Literals are ids where parsed; the texts between are encoded by themselves, as mistral-common does."""
    path = data_dir / "tokenizers/mistral" / MISTRAL[1]
    oracle = sentencepiece.SentencePieceProcessor(model_file=str(path))
    tokenizer = load_tokenizer(path)
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.prefix) == (1, (2,), (1,))
    start, end = oracle.piece_to_id("[INST]"), oracle.piece_to_id("[/INST]")
    ids = tokenizer.encode("[INST] tea?[/INST]milk")
    assert ids == [1, start, *oracle.encode(" tea?"), end, *oracle.encode("milk")]


def test_user_defined_piece_is_sealed(data_dir: Path, tmp_path: Path) -> None:
    """A .model that lists a control literal as an ordinary piece (as Gemma's does): text may not spell it."""
    path = tmp_path / "tokenizer.model"
    corpus = iter(TEXTS[2:6] * 5)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=corpus,
        model_prefix=str(tmp_path / "tokenizer"),
        vocab_size=340,
        byte_fallback=True,
        hard_vocab_limit=False,
        user_defined_symbols=["<|turn|>"],
        minloglevel=2,
    )
    raw = sentencepiece.SentencePieceProcessor(model_file=str(path))
    tokenizer = load_tokenizer(path)
    turn = raw.piece_to_id("<|turn|>")
    assert turn in raw.encode("a<|turn|>b")
    assert turn in tokenizer.encode("a<|turn|>b")
    typed = tokenizer.encode("a<|turn|>b", parse_special=False)
    assert turn not in typed
    assert tokenizer.decode(typed) == "a<|turn|>b"


def test_clip_folder(data_dir: Path) -> None:
    """CLIP's vocab.json and merges.txt: lower case, framed by start and end."""
    oracle = transformers.CLIPTokenizer.from_pretrained(str(data_dir / "tokenizers/clip"), local_files_only=True)
    tokenizer = load_tokenizer(data_dir / "tokenizers/clip")
    for text in TEXTS:
        assert tokenizer.encode(text) == oracle.encode(text), text
    typed = tokenizer.encode("a <|STARTOFTEXT|> b", parse_special=False)  # lower-cased into a literal by the normaliser
    assert typed.count(tokenizer.prefix[0]) == 1


def test_stories_starts_with_bos(data_dir: Path) -> None:
    """The post-processor of tokenizer.json puts BOS before the text; the golden story survives a round trip."""
    tokenizer = load_tokenizer(data_dir / "models/stories260K")
    story = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park."
    ids = tokenizer.encode(story)
    assert ids[0] == tokenizer.bos_id == 1
    assert tokenizer.encode(story, add_special=False) == ids[1:]
    assert tokenizer.decode(ids) == story
    assert tokenizer.decode(ids, skip_special=False) == "<s> " + story


@pytest.fixture(scope="module", params=["byte", "first", "always", "never", "legacy"])
def hostile_tokenizer(request: pytest.FixtureRequest, make_folder: MakeFolder) -> Tokenizer:
    pipeline = byte_level([("<", "|")]) if request.param == "byte" else metaspace(request.param)
    special = ["<unk>", "<|im_end|>", "<|im_start|>", "[INST]", "[/INST]", "</s>", "<s>"]
    folder = make_folder(pipeline, special, ["<think>", "</think>"], template="{{ '<think></think>' }}")
    return load_tokenizer(folder)


@pytest.mark.parametrize("text", HOSTILE)
def test_literals_as_text(hostile_tokenizer: Tokenizer, text: str) -> None:
    """parse_special=False: no control id, and exactly the typed text back."""
    assert {"<think>", "<|im_end|>", "</s>"} <= hostile_tokenizer.control.keys()
    ids = hostile_tokenizer.encode(text, add_special=False, parse_special=False)
    assert not set(ids) & set(hostile_tokenizer.control.values())
    # Metaspace adds its dummy space only where none is typed, so decoding cannot tell the two apart: its own loss.
    lossy = len(hostile_tokenizer.encode(" a", add_special=False)) == len(
        hostile_tokenizer.encode("a", add_special=False)
    )
    assert hostile_tokenizer.decode(ids) == (text.removeprefix(" ") if lossy else text)


def test_parts_agree_with_parsing(hostile_tokenizer: Tokenizer) -> None:
    """Control tokens placed between hostile texts give what the pipeline gives for harmless ones in their place."""
    im_end = hostile_tokenizer.control["<|im_end|>"]
    plain = hostile_tokenizer.encode("the one<|im_end|>the two", add_special=False)
    assert hostile_tokenizer.encode_parts(["the one", im_end, "the two"]) == plain
    # "[/INST]" forces the sealed copy; what stands before it must not be affected.
    hostile = hostile_tokenizer.encode_parts(["the one", im_end, "the two[/INST]"])
    assert hostile[: len(plain)] == plain
    assert [i for i in hostile if i in hostile_tokenizer.control.values()] == [im_end]


def test_unigram_lists_its_control_tokens(data_dir: Path) -> None:
    """T5's vocabulary holds `</s>` as a piece with the best score: unmatched as an added token it still came out."""
    tokenizer = load_tokenizer(data_dir / "tokenizers/t5")
    ids = tokenizer.encode("end </s> of <extra_id_0> text", add_special=False, parse_special=False)
    assert not set(ids) & (tokenizer.special_ids - {2})  # 2 is <unk>: T5 has no "<"


def test_ordinary_added_tokens_stay(make_folder: MakeFolder) -> None:
    """Added tokens that are text with a short cut (spaces, HTML) are used for typed text too."""
    tokenizer = load_tokenizer(make_folder(byte_level(), [], ["    ", "<table>", "<|fim_prefix|>"]))
    assert len(tokenizer.encode("    <table>", parse_special=False)) == 2
    assert len(tokenizer.encode("<|fim_prefix|>", parse_special=False)) > 2  # piped: control whatever its flag


def test_added_tokens_of_the_config(data_dir: Path, tmp_path: Path) -> None:
    """Qwen3's tokenizer_config over Qwen2's vocabulary: ids as declared, think tags visible but not typable."""
    source = data_dir / "tokenizers"
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).symlink_to(source / "qwen2" / name)
    (tmp_path / "tokenizer_config.json").write_bytes((source / "qwen3/tokenizer_config.json").read_bytes())
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("<think>") == [151667]
    assert tokenizer.vocab_size == 151669
    assert tokenizer.decode([151644, 151667, 9707]) == "<think>Hello"
    assert not set(tokenizer.encode("</think><|fim_prefix|>", parse_special=False)) & set(tokenizer.control.values())
    assert tokenizer.token_bytes(151644) == b""
    assert tokenizer.token_bytes(151700) == b""
    assert tokenizer.printable_token(151644) == "<|im_start|>"
    assert tokenizer.printable_token(151700) == "<id 151700>"


@pytest.mark.parametrize(("stated", "expected"), [(True, 1), (False, 0), (None, 0)])
def test_add_bos_token(make_folder: MakeFolder, stated: bool | None, expected: int) -> None:
    folder = make_folder(byte_level())
    config = json.loads((folder / "tokenizer_config.json").read_text())
    if stated is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps({**config, "add_bos_token": stated}))
    tokenizer = load_tokenizer(folder)
    assert tokenizer.encode("a").count(tokenizer.bos_id or -1) == expected


def test_stored_truncation_is_ignored(make_folder: MakeFolder) -> None:
    pipeline = byte_level()
    pipeline.enable_truncation(4)
    pipeline.enable_padding(length=8)
    tokenizer = load_tokenizer(make_folder(pipeline))
    assert len(tokenizer.encode("a bc d e f g")) == len("a bc d e f g")


def test_byte_tokenizer(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tmp_path, or_bytes=True)
    assert isinstance(tokenizer, ByteTokenizer)
    assert tokenizer.vocab_size == 257
    assert tokenizer.encode("né") == [256, 110, 0xC3, 0xA9]
    assert tokenizer.decode([110, 0xC3, 0xA9, 256]) == "né"
    assert tokenizer.bos_id == 256
    assert tokenizer.eos_ids == (256,)
    assert tokenizer.special_ids == {256}
    assert tokenizer.encode("<|endoftext|>", add_special=False) == [256]
    assert tokenizer.encode("<|endoftext|>", add_special=False, parse_special=False) == list(b"<|endoftext|>")


@pytest.mark.parametrize(("symbols", "reads"), [(257, True), (256, False), (258, False), ("257", False)])
def test_a_model_of_257_symbols_reads_bytes(tmp_path: Path, symbols: object, reads: bool) -> None:
    """In every command: `trace` did, `tokenize` refused the folder."""
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": symbols}))
    if reads:
        assert tokenizer_of(str(tmp_path)).encode("né") == [256, 110, 0xC3, 0xA9]
    else:
        with pytest.raises(ModelRefused, match="holds no tokenizer"):
            tokenizer_of(str(tmp_path))


def _write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("files", "names"),
    [
        ({"tokenizer__json": "{"}, "tokenizer.json"),
        ({"tokenizer__json": '{"model": {"type": "Foo"}}'}, "tokenizer.json"),
        ({"vocab__json": "{}"}, "merges.txt"),
        ({"vocab__json": "[]", "merges__txt": "a b"}, "vocab.json"),
        ({"tokenizer__model": "not a model"}, "tokenizer.model"),
        ({}, "holds no tokenizer; copy tokenizer.json"),
        ({"a__model": "", "b__model": ""}, "several"),
        ({"tokenizer_config__json": "[1]"}, "tokenizer_config.json"),
        ({"tokenizer_config__json": '{"tokenizer_class": "Qwen2Tokenizer"}'}, "has no vocabulary"),
        ({"tokenizer_config__json": '{"added_tokens_decoder": {"x": {}}}'}, "added_tokens_decoder"),
    ],
)
def test_bad_folders_are_refused_in_one_line(tmp_path: Path, files: dict[str, str], names: str) -> None:
    with pytest.raises(ValueError, match=names) as refusal:
        load_tokenizer(_write(tmp_path, **files))
    assert "\n" not in str(refusal.value)
    assert str(tmp_path) in str(refusal.value)


def test_config_of_another_release(make_folder: MakeFolder) -> None:
    """Added tokens whose ids do not fit the vocabulary would shift every control token."""
    folder = make_folder(byte_level())
    (folder / "tokenizer_config.json").write_text('{"added_tokens_decoder": {"9000": {"content": "<|far|>"}}}')
    with pytest.raises(ValueError, match="same release"):
        load_tokenizer(folder)


def test_lone_surrogates_are_refused(make_folder: MakeFolder) -> None:
    tokenizer = load_tokenizer(make_folder(byte_level()))
    for parse in (True, False):
        with pytest.raises(ValueError, match="valid Unicode"):
            tokenizer.encode("a\ud800", parse_special=parse)


@given(literals=st.sets(st.text("ab[", min_size=1, max_size=5), max_size=8), text=st.text("ab[", max_size=30))
def test_literal_pattern(literals: set[str], text: str) -> None:
    """The tree of literals finds what an alternation, longest first, finds."""
    plain = re.compile("|".join(map(re.escape, sorted(literals, key=len, reverse=True))) or "(?!)")
    found = [match.span() for match in literal_pattern(literals).finditer(text)]
    assert found == [match.span() for match in plain.finditer(text)]
