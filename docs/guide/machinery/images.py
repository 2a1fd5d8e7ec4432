"""The images of the guide: SVG files that commands of ridgeline draw, committed next to the pages.

Most images show figures that are the same on every machine; `make guide-check` draws these again. An image of seconds
has the option `:measured:`; it is kept as it is, and measured.toml says on which processor and day it was made.
"""

import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from html import unescape
from pathlib import Path

from docs.guide.machinery.blocks import WITHIN, differs
from docs.guide.machinery.chapters import GUIDE, Block, blocks_of, options_of

from ridgeline.util.document.svg_parts import DARK
from ridgeline.util.host import processor

IMAGES = GUIDE / "images"
_MEASURED = "measured.toml"
_SHADES = 0.01
"""The share of an image's shapes that another processor may draw a shade lighter or darker."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image of a chapter."""

    command: str
    """The arguments of `ridgeline` that draw it."""
    caption: str
    measured: bool
    """Whether it shows seconds of the machine that drew it."""

    @property
    def name(self) -> str:
        """The file's name without its ending: the words of the command that are no options."""
        return "-".join(word for word in shlex.split(self.command)[1:] if not word.startswith("-"))

    def file(self, folder: Path = IMAGES) -> Path:
        """Return the path of the image on light ground."""
        return folder / f"{self.name}.svg"


@dataclass(frozen=True, slots=True)
class Measurement:
    """The circumstances in which an image of seconds was made."""

    processor: str
    day: date


def image_of(arguments: str, options: Mapping[str, str], content: str) -> Image:
    """Read the directive `{picture}`. arguments: the command."""
    return Image(arguments, " ".join(content.split()), "measured" in options)


def images_of(texts: Mapping[str, str]) -> list[Image]:
    """Return the images of all chapters in the order of the chapters' names."""
    blocks: list[Block] = [block for text in texts.values() for block in blocks_of(text)]
    found = [image_of(block.rest, *options_of(block)) for block in blocks if block.language == "{picture}"]
    assert len({image.name for image in found}) == len(found), "two images have one name"
    return found


def draw(command: str) -> str:
    """Run a command of ridgeline and return the SVG that it draws, with its colours on dark ground. Raises ValueError
    if it draws none."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "image.svg"
        option = "--roofline" if command.startswith("trace") else "--svg"
        call = [sys.executable, "-m", "ridgeline", *shlex.split(command), option, str(path)]
        done = subprocess.run(call, capture_output=True, text=True, check=False)
        # A busy machine may miss what an experiment expects, which its own test says; it has drawn the image.
        if not path.exists():
            raise ValueError(f"`ridgeline {command}` draws no image: {done.stderr.strip()[-300:]}")
        return with_dark_colours(path.read_text(encoding="utf-8"))


def dark_rules(svg: str | None = None) -> list[str]:
    """Return the CSS rules of the colours on dark ground: those of an image, by default all."""
    return [
        f'[{kind}="{one}"] {{ {kind}: {other}; }}'
        for one, other in DARK.items()
        for kind in ("fill", "stroke")
        if svg is None or f'{kind}="{one}"' in svg
    ]


def with_dark_colours(svg: str) -> str:
    """Give an image a style by which a browser shows it in dark colours on a dark page."""
    style = "\n".join(["<style>@media (prefers-color-scheme: dark) {", *dark_rules(svg), "}</style>"])
    return svg.replace("\n", f"\n{style}\n", 1)


def without_dark_colours(svg: str) -> str:
    """Take that style out again, for a page that brings its own."""
    return re.sub(r"<style>.*?</style>\n", "", svg, count=1, flags=re.DOTALL)


def read_image(image: Image, folder: Path = IMAGES) -> str:
    """Return the committed SVG of an image. Raises ValueError if there is none."""
    path = image.file(folder)
    if not path.exists():
        raise ValueError(f"{path.name}, the image of `ridgeline {image.command}`, is missing: run `make guide-update`")
    return path.read_text(encoding="utf-8")


def alt_text(svg: str) -> str:
    """Return the title of an image, which its SVG has as a label."""
    found = re.search(r'<svg [^>]*aria-label="([^"]*)"', svg)
    assert found is not None, svg[:200]
    return unescape(found[1])


def read_measurements(folder: Path = IMAGES) -> dict[str, Measurement]:
    """Return the circumstances of the images of seconds, by name."""
    path = folder / _MEASURED
    entries = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {name: Measurement(entry["processor"], entry["day"]) for name, entry in entries.items()}


def caption_of(image: Image, measurements: Mapping[str, Measurement]) -> str:
    """Return an image's caption in MyST Markdown, with the command that draws it and where seconds come from."""
    again = f"`ridgeline {image.command}`"
    if not image.measured:
        return f"{image.caption} Drawn by {again}."
    if image.name not in measurements:
        raise ValueError(f"{_MEASURED} does not say where {image.name} was measured: run `make guide-update`")
    made = measurements[image.name]
    return f"{image.caption} Measured by {again} on {made.day} ({made.processor})."


# -- check and update -------------------------------------------------------------------------------------------------


def image_faults(image: Image, *, update: bool, measure: bool = False, folder: Path = IMAGES) -> list[str]:
    """Say in what a committed image differs from what its command draws today; with update, write it instead. An image
    of seconds is drawn only if it is missing, or with measure."""
    path = image.file(folder)
    committed = path.read_text(encoding="utf-8") if path.exists() else ""
    if image.measured and committed and not measure:
        return []
    drawn = draw(image.command) if update or not image.measured else ""
    fault = image_differs(committed, drawn) if committed else "is missing"
    if update and (fault or image.measured):
        folder.mkdir(exist_ok=True)
        path.write_text(drawn, encoding="utf-8")
        if image.measured:
            _note_measurement(image.name, folder)
    return [f"{path.name} {fault}: run `make guide-update`"] if fault else []


def stray_images(images: Sequence[Image], folder: Path = IMAGES) -> list[Path]:
    """Return the files that belong to no image."""
    known = {image.file(folder) for image in images}
    return sorted(path for path in folder.glob("*.svg") if path not in known)


def image_differs(committed: str, drawn: str) -> str:
    """Return how two drawings differ; empty if only last digits differ, which depend on the processor.

    A cell of a panel may be a shade lighter there, and then its line is divided into other rectangles.
    """
    if not (difference := differs(committed, drawn, WITHIN)):
        return ""
    texts, shapes = _texts_and_shapes(committed)
    drawn_texts, drawn_shapes = _texts_and_shapes(drawn)
    if differs("\n".join(texts), "\n".join(drawn_texts), WITHIN):
        return difference
    others = max((shapes - drawn_shapes).total(), (drawn_shapes - shapes).total())
    return "" if others <= _SHADES * shapes.total() else f"differs in {others} of {shapes.total()} shapes"


def _texts_and_shapes(svg: str) -> tuple[list[str], Counter[str]]:
    lines = svg.splitlines()
    return [line for line in lines if "<text" in line], Counter(line for line in lines if "<text" not in line)


def _note_measurement(name: str, folder: Path) -> None:
    measurements = read_measurements(folder) | {name: Measurement(processor(), date.today())}
    lines = [
        f'[{name}]\nprocessor = "{made.processor}"\nday = {made.day.isoformat()}\n'
        for name, made in sorted(measurements.items())
    ]
    (folder / _MEASURED).write_text("\n".join(lines), encoding="utf-8")
