"""WordPiece, unigram and RoBERTa's tokenizers against transformers': published inputs, and 1,000 generated texts."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import transformers
from tiny_tokenizers import HOSTILE, TEXTS

from ridgeline.core.text import Tokenizer, load_tokenizer
from support.embedders import roberta, wordpiece, write_vocabulary

GENERATED = 1000
_ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyz", "ABCDEF", "0123456789", " \t\n\u00a0\u3000", ".,;:!?'\"()[]{}<>-_/#@&%$*+=~^|\\",
    "éàüßñçœÅ", "e\u0301\u0308", "привет", "数学楽漢字", "🦙🏽\u200d🚀", "\u200b\ufeff\x00\x07\u00ad", "ﬁ①Ⅷ½",
)  # fmt: skip


def generated(words: list[str]) -> list[str]:
    """Texts of words of a corpus and of characters that tokenizers get wrong, mixed."""
    draw, texts = random.Random(11), []
    for _ in range(GENERATED):
        parts = []
        for _ in range(draw.randrange(1, 14)):
            alphabet = draw.choice(_ALPHABETS)
            odd = "".join(draw.choice(alphabet) for _ in range(draw.randrange(1, 9)))
            parts.append(draw.choice((draw.choice(words), odd)))
        texts.append(draw.choice((" ", "", "  ")).join(parts))
    return texts


@pytest.fixture(scope="module")
def inputs(data_dir: Path) -> list[str]:
    """The inputs of the published vectors, the texts of the other tests, and those that are generated."""
    vectors = data_dir / "tokenizers/vectors"
    published = [
        text
        for name in ("gpt-2", "qwen2")
        for text in (vectors / f"{name}.inp").read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")
    ]
    assert len(published) == 94
    words = (data_dir / "text/tinystories_sample.txt").read_text(encoding="utf-8").split()
    return [*published, *TEXTS, *generated(words)]


def corpus(data_dir: Path) -> list[str]:
    """What vocabularies are trained on, accents and other scripts with it."""
    lines = (data_dir / "text/tinystories_sample.txt").read_text(encoding="utf-8").splitlines()
    return [*lines, *TEXTS * 3, "Ångström café naïve Straße привет мир 数学は楽しい " * 3]


def agree(ours: Tokenizer, oracle: transformers.PreTrainedTokenizerBase, texts: list[str]) -> None:
    for text in texts:
        assert ours.encode(text) == oracle.encode(text), repr(text)


@pytest.mark.parametrize("lowercase", [True, False])
def test_wordpiece(data_dir: Path, tmp_path: Path, inputs: list[str], lowercase: bool) -> None:
    """A vocabulary trained here, read from tokenizer.json, and from vocab.txt with the settings beside it."""
    tokenizer = wordpiece(corpus(data_dir), 900, lowercase=lowercase)
    whole, old = tmp_path / "whole", tmp_path / "old"
    for folder in (whole, old):
        folder.mkdir()
        settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": lowercase}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    tokenizer.save(str(whole / "tokenizer.json"))
    write_vocabulary(old, tokenizer)
    oracle = transformers.BertTokenizer(str(old / "vocab.txt"), do_lower_case=lowercase)
    for folder in (whole, old):
        ours = load_tokenizer(folder)
        assert ours.vocab_size == len(oracle)
        agree(ours, oracle, [*inputs, *HOSTILE, "[CLS] a [SEP] b [MASK]"])
        both = oracle("a cat", "the dog runs")
        assert ours.encode_pair("a cat", "the dog runs") == (both["input_ids"], both["token_type_ids"])
        typed = ours.encode("a [SEP] b [unused] [CLS]", parse_special=False)
        assert [typed.count(ours.control[name]) for name in ("[CLS]", "[SEP]")] == [1, 1]


def test_unigram(data_dir: Path, inputs: list[str]) -> None:
    """T5's, from tokenizer.json."""
    folder = data_dir / "tokenizers/t5"
    oracle = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    agree(load_tokenizer(folder), oracle, inputs)


_MASK = {"content": "<mask>", "lstrip": True, "rstrip": False, "normalized": False, "single_word": False}


@pytest.mark.parametrize(
    ("file", "values"),
    [
        ("config.json", {"model_type": "roberta"}),
        ("tokenizer_config.json", {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": True}),
        ("tokenizer_config.json", {"tokenizer_class": "BartTokenizer", "cls_token": "<pad>", "sep_token": "<unk>"}),
        ("special_tokens_map.json", {"bos_token": "<s>", "mask_token": _MASK}),
    ],
    ids=["plain", "prefix-space", "other-names", "mask-takes-the-space-before"],
)
def test_roberta_from_its_vocabulary_and_merges(
    data_dir: Path, tmp_path: Path, inputs: list[str], file: str, values: dict[str, Any]
) -> None:
    """Trained here; texts and pairs, as what the folder says has them framed."""
    roberta(corpus(data_dir), 900).model.save(str(tmp_path))
    for name, own in {"config.json": {"model_type": "roberta"}, file: values}.items():
        (tmp_path / name).write_text(json.dumps(own), encoding="utf-8")
    oracle = transformers.RobertaTokenizer.from_pretrained(str(tmp_path), local_files_only=True)
    ours = load_tokenizer(tmp_path)
    assert ours.vocab_size == len(oracle)
    assert ours.eos_ids == (oracle.eos_token_id,)
    agree(ours, oracle, [*inputs, *HOSTILE, "<s> a </s> b <mask>", "a  <mask> b<pad><unk>"])
    for first, second in (("a cat", "the dog runs"), (" Ångström", "\n 数学")):
        both = oracle(first, second, return_token_type_ids=True)
        assert ours.encode_pair(first, second) == (both["input_ids"], both["token_type_ids"])
    for text in inputs[:60]:
        ids = ours.encode(text)
        assert ours.decode(ids) == oracle.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    typed = ours.encode("a </s> b <mask>", parse_special=False)
    assert not set(typed[1:-1]) & set(ours.control.values())
    framed, _ = ours.encode_pair("<s> a", "</s> b")
    assert sum(index in ours.control.values() for index in framed) == 4


def test_a_roberta_without_its_tokens_is_refused(tmp_path: Path) -> None:
    """By name, with what to do."""
    (tmp_path / "vocab.json").write_text('{"a": 0, "<s>": 1}', encoding="utf-8")
    (tmp_path / "merges.txt").write_text("", encoding="utf-8")
    (tmp_path / "config.json").write_text('{"model_type": "roberta"}', encoding="utf-8")
    with pytest.raises(ValueError, match=r"vocab.json: it lacks the token '</s>'; copy vocab.json and merges.txt"):
        load_tokenizer(tmp_path)


def test_pairs_as_roberta_frames_them(tmp_path: Path) -> None:
    """Two separators between the texts, which are of one type."""
    from tiny_tokenizers import byte_level
    from tokenizers import processors

    pipeline = byte_level()
    pipeline.add_special_tokens(["<s>", "</s>"])
    first, last = pipeline.token_to_id("<s>"), pipeline.token_to_id("</s>")
    pipeline.post_processor = processors.RobertaProcessing(("</s>", last), ("<s>", first))
    pipeline.save(str(tmp_path / "tokenizer.json"))
    both = pipeline.encode("ab", "c")
    assert load_tokenizer(tmp_path).encode_pair("ab", "c") == (both.ids, both.type_ids)
    assert both.ids.count(last) == 3


def test_a_vocabulary_without_its_tokens_is_refused(tmp_path: Path) -> None:
    """By name, with what to do."""
    (tmp_path / "vocab.txt").write_text("[UNK]\n[CLS]\nthe\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"vocab.txt: the line '\[SEP\]' is missing; copy vocab.txt"):
        load_tokenizer(tmp_path)


def test_fairseqs_ids_are_not_guessed(tmp_path: Path, data_dir: Path) -> None:
    """XLM-RoBERTa's SentencePiece model has other ids than the model."""
    model = (data_dir / "tokenizers/t5/spiece.model").read_bytes()
    (tmp_path / "sentencepiece.bpe.model").write_bytes(model)
    (tmp_path / "config.json").write_text('{"model_type": "xlm-roberta"}', encoding="utf-8")
    with pytest.raises(ValueError, match=r"only tokenizer\.json says"):
        load_tokenizer(tmp_path)
