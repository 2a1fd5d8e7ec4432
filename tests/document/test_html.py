"""The HTML renderer: a file that stands by itself, and in which nobody's text is markup."""

import base64
import hashlib
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest

from document.test_document import FIGURES
from ridgeline.util.document.axes import round_steps
from ridgeline.util.document.charts import Chart, Series, Span, Spans
from ridgeline.util.document.elements import (
    Bullets,
    Cell,
    Column,
    Document,
    DocumentTable,
    Facts,
    Heading,
    Heat,
    Paragraph,
    Strip,
    TableRow,
    columns,
)
from ridgeline.util.document.html import html
from ridgeline.util.document.svg import svg
from ridgeline.util.document.terminal_renderer import plain

CURVES = (Series("a", ((1, 5), (2, 9)), "line"), Series("b", ((1, 3), (4, 8)), "dashed"))
POINTS = (Series("a", ((0, 0), (2, 900)), "points"), Series("s", ((0, 1), (1, 2)), "steps"))
CHARTS = (
    Chart("C", "rate", "ms", CURVES, ((2, "knee"),)),
    Chart("L", "x", "y", POINTS, log_y=True),
    Chart("one point", "x", "y", (Series("a", ((0, 0),)),)),
    Spans("S", "seconds", ("waiting", "answer"), (("1", (Span(0, 0.5, 0), Span(0.5, 2.0, 1))), ("2", ()))),
)
EVIL = """</style></title><script>alert(1)</script><img src=x onerror="alert(1)">'&amp;"""


class Seen(HTMLParser):
    """What a browser would find: tags with their attributes, texts, and whether every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + "\n"


def page(text: str) -> Document:
    """Every kind of block and of figure, with the text wherever one can be."""
    heads = (Column(text, words=True), Column(text, group=text), Column("map", words=True, group=text))
    rows = (
        text,
        TableRow((text, "1", Strip(0, 0.5))),
        TableRow((Cell(text, "error"), "2", Heat((0.0, 1.0))), "strong"),
        TableRow((text,)),
    )
    chart = Chart(text, text, text, (Series(text, ((0, 1),)),), ((0.5, text),))
    spans = Spans(text, text, (text,), ((text, (Span(0, 1, 0),)),))
    facts, table = Facts(((text, text),)), DocumentTable(heads, rows, (text,))
    blocks = (Heading(text), Paragraph(text, "dim"), Bullets((text, text)), facts, table, chart, spans)
    return Document(text, (*blocks, *FIGURES, *CHARTS), text)


def test_a_strangers_text_is_text() -> None:
    seen = Seen(html(page(EVIL)))
    assert not seen.open
    assert not {"script", "img"} & set(seen.tags)
    assert not [name for name, _ in seen.attributes if name.startswith("on") or name in ("style", "href", "src")]
    assert seen.text.count(EVIL) >= 20


def test_what_to_type_is_code() -> None:
    """In prose; what stands between the backticks is text still, and one without its partner stays."""
    blocks = (Paragraph("Run `a <b>` now"), Bullets(("`c`",)), Heading("`d`"), Paragraph("an ` alone"))
    text = html(Document("`e`", blocks))
    assert re.findall("<code>(.*?)</code>", text) == ["a &lt;b&gt;", "c"]
    assert "an ` alone" in text
    assert "<h1>`e`</h1>" in text


def test_nothing_is_loaded() -> None:
    """No address in it but the name of SVG's vocabulary; its policy has no source but the digest of its own style."""
    text = html(page("plain"))
    assert set(re.findall(r"https?://[^\"']+", text)) == {"http://www.w3.org/2000/svg"}
    assert "url(" not in text
    assert "@import" not in text
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'sha256-{digest}'" in text


def test_every_block_is_there_in_its_order() -> None:
    table = DocumentTable(columns("a", "b"), ("part", TableRow(("x", "1"))), ("note",))
    blocks = (Bullets(("answer",)), Heading("Why"), table, Facts((("name", "fact"),)))
    seen = Seen(html(Document("Title", blocks, "Lead?")))
    assert re.findall(r"\w+", seen.text.split("}\n")[-1]) == [
        "Title", "Lead", "answer", "Why", "a", "b", "part", "x", "1", "note", "name", "fact",
    ]  # fmt: skip


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.title)
def test_charts_are_whole_pictures_and_drawings_in_characters(chart: Chart | Spans) -> None:
    root = ElementTree.fromstring(svg(chart))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for element in root.iter():
        for name, most in (("x", width), ("cx", width), ("x1", width), ("y", height), ("cy", height), ("y2", height)):
            assert -1 <= float(element.attrib.get(name, 0)) <= most + 1, (element.tag, element.attrib)
    text = plain(Document("t", (chart,)), 100)
    assert chart.title in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_point_is_drawn_where_its_value_is() -> None:
    """The middle of both axes, which are 0 to 4 (there is a mark at 0) and 0 to 10."""
    one = Series("a", ((2, 5), (4, 10)), "points")
    root = ElementTree.fromstring(svg(Chart("t", "x", "y", (one,), ((0, "here"),))))
    middle, end, _ = (element for element in root.iter() if element.tag.endswith("circle"))
    lines = [element.attrib for element in root.iter() if element.tag.endswith("line")]
    xs = [float(line[name]) for line in lines for name in ("x1", "x2")]
    ys = [float(line[name]) for line in lines for name in ("y1", "y2") if float(line["y1"]) < 353]
    assert float(middle.attrib["cx"]) == pytest.approx((min(xs) + max(xs)) / 2, abs=0.1)
    assert float(middle.attrib["cy"]) == pytest.approx((min(ys) + max(ys)) / 2, abs=0.1)
    assert (float(end.attrib["cx"]), float(end.attrib["cy"])) == pytest.approx((max(xs), min(ys)), abs=0.1)


@pytest.mark.parametrize(
    ("values", "steps"),
    [
        ([3.7], (0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4)),
        ([8], (0, 1, 2, 3, 4, 5, 6, 7, 8)),
        ([0.0], (0, 1)),
        ([], (0, 1)),
        ([-3, 5], (-3, -2, -1, 0, 1, 2, 3, 4, 5)),
        ([1234], (0, 200, 400, 600, 800, 1000, 1200, 1400)),
        ([float("nan"), 0.0021], (0, 0.0005, 0.001, 0.0015, 0.002, 0.0025)),
    ],
)
def test_axes_have_round_numbers(values: list[float], steps: tuple[float, ...]) -> None:
    assert round_steps(values) == steps
