"""The HTML of the page: as a server sends it, with separate files, or as one file that contains all of them.

Modules import each other by bare names (`page/dom.js`). An import map resolves these to files of the server or, in the
single file, to `data:` URLs, because a browser loads no modules from `file://`. Both versions have a policy that runs
these scripts and no others, whatever text the page contains.
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
"""The length from which on a data block of the single-file page is compressed."""
_SHARED = "base-uri 'none'; form-action 'none'; trusted-types 'none'; require-trusted-types-for 'script'"
"""The rules in both Content-Security-Policies of the page: that of a server and that of the single file.

The last two rules keep any text from becoming a script or markup, even inside a library.
"""


@dataclass(frozen=True)
class HtmlPage:
    """The page's HTML document and its Content-Security-Policy."""

    document: Asset
    policy: str


@cache
def served_page() -> HtmlPage:
    """Return the HTML document that a server sends, whose links point to the page's files at `page/NAME`."""
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
    """Return the page's HTML document with all its files included.

    `blocks` are elements that contain its data (`render_standalone`).
    """
    names = json.dumps({"imports": {f"page/{each.name}": _data_url(each) for each in of_type(".js")}})
    start = f'import "page/{_START}";'
    style = "".join(each.text for each in of_type(".css"))
    assert "</" not in style, "a style sheet must not contain its own end tag"
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

    `blocks` maps the names that tabs request (`cards.json`) to JSON values.
    """
    return file_page(_block(name, value) for name, value in blocks.items())


def _block(name: str, value: object) -> str:
    """Return an HTML element with JSON data for `source.js`, whose text cannot close the element."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    if len(text) < _LONG:
        harmless = text.replace("<", r"\u003c")
        return f'<script type="application/json" data-name="{escape(name)}">{harmless}</script>'
    packed = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
    return f'<script type="application/gzip" data-name="{escape(name)}">{packed}</script>'


def page_names() -> Iterator[str]:
    """Yield the paths at which a server serves the page and its files."""
    yield "/"
    yield from (f"/page/{name}" for name in assets())


def page_sizes() -> Mapping[str, int]:
    """Return the sizes in bytes of the page's HTML document and files after gzip compression, by name.

    The document has the name `/`. The JSON data of the page is not included.
    """
    return {"/": len(served_page().document.gzipped)} | {each.name: len(each.gzipped) for each in assets().values()}


def _address(asset: Asset) -> str:
    """Return the address of an asset with its digest, so that browsers may cache it forever."""
    return f"page/{asset.name}?v={asset.digest}"


def _data_url(asset: Asset) -> str:
    return f"data:{asset.media.replace(' ', '')};base64,{base64.b64encode(asset.data).decode()}"


def _allowed(text: str) -> str:
    """Return the source expression of a Content-Security-Policy that allows an inline element with a given text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _with_head(parts: Iterable[str]) -> bytes:
    before, mark, after = (STATIC / "index.html").read_text("utf-8").partition(_HEAD)
    assert mark, "index.html must contain the assets comment exactly once"
    return (before + "\n".join(parts) + after).encode()
