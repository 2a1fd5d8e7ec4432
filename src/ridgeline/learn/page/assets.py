"""Assets: the files that the page is made of, read once, each with what a browser is told of it."""

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

STATIC = Path(__file__).parent / "static"

_MEDIA = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}
"""The sorts that a browser asks for; those of others (the document's frame, licences) stay here."""

_DOCUMENT = {".html": "text/html; charset=utf-8"}


@dataclass(frozen=True)
class Asset:
    """A file of the page, or data for it. name: its path in the folder, which is how modules call each other too."""

    name: str
    data: bytes

    @property
    def media(self) -> str:
        """Its media type."""
        return (_MEDIA | _DOCUMENT)[Path(self.name).suffix]

    @property
    def text(self) -> str:
        """What is in it."""
        return self.data.decode()

    @cached_property
    def digest(self) -> str:
        """What changes with its contents: the first 16 digits of their SHA-256."""
        return hashlib.sha256(self.data).hexdigest()[:16]

    @cached_property
    def gzipped(self) -> bytes:
        """Its contents as most browsers take them."""
        return gzip.compress(self.data, mtime=0)


@cache
def assets() -> Mapping[str, Asset]:
    """All of them by name, in order of their names."""
    files = sorted(path for path in STATIC.rglob("*") if path.suffix in _MEDIA)
    names = [path.relative_to(STATIC).as_posix() for path in files]
    return {name: Asset(name, _sent(name, path.read_bytes())) for name, path in zip(names, files, strict=True)}


def _sent(name: str, data: bytes) -> bytes:
    """Return a file without comments, an eighth of a first visit. Vendored ones keep theirs, which hold licences."""
    return data if name.startswith("vendored/") else without_comments(data.decode()).encode()


def without_comments(text: str) -> str:
    """Return JavaScript or CSS with each line that is only a comment left empty, so that lines keep their numbers."""
    lines, inside = [], False
    for line in text.split("\n"):
        words = line.strip()
        begins = words.startswith("/*") and "*/" not in words[:-2]
        is_comment = inside or begins or words.startswith("//")
        inside = (inside or begins) and not words.endswith("*/")
        lines.append("" if is_comment else line)
    return "\n".join(lines)


def of_type(suffix: str) -> list[Asset]:
    """Those whose name ends so; others' first, so that rules of ours stand over theirs."""
    found = [asset for asset in assets().values() if asset.name.endswith(suffix)]
    return sorted(found, key=lambda asset: not asset.name.startswith("vendored/"))
