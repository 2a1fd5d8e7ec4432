"""The page's HTML: as a server sends it, beside its files, and as one file that holds them all.

Modules call each other by bare names (`page/dom.js`), which an import map leads to files of the server or, in one
file, to `data:` URLs: from `file://` a browser fetches no module. Both have a policy that runs these scripts and no
other, whatever texts the page comes to hold.
"""

import base64
import gzip
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from html import escape

from ridgeline.learn.page.assets import STATIC, Asset, assets, of_type

_HEAD = "<!-- assets -->"
_START = "app.js"
_LONG = 2048
"""Bytes from which a block is compressed."""
_SHARED = "base-uri 'none'; form-action 'none'; trusted-types 'none'; require-trusted-types-for 'script'"
"""Of both policies. The last two let no text become a script or markup, also where a library would."""


@dataclass(frozen=True)
class HtmlPage:
    """The document, and the Content-Security-Policy that it is to be shown under."""

    document: Asset
    policy: str


@cache
def served_page() -> HtmlPage:
    """The document of a server, beside whose address `page/NAME` has its files."""
    modules = of_type(".js")
    names = json.dumps({"imports": {f"page/{each.name}": f"./{_address(each)}" for each in modules}})
    parts = [
        *(f'<link rel="stylesheet" href="{_address(each)}">' for each in of_type(".css")),
        f'<script type="importmap">{names}</script>',
        *(f'<link rel="modulepreload" href="{_address(each)}">' for each in modules),
        f'<script type="module" src="{_address(assets()[_START])}"></script>',
    ]
    policy = (
        f"default-src 'none'; script-src 'self' {_allowed(names)}; style-src 'self'; connect-src 'self'; "
        f"img-src 'self' data: blob:; media-src blob:; frame-ancestors 'none'; {_SHARED}"
    )
    return HtmlPage(Asset("index.html", _with_head(parts)), policy)


def file_page(blocks: Iterable[str] = ()) -> bytes:
    """The document with all its files in it. blocks: elements that hold its data (`render_standalone`)."""
    names = json.dumps({"imports": {f"page/{each.name}": _data_url(each) for each in of_type(".js")}})
    start = f'import "page/{_START}";'
    style = "".join(each.text for each in of_type(".css"))
    assert "</" not in style, "a style ends where it says so"
    policy = (
        f"default-src 'none'; script-src data: {_allowed(names)} {_allowed(start)}; style-src {_allowed(style)}; "
        f"img-src data: blob:; media-src data: blob:; {_SHARED}"
    )
    parts = [
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        f"<style>{style}</style>",
        *blocks,
        f'<script type="importmap">{names}</script>',
        f'<script type="module">{start}</script>',
    ]
    return _with_head(parts)


def render_standalone(blocks: Mapping[str, object]) -> bytes:
    """Return the page as one file with its data in it.

    blocks: data by the names that tabs ask for it by (`cards.json`), each as JSON has it.
    """
    return file_page(_block(name, value) for name, value in blocks.items())


def _block(name: str, value: object) -> str:
    """An element with data that `source.js` reads. No text in it can end it."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    if len(text) < _LONG:
        harmless = text.replace("<", r"\u003c")
        return f'<script type="application/json" data-name="{escape(name)}">{harmless}</script>'
    packed = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
    return f'<script type="application/gzip" data-name="{escape(name)}">{packed}</script>'


def page_names() -> Iterator[str]:
    """The paths by which a server has the page: its own and those of its files."""
    yield "/"
    yield from (f"/page/{name}" for name in assets())


def page_sizes() -> Mapping[str, int]:
    """Bytes of all that a server sends for the page, compressed, by name."""
    return {"/": len(served_page().document.gzipped)} | {each.name: len(each.gzipped) for each in assets().values()}


def _address(asset: Asset) -> str:
    """With its digest, so that a browser may keep it for ever."""
    return f"page/{asset.name}?v={asset.digest}"


def _data_url(asset: Asset) -> str:
    return f"data:{asset.media.replace(' ', '')};base64,{base64.b64encode(asset.data).decode()}"


def _allowed(text: str) -> str:
    """What a policy says of an element with this text in it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _with_head(parts: Iterable[str]) -> bytes:
    before, mark, after = (STATIC / "index.html").read_text("utf-8").partition(_HEAD)
    assert mark, "index.html says where its assets go"
    return (before + "\n".join(parts) + after).encode()
