"""`ridgeline embed`: what it prints, and what it refuses in one line."""

import json
from pathlib import Path

import pytest

from cli.running import OK, REFUSED, USAGE, Run, assert_one_line
from ridgeline.engine.embedding_llm import EmbeddingLLM
from support.embedders import TEXTS, state_pooling, write_bert


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("embedder")
    write_bert(folder)
    state_pooling(folder, "mean_tokens", "Normalize", prompts={"query": "the dog "})
    return folder


def test_the_first_text_is_compared_with_the_others(ridgeline: Run, folder: Path, tmp_path: Path) -> None:
    """The nearest first; what it took on stderr. Texts come as arguments, from a file, and from standard input."""
    path = tmp_path / "texts.txt"
    path.write_text(f"{TEXTS[2]}\n\n{TEXTS[3]}\n", encoding="utf-8")
    ended = ridgeline("embed", *TEXTS[:2], "--model", folder, "--input-file", path)
    assert ended.code == OK
    first, *others = ended.out.splitlines()
    assert first.strip() == TEXTS[0]
    cosines = [float(line.split()[0]) for line in others]
    assert len(cosines) == 3
    assert cosines == sorted(cosines, reverse=True)
    assert "4 texts, " in ended.err
    assert "texts/s" in ended.err
    ended = ridgeline("embed", *TEXTS, "--model", folder, "--json")
    told = json.loads(ended.out)
    assert told["dimensions"] == 36
    wanted = EmbeddingLLM(str(folder)).embed(TEXTS)
    for text, row, vector in zip(TEXTS, told["texts"], wanted, strict=True):
        assert row["text"] == text
        assert row["embedding"] == pytest.approx(vector.values)
    assert sorted((row["similarity"] for row in told["texts"][1:]), reverse=True) == pytest.approx(cosines, abs=1e-4)


def test_one_text(ridgeline: Run, folder: Path) -> None:
    ended = ridgeline("embed", "A dog", "--model", folder)
    assert ended.out.startswith("36 dimensions of ")
    assert ended.out.count(",") == 4


def test_an_encoder_keeps_nothing_to_narrow(ridgeline: Run, folder: Path) -> None:
    ended = ridgeline("embed", "A dog", "--model", folder, "--kv", "int8")
    assert_one_line(ended, USAGE, "has no KV cache; leave --kv int8 out")


def test_a_search_has_the_models_prompts(ridgeline: Run, folder: Path) -> None:
    """The query's prompt before the first text, none before the others, as this model has none for them."""
    searched = json.loads(ridgeline("embed", "cat", "A dog", "--model", folder, "--search", "--json").out)
    plain = json.loads(ridgeline("embed", "the dog cat", "A dog", "--model", folder, "--json").out)
    assert [row["embedding"] for row in searched["texts"]] == [row["embedding"] for row in plain["texts"]]


def test_a_search_says_which_text_is_wrong(ridgeline: Run, folder: Path) -> None:
    """Documents are counted without the query."""
    ended = ridgeline("embed", "cat", "A dog", "dog " * 3000, "--model", folder, "--search")
    assert_one_line(ended, USAGE, "document 2 of 2")


def test_a_reranker_scores(ridgeline: Run, tmp_path: Path) -> None:
    write_bert(tmp_path, labels=1)
    ended = ridgeline("embed", *TEXTS, "--model", tmp_path)
    scores = [float(line.split()[0]) for line in ended.out.splitlines()[1:]]
    assert scores == sorted(scores, reverse=True)
    told = json.loads(ridgeline("embed", *TEXTS, "--model", tmp_path, "--json").out)
    assert told["query"] == TEXTS[0]
    assert [row["text"] for row in told["documents"]] == list(TEXTS[1:])
    assert sorted((row["score"] for row in told["documents"]), reverse=True) == pytest.approx(scores, abs=1e-4)
    assert_one_line(ridgeline("embed", "alone", "--model", tmp_path), USAGE, "give the query first")
    long = ridgeline("embed", "cat", "a dog", "cat " * 80, "--model", tmp_path)
    assert_one_line(long, USAGE, "ridgeline: document 2 of 2: the prompt has ")
    assert_one_line(
        ridgeline("embed", "a", "b", "--model", tmp_path, "--search"), USAGE, "leave out --search, --prompt"
    )


def test_what_cannot_be_embedded_is_refused(ridgeline: Run, folder: Path) -> None:
    """A text that is too long, a model without vectors, no text, a prompt that there is not."""
    assert_one_line(
        ridgeline("embed", "cat " * 80, "--model", folder), USAGE, "the model's context is 60: shorten the prompt"
    )
    assert_one_line(ridgeline("embed", "cat", "--model", "tales"), REFUSED, "generates text", "no modules.json")
    assert_one_line(ridgeline("embed", "--model", folder), USAGE, "no text was given")
    assert_one_line(ridgeline("embed", " ", "cat", "--model", folder), USAGE, "one of the texts is empty")
    for text in ("cat " * 80, "cat " * 8000):
        ended = ridgeline("embed", "cat", text, "a dog", "--model", folder)
        assert_one_line(
            ended, USAGE, "ridgeline: text 2 of 3: the prompt has ", "the model's context is 60: shorten the prompt"
        )
    assert_one_line(
        ridgeline("embed", "a", "--model", folder, "--prompt", "x"),
        USAGE,
        "no prompt named 'x'; its prompts are 'query'",
    )
    assert_one_line(ridgeline("embed", "a", "--model", folder, "--dimensions", 4), USAGE, "leave dimensions out")
    assert_one_line(ridgeline("run", folder, "hi"), REFUSED, "generates no text: use ridgeline embed")
