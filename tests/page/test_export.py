"""One file: its blocks and its policy."""

import base64
import gzip
import hashlib
import json
import re
from html import unescape

from ridgeline.learn.page.html_document import render_standalone

HOSTILE = "</script><script>alert(1)</script><!--"


def blocks_of(text: str) -> dict[str, object]:
    """What a browser finds in the file's blocks."""
    found = re.findall(r'<script type="application/(json|gzip)" data-name="([^"]*)">(.*?)</script>', text, re.DOTALL)
    return {
        unescape(name): json.loads(gzip.decompress(base64.b64decode(body)) if kind == "gzip" else body)
        for kind, name, body in found
    }


def test_blocks_hold_their_data_whatever_is_in_it() -> None:
    data = {"small.json": {"a": HOSTILE, "b": [1.5, None]}, "large.json": [HOSTILE, *range(2000)]}
    text = render_standalone(data).decode()
    assert blocks_of(text) == data
    assert HOSTILE not in text
    assert 'data-name="large.json"' in text
    assert "application/gzip" in text


def test_the_policy_runs_the_scripts_that_are_there_and_no_other() -> None:
    text = render_standalone({}).decode()
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    said = dict(part.split(" ", 1) for part in policy.split("; "))
    assert said["default-src"] == said["base-uri"] == said["form-action"] == "'none'"
    scripts = re.findall(r'<script type="(?:importmap|module)">(.*?)</script>', text, re.DOTALL)
    styles = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)

    def hashes(texts: list[str]) -> set[str]:
        return {f"'sha256-{base64.b64encode(hashlib.sha256(t.encode()).digest()).decode()}'" for t in texts}

    assert set(said["script-src"].split()) == {"data:", *hashes(scripts)}
    assert set(said["style-src"].split()) == hashes(styles)
    assert "unsafe" not in policy
    assert text.index("Content-Security-Policy") < text.index("<style>") < text.index("<script")
