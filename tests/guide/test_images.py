"""The guide's images: committed as they are drawn, on light and dark ground; and an image that differs is found."""

import re
from datetime import date
from pathlib import Path
from xml.etree import ElementTree

import pytest
from docs.guide.machinery import images
from docs.guide.machinery.chapters import read_chapters
from docs.guide.machinery.images import (
    Image,
    alt_text,
    caption_of,
    image_differs,
    image_faults,
    images_of,
    read_image,
    read_measurements,
    stray_images,
    with_dark_colours,
    without_dark_colours,
)

from ridgeline.util.document.svg_parts import DARK, document, words
from ridgeline.util.host import processor

SVG = with_dark_colours(document(90, 60, "Bars & lines", [words(1, 2, "7.5 ms")]))
DRAWN = Image("lab made --model some", "Seen.", measured=False)
TIMED = Image("lab timed", "Seen.", measured=True)


def test_each_image_of_a_chapter_is_committed() -> None:
    """Well-formed, with a title, and with a colour on dark ground for each that it has."""
    found = images_of(read_chapters())
    assert stray_images(found) == []
    for image in found:
        svg = read_image(image)
        assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
        assert len(alt_text(svg)) > 3
        drawn = without_dark_colours(svg)
        assert "<style>" not in drawn
        assert with_dark_colours(drawn) == svg
        for colour in set(re.findall(r'(?:fill|stroke)="(#\w+)"', drawn)) & DARK.keys():
            assert f": {DARK[colour]}; }}" in svg
        assert caption_of(image, read_measurements()).startswith(image.caption)


def test_images_of_seconds_say_where_they_were_measured() -> None:
    timed = {image.name for image in images_of(read_chapters()) if image.measured}
    assert timed == read_measurements().keys()
    assert "kv-cache" in timed


def test_names_and_captions() -> None:
    assert DRAWN.name == "made-some"
    assert alt_text(SVG) == "Bars & lines"
    assert caption_of(DRAWN, {}) == "Seen. Drawn by `ridgeline lab made --model some`."
    made = {"timed": images.Measurement("A processor, 2 cores", date(2026, 1, 2))}
    assert caption_of(TIMED, made) == "Seen. Measured by `ridgeline lab timed` on 2026-01-02 (A processor, 2 cores)."
    with pytest.raises(ValueError, match="does not say where timed was measured"):
        caption_of(TIMED, {})


def test_a_command_that_draws_nothing_is_named() -> None:
    with pytest.raises(ValueError, match="`ridgeline quiz nothing` draws no image: "):
        images.draw("quiz nothing")


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What each command draws from now on; the number of drawings."""
    found = {DRAWN.command: SVG, TIMED.command: SVG, "calls": ""}

    def draw(command: str) -> str:
        found["calls"] += "x"
        return found[command]

    monkeypatch.setattr(images, "draw", draw)
    return found


def test_an_image_that_differs_is_found_and_written(tmp_path: Path, drawn: dict[str, str]) -> None:
    assert image_faults(DRAWN, update=False, folder=tmp_path) == ["made-some.svg is missing: run `make guide-update`"]
    image_faults(DRAWN, update=True, folder=tmp_path)
    assert image_faults(DRAWN, update=False, folder=tmp_path) == []
    drawn[DRAWN.command] = SVG.replace("7.5 ms", "7.501 ms")
    assert image_faults(DRAWN, update=True, folder=tmp_path) == [], "another processor's last digit"
    assert DRAWN.file(tmp_path).read_text() == SVG
    drawn[DRAWN.command] = SVG.replace("7.5 ms", "8 ms")
    (fault,) = image_faults(DRAWN, update=False, folder=tmp_path)
    assert fault.startswith("made-some.svg prints")
    assert "8 ms" in fault
    image_faults(DRAWN, update=True, folder=tmp_path)
    assert DRAWN.file(tmp_path).read_text() == drawn[DRAWN.command]
    assert read_measurements(tmp_path) == {}


def test_another_processor_may_draw_few_cells_a_shade_lighter() -> None:
    """Cells of a line with one shade are one rectangle; a cell that leaves it makes two or three of it."""
    cells = [f'<rect x="{x}" y="8" width="4" height="4" fill-opacity="0.0{1 + x % 9}"/>' for x in range(300)]
    whole = document(90, 60, "Cells", [*cells, words(1, 2, "head 1")])
    parted = whole.replace(cells[7], cells[7].replace("0.08", "0.09") + "\n" + cells[7].replace('x="7"', 'x="7.5"'))
    assert image_differs(whole, parted) == ""
    other = whole
    for cell in cells[:40]:
        other = other.replace(cell, cell.replace('"0.0', '"0.7'))
    assert image_differs(whole, other) == "differs in 40 of 303 shapes"
    assert image_differs(whole, parted.replace("head 1", "head 2")).startswith("has 305 lines")


def test_an_image_of_seconds_stays_until_it_is_to_be_measured(tmp_path: Path, drawn: dict[str, str]) -> None:
    assert image_faults(TIMED, update=False, folder=tmp_path) == ["timed.svg is missing: run `make guide-update`"]
    assert drawn["calls"] == "", "nothing is measured to say so"
    image_faults(TIMED, update=True, folder=tmp_path)
    assert read_measurements(tmp_path)["timed"].processor == processor()
    drawn[TIMED.command] = SVG.replace("7.5 ms", "9 ms")
    assert image_faults(TIMED, update=True, folder=tmp_path) == []
    assert TIMED.file(tmp_path).read_text() == SVG
    image_faults(TIMED, update=True, measure=True, folder=tmp_path)
    assert "9 ms" in TIMED.file(tmp_path).read_text()


def test_a_file_of_no_chapter_is_stray(tmp_path: Path) -> None:
    for name in ("made-some.svg", "old.svg"):
        (tmp_path / name).write_text(SVG)
    assert stray_images([DRAWN], tmp_path) == [tmp_path / "old.svg"]
