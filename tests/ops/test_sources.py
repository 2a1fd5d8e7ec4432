"""A compiled library is called only where it is of the sources that lie beside it."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ridgeline.backends.cpu.kernel_sources import digest_of, unusable
from ridgeline.backends.cpu.library import PATH, library, missing, state
from support.kernels import SETS

NATIVE = PATH.with_name("native")
compiled = pytest.mark.skipif(not SETS, reason="the kernels were not compiled")


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the library, with its sources beside it."""
    shutil.copytree(NATIVE, tmp_path / "native")
    return Path(shutil.copy(PATH, tmp_path))


@pytest.fixture
def fresh() -> Iterator[None]:
    """Which kernels there are is found out anew, and again afterwards."""
    library.cache_clear()
    yield
    library.cache_clear()


def test_a_digest_is_of_names_and_contents(tmp_path: Path) -> None:
    """And of sources alone: what an editor leaves beside them changes nothing."""
    folder = tmp_path / "native"
    shutil.copytree(NATIVE, folder)
    before = digest_of(folder)
    (folder / ".kernels.h.swp").touch()
    (folder / "notes.txt").write_text("codes gain a field", encoding="ascii")
    assert digest_of(folder) == before == digest_of(NATIVE)
    (folder / "pool.h").rename(folder / "pools.h")
    renamed = digest_of(folder)
    (folder / "pools.h").rename(folder / "pool.h")
    (folder / "pool.h").write_bytes((folder / "pool.h").read_bytes() + b"\n")
    assert len({before, renamed, digest_of(folder)}) == 3


@compiled
def test_a_library_of_these_sources_is_used(copied: Path) -> None:
    assert unusable(copied) == unusable(PATH) == ""


@compiled
def test_without_sources_a_library_stands_alone(copied: Path) -> None:
    shutil.rmtree(copied.with_name("native"))
    assert not unusable(copied)


@compiled
def test_a_library_of_other_sources_is_not_called(copied: Path, monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    """Torch computes, and what is said of the kernels says why, and what makes them anew."""
    header = copied.with_name("native") / "kernels.h"
    header.write_text(header.read_text(encoding="utf-8").replace("int", "long", 1), encoding="utf-8")
    monkeypatch.delenv("RIDGELINE_KERNELS", raising=False)
    monkeypatch.setattr(sys.modules[library.__module__], "PATH", copied)
    says = "do not match its sources (run make, or pip install --editable .)"
    assert library() is None
    assert missing().endswith(says)
    assert state().startswith("torch's: ")
    monkeypatch.setenv("RIDGELINE_KERNELS", "off")
    assert not missing()


@pytest.mark.skipif(not shutil.which("cc"), reason="a compiler makes the library")
def test_a_library_that_says_nothing_of_its_sources_is_not_called(tmp_path: Path) -> None:
    """As those of before."""
    other = tmp_path / "other.so"
    subprocess.run(["cc", "-shared", "-o", str(other), "-x", "c", "-"], input=b"int ridgeline_threads;", check=True)
    assert "do not match its sources" in unusable(other)


def test_what_is_no_library_is_not_called(tmp_path: Path) -> None:
    (tmp_path / "empty.so").touch()
    assert "cannot be loaded" in unusable(tmp_path / "empty.so")
