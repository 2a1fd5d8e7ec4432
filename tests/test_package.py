"""What is sent to others: the source distribution holds all that a build needs, and nothing that was built here; and a
build without a compiler that takes the kernels."""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from ridgeline.backends.cpu.kernel_sources import digest_of

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
    (tree / PACKAGE / "backends" / "cpu" / "libridgeline.so").touch()
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
        str(PACKAGE / "backends" / "cpu" / "native" / "kernels.cpp"),
    } <= sent


def test_it_holds_nothing_that_was_compiled(sent: set[str]) -> None:
    assert not [name for name in sent if name.endswith((".so", ".pyc", ".o"))]


def build(tree: Path, into: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The package as setup.py builds it, with these variables beside the usual ones."""
    command = [sys.executable, "setup.py", "--quiet", "build_py", "--build-lib", str(into)]
    own = os.environ | environment
    return subprocess.run(command, cwd=tree, env=own, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("compiler", "says"),
    [
        ("too-old", "too-old is too old for the kernels, which need g++ 12 or newer; name another compiler in CXX"),
        ("gone", "No such file"),
        ("'gone", "cannot split $CXX into words: No closing quotation; correct its quotation marks"),
    ],
)
def test_a_build_without_kernels_says_why_in_a_line(tree: Path, tmp_path: Path, compiler: str, says: str) -> None:
    """A compiler that refuses the probe is asked for nothing else; the package is there without a library, also where
    an earlier build had left one."""
    library = tmp_path / "lib" / "ridgeline" / "backends" / "cpu" / "libridgeline.so"
    library.parent.mkdir(parents=True)
    library.touch()
    script = tmp_path / "too-old"
    script.write_text("#!/bin/sh\necho refused >&2\nexit 1\n")
    script.chmod(0o755)
    done = build(tree, tmp_path / "lib", CXX=f"{tmp_path}/{compiler}")
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("ridgeline"))
    assert line.startswith("ridgeline is built without its own kernels and will run on torch alone: ")
    assert says in line
    assert (done.returncode, "refused" in done.stderr) == (0, False)
    assert (tmp_path / "lib" / "ridgeline" / "__main__.py").exists()
    assert not library.exists()


# Stands in for a compiler: notes each word of each call, makes the file that it is to make, and says of the probe what
# it was told.
COMPILER = r"""#!/bin/sh
case " $* " in *" -E "*) echo "$PROCESSOR";; esac
{ printf '%s\n' "$@"; echo; } > "$(mktemp "$(dirname "$0")/call.XXXXXX")"
while [ $# -gt 1 ]; do [ "$1" = -o ] && : > "$2"; shift; done
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """A compiler that is none."""
    script = tmp_path / "a compiler"
    script.write_text(COMPILER)
    script.chmod(0o755)
    return script


def calls_of(stand_in: Path) -> list[list[str]]:
    """The words of each of its calls."""
    return [path.read_text().splitlines() for path in stand_in.parent.glob("call.*")]


def test_a_compiler_with_arguments_is_taken_as_a_shell_would(tree: Path, tmp_path: Path, stand_in: Path) -> None:
    """A launcher's name, or what a compiler is always told, before all else of the probe, of every source and of the
    link; and flags that hold a space stay one."""
    done = build(tree, tmp_path / "lib", CXX=f"'{stand_in}' g++ -m64", CXXFLAGS="-DSAID='two words'")
    assert (done.returncode, "ridgeline is built without" in done.stderr) == (0, False)
    calls = calls_of(stand_in)
    assert all(call[:2] == ["g++", "-m64"] for call in calls)
    made = [call for call in calls if "-o" in call]
    assert len(calls) - len(made) >= 1  # the probe
    assert len(made) >= 4  # two sources without an instruction set, one with, and the link
    assert all("-DSAID=two words" in call for call in made)
    sources = f'-DSOURCES="{digest_of(ROOT / PACKAGE / "backends" / "cpu" / "native")}"'
    (told,) = (call for call in made if sources in call)
    assert any(word.endswith("library.cpp") for word in told), "the library says what it was compiled from"
    assert (tmp_path / "lib" / "ridgeline" / "backends" / "cpu" / "libridgeline.so").exists()


@pytest.mark.parametrize(
    ("processor", "sets"),
    [("x86_64", {"plain", "avx2", "avx512", "avx512_bf16", "amx"}), ("aarch64", {"neon"}), ("", {"plain"})],
)
def test_instruction_sets_are_of_the_processor_that_is_compiled_for(
    tree: Path, tmp_path: Path, stand_in: Path, processor: str, sets: set[str]
) -> None:
    """Whatever this one is: a cross compiler's are those of its target."""
    build(tree, tmp_path / "lib", CXX=f"'{stand_in}'", PROCESSOR=processor)
    named = [word.removeprefix("-DNAME=") for call in calls_of(stand_in) for word in call if word.startswith("-DNAME=")]
    assert sorted(named) == sorted(sets)
