"""Documents: what a renderer makes of their parts, at any width, whoever's text is in them."""

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from ridgeline.util.document.axes import along, ends_around, log_steps, powers, tick
from ridgeline.util.document.character_figures import SHADES, describe_shades, heat_row, strip
from ridgeline.util.document.charts import Bar, Bars, Chart, Series, StackedBar, StackedBars
from ridgeline.util.document.elements import (
    EVEN,
    UNEVEN,
    Bullets,
    Cell,
    Column,
    Document,
    DocumentBlock,
    DocumentTable,
    Facts,
    Heading,
    Heat,
    Paragraph,
    Strip,
    TableRow,
    columns,
)
from ridgeline.util.document.heat_map import HeatMap
from ridgeline.util.document.panels import Band, Panel, Panels
from ridgeline.util.document.roofline_chart import Point, RoofCurve, Roofline
from ridgeline.util.document.svg import svg
from ridgeline.util.document.svg_parts import on_dark
from ridgeline.util.document.terminal_renderer import plain, render, show

ROOFLINE = Roofline(
    "Slate",
    (RoofCurve("L2", 7e11), RoofCurve("memory", 9e10)),
    (RoofCurve("fp32", 7e12),),
    (Point("linear", "prefill", 5.0, 3e11, 4e11, True, 0.4), Point("linear", "decode", 0.5, 2e10, 4e10, False)),
)
DECADES = (Series("one", ((1, 0.001), (100, 3.0))), Series("two", ((1, 0.002), (100, 0.2))))
FIGURES = (
    Bars("Bars", "GiB", (Bar("a", 1.0, "first"), Bar("b & c", 0.01, dim=True))),
    StackedBars(
        "Stacks",
        "GiB",
        ("x", "y & z"),
        (StackedBar("a", (1.0, 2.0), "fits"), StackedBar("b & c", (9.0, 0.0))),
        (4.0, "it"),
    ),
    Chart("Decades", "tokens", "seconds", DECADES, log_x=True, log_y=True),
    Chart("A point", "x", "y", (Series("one", ((1, 1),)),), log_x=True, log_y=True),
    HeatMap(
        "Shares", ("a row", "b & c"), ("one", "a column of a long name"), ((0.25, 0.75), (1.0, 0.0)), "Rows add up."
    ),
    ROOFLINE,
)
WORDS = "it takes twenty words of no great length until a paragraph is as long as it has to be here, or longer"


def lines(*blocks: DocumentBlock, width: int = 60) -> list[str]:
    """The lines of some blocks, without the title."""
    return plain(Document("Title", blocks), width).splitlines()[1:]


def grouped(names: Sequence[str], dense: bool = False) -> DocumentTable:
    heads = (Column("op", words=True), *(Column(head, group=g) for g in names for head in ("FLOP", "byte", "seconds")))
    rows = (
        TableRow(("matrices", *(f"{g}{i}" for g in range(len(names)) for i in range(3)))),
        "added up",
        TableRow(("all",)),
    )
    return DocumentTable(heads, rows, dense=dense)


def test_the_order_is_the_documents_and_blocks_are_apart() -> None:
    page = Document(
        "A title",
        (Bullets(("answer",)), Heading("Why"), Paragraph("Because."), Facts((("name", "fact"),))),
        "A question?",
    )
    assert plain(page).splitlines() == [
        "A title", "A question?", "- answer", "", "Why", "Because.", "", "name  fact",
    ]  # fmt: skip


@pytest.mark.parametrize("width", [40, 60, 100])
def test_nothing_is_wider_than_the_terminal(width: int) -> None:
    table = DocumentTable(
        columns("part", "GiB", "note", words=(0, 2)), (TableRow(("weights", "14.96", WORDS)), TableRow(("all", "15")))
    )
    found = lines(
        Paragraph(WORDS), Bullets((WORDS, "short")), Facts((("a", WORDS), ("longer", "b"))), table, width=width
    )
    assert max(map(len, found)) <= width
    assert " ".join(" ".join(found).split()).count("twenty words") + "\n".join(found).count("twenty\n") >= 1
    assert all(line == line.rstrip() for line in found)


def test_further_lines_stand_under_the_first() -> None:
    bullets = lines(Bullets((WORDS,)), width=40)
    assert bullets[0].startswith("- it")
    assert all(line.startswith("  ") and line[2] != " " for line in bullets[1:])
    facts = lines(Facts((("a", "b"), ("name", WORDS))), width=40)
    assert facts[0] == "a     b"
    assert {line[:6] for line in facts[2:]} == {" " * 6}


def test_a_path_stays_whole() -> None:
    path = "/a/folder/" + "x" * 80 + "/file.py"
    assert any(path in line for line in lines(Paragraph(f"in code: {path}"), width=40))


def test_columns_of_words_are_flush_left_and_others_right() -> None:
    """Because the table says so, not because the first text of it happens to be long."""
    rows = (TableRow(("greedy", "9", "end")), TableRow(("top-k 5", "12", "and then some more text")))
    head, *found = lines(DocumentTable(columns("setting", "candidates", "text", words=(0, 2)), rows), width=100)
    assert found[0].index("end") == found[1].index("and then") == head.index("text")
    assert found[0].index("9") == found[1].index("12") + 1 == head.index("candidates") + len("candidates") - 1


def test_a_row_may_be_short_and_headings_stand_between_rows() -> None:
    table = DocumentTable(
        columns("a", "b"), ("first", TableRow(("x",)), "", "second", TableRow(("y", "1"))), ("a note",)
    )
    assert lines(table) == ["a  b", "first", "x", "", "second", "y  1", "a note"]


def test_groups_stand_side_by_side_where_there_is_room() -> None:
    wide = lines(grouped(("prefill", "decode")), width=80)
    assert "─ prefill ─" in wide[0]
    assert "─ decode ─" in wide[0]
    assert wide[1].split() == ["op", *["FLOP", "byte", "seconds"] * 2]
    assert wide[2].split() == ["matrices", "00", "01", "02", "10", "11", "12"]
    narrow = lines(grouped(("prefill", "decode")), width=40)
    assert max(map(len, narrow)) <= 40
    first, second = narrow[: narrow.index("")], narrow[narrow.index("") + 1 :]
    assert ("prefill" in first[0], "decode" in second[0]) == (True, True)
    assert (first[2].split(), second[2].split()) == (["matrices", "00", "01", "02"], ["matrices", "10", "11", "12"])
    assert first[3] == second[3] == "added up"


def test_numbers_too_wide_for_the_terminal_stand_closer() -> None:
    table = DocumentTable(columns(*("12345",) * 8, words=()), (TableRow(("9",) * 8),))
    assert [max(map(len, lines(table, width=width))) for width in (54, 53, 47)] == [54, 47, 47]


def test_a_group_is_as_wide_as_its_name() -> None:
    name = "candidates after the prefill of a prompt"
    found = lines(DocumentTable((Column("id", group=name),), (TableRow(("7",)),)))
    assert name in found[0]
    assert len(found[0]) + 1 == len(found[1]) == len(found[2])


def test_what_is_too_long_in_a_dense_table_is_cut_in_its_middle() -> None:
    table = DocumentTable(columns("op", "n"), (TableRow(("post_attention_layernorm_of_a_block", "1")),), dense=True)
    (_, row) = lines(table, width=20)
    assert len(row) == 20
    assert row.startswith("post_att")
    assert "…" in row
    assert "block" in row


def test_wide_characters_are_cut_by_the_columns_they_take() -> None:
    table = DocumentTable(columns("op", "n"), (TableRow(("漢字" * 10, "1")), TableRow(("ab", "22"))), dense=True)
    _, long, short = lines(table, width=20)
    assert cell_len(long) == cell_len(short) == 20
    assert (long[0], long[-3:]) == ("漢", "  1")
    assert "…" in long


def test_markup_and_names_of_emoji_in_a_table_are_text() -> None:
    odd = "[red]a[/red] :smile: [b"
    table = DocumentTable(columns(odd, words=()), (odd, TableRow((odd,)), TableRow((Cell(odd, "error"),), "strong")))
    assert lines(table) == [odd] * 4


@pytest.mark.parametrize("width", [50, 60, 80, 200])
def test_numbers_and_names_to_type_are_never_broken(width: int) -> None:
    heads = (Column("device", words=True, whole=True), *map(Column, ("a", "b")), Column("why", words=True))
    rows = tuple(TableRow((f"a device {i}", f"{i},234.5 GiB", f"{i} of 9", WORDS)) for i in range(3))
    _, *found = lines(DocumentTable(heads, rows), width=width)
    starts = [line for line in found if line.startswith("a device")]
    assert [" ".join(line.split()[:8]) for line in starts] == [f"a device {i} {i},234.5 GiB {i} of 9" for i in range(3)]
    indent = starts[0].index("it takes")
    assert " ".join(line[indent:].strip() for line in found) == " ".join([WORDS] * 3)


def test_words_are_broken_only_if_the_table_does_not_fit_otherwise() -> None:
    name = "a-name-without-spaces"
    table = DocumentTable(columns("name", "what", words=(0, 1)), (TableRow((name, "some words of another column")),))
    for width in (35, 40, 48):
        assert lines(table, width=width)[1].split()[0] == name
    assert lines(table, width=30)[1].split()[0] != name
    assert max(map(len, lines(table, width=30))) <= 30


@pytest.mark.parametrize("term", ["xterm-256color", "dumb"])
def test_a_file_gets_no_styles_and_the_width_that_is_asked_for(
    term: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("COLUMNS", "60")
    table = DocumentTable(columns("a", "b", words=(0, 1)), (TableRow((Cell("x", "error"), WORDS), "strong"),))
    document = Document("Title", (table,))
    show(document)
    assert capsys.readouterr().out == plain(document, 60)
    assert "\x1b" not in plain(document, 60)


def test_bars_and_maps_in_cells_take_the_room_there_is() -> None:
    rows = (TableRow(("half", Strip(0.5, 1.0))), TableRow(("map", Heat((0.0, 0.1, 0.3, 0.5, 0.7, 0.9)))))
    for width, room in ((30, 24), (100, 46)):
        head, half, shades, *legend = lines(DocumentTable(columns("", "share", words=(0, 1)), rows), width=width)
        assert head.split() == ["share"]
        assert half == "half" + " " * (2 + room // 2) + "█" * (room // 2)
        assert shades == f"map   │{SHADES}│"
        assert " ".join(" ".join(legend).split()) == "· under 20% ░ to 40% ▒ to 60% ▓ to 80% █ more"


def test_shades_grow_and_nothing_is_not_shown() -> None:
    assert heat_row([0.0, 0.01, 0.03, 0.1, 0.3, 1.0], 10, UNEVEN) == SHADES
    assert heat_row([0.0, 0.1, 0.3, 0.5, 0.7, 0.9], 10, EVEN) == SHADES
    assert heat_row([0.0] * 50 + [0.9] + [0.0] * 49, 10, UNEVEN) == "     █    "
    assert describe_shades(UNEVEN) == "· under 2%  ░ to 5%  ▒ to 15%  ▓ to 40%  █ more"
    assert strip(0.0, 0.0001, 40) == "▏"
    assert strip(0.5, 1.0, 8) == "    ████"
    assert len(strip(0.999, 1.0, 40)) == 40


def test_a_strangers_text_steers_no_terminal() -> None:
    evil = "\x1b[2Jgone\x9b1m\a\r"
    page = Document(evil, (Paragraph(evil), Bullets((evil,)), Facts(((evil, evil),)), Heading(evil), DocumentTable(
        columns(evil), (evil, TableRow((evil,)), TableRow((Cell(evil),)))
    )), evil)  # fmt: skip
    text = plain(page)
    assert not any(character in text for character in "\x1b\x9b\a\r")
    assert text.count("\\x1b[2Jgone\\x9b1m\\x07\\r") == 11


def test_wide_characters_are_counted_as_they_are_shown() -> None:
    table = DocumentTable(columns("token", "n"), (TableRow(("漢字", "1")), TableRow(("abcd", "2"))))
    assert {cell_len(line) for line in lines(table)[1:]} == {8}


def test_tones_become_styles_and_no_characters() -> None:
    table = DocumentTable(columns("a"), (TableRow((Cell("x", "error"),), "strong"),))
    *_, row = render(Document("t", (table,)), 40)
    assert row.plain == "x"
    assert any("red" in str(span.style) for span in row.spans)


def texts(part: Any) -> list[type]:
    """The types of everything in a document."""
    if is_dataclass(part):
        return [type(part), *(found for field in fields(part) for found in texts(getattr(part, field.name)))]
    if isinstance(part, tuple | list):
        return [found for one in part for found in texts(one)]
    return [type(part)]


def test_a_document_is_data_that_leans_on_no_terminal() -> None:
    """Nothing in it is of a terminal's library: another renderer gets names, texts and numbers."""
    page = Document("t", (*FIGURES, grouped(("a", "b")), Paragraph("p"), Facts((("a", "b"),))))
    assert not any(kind.__module__.startswith("rich") for kind in texts(page))


# -- figures ----------------------------------------------------------------------------------------------------------


def test_axes_end_at_powers_of_ten() -> None:
    assert ends_around([0.3, 42.0]) == pytest.approx((0.1, 100.0))
    assert ends_around([1.0]) == (1.0, 10.0)
    assert powers((0.1, 100.0)) == pytest.approx([0.1, 1.0, 10.0, 100.0])
    assert [along(value, (0.1, 1000.0)) for value in (0.1, 10.0, 1000.0)] == pytest.approx([0.0, 0.5, 1.0])


@pytest.mark.parametrize(
    ("values", "numbers"),
    [
        ([0.3, 42.0], (0.2, 1, 10, 50)), ([1.0], (1, 2)), ([], (1, 2)), ([0.91, 9.2], (0.5, 1, 2, 5, 10)),
        ([1, 256], (1, 10, 100, 500)), ([128, 16_384], (100, 1000, 10_000, 20_000)),
        ([9, 1001], (5, 10, 100, 1000, 2000)),
    ],
)  # fmt: skip
def test_logarithmic_axes_end_at_round_numbers_near_their_values(
    values: list[float], numbers: tuple[float, ...]
) -> None:
    assert log_steps(values) == pytest.approx(numbers)


@pytest.mark.parametrize(
    ("values", "numbers"),
    [
        ([2, 8], (2, 3, 4, 5, 6, 7, 8)), ([18.8, 69], (10, 20, 30, 40, 50, 60, 70)), ([7.0], (6, 7)),
        ([8, 40], (0, 5, 10, 15, 20, 25, 30, 35, 40)), ([5, 5.1], (5, 6)), ([0.0], (0, 1)),
        ([-3, 4], (-3, -2, -1, 0, 1, 2, 3, 4)),
    ],
)  # fmt: skip
def test_an_axis_of_x_leaves_out_a_beginning_without_values(values: list[float], numbers: tuple[float, ...]) -> None:
    assert Chart("t", "x", "y", (Series("s", tuple((value, 1.0) for value in values)),)).across.numbers == numbers


@pytest.mark.parametrize(
    ("value", "written"),
    [(0, "0"), (0.5, "0.5"), (20_000, "20,000"), (1e6, "10⁶"), (2e6, "2·10⁶"), (2.5e-5, "2.5·10⁻⁵"), (-2e7, "-2·10⁷")],
)
def test_a_number_of_an_axis_is_written_as_people_write_it(value: float, written: str) -> None:
    assert tick(value) == written


def test_a_chart_says_in_one_bracket_what_it_is_of() -> None:
    made = Chart("Waits (8B)", "x", "y", (Series("s", ((1.0, 1.0),)),), log_y=True)
    assert made.heading == "Waits (8B; vertical axis logarithmic)"
    assert replace(made, title="Waits", log_x=True).heading == "Waits (both axes logarithmic)"


def test_a_bar_that_is_hardly_there_says_so() -> None:
    assert [Bar("b", value).text for value in (0.0, 5.5e-5, 0.0012, 1234.0)] == ["0", "under 0.001", "0.0012", "1,234"]


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.title)
def test_figures_are_drawn_in_characters_and_as_svg(figure: Any) -> None:
    assert any(figure.title in line for line in lines(figure, width=100))
    assert figure.title in "".join(ElementTree.fromstring(svg(figure)).itertext())


def test_a_grid_says_percents_under_the_names_of_columns() -> None:
    (drawn,) = (figure for figure in FIGURES if isinstance(figure, HeatMap))
    assert lines(drawn, width=60)[1:] == [
        "      one a column of a long name",
        "a row  25                      75",
        "b & c 100                       0",
        "Percent. Rows add up.",
    ]
    assert max(map(len, lines(drawn, width=24))) <= 24


@pytest.mark.parametrize("share", [0.0, 0.049, 0.05, 0.6, 1.0])
def test_a_cell_of_a_grid_is_as_dark_as_its_share(share: float) -> None:
    """And says its percent where there is one to read."""
    root = ElementTree.fromstring(svg(HeatMap("t", ("row",), ("column",), ((share,),))))
    opacities = [float(node.get("fill-opacity", -1)) for node in root.iter() if node.get("fill-opacity")]
    assert opacities == [max(0.03, share)]
    said = [node.text for node in root.iter() if node.tag.endswith("text")][3:]
    assert said == ([f"{100 * share:.0f}"] if share >= 0.05 else [])


@pytest.mark.parametrize("light", [False, True])
def test_rectangles_of_a_panel_cover_its_cells(light: bool) -> None:
    """Neighbours of one shade are one rectangle, and a cell of no ink has none."""
    cells = ((0.0, 0.0, 0.25, 0.25, 0.25), (1.0, 0.25, 1.0, 0.0, 0.0001), (0.5, 0.5, 0.5, 0.5, 0.5))
    root = ElementTree.fromstring(svg(Panels("t", (Band("b", (Panel("c", cells, light),), ""),))))
    marks = [mark for mark in root.iter() if mark.tag.endswith("rect") and "fill-opacity" in mark.attrib]
    if light:
        marks = [mark for mark in root.iter() if str(mark.get("fill")).startswith("rgb")]
    assert len(marks) == (7 if light else 5)
    painted = [[0.0] * 5 for _ in cells]
    side = 132 / 5
    for mark in marks:
        x, y, width = (float(mark.attrib[name]) for name in ("x", "y", "width"))
        shade = float(mark.get("fill-opacity") or int(re.findall(r"\d+", mark.attrib["fill"])[0]) / 255)
        first, line = round((x - 16) / side), round((y - 68) / side)
        for cell in range(first, first + round(width / side)):
            painted[line][cell] += shade
    assert painted == [pytest.approx(line, abs=0.002) for line in cells]


@pytest.mark.parametrize("width", [80, 100, 200])
def test_a_roofline_stays_within_the_terminal(width: int) -> None:
    assert max(map(len, lines(ROOFLINE, width=width))) <= min(width, 112)


def test_text_of_a_figure_stays_within_it() -> None:
    """Titles and notes of bars, with a character at most so wide as the drawing takes it to be."""
    long = Bars("Bars", "GiB", (Bar("a label of some length", 9.0, "kept by this rule and by that"), Bar("b", 0.1)))
    root = ElementTree.fromstring(svg(long))
    for node in root.iter():
        if node.tag.endswith("text") and node.get("text-anchor") == "start":
            assert float(node.get("x", 0)) + 6.6 * len(node.text or "") <= float(root.get("width", 0))


def test_a_picture_on_dark_ground_differs_in_its_colours_alone() -> None:
    """Those of docs/trace.md are one picture."""
    docs = Path(__file__).parents[2] / "docs"
    light = (docs / "roofline.svg").read_text(encoding="utf-8")
    dark = (docs / "roofline-dark.svg").read_text(encoding="utf-8")
    assert dark == on_dark(light) != light
    assert [*ElementTree.fromstring(dark).itertext()] == [*ElementTree.fromstring(light).itertext()]
    assert '<rect width="980" height="620" fill="#16191d"/>' in dark
    page = (docs / "trace.md").read_text(encoding="utf-8")
    assert set(re.findall(r"(?:src|srcset)=\"([^\"]+)\"", page)) == {"roofline.svg", "roofline-dark.svg"}
