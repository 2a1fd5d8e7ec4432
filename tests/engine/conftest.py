"""A small model in a folder, and an LLM over it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.folders import CHAT, write_model
from engine.scripted import SETTINGS
from engine.small_models import assert_nothing_held
from ridgeline.engine import LLM


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("bytes"), template=CHAT)


@pytest.fixture
def llm(folder: Path) -> Iterator[LLM]:
    """A model of random weights; whatever a test did, nothing may be held after it."""
    llm = LLM(str(folder), SETTINGS)
    yield llm
    assert_nothing_held(llm.engine)
