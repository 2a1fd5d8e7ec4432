"""Each command prints one line, with the fix, if transformers is missing, too old or broken.

The commands run in another process. Its packages are those of this one, apart from transformers.
"""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

import ridgeline
from cli.running import FAULT, REFUSED, Ended, assert_one_line
from engine.folders import write_model
from models.test_class_family import NEOX

_IMPORT_ERROR = "tokenizers>=0.22.0,<=0.23.0 is required for a normal functioning of this module, but found 0.15.0"
_INSTALL = "pip install 'ridgeline[transformers]'"
# The installed version and the code of its package, and the line that a command prints.
PROBLEMS = {
    "missing": (None, "", f"transformers 5.24 or newer, below 6, is not installed: {_INSTALL}"),
    "old": (
        "5.2.0",
        "raise AssertionError('imported')",
        f"transformers 5.24 or newer, below 6, is needed; transformers 5.2 is installed: {_INSTALL}",
    ),
    "broken": (
        "5.24.0",
        f"raise ImportError('{_IMPORT_ERROR}.\\nTry: `pip install transformers -U`')",
        f"transformers 5.24 cannot be imported ({_IMPORT_ERROR}): "
        "pip install --force-reinstall 'transformers>=5.24,<6'",
    ),
}
COMMANDS = (
    "show MODEL",
    "plan MODEL --device h100-sxm",
    "trace MODEL --priced h100-sxm",
    "simulate MODEL --device h100-sxm --rate 1",
    "run MODEL hi",
    "serve MODEL",
    "chat MODEL",
    "embed hi --model MODEL",
    "quantize MODEL OUT --weights int8",
    "check MODEL",
)
_PROGRAM = """
import contextlib, io, json, sys
from ridgeline.cli.main import main

for command in json.loads(sys.argv[1]):
    sys.argv, out, err, code = ["ridgeline", *command], io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""


def packages_with(folder: Path, version: str | None, code: str) -> Path:
    """Write a folder with links to all installed packages, and with another transformers or none."""
    folder.mkdir()
    for installed in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(installed).iterdir():
            if not entry.name.lower().startswith("transformers") and not (folder / entry.name).exists():
                (folder / entry.name).symlink_to(entry)
    if version is not None:
        about = folder / f"transformers-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: transformers\nVersion: {version}\n")
        (folder / "transformers").mkdir()
        (folder / "transformers" / "__init__.py").write_text(code)
    return folder


def run_commands(packages: Path, commands: list[list[str]]) -> list[Ended]:
    """Run commands in a process that finds packages only in a folder."""
    path = os.pathsep.join(map(str, (packages, Path(ridgeline.__file__).parents[1])))
    program = [sys.executable, "-S", "-c", _PROGRAM, json.dumps(commands)]
    told = subprocess.run(
        program, capture_output=True, text=True, check=True, timeout=300, env={**os.environ, "PYTHONPATH": path}
    )
    return [Ended(*json.loads(line)) for line in told.stdout.splitlines()]


@pytest.mark.parametrize("problem", PROBLEMS)
def test_commands_print_one_line_with_the_fix(problem: str, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    config: dict[str, Any] = json.loads((model / "config.json").read_text(encoding="utf-8"))
    (model / "config.json").write_text(json.dumps({**NEOX, "vocab_size": config["vocab_size"]}), encoding="utf-8")
    names = {"MODEL": str(model), "OUT": str(tmp_path / "out")}
    commands = [[names.get(word, word) for word in command.split()] for command in COMMANDS]
    version, code, line = PROBLEMS[problem]
    *ended, checked = run_commands(packages_with(tmp_path / "packages", version, code), commands)
    assert len(ended) == len(COMMANDS) - 1
    for each in ended:
        assert_one_line(each, REFUSED, f"architecture {NEOX['architectures'][0]}", line)
    assert checked.code == FAULT
    assert line in checked.out
    assert checked.err == ""
