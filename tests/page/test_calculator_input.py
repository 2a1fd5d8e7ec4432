"""The calculator's inputs: what they take, what they refuse and with which words, and which figures stand meanwhile."""

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from page.conftest import OpenPage, until
from page.modules import Modules
from page.test_page_browser import serious
from ridgeline.core.checkpoint.source import open_source
from ridgeline.learn.page.data import CARDS, MODELS, device_data, models_data, table_data, table_name
from ridgeline.learn.page.html_document import render_standalone
from ridgeline.learn.page.model_tables import StoredModel
from ridgeline.price.devices import load_device
from ridgeline.price.plan import Deployment, PlanWorkload, make_plan
from ridgeline.util.document.humanize import gb, gib, say_gb, say_gib, say_seconds
from server.conftest import Running

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.page

STILL = {"reduced_motion": "reduce"}
MODEL = "qwen3-0.6b"
FORMATS = (None, "bf16", "fp16", "fp8", "w8a8", "int8", "int4", "int4-g64", "int4-g32", "mxfp4", "nvfp4")
WAYS = [*map(StoredModel, FORMATS), *(StoredModel(None, kv) for kv in ("bf16", "fp16", "fp8", "int8", "nvfp4"))]


@pytest.fixture(scope="module")
def one_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page with a small model in every format, and another as it is released."""
    blocks = {table_name(MODEL, way): table_data(MODEL, MODEL, way) for way in WAYS}
    blocks[table_name("gpt2", StoredModel())] = table_data("gpt2", "gpt2", StoredModel())
    path = tmp_path_factory.mktemp("input") / "page.html"
    ways = {MODEL: WAYS, "gpt2": [StoredModel()]}
    path.write_bytes(render_standalone({MODELS: models_data(ways), CARDS: device_data(), **blocks}))
    return f"{path.as_uri()}#model={MODEL}&card=h100-sxm"


def figures_shown(page: "Page") -> list[str]:
    """Bytes and seconds of the sentence, expected seconds, weights in memory."""
    said = page.locator(".sentence a").all_text_contents()
    return [said[0], said[1], *page.locator(".beneath a").all_text_contents()[:1], weights_shown(page)]


def weights_shown(page: "Page") -> str:
    return (page.locator(".sums .weights td").text_content() or "").removeprefix("−")


def figures_of(stored: StoredModel) -> list[str]:
    """The same of a plan."""
    source = open_source(MODEL)
    setup = Deployment(load_device("h100-sxm"), 1, stored.weights, stored.kv)
    plan = make_plan(source.title, source.config, setup, PlanWorkload(1500, 1000, 1, 1.0, 0.05), ())
    decode = plan.decode
    read = say_gb(gb(decode.weight_bytes + decode.kv_read_bytes))
    seconds = [say_seconds(decode.seconds.floor), say_seconds(decode.seconds.expected)]
    return [read, *seconds, say_gib(gib(plan.memory.weights))]


def test_every_figure_follows_the_formats(open_page: OpenPage, one_file: str) -> None:
    """Each in turn, by hand, beside `plan`; the command and the JSON say it too."""
    page = open_page(one_file, **STILL).page
    page.locator(".sentence").wait_for()
    for way in WAYS:
        page.get_by_label("weights").select_option(way.weights or "")
        page.get_by_label("KV").select_option(way.kv or "")
        wanted = figures_of(way)
        until(page, lambda wanted=wanted: figures_shown(page) == wanted)
        said = [f"--weights {way.weights}"] * bool(way.weights) + [f"--kv {way.kv}"] * bool(way.kv)
        until(page, lambda said=said: all(each in (page.locator(".take code").text_content() or "") for each in said))


def test_figures_of_the_choice_before_are_no_ones(open_page: OpenPage, tales_server: Running) -> None:
    """While a table is read they are out of sight and reach; where there is none they are gone."""
    opened = open_page(f"{tales_server.url}/#tab=calculator&model=qwen3-0.6b", quiet=False, **STILL)
    page = opened.page
    page.locator(".sentence").wait_for()
    before = weights_shown(page)
    held: list[Any] = []

    def hold(route: Any) -> None:
        held.append(route)

    page.route("**/page/tables/*weights=w8a8*", hold)
    page.get_by_label("weights").select_option("w8a8")
    page.get_by_role("status").filter(has_text="Loading the prices of qwen3-0.6b, w8a8 weights").wait_for()
    page.locator(".sentence").wait_for(state="hidden")
    figures = page.locator(".figures")
    assert (figures.get_attribute("aria-busy"), figures.get_attribute("inert")) == ("true", "")
    assert page.get_by_role("heading", name="qwen3-0.6b").count() == 0
    until(page, lambda: len(held) == 1)
    held.pop().continue_()
    until(page, lambda: weights_shown(page) != before)
    assert (figures.get_attribute("aria-busy"), figures.get_attribute("inert")) == (None, None)
    page.route("**/page/tables/*kv=nvfp4*", lambda route: route.abort())
    page.get_by_label("KV").select_option("nvfp4")
    page.get_by_role("alert").get_by_text("the server cannot be reached").wait_for()
    assert page.locator(".sentence, .take, .why, .sums").count() == 0
    page.get_by_label("KV").select_option("")
    page.locator(".sentence").wait_for()
    tales_server.idle()


def test_a_field_shows_what_holds_where_a_file_lacks_it(open_page: OpenPage, one_file: str) -> None:
    page = open_page(one_file.replace(MODEL, "gpt2") + "&input=100&output=100&weights=w8a8&cards=3", **STILL).page
    page.get_by_role("alert").get_by_text("this file has no tables/gpt2.json?weights=w8a8&devices=3").wait_for()
    assert page.get_by_label("weights").input_value() == "w8a8"
    assert page.get_by_label("cards").input_value() == "3"
    assert page.locator(".sentence").count() == 0


AWKWARD = ["", "0", "-1", "1e99", "NaN", "text", "99999999999999999999", "1,5", "1.5", "12 tokens", "1k5", "∞", "<b>"]


@pytest.mark.parametrize("name", ["input", "output", "users"])
def test_a_number_that_is_none_is_refused_in_words(open_page: OpenPage, one_file: str, name: str) -> None:
    """Announced, by the field that it is of; what holds is still there, and comes back with Escape."""
    page = open_page(one_file, **STILL).page
    field = page.get_by_label(name, exact=True)
    field.wait_for()
    held = field.input_value()
    most = "2,048" if name == "users" else "16,777,216"
    for text in AWKWARD:
        field.fill(text)
        field.press("Enter")
        alert = page.get_by_role("alert")
        alert.get_by_text(f"{name} takes a whole number from 1 to {most}").wait_for()
        said = alert.text_content() or ""
        assert f"The value is still: {int(held):,}." in said
        assert ("it is empty" if text == "" else f"{text} is not a number") in said
        assert field.get_attribute("aria-invalid") == "true"
        assert field.get_attribute("aria-describedby") == alert.get_attribute("id")
        assert field.input_value() == text
    assert serious(page) == []
    field.press("Escape")
    assert (field.input_value(), page.get_by_role("alert").count()) == (held, 0)
    for text, value in (("2k", "2048"), ("1,500", "1500"), (" 12 ", "12"), ("1e3", "1000")):
        field.fill(text)
        field.press("Enter")
        until(page, lambda value=value: field.input_value() == value)
    field.press("ArrowUp")
    until(page, lambda: field.input_value() == "1001")
    assert page.get_by_role("alert").count() == 0


@pytest.mark.parametrize("name", ["model", "card"])
def test_a_name_that_is_none_is_refused_in_words(open_page: OpenPage, one_file: str, name: str) -> None:
    page = open_page(one_file, **STILL).page
    field = page.get_by_role("combobox", name=name, exact=True)
    field.wait_for()
    held = field.input_value()
    for text, says in (
        ("zzz", "is not in the list; open the list"),
        ("q<q>", "is not in the list"),
        (held[0], "may be "),
    ):
        if name == "model" and says == "may be ":
            continue  # there are but two
        field.fill(text)
        field.press("Tab")
        alert = page.get_by_role("alert").filter(has_text=f"{name} {text} {says}")
        alert.filter(has_text=f"The value is still: {held}.").wait_for()
        assert field.input_value() == held
        assert field.get_attribute("aria-invalid") == "true"
    only = {"model": "gpt", "card": "h200"}[name]
    field.fill(only)
    field.press("Tab")
    until(page, lambda: field.input_value() == {"model": "gpt2", "card": "h200-sxm"}[name])


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("v=1&calculator.users=0", "users=0 (it takes a whole number from 1 to 2048)"),
        ("calculator.use=3", "calculator.use=3 (it takes a number from 0.3 to 1)"),
        ("v=1&calculator.gpu=h100", "calculator.gpu=h100 (there is no such setting)"),
        ("v=1&users=4&users=8", "users=4 (users is there again)"),
        ("users=%zz", "users=%zz (a % in it is followed by no code)"),
        ("v=one&users=8", "v=one (it takes a version, the newest of which is 1)"),
        ("v=1&tab=costs", "tab=costs (it takes calculator or chat"),
        ("v=1&a=1&b=2&c=3&d=4&e=5", "c=3 (there is no such setting) and 2 more."),
        ("v=1&<b>x</b>=1", "<b>x</b>=1 (there is no such setting)"),
    ],
)
def test_an_address_that_cannot_be_read_is_said(open_page: OpenPage, one_file: str, address: str, says: str) -> None:
    page = open_page(one_file.partition("#")[0] + "#model=gpt2&" + address, **STILL).page
    alert = page.get_by_role("alert").filter(has_text="This page cannot read some settings in its address")
    alert.filter(has_text=says).wait_for()
    assert page.locator("main b").filter(has_text="x").count() == 0


@pytest.mark.parametrize(
    "address",
    [
        "v=1&model={}&card=h200-sxm&users=8&use=0.5",
        "v=0&model={}&card=h200-sxm&users=8&use=0.5",
        "v=1&calculator.model={}&calculator.device=h200-sxm&batch=8&memory-utilization=0.5",
        "calculator&model={}&device=h200-sxm&devices=1&batch=8&use=0.5",
    ],
)
def test_an_old_address_opens_what_it_meant(open_page: OpenPage, one_file: str, address: str) -> None:
    page = open_page(one_file.partition("#")[0] + "#" + address.format(MODEL), **STILL).page
    wanted = f"ridgeline plan {MODEL} --device h200-sxm --devices 1 --input 1500 --output 1000 --batch 8 "
    page.locator(".take code").filter(has_text=re.compile(f"{wanted}.*--memory-utilization 0.5$")).wait_for()
    assert page.get_by_role("alert").count() == 0


def test_a_change_ends_what_was_said_of_the_address(open_page: OpenPage, one_file: str) -> None:
    page = open_page(f"{one_file}&nothing=1", **STILL).page
    page.get_by_role("alert").filter(has_text="nothing=1").wait_for()
    page.get_by_label("weights").select_option("fp8")
    page.get_by_role("alert").wait_for(state="detached")
    assert "nothing" not in page.url


def test_a_rival_that_is_none_is_said(open_page: OpenPage, one_file: str) -> None:
    page = open_page(f"{one_file}&rival=abacus", **STILL).page
    page.locator(".race").get_by_text("There is no GPU abacus to compare with").wait_for()


def test_chat_refuses_a_seed_that_is_none(open_page: OpenPage, tales_server: Running) -> None:
    page = open_page(f"{tales_server.url}/#tab=chat&model=unknown&temperature=9", **STILL).page
    page.get_by_role("alert").filter(has_text="This server has no model unknown; the chat uses tales.").wait_for()
    seed = page.get_by_label("Seed")
    for text in ("1.5", "text", "1e99"):
        seed.fill(text)
        seed.press("Tab")
        refused = page.get_by_role("alert").filter(has_text="Seed takes a whole number from -9,007,199,254,740,991")
        refused.filter(has_text=f"{text} is not a number. The value is still: another each time.").wait_for()
    seed.fill("-7")
    until(page, lambda: "chat.seed=-7" in page.url)
    assert page.get_by_role("alert").filter(has_text="Seed").count() == 0
    tales_server.idle()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1500", 1500), ("1,500", 1500), ("1 500", 1500), ("1_500", 1500), ("1\u202f500", 1500), ("2k", 2048),
        ("1.5k", 1536), ("2K", 2048), ("1M", 2**20), ("1e3", 1000), ("-3", -3), ("+3", 3), ("007", 7), (" 5 ", 5),
        ("", None), ("1,5", None), ("1.5", None), ("1,50", None), ("1e99", None), ("NaN", None), ("Infinity", None),
        ("0x10", None), ("1k5", None), ("k", None), ("1m", None), ("12 tokens", None), ("--1", None),
        ("1,500,00", None),
    ],
)  # fmt: skip
def test_whole_numbers_as_people_type_them(text: str, value: int | None) -> None:
    page = Modules()
    page.stand_in("dom.js")
    page.read("whole.js")
    assert page.eval(f"modules['whole.js'].readWhole({json.dumps(text)})") == value
