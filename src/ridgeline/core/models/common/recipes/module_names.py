"""The lists of modules in a quantiser's config: names, beginnings and ends of names, patterns.

Strangers write them, so that a pattern is refused that could take for ever: Python's `re` backtracks.
"""

import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from ridgeline.core.models.common.fields import Fields

Matcher = Callable[[str], bool]

_LITERAL = re.compile(r"[\w.\-]+")
_MAX_PATTERN = 500  # characters
_WIDE = re.compile(r"(?:\.|\[\^[^\]]*\]|\\[WSDw])[*+]")
_MAX_WIDE = 4  # repeats of nearly anything in one pattern: a name of 60 characters then takes milliseconds at most
_REPEATED_GROUP = re.compile(r"\)[*+{]")


def names_listed(section: Fields, name: str) -> list[str]:
    """The field `name`, a list of names; empty where it is absent. Raises ModelRefused."""
    value = section.value(name) or []
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise section.refuse(f"{name} must be a list of names of modules")
    return value


def begins_or_ends(section: Fields, entries: Sequence[str]) -> Matcher:
    """Transformers' reading of `modules_to_not_convert`: an entry is the beginning of a name up to a dot (as a regular
    expression), or its end.
    """
    names = frozenset(entry for entry in entries if _LITERAL.fullmatch(entry))
    patterns = [pattern(section, rf"(?:{e})(?:(?<=\.)|(?=\.|$))", e) for e in entries if e not in names]
    ends = tuple(entries)
    return lambda name: name.endswith(ends) or not names.isdisjoint(beginnings(name)) or matches(patterns, name)


def contains(entries: Sequence[str]) -> Matcher:
    """AutoAWQ's reading, and that of the engines that load its checkpoints: an entry is any part of a name."""
    return lambda name: any(entry in name for entry in entries)


def is_or_matches(section: Fields, entries: Sequence[str]) -> Matcher:
    """compressed-tensors' reading: an entry is the whole name, or after `re:` a pattern that it begins with."""
    names = frozenset(entries)
    patterns = [pattern(section, e.removeprefix("re:"), e) for e in entries if e.startswith("re:")]
    return lambda name: name in names or matches(patterns, name)


def globs(entries: Sequence[str]) -> Matcher:
    """ModelOpt's reading: an entry is the name of a module or of one around it, or a shell's pattern of one."""
    names = frozenset(entries)
    patterns = [entry for entry in entries if not _LITERAL.fullmatch(entry)]
    return lambda name: not names.isdisjoint(beginnings(name)) or any(fnmatchcase(name, p) for p in patterns)


def pattern(section: Fields, expression: str, entry: str) -> re.Pattern[str]:
    """A stranger's regular expression, compiled. Raises ModelRefused for what is none, or might take for ever."""
    if len(entry) > _MAX_PATTERN or len(_WIDE.findall(entry)) > _MAX_WIDE or _REPEATED_GROUP.search(entry):
        raise section.refuse(f"the pattern {entry[:80]!r} is too involved; simplify it, or list the modules' names")
    try:
        return re.compile(expression)
    except (re.error, OverflowError) as error:
        raise section.refuse(f"the pattern {entry[:80]!r} is no regular expression: {error}") from None


def beginnings(name: str) -> set[str]:
    """`a.b.c` -> a, a.b, a.b.c."""
    parts = name.split(".")
    return {".".join(parts[: count + 1]) for count in range(len(parts))}


def matches(patterns: Sequence[re.Pattern[str]], name: str) -> bool:
    """Whether a name begins with one of the patterns."""
    return any(each.match(name) for each in patterns)
