"""Text before training: stories cut from one file and mended, classics re-flowed, held-out text kept out.

The public cut of TinyStories we use has been lower-cased and its curly quotes are broken bytes. A model shows what it
reads, so the stories get their quotation marks back here and their capitals in `case`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from zoo.tales.case import DAYS, frequent_names, learn_names, mend_case

OPEN, CLOSE = "\u201c", "\u201d"


def broken(char: str) -> str:
    """How `char` looks in the file: its UTF-8 read as Windows-1252, then lower-cased."""
    return char.encode("utf-8").decode("cp1252").lower()


# The closing quote has lost its last byte and is a prefix of the others, so it must come last.
MENDS = (
    *((broken(char), char) for char in f"{OPEN}\u2018\u2019\u00f1\u00e9\u00e1\u00f3"),
    (broken("\u2013"), "-"),
    (broken("\u2014"), "-"),
    (broken("\u2026"), "..."),
    ("\u00e2\u00ab", '"'),
    ("\u00e2\u00bb", '"'),
    ("\u00e2\u00a1", ""),
    ("\u00e2\u20ac", CLOSE),
    ("''", '"'),
    ("\u00a0", " "),
)
CLASSICS = (
    "the-brothers-grimm--grimms-fairy-tales",
    "aesop--aesop-s-fables",
    "hans-christian-andersen--andersen-s-fairy-tales",
    "beatrix-potter--great-big-treasury-of-beatrix-potter",
    "l-frank-baum--the-wonderful-wizard-of-oz",
    "oscar-wilde--the-happy-prince-other-tales",
    "edith-nesbit--the-book-of-dragons",
    "carlo-collodi--the-adventures-of-pinocchio",
    "hugh-lofting--the-story-of-doctor-dolittle",
    "lewis-carroll--alice-s-adventures-in-wonderland",
    "l-frank-baum--a-kidnapped-santa-claus",
)
OPENING = re.compile(
    r"(once|one (day|night|morning|sunny|summer|cold|warm|time|evening|afternoon)|there (was|were|once))\b"
)
CONTINUING = re.compile(
    r"[\"'\u201c\u2018]|(but|so|then|and|suddenly|he|she|they|it was then|the|mumm?y|mommy|finally|after|when|as|from|"
    r"soon|her|his|this|that|just|later|eventually|everyone|at last|in the end|all|with)\b"
)


def split_stories(text: str) -> list[str]:
    """Stories of a file that sets paragraphs apart by a blank line and stories by a plain line break (mostly)."""
    for wrong, right in MENDS:
        text = text.replace(wrong, right)
    stories: list[list[str]] = []
    previous = ""
    for line in text.split("\n"):
        if line.strip():
            if not stories or (previous.strip() and starts_story(line.strip(), stories[-1])):
                stories.append([])
            stories[-1].append(" ".join(line.split()))
        previous = line
    return ["\n".join(story) for story in stories]


def starts_story(line: str, story: list[str]) -> bool:
    """Whether `line`, which follows `story` without a blank line, begins another one."""
    if OPENING.match(line):
        return len(" ".join(story)) > 150
    if len(line) < 60 or story[-1][-1] not in f'.!?"{CLOSE}' or CONTINUING.match(line):
        return False
    return not (line.split(maxsplit=1)[0] in " ".join(story).split() and len(" ".join(story)) < 200)


def mend_quotes(story: str) -> str | None:
    """The story with one style of quotation marks, all of them paired; None when they cannot be paired."""
    paragraphs = []
    marks = (OPEN, CLOSE) if OPEN in story or CLOSE in story else ('"', '"')
    for paragraph in story.split("\n"):
        plain = re.sub(f"[{OPEN}{CLOSE}]", '"', paragraph)
        if plain.count('"') % 2:
            if not re.search(r'(^|[,:] |[.!?] )"[^"]+[.!?]$', plain):
                return None
            plain += '"'
        *parts, last = plain.split('"')
        paragraphs.append("".join(part + marks[i % 2] for i, part in enumerate(parts)) + last)
    return "\n".join(paragraphs)


def read_stories(path: Path, cased: Iterable[str]) -> list[str]:
    """Mended stories of the lower-cased file `path`; `cased` is text to learn names from."""
    stories = split_stories(path.read_text(encoding="utf-8"))
    names = learn_names(cased) | frequent_names(stories) | DAYS
    mended = (mend_quotes(story) for story in stories)
    whole = (story for story in mended if story and 200 <= len(story) <= 6000 and story[-1] in f'.!?"{CLOSE}')
    return list(dict.fromkeys(mend_case(story, names) for story in whole))


def read_classic(path: Path) -> list[str]:
    """Chapters of a public-domain book in Markdown: headings and emphasis removed, lines re-flowed to paragraphs."""
    body = path.read_text(encoding="utf-8").split("-------", 1)[-1]
    chapters = []
    for chapter in re.split(r"^#+ .*$", body, flags=re.M):
        paragraphs = [" ".join(p.replace("_", "").replace("*", "").split()) for p in re.split(r"\n\s*\n", chapter)]
        prose = [p for p in paragraphs if len(p) > 20 and not p.isupper() and "[" not in p and "http" not in p]
        if sum(map(len, prose)) > 400:
            chapters.append("\n".join(prose).replace("--", " - ").replace("\u00a0", " "))
    return chapters


def read_classics(folder: Path) -> list[str]:
    """Chapters of the chosen children's classics that `folder` holds."""
    return [chapter for name in CLASSICS for chapter in read_classic(folder / f"{name}.md")]


def shingles(text: str, size: int = 8) -> set[str]:
    """Runs of `size` words without case or punctuation, to find text that two collections share."""
    words = re.findall(r"[a-z]+", text.lower())
    return {" ".join(words[i : i + size]) for i in range(len(words) - size + 1)}


def remove_overlap(stories: list[str], held_out: Iterable[str], share: float = 0.2) -> list[str]:
    """`stories` without those that share more than `share` of the runs of eight words of any held-out story."""
    known = [shingles(text) for text in held_out]
    return [s for s in stories if all(len(shingles(s) & k) <= share * len(k) for k in known)]
