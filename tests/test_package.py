"""What is sent to others: the source distribution holds all that a build needs, and nothing that was built here; and a
build without a compiler that takes the kernels."""

import os
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
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a build reads."""
    folder = tmp_path_factory.mktemp("tree")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns(*BUILT))
    return folder


@pytest.fixture(scope="module")
def sent(tree: Path) -> set[str]:
    """The files of a source distribution, made where a library has been compiled."""
    (tree / PACKAGE / "ops" / "kernels" / "libridgeline.so").touch()
    code = "from setuptools import build_meta; print(build_meta.build_sdist('dist'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with tarfile.open(tree / "dist" / done.stdout.splitlines()[-1]) as archive:
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


@pytest.mark.parametrize(
    ("compiler", "says"),
    [
        ("too-old", "too-old is too old for the kernels, which take g++ 12 or newer"),
        ("gone", "No such file"),
    ],
)
def test_a_build_without_kernels_says_why_in_a_line(tree: Path, tmp_path: Path, compiler: str, says: str) -> None:
    """A compiler that refuses the probe is asked for nothing else; the package is there without a library."""
    script = tmp_path / "too-old"
    script.write_text("#!/bin/sh\necho refused >&2\nexit 1\n")
    script.chmod(0o755)
    command = [sys.executable, "setup.py", "--quiet", "build_py", "--build-lib", str(tmp_path / "lib")]
    environment = os.environ | {"CXX": str(tmp_path / compiler)}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("ridgeline"))
    assert line.startswith("ridgeline is built without its own kernels, on torch alone: ")
    assert says in line
    assert (done.returncode, "refused" in done.stderr) == (0, False)
    assert (tmp_path / "lib" / "ridgeline" / "__main__.py").exists()
    assert not (tmp_path / "lib" / "ridgeline" / "ops" / "kernels" / "libridgeline.so").exists()
