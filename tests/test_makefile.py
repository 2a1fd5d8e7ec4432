"""`make demo` on a fresh machine: its steps are named, torch comes without CUDA where it can be had so, and what came
is said, of torch and of the kernels that pip may have failed to compile without a word. Then what it shows."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
# Stands in for the environment's python: notes what is asked of it, has one index out of reach, and runs code alone.
PYTHON = f"""#!/bin/sh
echo "$@" >> "$(dirname "$0")/asked"
case "$*" in *--index-url\\ out-of-reach*) exit 1;; -c*) exec {sys.executable} "$@";; esac
"""


def make(venv: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run make in the checkout with this environment of Python."""
    # Under `make test` the make that runs the tests would speak to this one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    environment |= {"RIDGELINE_KERNELS": "off", "COLUMNS": "100"}
    command = ["make", f"VENV={venv}", *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("index", "says"),
    [
        ("near", ""),
        (
            "out-of-reach",
            "torch is not available there: pip chooses it in the next step, on Linux with gigabytes of CUDA\n",
        ),
    ],
)
def test_where_torch_comes_from(tmp_path: Path, index: str, says: str) -> None:
    """The CPU index is asked first, once and not for long; then pip installs the rest, and torch if need be."""
    write_program(tmp_path / "bin" / "python", PYTHON)
    done = make(tmp_path, f"TORCH_INDEX={index}", f"{tmp_path}/.base")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        f"1/3 creating an environment in {tmp_path}\n"
        f"2/3 installing torch without CUDA, some 200 MB, from {index}\n{says}"
        "3/3 installing ridgeline and its dependencies; compiling the kernels takes up to two minutes\n"
        f"torch {torch.__version__}\nkernels torch's (RIDGELINE_KERNELS=off)\n"
    )
    first, second, _ = (tmp_path / "bin" / "asked").read_text().splitlines()
    assert first.endswith(f"--no-deps --timeout 5 --retries 0 --index-url {index} torch")
    assert second.endswith("--constraint constraints.txt --editable .")
    assert all("--quiet" in each for each in (first, second))


# Stands in for the command: says what it was asked for.
COMMAND = """#!/bin/sh
echo "<$*>"
"""


def test_the_demo_shows_the_progress_of_pip(tmp_path: Path) -> None:
    """Four steps, named before they begin; pip, which may take minutes, is not told to be quiet."""
    write_program(tmp_path / "bin" / "python", PYTHON)
    write_program(tmp_path / "bin" / "ridgeline", COMMAND)
    done = make(tmp_path, "TORCH_INDEX=near", "demo")
    assert (done.returncode, done.stderr) == (0, "")
    steps = [line[:3] for line in done.stdout.splitlines() if line[1:3] == "/4"]
    assert steps == ["1/4", "2/4", "3/4", "4/4"]
    assert "--quiet" not in (tmp_path / "bin" / "asked").read_text()


def test_what_the_demo_shows(tmp_path: Path) -> None:
    """The environment is there: a story, where the time of a token went, and a plan. No weights are random."""
    write_program(tmp_path / "bin" / "ridgeline", f'#!/bin/sh\nexec {sys.executable} -m ridgeline "$@"\n')
    (tmp_path / ".base").touch()
    done = make(tmp_path, "demo")
    assert (done.returncode, done.stderr) == (0, "")
    heading, *shown, following = done.stdout.split("\n\n$ ")
    plan, _, last = following.rpartition("\n\n")
    assert heading == "4/4 three commands, some 20 s: a story, where its time went, and a plan"
    story, trace = (part.partition("\n")[2] for part in shown)
    assert story.startswith("Once upon a time, there was a little girl named ")
    assert len(story.split()) > 100
    assert trace.startswith("tales: where the time of one token went\n")
    names = [line.split()[0] for line in plan.splitlines()[2:] if re.match(r"\w", line)]
    assert names[:5] == ["fits", "users", "speed", "limit", "cost"]
    assert last.startswith("Next: . ")
    assert "dummy" not in done.stdout
