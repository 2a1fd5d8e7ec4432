"""Every error has a code, and every code is one of those that are documented."""

import re
from pathlib import Path
from typing import Any

import pytest

import ridgeline.server
from server.conftest import Running

ROOT = Path(__file__).parents[2]
LONG = "a long way " * 2000


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", "invalid_json"),
        (b"", "invalid_json"),
        (b"[1]", "invalid_json"),
        ({"prompt": "x", "temperature": "hot"}, "invalid_value"),
        ({"prompt": "x", "n": 1000}, "invalid_value"),
        ({}, "missing_field"),
        ({"prompt": "x", "max_tokens": 5000}, "context_length_exceeded"),
        ({"prompt": LONG}, "context_length_exceeded"),
        ({"prompt": "x", "suffix": "y"}, "unsupported_field"),
        ({"prompt": "x", "model": "another"}, "model_not_found"),
    ],
)
def test_an_error_has_a_code(server: Running, body: Any, code: str) -> None:
    assert server.post("/v1/completions", body).json()["error"]["code"] == code


def test_every_code_is_documented() -> None:
    (folder,) = ridgeline.server.__path__
    source = "".join(path.read_text() for path in Path(folder).rglob("*.py"))
    codes = set(re.findall(r'code(?:: str)? ?= ?"([a-z_]+)"', source)) | {
        "queue_full", "queue_tokens", "queue_pictures", "engine_died", "engine_restarting"
    }  # fmt: skip
    assert len(codes) > 30
    text = (ROOT / "docs" / "serving.md").read_text()
    table = text.partition("\n## What does an error look like?\n")[2].partition("\n## ")[0]
    assert codes == set(re.findall(r"`([a-z_]+)`", table)) - {"code"}
