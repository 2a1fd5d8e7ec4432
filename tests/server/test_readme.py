"""README's client lines, as they stand, against the server."""

import contextlib
import io
import json
import re
from pathlib import Path

from server.conftest import Running

README = Path(__file__).parents[2] / "README.md"
HERE = "http://127.0.0.1:8000"


def section() -> str:
    text = README.read_text(encoding="utf-8")
    return text[text.index("\n## Serve\n") : text.index("\n## Plan, trace, calibrate\n")]


def test_the_client_lines_do_what_they_say(server: Running) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", section(), re.DOTALL)
    assert HERE in code
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(code.replace(HERE, server.url), "README.md", "exec"), names := {})
    story, form, call = re.fullmatch(r"(.*)(\{.*?\})\n(Function.*)\n", said.getvalue(), re.DOTALL).groups()  # type: ignore[union-attr]
    assert len(story) > 40
    for pet in (json.loads(form), json.loads(names["answer"].choices[0].message.tool_calls[0].function.arguments)):
        assert pet["animal"] in ("dog", "cat", "bird")
        assert 1 <= pet["age"] <= 9
    assert "name='adopt'" in call
    assert names["answer"].choices[0].finish_reason == "tool_calls"
    server.idle()


def test_curl_s_line_is_answered(server: Running) -> None:
    url, body = re.search(r"curl (\S+) .*? -d '(.*?)'", section(), re.DOTALL).groups()  # type: ignore[union-attr]
    reply = server.post(url.removeprefix(HERE), body.encode())
    assert reply.json()["usage"]["completion_tokens"] <= 40
    assert reply.json()["choices"][0]["text"]
    server.idle()
