"""Strings that record which of their characters the chat template wrote.

A control token in a rendered prompt is genuine only if the template wrote all its characters. So the literals of the
template are `TrustedStr` strings, user text is an ordinary `str`, and concatenation preserves the origin of both. The
text itself never changes: templates can compare, split, trim and index contents as usual. An operation that this class
does not know returns an ordinary `str`, hence user text: a gap can lose a control token, but never grant one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, SupportsIndex, cast

import markupsafe
from typing_extensions import override

_TYPED, _WRITTEN = b"\x00", b"\x01"


class TrustedStr(str):
    """A string that marks each character as written by the chat template or by a user."""

    marks: bytes
    """One byte per character: 1 if the template wrote it, 0 if a user did."""

    def __new__(cls, text: str = "", marks: bytes | None = None) -> TrustedStr:
        # Without marks nothing is trusted, because Jinja's sandbox rebuilds strings as type(s)(text) in str.format.
        """Create a string with a mark per character (1: written by the template), by default all user text."""
        self = super().__new__(cls, text)
        self.marks = _TYPED * len(self) if marks is None else marks
        assert len(self.marks) == len(self)
        return self

    @classmethod
    def by_template(cls, text: str) -> TrustedStr:
        """Return a string whose characters are all written by the template."""
        return cls(text, _WRITTEN * len(text))

    def runs(self) -> list[tuple[str, bool]]:
        """Return a string as maximal runs of (text, whether the template wrote it)."""
        found, start = [], 0
        while start < len(self):
            mark = self.marks[start : start + 1]
            end = self.marks.find(_TYPED if mark == _WRITTEN else _WRITTEN, start)
            end = len(self) if end < 0 else end
            found.append((str.__getitem__(self, slice(start, end)), mark == _WRITTEN))
            start = end
        return found

    @override
    def __str__(self) -> str:
        return self  # str(x), which Jinja applies to all output, must preserve the marks

    @override
    def __add__(self, other: str) -> TrustedStr:
        if not isinstance(other, str):
            return cast(TrustedStr, NotImplemented)
        return SafeText.of(other).__radd__(self) if hasattr(other, "__html__") else concat((self, other))

    def __radd__(self, other: str) -> TrustedStr:
        return concat((other, self)) if isinstance(other, str) else cast(TrustedStr, NotImplemented)

    @override
    def __mul__(self, count: SupportsIndex) -> TrustedStr:
        return TrustedStr(str.__mul__(self, count), self.marks * int(count))

    __rmul__ = __mul__

    @override
    def __getitem__(self, key: SupportsIndex | slice) -> TrustedStr:
        at = key if isinstance(key, slice) else slice(int(key), int(key) + 1 or None)
        return TrustedStr(str.__getitem__(self, key), self.marks[at])

    @override
    def strip(self, chars: str | None = None, /) -> TrustedStr:
        return self.lstrip(chars).rstrip(chars)

    @override
    def lstrip(self, chars: str | None = None, /) -> TrustedStr:
        return self[len(self) - len(str.lstrip(self, chars)) :]

    @override
    def rstrip(self, chars: str | None = None, /) -> TrustedStr:
        return self[: len(str.rstrip(self, chars))]

    @override
    def removeprefix(self, prefix: str, /) -> TrustedStr:
        return self[len(self) - len(str.removeprefix(self, prefix)) :]

    @override
    def removesuffix(self, suffix: str, /) -> TrustedStr:
        return self[: len(str.removesuffix(self, suffix))]

    @override
    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._cut(str.split(self, sep, maxsplit), sep)

    @override
    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._cut(str.rsplit(self, sep, maxsplit), sep)

    @override
    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> str:
        if not old:
            return str.replace(self, old, new, count)
        return TrustedStr.join(TrustedStr(new, marks_of(new)), self.split(old, count))

    @override
    def join(self, items: Iterable[str], /) -> TrustedStr:
        texts: list[str] = []
        for item in items:
            texts += [self, item] if texts else [item]
        return concat(texts)

    @override
    def lower(self) -> str:
        return self._same_length(str.lower(self))

    @override
    def upper(self) -> str:
        return self._same_length(str.upper(self))

    @override
    def title(self) -> str:
        return self._same_length(str.title(self))

    @override
    def capitalize(self) -> str:
        return self._same_length(str.capitalize(self))

    def _same_length(self, text: str) -> str:
        """Return a changed text with the marks of this one, or as user text if its length changed."""
        return TrustedStr(text, self.marks) if len(text) == len(self) else text

    def _cut(self, pieces: list[str], sep: str | None) -> list[str]:
        """Return pieces of a split with the marks of their characters; pieces of a split at white space get none."""
        if sep is None:
            return pieces
        cut: list[str] = []
        start = 0
        for piece in pieces:
            cut.append(self[start : start + len(piece)])
            start += len(piece) + len(sep)
        return cut


class SafeText(TrustedStr):
    """A string that needs no HTML escaping, such as a result of Jinja's `safe` or `escape`.

    The `+` operator escapes ordinary text that is joined with it. Templates write JSON with `tojson | safe`. Jinja's
    own class for such text, Markup, would lose the marks.
    """

    @classmethod
    def of(cls, text: str) -> SafeText:
        """Return a text as one that needs no HTML escaping, with the marks of who wrote each character."""
        return cls(text, marks_of(text))

    def __html__(self) -> str:
        return self

    @override
    def __add__(self, other: str) -> TrustedStr:
        if not isinstance(other, str):
            return cast(TrustedStr, NotImplemented)
        return SafeText.of(concat((self, escaped(other))))

    @override
    def __radd__(self, other: str) -> TrustedStr:
        return (
            SafeText.of(concat((escaped(other), self))) if isinstance(other, str) else cast(TrustedStr, NotImplemented)
        )

    @override
    def __getitem__(self, key: SupportsIndex | slice) -> TrustedStr:
        return SafeText.of(super().__getitem__(key))


def escaped(text: str) -> str:
    """Escape a text for HTML and preserve the marks of who wrote each character; return safe text unchanged."""
    if hasattr(text, "__html__"):
        return text
    pieces = [str(markupsafe.escape(each)) for each in str.__str__(text)]
    marks = marks_of(text)
    return TrustedStr("".join(pieces), b"".join(marks[at : at + 1] * len(piece) for at, piece in enumerate(pieces)))


def marks_of(text: str) -> bytes:
    """Return one byte per character of a string: 1 if the template wrote it, 0 for user text.

    Every character of an ordinary string is user text.
    """
    return text.marks if isinstance(text, TrustedStr) else _TYPED * len(text)


def concat(texts: Iterable[str]) -> TrustedStr:
    """Concatenate strings and preserve the marks of who wrote each character."""
    texts = list(texts)
    return TrustedStr("".join(texts), b"".join(map(marks_of, texts)))


def written_join(*values: Any) -> TrustedStr:
    """Implement Jinja's `~` operator: concatenate values as strings and preserve who wrote each character."""
    return concat(str(value) for value in values)
