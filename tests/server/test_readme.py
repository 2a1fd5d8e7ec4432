"""The client lines of README.md and docs/serving.md, as they stand, against the server."""

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from server.conftest import Running

ROOT = Path(__file__).parents[2]
HERE = "http://127.0.0.1:8000"


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_client_lines_do_what_they_say(server: Running) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", page("docs/serving.md"), re.DOTALL)
    assert HERE in code
    said, names = io.StringIO(), dict[str, Any]()
    with contextlib.redirect_stdout(said):
        exec(compile(code.replace(HERE, server.url), "docs/serving.md", "exec"), names)
    story, form, call = re.fullmatch(r"(.*)(\{.*?\})\n(Function.*)\n", said.getvalue(), re.DOTALL).groups()  # type: ignore[union-attr]
    assert len(story) > 40
    for pet in (json.loads(form), json.loads(names["answer"].choices[0].message.tool_calls[0].function.arguments)):
        assert pet["animal"] in ("dog", "cat", "bird")
        assert 1 <= pet["age"] <= 9
    assert "name='adopt'" in call
    assert names["answer"].choices[0].finish_reason == "tool_calls"
    server.idle()


@pytest.mark.parametrize("name", ["README.md", "docs/serving.md"])
def test_curl_s_line_is_answered(server: Running, name: str) -> None:
    url, body = re.search(r"curl (\S+) .*? -d '(.*?)'", page(name), re.DOTALL).groups()  # type: ignore[union-attr]
    reply = server.post(url.removeprefix(HERE), body.encode())
    assert reply.json()["usage"]["completion_tokens"] <= 40
    assert reply.json()["choices"][0]["text"]
    server.idle()


def test_the_readme_shows_what_the_built_in_model_says(server: Running) -> None:
    """The text of `run` and the one that curl's line gets."""
    readme = page("README.md")
    count, story = re.search(r"^\$ ridgeline run tales .* --max-tokens (\d+)\n(.*)$", readme, re.MULTILINE).groups()  # type: ignore[union-attr]
    asked = {"prompt": "Once upon a time", "max_tokens": int(count), "temperature": 0}
    assert server.post("/v1/completions", asked).json()["choices"][0]["text"] == story
    (text,) = re.findall(r'"choices":\[\{"text":"(.*?)"', readme)
    assert story.startswith(text)
    server.idle()
