"""The lists of modules in a quantiser's config: names, prefixes and suffixes of names, and patterns.

Configs are untrusted: a pattern that could take exponential time is refused, because Python's `re` backtracks.
"""

import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from ridgeline.core.models.common.fields import Fields

Matcher = Callable[[str], bool]
"""A test whether the name of a module is on a list in a quantiser's config."""

_LITERAL = re.compile(r"[\w.\-]+")
_MAX_PATTERN = 500  # characters
_WIDE = re.compile(r"(?:\.|\[\^[^\]]*\]|\\[WSDw])[*+]")
_MAX_WIDE = 4  # wildcard repeats in one pattern: matching a name of 60 characters then takes milliseconds at most
_REPEATED_GROUP = re.compile(r"\)[*+{]")


def names_listed(section: Fields, name: str) -> list[str]:
    """Return a list of module names, the config field `name`; empty if it is absent.

    Raises:
        ModelRefused: If it is not a list of strings.
    """
    value = section.value(name) or []
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise section.refuse(f"{name} must be a list of module names")
    return value


def begins_or_ends(section: Fields, entries: Sequence[str]) -> Matcher:
    """Return a matcher that reads `modules_to_not_convert` as transformers does.

    An entry matches the beginning of a name up to a dot (as a regular expression), or the name's end.
    """
    names = frozenset(entry for entry in entries if _LITERAL.fullmatch(entry))
    patterns = [pattern(section, rf"(?:{e})(?:(?<=\.)|(?=\.|$))", e) for e in entries if e not in names]
    ends = tuple(entries)
    return lambda name: name.endswith(ends) or not names.isdisjoint(name_prefixes(name)) or matches(patterns, name)


def contains(entries: Sequence[str]) -> Matcher:
    """Return a matcher that reads lists as AutoAWQ does: an entry matches any part of a name.

    The engines that load AutoAWQ's checkpoints read them the same way.
    """
    return lambda name: any(entry in name for entry in entries)


def is_or_matches(section: Fields, entries: Sequence[str]) -> Matcher:
    """Return a matcher that reads lists as compressed-tensors does.

    An entry matches the whole name, or if it begins with `re:` it is a pattern of the name's beginning.
    """
    names = frozenset(entries)
    patterns = [pattern(section, e.removeprefix("re:"), e) for e in entries if e.startswith("re:")]
    return lambda name: name in names or matches(patterns, name)


def globs(entries: Sequence[str]) -> Matcher:
    """Return a matcher that reads lists as ModelOpt does.

    An entry is the name of a module or of one around it, or a shell pattern of a name.
    """
    names = frozenset(entries)
    patterns = [entry for entry in entries if not _LITERAL.fullmatch(entry)]
    return lambda name: not names.isdisjoint(name_prefixes(name)) or any(fnmatchcase(name, p) for p in patterns)


def pattern(section: Fields, expression: str, entry: str) -> re.Pattern[str]:
    """Compile an untrusted regular expression of a config.

    Raises:
        ModelRefused: If it is invalid, or might take exponential time.
    """
    if len(entry) > _MAX_PATTERN or len(_WIDE.findall(entry)) > _MAX_WIDE or _REPEATED_GROUP.search(entry):
        raise section.refuse(
            f"the pattern {entry[:80]!r} is too complex; simplify it, or list the names of the modules"
        )
    try:
        return re.compile(expression)
    except (re.error, OverflowError) as error:
        raise section.refuse(f"the pattern {entry[:80]!r} is not a regular expression: {error}") from None


def name_prefixes(name: str) -> set[str]:
    """Return a name's prefixes that end at a dot, and the name: a, a.b and a.b.c of `a.b.c`."""
    parts = name.split(".")
    return {".".join(parts[: count + 1]) for count in range(len(parts))}


def matches(patterns: Sequence[re.Pattern[str]], name: str) -> bool:
    """Return whether one of the patterns matches the beginning of a name."""
    return any(each.match(name) for each in patterns)
