"""The grammar of tool calls as it is being written, in llguidance's Lark syntax."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from ridgeline.core.text.json_form import JSON_LAYOUT
from ridgeline.core.text.tokenizer import Tokenizer
from ridgeline.core.text.tools.function import Function
from ridgeline.core.text.tools.json_schema import with_references
from ridgeline.core.text.vocabulary import literal_pattern

_MAX_COPIED = 1 << 20  # characters of definitions that are repeated for the parts that are JSON


class CallGrammar:
    """A grammar of tool calls, to which a format adds rules by name."""

    def __init__(self, tokenizer: Tokenizer, markers: Sequence[str]) -> None:
        """Start an empty grammar.

        Args:
            tokenizer: Tokenizer that knows which markers are tokens.
            markers: Literals of the format that can be tokens.
        """
        self._control = {marker: tokenizer.control[marker] for marker in markers if marker in tokenizer.control}
        self._rules: list[str] = []
        self._terminals: dict[str, str] = {}
        self._copied = 0  # characters of the definitions that parts of schemas repeat

    def add(self, name: str, *parts: str) -> str:
        """Add a rule whose parts follow each other, omitting empty ones, and return its name."""
        self._rules.append(f"{name}: {' '.join(filter(None, parts))}")
        return name

    def terminal(self, *expressions: str) -> str:
        """Add a terminal that matches all of these expressions, unless the grammar has it, and return its name."""
        return self._terminals.setdefault(" & ".join(expressions), f"TERMINAL_{len(self._terminals)}")

    def split(self, text: str) -> tuple[str, str]:
        """Return the part of a text before the first marker that is a token, and the rest in Lark syntax."""
        match = re.search(literal_pattern(self._control), text)
        start = match.start() if match else len(text)
        return text[:start], self.literal(text[start:])

    def literal(self, text: str) -> str:
        """Return a text in Lark syntax: markers that are tokens as their ids, the rest in quotes; "" if empty."""
        written: list[str] = []
        end = 0
        for match in re.finditer(literal_pattern(self._control), text):
            written += [_quoted(text[end : match.start()]), f"<[{self._control[match[0]]}]>"]
            end = match.end()
        return " ".join(filter(None, (*written, _quoted(text[end:]))))

    @staticmethod
    def json(schema: Mapping[str, Any]) -> str:
        """Return the expression for JSON of a schema in the engine's layout of JSON, which the schema cannot change."""
        return f"%json {json.dumps({**schema, 'x-guidance': JSON_LAYOUT}, ensure_ascii=False)}"

    def json_part(self, schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
        """Return the expression for JSON of a part of a schema.

        Args:
            schema: The part.
            root: The schema in which its references are found.

        Raises:
            ValueError: If the grammar repeats too many definitions.
        """
        whole = with_references(schema, root)
        self._copied += len(json.dumps(whole.get("$defs", "")))
        if self._copied > _MAX_COPIED:
            raise ValueError("its definitions are repeated too often in this model's calls: shorten them")
        return self.json(whole)

    @override
    def __str__(self) -> str:
        """Return the whole grammar."""
        terminals = (f"{name}: {expression}" for expression, name in self._terminals.items())
        return "\n".join((*self._rules, *terminals)) + "\n"


def json_arguments(grammar: CallGrammar, name: str, function: Function) -> str:
    """Add the rule of arguments that are one JSON object, and return its name.

    Args:
        grammar: The grammar to extend.
        name: The name of the rule.
        function: The function that is called.
    """
    return grammar.add(name, grammar.json(function.parameters))


def pattern_of(text: str) -> str:
    """Return the regular expression for exactly this text, without the delimiter of Lark."""
    return re.escape(text).replace("/", r"\/").replace("\n", "n")


def _quoted(text: str) -> str:
    """Return a text in quotes, or "" if it is empty."""
    return json.dumps(text, ensure_ascii=False) if text else ""
