"""Fixtures of the tests of models."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from models.parity_cases import ParityCase

MadeOnce = Callable[[ParityCase, Callable[[Any, Path], Any]], Any]


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> MadeOnce:
    """What gives the subject of a case, made at the first call for all tests of a module, in a folder of its own."""
    kept: dict[str, Any] = {}

    def subject(case: ParityCase, made: Callable[[Any, Path], Any]) -> Any:
        if case.id not in kept:
            kept[case.id] = made(case, tmp_path_factory.mktemp(case.id))
        return kept[case.id]

    return subject
