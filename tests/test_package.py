"""What is sent to others: the source distribution holds all that a build needs, and nothing that was built here."""

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path("src", "ridgeline")
BUILT = ("__pycache__", "*.so", "*.egg-info")


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The files of a source distribution, made from a copy of the tree in which a library has been compiled."""
    folder = tmp_path_factory.mktemp("tree")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns(*BUILT))
    (folder / PACKAGE / "ops" / "kernels" / "libridgeline.so").touch()
    code = "from setuptools import build_meta; print(build_meta.build_sdist('dist'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with tarfile.open(folder / "dist" / done.stdout.splitlines()[-1]) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


def test_it_holds_every_file_of_the_package(sent: set[str]) -> None:
    """Python, the kernels' sources, the catalogue, the cards, the built-in model: each is read by somebody."""
    files = [path for path in (ROOT / PACKAGE).rglob("*") if path.is_file()]
    own = {str(path.relative_to(ROOT)) for path in files if path.suffix not in (".so", ".pyc")}
    assert own <= sent, sorted(own - sent)
    assert {
        "setup.py",
        "pyproject.toml",
        "LICENSE",
        str(PACKAGE / "ops" / "kernels" / "native" / "kernels.cpp"),
    } <= sent


def test_it_holds_nothing_that_was_compiled(sent: set[str]) -> None:
    assert not [name for name in sent if name.endswith((".so", ".pyc", ".o"))]
