"""Embeddings and scores against transformers with the pooling written out, of folders as releases have them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import RobertaTokenizer

from engine.folders import write_model
from ridgeline.core.models import ModelRefused
from ridgeline.engine.embedding_llm import EmbeddingLLM, similarity, truncate_dimensions
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.llm import LLM
from ridgeline.engine.scheduler import Limits
from support.checkpoints import edit_config, random_model
from support.embedders import (
    SIZES,
    TEXTS,
    state_pooling,
    wordpiece,
    write_bert,
    write_dense,
    write_json,
    write_roberta,
)

TOLERANCE = 1e-5
POOLED: Mapping[str, Callable[[Tensor], Tensor]] = {
    "mean_tokens": lambda x: x.mean(0),
    "cls_token": lambda x: x[0],
    "max_tokens": lambda x: x.max(0).values,
    "lasttoken": lambda x: x[-1],
}
"""Poolings by the names that sentence-transformers has for them: states [positions, hidden] -> [hidden]."""


def states(theirs: Any, embedder: EmbeddingLLM, text: str) -> Tensor:
    """Transformers' hidden states of a text [positions, hidden]."""
    ids = torch.tensor([embedder.texts.tokenizer.encode(text)])
    with torch.no_grad():
        out: Tensor = theirs(ids).last_hidden_state[0]
    return out


def close(ours: np.ndarray, theirs: Tensor) -> bool:
    return float(np.abs(ours - theirs.numpy()).max()) <= TOLERANCE * float(theirs.abs().max())


@pytest.mark.parametrize("mode", POOLED)
@pytest.mark.parametrize("normalised", [True, False])
def test_pooling_as_the_folder_states_it(tmp_path: Path, mode: str, normalised: bool) -> None:
    """Several texts in steps of a few, each as it is alone."""
    theirs = write_bert(tmp_path)
    state_pooling(tmp_path, mode, *["Normalize"] * normalised)
    embedder = EmbeddingLLM(str(tmp_path), EngineSettings(limits=Limits(tokens=60, chunk=4)))
    for text, vector in zip(TEXTS * 3, embedder.embed(TEXTS * 3), strict=True):
        wanted = POOLED[mode](states(theirs, embedder, text))
        assert close(vector.values, functional.normalize(wanted, dim=0) if normalised else wanted)
        assert vector.tokens == len(embedder.texts.tokenizer.encode(text))
    assert embedder.engine.stats.steps >= 2
    assert not embedder.engine.kv_cache_manager.layout.groups, "an encoder keeps nothing"


def test_matrices_after_the_pooling(tmp_path: Path) -> None:
    """A Dense with its weights in a folder of its own, then a norm; prompts before the text."""
    theirs = write_bert(tmp_path)
    prompts = {"query": "the dog ", "document": ""}
    state_pooling(tmp_path, "mean_tokens", "Dense", "Normalize", prompts=prompts, default_prompt_name="query")
    weight, bias = write_dense(tmp_path / "2_Dense", 36, 11)
    embedder = EmbeddingLLM(str(tmp_path))
    for name, before in ((None, "the dog "), ("query", "the dog "), ("document", "")):
        (vector,) = embedder.embed(["A cat"], name)
        x = states(theirs, embedder, before + "A cat").mean(0)
        assert close(vector.values, functional.normalize(torch.tanh(x @ weight.T + bias), dim=0)), name
    with pytest.raises(ValueError, match="no prompt named 'clustering'; its prompts are 'query', 'document'"):
        embedder.embed(["A cat"], "clustering")


def test_texts_in_lower_case_where_the_folder_says_so(tmp_path: Path) -> None:
    """As sentence-transformers does it, the prompt too, whatever the tokenizer does with capitals."""
    write_bert(tmp_path)
    wordpiece((*TEXTS, *map(str.lower, TEXTS)) * 5, 120, lowercase=False).save(str(tmp_path / "tokenizer.json"))
    state_pooling(tmp_path, "mean_tokens", prompts={"query": "THE Dog: "})
    texts, lower = [*TEXTS, "Α ΟΔΟΣ"], [*map(str.lower, TEXTS), "α οδος"]
    as_they_are = EmbeddingLLM(str(tmp_path)).embed(lower)
    write_json(tmp_path / "sentence_bert_config.json", {"max_seq_length": 50, "do_lower_case": True})
    embedder = EmbeddingLLM(str(tmp_path))
    for ours, theirs in zip(embedder.embed(texts), as_they_are, strict=True):
        assert np.array_equal(ours.values, theirs.values)
    shouted, said = embedder.embed(["A CAT"], "query"), embedder.embed(["the dog: a cat"])
    assert np.array_equal(shouted[0].values, said[0].values)


def test_an_encoder_that_says_nothing_is_pooled_by_the_mean(tmp_path: Path) -> None:
    """As sentence-transformers does it; a folder that says the length of a text is held to it."""
    theirs = write_bert(tmp_path)
    embedder = EmbeddingLLM(str(tmp_path))
    (vector,) = embedder.embed(["A cat"])
    assert close(vector.values, states(theirs, embedder, "A cat").mean(0))
    assert embedder.engine.traits.context == 60
    state_pooling(tmp_path, "mean_tokens")
    write_json(tmp_path / "sentence_bert_config.json", {"max_seq_length": 9})
    embedder = EmbeddingLLM(str(tmp_path))
    with pytest.raises(
        ValueError, match=r"the prompt has \d+ tokens, but the model's context is 9: shorten the prompt"
    ):
        embedder.embed(["A cat", TEXTS[2]])
    assert not embedder.engine.has_work


@pytest.mark.parametrize("mode", POOLED)
def test_a_text_as_long_as_the_context_is_embedded(tmp_path: Path, mode: str) -> None:
    """A generating model would have no room for a token behind it; an embedding model needs none."""
    theirs = write_bert(tmp_path)
    state_pooling(tmp_path, mode)
    write_json(tmp_path / "sentence_bert_config.json", {"max_seq_length": 9})
    embedder = EmbeddingLLM(str(tmp_path))
    text = "a " * 7
    (vector,) = embedder.embed([text])
    assert vector.tokens == embedder.engine.traits.context == 9
    assert close(vector.values, POOLED[mode](states(theirs, embedder, text)))


QWEN3: dict[str, Any] = {
    "hidden_size": 36,
    "intermediate_size": 44,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


@pytest.mark.parametrize("tied", [True, False])
def test_a_decoder_whose_last_state_is_the_vector(tmp_path: Path, tied: bool) -> None:
    """Qwen3-Embedding: the state of the last token, of length 1, in chunks and with a prefix cache or not; a head that
    the checkpoint has is left out."""
    tokenizer = wordpiece(TEXTS * 5, 120)
    config = QWEN3 | {"vocab_size": tokenizer.get_vocab_size(), "tie_word_embeddings": tied}
    theirs = random_model("qwen3", config, 3)
    (theirs.base_model if tied else theirs).save_pretrained(tmp_path)
    edit_config(tmp_path, architectures=["Qwen3ForCausalLM"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    instruct = "Find the text in which the cat is black and sleeps in a house: "
    state_pooling(tmp_path, "lasttoken", "Normalize", prompts={"query": instruct})
    for chunk, prefix_cache in ((None, True), (3, True), (5, False)):
        settings = EngineSettings(limits=Limits(tokens=16, chunk=chunk), page_size=4, prefix_cache=prefix_cache)
        embedder = EmbeddingLLM(str(tmp_path), settings)
        for text, vector in zip(TEXTS * 2, embedder.embed(TEXTS * 2, "query"), strict=True):
            wanted = states(theirs.base_model, embedder, instruct + text)[-1]
            assert close(vector.values, functional.normalize(wanted, dim=0))
        assert (embedder.engine.stats.reused_tokens > 0) == prefix_cache
    with pytest.raises(ModelRefused, match="outputs embeddings or scores and generates no text: use ridgeline embed"):
        LLM(str(tmp_path))


@pytest.mark.parametrize("squashed", [True, False])
def test_scores_of_a_reranker(tmp_path: Path, squashed: bool) -> None:
    """A query and a document together, told apart by BERT's types; sigmoid unless the config says otherwise."""
    theirs = write_bert(tmp_path, labels=1)
    if not squashed:
        said = {"activation_fn": "torch.nn.modules.linear.Identity", "version": "4.1.0"}
        edit_config(tmp_path, sentence_transformers=said)
    embedder = EmbeddingLLM(str(tmp_path))
    scores = embedder.score(TEXTS[0], TEXTS[1:])
    for text, score in zip(TEXTS[1:], scores, strict=True):
        ids, types = embedder.texts.tokenizer.encode_pair(TEXTS[0], text)
        assert 0 < sum(types) < len(types)
        with torch.no_grad():
            logit = theirs(torch.tensor([ids]), token_type_ids=torch.tensor([types])).logits[0, 0]
        assert score == pytest.approx(float(logit.sigmoid() if squashed else logit), rel=1e-4)
    with pytest.raises(ValueError, match="outputs scores of labels, not embeddings"):
        embedder.embed(["a"])


def test_scores_of_a_roberta_that_has_its_vocabulary_and_merges_alone(tmp_path: Path) -> None:
    """Pairs as transformers' tokenizer of the folder frames them."""
    theirs = write_roberta(tmp_path)
    tokenizer = RobertaTokenizer.from_pretrained(str(tmp_path), local_files_only=True)
    for text, score in zip(TEXTS[1:], EmbeddingLLM(str(tmp_path)).score(TEXTS[0], TEXTS[1:]), strict=True):
        with torch.no_grad():
            logit = theirs(**tokenizer(TEXTS[0], text, return_tensors="pt")).logits[0, 0]
        assert score == pytest.approx(float(logit.sigmoid()), rel=1e-4)


def test_what_gives_no_scores_or_vectors_says_so(tmp_path: Path) -> None:
    """One line each."""
    write_bert(tmp_path / "labels", labels=3)
    with pytest.raises(ValueError, match="has 3 labels: use a reranker, which has one label"):
        EmbeddingLLM(str(tmp_path / "labels")).score("a", ["b"])
    write_bert(tmp_path / "plain")
    embedder = EmbeddingLLM(str(tmp_path / "plain"))
    with pytest.raises(ValueError, match="does not score a document for a query"):
        embedder.score("a", ["b"])
    with pytest.raises(ValueError, match="the text is empty"):
        embedder.embed([""])
    with pytest.raises(
        ModelRefused, match=r"generates text, .* does not define how to embed text \(it has no modules.json\)"
    ):
        EmbeddingLLM(str(write_model(tmp_path / "decoder")))


@pytest.mark.parametrize(
    ("file", "value", "problem"),
    [
        ("modules.json", {"a": 1}, "does not hold a list of modules"),
        ("modules.json", [], "no modules; only a Transformer and then a Pooling"),
        ("modules.json", [{"type": "Transformer", "path": ""}, {"type": "Pooling", "path": "../up"}], "points outside"),
        ("1_Pooling/config.json", {"pooling_mode_weightedmean_tokens": True}, "weightedmean_tokens is not supported"),
        ("1_Pooling/config.json", {"pooling_mode_cls_token": 1, "pooling_mode_max_tokens": 1}, "_max_tokens is not"),
        ("1_Pooling/config.json", {"pooling_mode_cls_token": 1, "include_prompt": False}, "include_prompt = false"),
        ("config_sentence_transformers.json", {"default_prompt_name": "a"}, "default_prompt_name 'a' is not among its"),
        ("config_sentence_transformers.json", {"default_prompt_name": ["a"]}, r"default_prompt_name \['a'\] is not"),
        ("config_sentence_transformers.json", {"prompts": ["q: "]}, "prompts is not an object that maps names to"),
        ("2_Dense/config.json", {"out_features": 5, "activation_function": "x.ELU"}, "'ELU' is not supported"),
    ],
)  # fmt: skip
def test_what_a_folder_says_that_is_not_built_is_refused(tmp_path: Path, file: str, value: Any, problem: str) -> None:
    """In one line that names the file."""
    write_bert(tmp_path)
    state_pooling(tmp_path, "mean_tokens", "Dense", prompts={"query": "q: "})
    write_dense(tmp_path / "2_Dense", 36, 11)
    write_json(tmp_path / file, value)
    with pytest.raises(ModelRefused, match=problem):
        EmbeddingLLM(str(tmp_path))


def test_vectors_are_cut_where_the_model_says_so(tmp_path: Path) -> None:
    """The first entries, of length 1 again; other lengths are refused."""
    write_bert(tmp_path)
    state_pooling(tmp_path, "mean_tokens", "Normalize")
    with pytest.raises(ValueError, match="outputs 36 dimensions, and its config does not allow fewer"):
        EmbeddingLLM(str(tmp_path)).embed(["a"], dimensions=8)
    edit_config(tmp_path, matryoshka_dimensions=[8, 16])
    embedder = EmbeddingLLM(str(tmp_path))
    (whole,), (shorter,) = embedder.embed(["a"]), embedder.embed(["a"], dimensions=8)
    assert shorter.values == pytest.approx(whole.values[:8] / np.linalg.norm(whole.values[:8]))
    assert similarity(shorter.values, whole.values[:8]) == pytest.approx(1)
    with pytest.raises(ValueError, match="dimensions is 9: give one of 8, 16, 36, which"):
        embedder.embed(["a"], dimensions=9)
    edit_config(tmp_path, matryoshka_dimensions=None, is_matryoshka=True)
    said = EmbeddingLLM(str(tmp_path)).texts.embedding
    assert len(truncate_dimensions(said, whole.values, 9)) == 9
    with pytest.raises(ValueError, match="dimensions is 37: give 1 to 36, which the model supports"):
        truncate_dimensions(said, whole.values, 37)
    assert SIZES["hidden_size"] == 36
