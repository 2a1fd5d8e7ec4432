"""A streaming check of one JSON object (RFC 8259): it finds the end of the object, or that the text is not JSON."""

import enum
import re

MAX_DEPTH = 64
"""The deepest allowed nesting of objects and lists in a tool call's JSON."""
MAX_NUMBER = 400  # characters
JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
"""The pattern of a number; its groups are the fraction and the exponent."""
_WORDS = ("true", "false", "null")
BLANK = " \t\n\r"
"""The characters that JSON treats as white space."""


class Malformed(ValueError):
    """An error for text that is not valid JSON or not a valid tool call."""


class JsonState(enum.Enum):
    """The kind of element that can come next in a JSON object."""

    START = enum.auto()
    FIRST_KEY = enum.auto()  # or the object's end
    KEY = enum.auto()
    COLON = enum.auto()
    FIRST_VALUE = enum.auto()  # of a list, or its end
    VALUE = enum.auto()
    AFTER = enum.auto()  # a comma, or the end of the open object or list
    STRING = enum.auto()
    ESCAPE = enum.auto()
    WORD = enum.auto()  # a number, true, false or null
    END = enum.auto()


class JsonScanner:
    """A scanner that reads one JSON object character by character.

    `place` is the element that can come next. A character takes constant time, and only the open brackets need memory.
    """

    def __init__(self) -> None:
        self.place = JsonState.START
        self._open: list[str] = []
        self._is_key = False
        self._word = ""
        self._hex = 0  # remaining digits of a \u escape

    @property
    def depth(self) -> int:
        """The number of open objects and lists."""
        return len(self._open)

    def push(self, c: str) -> None:
        """Read the next character of the JSON object; the caller must not push characters after `END`.

        Raises:
            Malformed: If the text is not JSON, or is nested deeper than `MAX_DEPTH`.
        """
        place = self.place
        if place is JsonState.STRING:
            self._string(c)
        elif place is JsonState.ESCAPE:
            self._escape(c)
        elif place is JsonState.WORD and c not in ",]}" and c not in BLANK:
            self._word += c
            self._check(len(self._word) <= MAX_NUMBER)
        else:
            if place is JsonState.WORD:
                self._check(self._word in _WORDS or JSON_NUMBER.fullmatch(self._word) is not None)
                self.place = JsonState.AFTER
            if c not in BLANK:
                self._structure(c)

    @staticmethod
    def _check(good: bool) -> None:
        """Raise Malformed, for text that is not JSON, unless the condition holds."""
        if not good:
            raise Malformed

    def _structure(self, c: str) -> None:
        """Read a character of a JSON object outside strings, numbers and words."""
        place = self.place
        if c in "}]":
            closes = {JsonState.AFTER: "{[", JsonState.FIRST_KEY: "{", JsonState.FIRST_VALUE: "["}.get(place, "")
            self._check(bool(self._open) and self._open[-1] in closes and (self._open[-1] == "{") == (c == "}"))
            self._open.pop()
            self.place = JsonState.AFTER if self._open else JsonState.END
        elif place in (JsonState.FIRST_KEY, JsonState.KEY):
            self._check(c == '"')
            self._is_key, self.place = True, JsonState.STRING
        elif place is JsonState.COLON:
            self._check(c == ":")
            self.place = JsonState.VALUE
        elif place is JsonState.AFTER:
            self._check(c == ",")
            self.place = JsonState.KEY if self._open[-1] == "{" else JsonState.VALUE
        else:
            self._value(c)

    def _value(self, c: str) -> None:
        """Read the first character of a JSON value."""
        self._check(self.place is not JsonState.START or c == "{")
        if c in "{[":
            self._open.append(c)
            self._check(len(self._open) <= MAX_DEPTH)
            self.place = JsonState.FIRST_KEY if c == "{" else JsonState.FIRST_VALUE
        elif c == '"':
            self._is_key, self.place = False, JsonState.STRING
        else:
            self._check(c in "-0123456789tfn")
            self._word, self.place = c, JsonState.WORD

    def _string(self, c: str) -> None:
        """Read a character inside a JSON string."""
        if c == '"':
            self.place = JsonState.COLON if self._is_key else JsonState.AFTER
        elif c == "\\":
            self.place = JsonState.ESCAPE
        else:
            self._check(c >= " ")

    def _escape(self, c: str) -> None:
        """Read a character of an escape sequence in a JSON string."""
        if self._hex:
            self._check(c in "0123456789abcdefABCDEF")
            self._hex -= 1
        elif c == "u":
            self._hex = 4
        else:
            self._check(c in '"\\/bfnrt')
        if not self._hex:
            self.place = JsonState.STRING
