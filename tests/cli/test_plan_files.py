"""The files of `ridgeline plan`: a report that stands by itself, and a comparison as lines of CSV."""

import csv
import io
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from html import unescape
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from cli.running import OK, USAGE, Run, assert_one_line
from document.test_html import Seen
from ridgeline.insight.simulate import tail_latency
from ridgeline.price.plan.comparison_csv import COLUMNS
from ridgeline.price.plan.plan_document import SECTIONS
from ridgeline.util.document.svg_roofline import LEFT, RIGHT, TOP, WIDTH
from support.embedders import write_bert

CARD = ("--device", "h100-sxm")
OTHERS = ("--compare-devices", "l40s,rtx-3060,t4")
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(autouse=True)
def few_are_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_latency, "TOKENS", 6_000)


def report_of(ridgeline: Run, path: Path, *words: str) -> tuple[str, str]:
    """Return what a command prints, and the report that it writes."""
    ended = ridgeline("plan", *words, "--report", path)
    assert ended.code == OK, ended.err
    assert ended.err.endswith(f"report written to {path}\n")
    return ended.out, path.read_text(encoding="utf-8")


def figures(page: str) -> list[ElementTree.Element]:
    """Return the figures of a page, each as XML."""
    return [ElementTree.fromstring(found) for found in re.findall(r"<figure>(<svg.*?</svg>)\s*</figure>", page, re.S)]


def titles(page: str) -> list[str]:
    return [figure.attrib["aria-label"] for figure in figures(page)]


def flat(text: str) -> str:
    return " ".join(text.split())


# -- the report -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("llama-3-8b", *CARD),
        ("llama-3-8b", *CARD, "--users", "2000"),
        ("llama-3-8b", *CARD, "--batch", "8", "--weights", "fp8"),
        ("llama-3.1-70b", "--device", "t4"),
        ("qwen3-30b-a3b", *CARD, "--devices", "2", "--enable-dp-attention"),
        ("whisper-large-v3", "--device", "l40s"),
        ("t5-small", "--device", "l40s", "--input", "100"),
    ],
    ids=" ".join,
)
def test_a_report_has_the_answer_the_roofline_and_every_section(
    ridgeline: Run, tmp_path: Path, words: tuple[str, ...]
) -> None:
    out, page = report_of(ridgeline, tmp_path / "plan.html", *words)
    seen = Seen(page)
    assert not seen.open
    text = flat(seen.text)
    answer = flat(out.partition("\nmore: ")[0])
    for line in re.findall(r"^(?:fits|users|speed|queue|limit|lever|cost|trust)  ?(.*(?:\n {7}.*)*)", out, re.M):
        assert flat(line) in text, line
    assert text.index("Figures of the answer") < text.index("Roofline") < text.index("In words") < text.index("Sources")
    assert answer.split(": ")[0] in text
    full = ridgeline("plan", *words, "--full").out
    headings = re.findall(r"^(?:Memory|Weights|Time by|Work of|Crossover|Effects of)[^\n:]*", full, re.M)
    assert len(headings) == 6
    assert all(heading in text for heading in headings)
    drawn = figures(page)
    assert len(drawn) == 1
    names = [each.text or "" for each in drawn[0].iter(f"{SVG}text")]
    for phase in ("prefill", "decode"):
        assert f"{phase}, one user" in names
    assert len(list(drawn[0].iter(f"{SVG}circle"))) >= 4


def test_the_figures_of_a_report_are_those_of_its_lines(ridgeline: Run, tmp_path: Path) -> None:
    """Check that the simulated figures of a demand are in the table, with the intervals of the line `speed`."""
    out, page = report_of(ridgeline, tmp_path / "plan.html", "llama-3-8b", *CARD, "--users", "300")
    table = flat(Seen(page).text).partition("Figures of the answer")[2].partition("Roofline")[0]
    said = re.search(r"mean TTFT (\S+ ms \[[^]]*\]), then .* each, (\S+ \[[^]]*\]) in total", flat(out))
    assert said is not None
    assert f"mean TTFT, 300 users, simulated {said[1]} load" in table
    assert f"tok/s of all replicas, simulated {said[2]} load" in table


def test_nothing_is_loaded_and_nothing_runs(ridgeline: Run, tmp_path: Path) -> None:
    page = report_of(ridgeline, tmp_path / "plan.html", "llama-3-8b", *CARD, *OTHERS)[1]
    seen = Seen(page)
    assert not {"script", "link", "img", "iframe", "object", "image", "use"} & set(seen.tags)
    assert not {name for name, _ in seen.attributes} & {"src", "href", "xlink:href", "srcset", "onload", "style"}
    without_names = page.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?://|url\(|@import", without_names)
    assert "default-src 'none'" in page
    assert "@media print" in page


def test_names_of_the_roofline_do_not_overlap(ridgeline: Run, tmp_path: Path) -> None:
    page = report_of(ridgeline, tmp_path / "plan.html", "llama-3-8b", "--device", "a100-sxm-80gb", "--users", "300")[1]
    (drawn,) = figures(page)
    boxes = []
    for each in drawn.iter(f"{SVG}text"):
        text, x, y = each.text or "", float(each.attrib["x"]), float(each.attrib["y"])
        if re.fullmatch(r"(prefill|decode), .* users?|bf16 .*", text) and y > TOP:
            wide = 6.4 * len(text)
            left = {"start": x, "middle": x - wide / 2, "end": x - wide}[each.attrib["text-anchor"]]
            boxes.append((left, y - 11, left + wide, y + 3))
            assert left > LEFT
            assert left + wide < WIDTH - RIGHT
    assert len(boxes) == 5  # a ceiling, and two phases for one user and for those of a replica
    for one, other in combinations(boxes, 2):
        assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]


def test_a_report_of_a_comparison(ridgeline: Run, tmp_path: Path) -> None:
    """Check that rankings are a table and bars: of dollars, or without a price of tokens or devices."""
    path = tmp_path / "compared.html"
    money = (*OTHERS, "--seller", "nebius")
    told = ridgeline("plan", "llama-3-8b", *money, "--json").json
    out, page = report_of(ridgeline, path, "llama-3-8b", *money)
    text = flat(Seen(page).text)
    assert "Roofline" not in text
    assert titles(page) == ["Nebius, on demand (2025)", "No price from Nebius, on demand"]
    assert "($ per million output tokens)" in page
    assert "(output tokens per second)" in page
    for offer in told["cards"]:
        assert offer["card"] in text
    assert "SkyPilot catalog" in text
    assert "Wh/M: Wh per million output tokens, an upper bound: all devices draw" in text
    assert flat(out.splitlines()[0]) in text
    demand = report_of(ridgeline, path, "llama-3-8b", *CARD, *money, "--users", "900", "--force")[1]
    assert "($ per hour)" in demand
    assert "(devices)" in demand
    assert len(titles(demand)) == 3  # with the roofline of the plan


def test_texts_of_a_device_file_are_no_markup(ridgeline: Run, tmp_path: Path) -> None:
    card = tmp_path / "own.toml"
    card.write_text(
        'title = "Maker <b>Own</b>"\nkind = "gpu"\ntflops = { bf16 = 300 }\nbandwidth = 2000\nmemory = { gb = 80 }\n'
        'watts = 250\nsources = { all = "<script>alert(1)</script>" }\n'
    )
    out, page = report_of(ridgeline, tmp_path / "plan.html", "llama-3-8b", "--device", str(card))
    assert "script" not in Seen(page).tags
    assert "b" not in Seen(page).tags
    assert "<script>alert(1)</script>" in unescape(page)
    assert "250 W" in Seen(page).text
    assert "at full board power" in flat(out)


def test_a_report_next_to_json(ridgeline: Run, tmp_path: Path) -> None:
    path = tmp_path / "plan.html"
    ended = ridgeline("plan", "llama-3-8b", *CARD, "--json", "--report", path)
    assert ended.json == ridgeline("plan", "llama-3-8b", *CARD, "--json").json
    assert path.exists()


# -- the comparison as CSV --------------------------------------------------------------------------------------------


def lines_of(text: str) -> list[dict[str, str]]:
    assert text.count("\n") == text.count("\r\n")  # RFC 4180
    return list(csv.DictReader(io.StringIO(text, newline="")))


def same(line: Mapping[str, str], offer: Mapping[str, Any]) -> None:
    """Assert that the figures of a line are those of the JSON, to the last digit; an empty field is a null."""
    fleet = offer["fleet"]
    whole = offer if fleet is None else fleet
    load, price, job = offer["load"], offer["price"], fleet and fleet["job"]
    expected = {
        "device": offer["card"],
        "seller": offer["seller"],
        "price_date": None if price is None else price["date"],
        "devices_per_replica": offer["devices"],
        "replicas": None if fleet is None else fleet["replicas"],
        "weights": offer["weights"],
        "kv": offer["kv"],
        "fits": "true" if offer["fits"] else "false",
        "missing_bytes": offer["missing_bytes"],
        "max_users_per_replica": offer["users"],
        "users_per_replica": load["users"],
        "ttft_seconds": load["ttft"]["expected"],
        "tpot_seconds": load["tpot"]["expected"],
        "ttft_margin": offer["margins"]["ttft"],
        "tokens_per_second": whole["tokens_per_second"],
        "dollars_per_hour": whole["dollars_per_hour"],
        "dollars_per_million_tokens": whole["dollars_per_million"],
        "kwh_per_million_tokens": whole["kwh_per_million_tokens"],
        "job_seconds": job and job["seconds"],
        "job_dollars": job and job["dollars"],
        "kernels": offer["kernels"],
        "known": offer["interval"]["known"],
        "time_factor_low": offer["factors"]["low"],
        "time_factor_high": offer["factors"]["high"],
        "measurements": offer["interval"]["rows"],
        "sources": offer["interval"]["sources"],
    }
    for column, value in expected.items():
        assert line[column] == ("" if value is None else str(value)), column
    if line["kwh_per_million_tokens"]:
        assert float(line["joules_per_token"]) == pytest.approx(3.6 * float(line["kwh_per_million_tokens"]))
    else:
        assert line["joules_per_token"] == ""


@pytest.mark.parametrize(
    "demand",
    [(), ("--users", "900"), ("--rate", "3", "--slo", "none"), ("--requests", "20k", "--within", "2h")],
)
def test_the_lines_are_the_offers_of_the_json(ridgeline: Run, demand: tuple[str, ...]) -> None:
    words = (
        "plan",
        "llama-3.1-70b",
        "--compare-devices",
        "h100-sxm,h200-sxm,l40s,t4,mi325x",
        "--devices",
        "2",
        *demand,
    )
    told = ridgeline(*words, "--json").json
    ended = ridgeline(*words, "--csv", "-")
    assert ended.code == OK
    lines = lines_of(ended.out)
    assert tuple(lines[0]) == COLUMNS
    cheapest = [line for line in lines if line["choice"] == "cheapest"]
    assert len(cheapest) == len(told["cards"])
    for line, offer in zip(cheapest, told["cards"], strict=True):
        same(line, offer)
    stored = [each["as_stored"] for each in told["sellers"] if each["as_stored"]]
    others = [offer for offer in stored if offer not in told["cards"]]
    assert others
    for line, offer in zip((line for line in lines if line["choice"] == "as stored"), others, strict=True):
        same(line, offer)
    assert {line["fits"] for line in lines} == {"true", "false"}
    assert any(not line["kwh_per_million_tokens"] for line in lines)


def test_a_file_of_lines_next_to_the_table(ridgeline: Run, tmp_path: Path) -> None:
    path = tmp_path / "compared.csv"
    words = ("plan", "whisper-large-v3", *OTHERS)
    ended = ridgeline(*words, "--csv", path)
    assert ended.out == ridgeline(*words).out
    assert ended.err.endswith(f"comparison written to {path}\n")
    lines = lines_of(path.read_bytes().decode())
    told = ridgeline(*words, "--json").json
    sound = told["cards"][0]["sound"]
    assert lines[0]["audio_hours_per_hour"] == str(sound["hours_per_hour"])
    assert lines[0]["dollars_per_audio_hour"] == str(sound["dollars_per_hour"])
    assert ridgeline(*words, "--json", "--csv", path, "--force").json == told


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--csv", "a.csv"), ("--csv writes a comparison", "add --compare or --compare-devices")),
        ((*OTHERS, "--csv", "-", "--json"), ("--csv - and --json both print", "leave out --json")),
        (("--report", "-"), ("--report is -", "/dev/stdout")),
        (("--report", "."), ("cannot be written",)),
        (("--report", "no/where.html"), ("no folder no",)),
        ((*OTHERS, "--csv", "no/where.csv"), ("no folder no",)),
        ((*OTHERS, "--report", "a", "--csv", "a"), ("--report and --csv both name a",)),
        (("--report", "there.html"), ("there.html exists already", "--force")),
        ((*OTHERS, "--csv", "there.html"), ("there.html exists already", "--force")),
        (("--force",), ("--force overwrites the files of --report and --csv",)),
        (("--report", "a.html", "--short"), ("leave out --short or --report",)),
        (("--report", "a.html", "--emit", "vllm"), ("leave out --report",)),
        (("--report", "a.html", "--list"), ("--list writes no file", "--report")),
    ],
    ids=" ".join,
)
def test_refused(
    ridgeline: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    says: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.html").write_text("kept")
    assert_one_line(ridgeline("plan", "llama-3-8b", *CARD, *words), USAGE, *says)
    assert [path.name for path in tmp_path.iterdir()] == ["there.html"]
    assert Path("there.html").read_text() == "kept"


def test_other_kinds_of_models_have_no_files(ridgeline: Run, tmp_path: Path) -> None:
    write_bert(tmp_path)
    for model in (tmp_path, "FLUX.1-schnell"):
        refused = ridgeline("plan", model, *CARD, "--report", tmp_path / "a.html")
        assert_one_line(refused, USAGE, "--report is for models that generate text", "leave it out")
        refused = ridgeline("plan", model, *OTHERS, "--csv", "-")
        assert_one_line(refused, USAGE, "--csv is for models that generate text", "leave it out")
    assert not (tmp_path / "a.html").exists()


def test_every_section_is_in_a_report(ridgeline: Run, tmp_path: Path) -> None:
    """Check that the sections of --full are in the report, in their order."""
    page = report_of(ridgeline, tmp_path / "plan.html", "gpt2", *CARD, "--input", "500")[1]
    text = flat(Seen(page).text)
    parts = (ridgeline("plan", "gpt2", *CARD, "--input", "500", "--section", name).out for name in SECTIONS)
    at = [text.index(flat(part.splitlines()[1])[:60]) for part in parts]
    assert at == sorted(at)
