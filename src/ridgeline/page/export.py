"""One file: the page with its data in it, which opens from disk and asks nobody for anything."""

import base64
import gzip
import json
from collections.abc import Mapping
from html import escape

from ridgeline.page.document import file_page

_LONG = 2048
"""Bytes from which a block is compressed."""


def exported(blocks: Mapping[str, object]) -> bytes:
    """The file. blocks: data by the names that tabs ask for it by (`cards.json`), each as JSON has it."""
    return file_page(_block(name, value) for name, value in blocks.items())


def _block(name: str, value: object) -> str:
    """An element with data that `source.js` reads. No text in it can end it."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    if len(text) < _LONG:
        harmless = text.replace("<", r"\u003c")
        return f'<script type="application/json" data-name="{escape(name)}">{harmless}</script>'
    packed = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
    return f'<script type="application/gzip" data-name="{escape(name)}">{packed}</script>'
