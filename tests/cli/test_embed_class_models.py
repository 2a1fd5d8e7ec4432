"""Embeddings of encoders without a family here, against sentence-transformers, of the folders that it writes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModel, PreTrainedTokenizerFast

from cli.running import OK, Run
from ridgeline.engine.embedding_llm import EmbeddingLLM
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.scheduler import Limits
from support.checkpoints import fill_random
from support.embedders import TEXTS, wordpiece

TOLERANCE = 1e-5
_SIZES: dict[str, Any] = {
    "hidden_size": 36,
    "intermediate_size": 44,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "max_position_embeddings": 60,
}
ENCODERS: dict[str, dict[str, Any]] = {
    "albert": _SIZES | {"embedding_size": 20, "pad_token_id": 0},
    "deberta-v2": _SIZES
    | {"relative_attention": True, "position_buckets": 20, "pos_att_type": ["p2c", "c2p"], "type_vocab_size": 0},
    "distilbert": {"dim": 36, "hidden_dim": 44, "n_layers": 2, "n_heads": 6, "max_position_embeddings": 60},
    "electra": _SIZES | {"embedding_size": 20},
    "mpnet": _SIZES | {"pad_token_id": 1},
}


@pytest.fixture(scope="module", params=[(kind, mode) for kind in ENCODERS for mode in ("mean", "cls")], ids="-".join)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Return a folder that sentence-transformers wrote, and its model."""
    library = pytest.importorskip("sentence_transformers")
    kind, mode = request.param
    encoder, whole = (tmp_path_factory.mktemp(f"{kind}-{mode}-{name}") for name in ("encoder", "whole"))
    tokenizer = wordpiece(TEXTS * 5, 120)
    config = CONFIG_MAPPING[kind](vocab_size=tokenizer.get_vocab_size(), **ENCODERS[kind])
    theirs = AutoModel.from_config(config, dtype=torch.float32)
    fill_random(theirs, 11)
    theirs.save_pretrained(encoder)
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    inputs = ["input_ids", "attention_mask"]
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=inputs, **special)
    fast.save_pretrained(encoder)
    modules = library.sentence_transformer.modules
    transformer = modules.Transformer(str(encoder), max_seq_length=50)
    pooling = modules.Pooling(36, pooling_mode=mode)
    model = library.SentenceTransformer(modules=[transformer, pooling, modules.Normalize()], device="cpu")
    model.save(str(whole))
    return whole, model


def test_vectors_are_sentence_transformers(folder: tuple[Path, Any]) -> None:
    """Run several texts in steps of a few."""
    path, theirs = folder
    wanted = theirs.encode(list(TEXTS * 2))
    embedder = EmbeddingLLM(str(path), EngineSettings(limits=Limits(tokens=60, chunk=4)))
    found = embedder.embed(TEXTS * 2)
    for text, vector, expected in zip(TEXTS * 2, found, wanted, strict=True):
        assert np.abs(vector.values - expected).max() <= TOLERANCE, text
        assert vector.tokens == len(theirs.tokenizer(text)["input_ids"])
    assert np.abs(found[0].values - found[1].values).max() > 100 * TOLERANCE
    assert embedder.engine.stats.steps >= 2


def test_the_command(ridgeline: Run, folder: tuple[Path, Any]) -> None:
    """Print the same vectors by `ridgeline embed`; `plan` has a price of them."""
    path, theirs = folder
    ended = ridgeline("embed", TEXTS[0], TEXTS[1], "--model", path, "--json")
    assert ended.code == OK
    found = np.array([text["embedding"] for text in json.loads(ended.out)["texts"]])
    assert np.abs(found - theirs.encode(list(TEXTS[:2]))).max() <= TOLERANCE
    assert ridgeline("plan", path, "--device", "h100-sxm", "--input", "30").code == OK
