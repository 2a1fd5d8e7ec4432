"""A command that runs in this process, and a model for it to plan."""

import io
import json
import sys
from pathlib import Path
from typing import IO

import pytest
import torch

from cli.running import OK, Ended, Run
from ridgeline.cli import main as command_line
from ridgeline.price.devices import load_device
from support.planned import TINY


@pytest.fixture(autouse=True)
def as_wide_as_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the terminal of those who run the tests."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def model(tmp_path: Path) -> str:
    """The path of the config of a tiny model."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY))
    return str(path)


@pytest.fixture
def not_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    """For commands that draw: what the machine is costs two seconds, and is no matter there."""
    monkeypatch.setattr("ridgeline.cli.diffusion_run.device_at", lambda *_: load_device("h100-sxm"))
    monkeypatch.setattr("ridgeline.cli.diffusion_run.device_named", lambda *_: load_device("h100-sxm"))


@pytest.fixture
def ridgeline(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process: another one costs seconds."""

    def run(*arguments: object, stdin: str | IO[str] | None = "") -> Ended:
        monkeypatch.setattr(sys, "argv", ["ridgeline", *map(str, arguments)])
        typed = io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8") if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", typed)
        monkeypatch.setattr(torch, "set_num_threads", lambda _: None)  # it would last beyond this test
        code: object = OK
        try:
            command_line.main()
        except SystemExit as end:
            code = end.code or OK
        captured = capsys.readouterr()
        assert isinstance(code, int)
        return Ended(code, captured.out, captured.err)

    return run
