"""Tiny models, made once a session."""

from pathlib import Path

import pytest
import torch
from trace_models import Maker, Tiny, make


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    """The tiny model of a family, in fp32 or another dtype."""
    made: dict[tuple[str, torch.dtype], Tiny] = {}

    def get(name: str, dtype: torch.dtype = torch.float32) -> Tiny:
        if (name, dtype) not in made:
            folder: Path = tmp_path_factory.mktemp(name)
            made[name, dtype] = make(name, folder, dtype)
        return made[name, dtype]

    return get
