"""Folders with small tokenizers, in the layout of real ones."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer

NAMES = {"bos_token": "<bos>", "eos_token": "<eos>"}


@pytest.fixture(scope="session")
def make_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Writes a folder with tokenizer.json and tokenizer_config.json; returns its path."""

    def make(
        pipeline: Tokenizer, special: Sequence[str] = (), added: Sequence[str] = (), template: str | None = None
    ) -> Path:
        pipeline.add_special_tokens([AddedToken(t, normalized=False) for t in [*NAMES.values(), *special]])
        pipeline.add_tokens([AddedToken(t, normalized=False) for t in added])
        folder = tmp_path_factory.mktemp("tokenizer")
        pipeline.save(str(folder / "tokenizer.json"))
        config = {**NAMES, "tokenizer_class": "PreTrainedTokenizerFast"}
        if template is not None:
            config["chat_template"] = template
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        return folder

    return make
