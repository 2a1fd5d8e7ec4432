"""Assets: the files of the page, read once, each with the metadata that a browser needs."""

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
"""The media types of files that a browser requests; other files (the HTML frame, licences) are not served."""

_DOCUMENT = {".html": "text/html; charset=utf-8"}


@dataclass(frozen=True)
class Asset:
    """A file of the page, or data for it."""

    name: str
    """The path of a file in the static folder, or a made-up file name for data, from which the media type follows.

    JavaScript modules import each other by this name after the prefix `page/`.
    """
    data: bytes
    """The contents of the file."""

    @property
    def media(self) -> str:
        """The media type of the file."""
        return (_MEDIA | _DOCUMENT)[Path(self.name).suffix]

    @property
    def text(self) -> str:
        """The contents of the file as text."""
        return self.data.decode()

    @cached_property
    def digest(self) -> str:
        """The first 16 digits of the file's SHA-256, which change with its contents."""
        return hashlib.sha256(self.data).hexdigest()[:16]

    @cached_property
    def gzipped(self) -> bytes:
        """The contents of the file compressed with gzip, as most browsers accept them."""
        return gzip.compress(self.data, mtime=0)


@cache
def assets() -> Mapping[str, Asset]:
    """Return all assets by name, in the order of their names."""
    files = sorted(path for path in STATIC.rglob("*") if path.suffix in _MEDIA)
    names = [path.relative_to(STATIC).as_posix() for path in files]
    return {name: Asset(name, _sent(name, path.read_bytes())) for name, path in zip(names, files, strict=True)}


def _sent(name: str, data: bytes) -> bytes:
    """Return a file without comments, which are an eighth of a first visit.

    Vendored files keep their comments, which contain licences.
    """
    return data if name.startswith("vendored/") else without_comments(data.decode()).encode()


def without_comments(text: str) -> str:
    """Return JavaScript or CSS with each line that is only a comment left empty, so that line numbers stay."""
    lines, inside = [], False
    for line in text.split("\n"):
        words = line.strip()
        begins = words.startswith("/*") and "*/" not in words[:-2]
        is_comment = inside or begins or words.startswith("//")
        inside = (inside or begins) and not words.endswith("*/")
        lines.append("" if is_comment else line)
    return "\n".join(lines)


def of_type(suffix: str) -> list[Asset]:
    """Return the assets with a suffix, vendored ones first, so that our style rules override theirs."""
    found = [asset for asset in assets().values() if asset.name.endswith(suffix)]
    return sorted(found, key=lambda asset: not asset.name.startswith("vendored/"))
