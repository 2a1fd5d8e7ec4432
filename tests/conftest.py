"""Fixtures of all tests."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data (RIDGELINE_DATA, else ../shared/data beside the repository); skips where absent."""
    folder = Path(os.environ.get("RIDGELINE_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}: set RIDGELINE_DATA")
    return folder
