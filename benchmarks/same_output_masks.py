"""Masks: what an output may say differently from run to run."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from json.decoder import scanstring
from pathlib import Path

from same_output_cases import listed

PREFIX = "same-output-"
"""The beginning of the name of a temporary folder of `save`."""
_TEMPORARY = re.compile(rf"/[\w./-]*/{PREFIX}\w{{8}}")
_SCALAR = re.compile(r'[^\s,\]}:"]+')


@dataclass(frozen=True)
class Mask:
    """A mask of same_output.toml: regular expressions over texts, and paths of values in JSON."""

    why: str
    text: tuple[tuple[str, str], ...] = ()
    """Regular expressions, each with what replaces its matches."""
    json: tuple[str, ...] = ()
    """Patterns of paths such as `steps.*.seconds`, in which `*` also stands for several parts."""


@dataclass(frozen=True)
class Masks:
    """All masks, and the folder `src` under test: it, its checkout and the temporary folder are always masked."""

    source: str
    by_name: dict[str, Mask]

    def hidden(self, text: str, wanted: tuple[str, ...]) -> str:
        """Return a text with what the wanted masks cover replaced. Values of JSON are on lines of their own."""
        text = _TEMPORARY.sub("<root>", text).replace(self.source, "<source>")
        text = text.replace(str(Path(self.source).parent), "<checkout>")
        chosen = [self.by_name[name] for name in wanted]
        paths = tuple(pattern for mask in chosen for pattern in mask.json)
        text = "\n".join(_json_hidden(line, paths) for line in text.split("\n"))
        for mask in chosen:
            for pattern, by in mask.text:
                text = re.sub(pattern, by, text, flags=re.MULTILINE)
        return text


def read_masks(folder: Path) -> Masks:
    """Return the masks for a folder that `save` wrote."""
    about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    masks = {
        name: Mask(entry["why"], tuple(map(tuple, entry.get("text", ()))), tuple(entry.get("json", ())))
        for name, entry in listed()["mask"].items()
    }
    return Masks(about["source"], masks)


def _json_hidden(line: str, patterns: tuple[str, ...]) -> str:
    """Return a line, which if it is a JSON object is broken after each of its values, with those of paths masked.

    Nothing else of it is changed, so that the order of keys, spaces and the digits of numbers are compared too.
    """
    start = len("data: ") if line.startswith("data: ") else 0
    if not line.startswith(("{", "["), start):
        return line
    try:
        json.loads(line[start:])
    except ValueError:
        return line
    parts, end = [line[:start]], start
    for path, first, last in _values(line, start):
        name = next((pattern for pattern in patterns if fnmatchcase(path, pattern)), None)
        parts += [line[end:first], line[first:last] if name is None else f"<{name}>", "\n"]
        end = last
    return "".join((*parts, line[end:]))


def _values(text: str, start: int) -> Iterator[tuple[str, int, int]]:
    """Yield the path of each scalar of a JSON text, with where it starts and ends."""
    path: list[str | int] = []  # of each container that is open: the key, or the index, that is being read
    at, key = start, False
    while at < len(text):
        char = text[at]
        if char in "{[":
            path.append("" if char == "{" else 0)
            key = char == "{"
            at += 1
        elif char in "}]":
            path.pop()
            at += 1
        elif char == ",":
            last = path[-1]
            key = isinstance(last, str)
            if isinstance(last, int):
                path[-1] = last + 1
            at += 1
        elif key and char == '"':
            path[-1], at = scanstring(text, at + 1)
            key = False
        elif char in ": \t\r\n":
            at += 1
        else:
            match = _SCALAR.match(text, at)
            end = scanstring(text, at + 1)[1] if char == '"' else match.end() if match else at + 1
            yield ".".join(map(str, path)), at, end
            at = end
