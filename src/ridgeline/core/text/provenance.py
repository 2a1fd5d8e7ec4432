"""Strings that know which of their characters the chat template wrote.

A control token in a rendered prompt is real only if the template wrote every character of it. So the template's own
literals are `TrustedStr` strings, what a user typed is an ordinary `str`, and whatever joins the two remembers both.
The text itself is never altered: templates may compare, split, trim and index contents as they like. An operation that
this class does not know yields an ordinary `str`, hence ordinary text: a gap costs a control token, never grants one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, SupportsIndex, cast

import markupsafe
from typing_extensions import override

_TYPED, _WRITTEN = b"\x00", b"\x01"


class TrustedStr(str):
    """A string with one byte a character: 1 where the template wrote it, 0 where it was typed."""

    marks: bytes

    def __new__(cls, text: str = "", marks: bytes | None = None) -> TrustedStr:
        # Without marks nothing is trusted: jinja's sandbox rebuilds strings as type(s)(text) in str.format.
        self = super().__new__(cls, text)
        self.marks = _TYPED * len(self) if marks is None else marks
        assert len(self.marks) == len(self)
        return self

    @classmethod
    def by_template(cls, text: str) -> TrustedStr:
        """A literal of the template."""
        return cls(text, _WRITTEN * len(text))

    def runs(self) -> list[tuple[str, bool]]:
        """The text as maximal runs of (text, written by the template)."""
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
        return self  # str(x), which jinja applies to all it prints, must not forget the marks

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
        return TrustedStr(text, self.marks) if len(text) == len(self) else text

    def _cut(self, pieces: list[str], sep: str | None) -> list[str]:
        """Marks of the pieces of a split by an explicit separator; a split at white space is left unmarked."""
        if sep is None:
            return pieces
        cut: list[str] = []
        start = 0
        for piece in pieces:
            cut.append(self[start : start + len(piece)])
            start += len(piece) + len(sep)
        return cut


class SafeText(TrustedStr):
    """A string that Jinja's `safe` or `escape` returned: other text that is joined to it is escaped for HTML.

    Templates write JSON with `tojson | safe`. Markup, the class that Jinja has for such text, would forget the marks.
    """

    @classmethod
    def of(cls, text: str) -> SafeText:
        """Return a text that needs no escaping, with the marks that it has."""
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
    """Return a text escaped for HTML, its marks kept; a safe text as it is."""
    if hasattr(text, "__html__"):
        return text
    pieces = [str(markupsafe.escape(each)) for each in str.__str__(text)]
    marks = marks_of(text)
    return TrustedStr("".join(pieces), b"".join(marks[at : at + 1] * len(piece) for at, piece in enumerate(pieces)))


def marks_of(text: str) -> bytes:
    """The marks of any string; an ordinary one is typed throughout."""
    return text.marks if isinstance(text, TrustedStr) else _TYPED * len(text)


def concat(texts: Iterable[str]) -> TrustedStr:
    """Join strings, keeping who wrote what."""
    texts = list(texts)
    return TrustedStr("".join(texts), b"".join(map(marks_of, texts)))


def written_join(*values: Any) -> TrustedStr:
    """Jinja's `~`: the values as strings, joined."""
    return concat(str(value) for value in values)
