"""The calculator in a browser: what can be dragged, what is said, what closes to the byte."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from page.conftest import OpenPage, apart, until, watched
from page.test_page_browser import serious
from ridgeline.core.checkpoint.source import open_source
from ridgeline.engine.async_llm import AsyncLLM
from ridgeline.learn.page.data import CARDS, MODELS, device_data, models_data, table_data, table_name
from ridgeline.learn.page.html_document import render_standalone
from ridgeline.learn.page.model_tables import StoredModel
from ridgeline.price.devices import load_device
from ridgeline.price.error_interval import LEVELS
from ridgeline.price.interval_text import cost_interval, rate_interval, time_interval
from ridgeline.price.plan import Deployment, PlanWorkload, make_plan
from ridgeline.price.plan.load_estimate import dollars_per_million
from ridgeline.server.server_settings import ServerSettings
from ridgeline.util.document.humanize import gb, say_gb, say_seconds, three_digits
from server.conftest import Running

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.page

MODEL = "llama-3-8b"
STILL = {"reduced_motion": "reduce"}


@pytest.fixture(scope="module")
def one_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page with one model in a few ways to store it, as `ridgeline page export` writes it."""
    ways = [StoredModel(), StoredModel("fp8"), StoredModel(None, None, 2)]
    blocks = {table_name(MODEL, way): table_data(MODEL, MODEL, way) for way in ways}
    path = tmp_path_factory.mktemp("calculator") / "page.html"
    path.write_bytes(render_standalone({MODELS: models_data({MODEL: ways}), CARDS: device_data(), **blocks}))
    return path.as_uri()


def users_of(page: "Page") -> "Locator":
    return page.get_by_role("slider", name="Users")


def drag(page: "Page", handle: "Locator", right: float, down: float = 0.0) -> None:
    """By so many pixels, in several moves."""
    box = handle.bounding_box()
    assert box is not None
    at = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(*at)
    page.mouse.down()
    page.mouse.move(at[0] + right, at[1] + down, steps=4)
    page.mouse.up()


def intensity(page: "Page") -> float:
    said = users_of(page).get_attribute("aria-valuetext") or ""
    return float(re.findall(r"([\d.,]+) FLOP", said)[0].replace(",", ""))


def number(handle: "Locator", name: str) -> float:
    return float(handle.get_attribute(name) or "nan")


def test_dragging_the_dot_never_reaches_the_ridge_until_the_context_goes(open_page: OpenPage, one_file: str) -> None:
    """The one gesture: folklore, ledger, and why they differ."""
    page = open_page(one_file, **STILL).page
    dot = page.locator(".users .dot")
    users_of(page).wait_for()
    assert users_of(page).get_attribute("aria-valuetext") == "one user, 1.05 FLOP/byte"
    drag(page, dot, 400)
    assert number(users_of(page), "aria-valuenow") >= 256
    assert intensity(page) <= 61.5
    grip = page.locator(".wall .grip")
    drag(page, grip, 300)
    wall = page.get_by_role("slider", name="Context")
    assert number(wall, "aria-valuenow") < 100
    assert intensity(page) > 153
    page.get_by_text("large batches are compute-bound").wait_for()
    until(page, lambda: "calculator.users=" in page.url)


def test_panels_follow_a_drag_while_it_lasts(open_page: OpenPage, one_file: str) -> None:
    """Those in sight, and not after it."""
    page = open_page(one_file, **STILL, viewport={"width": 1280, "height": 2400}).page
    why, lever = page.locator(".why"), page.locator(".levers tbody tr").first
    lever.get_by_text("× ").first.wait_for()
    box = page.locator(".users .dot").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 5, box["y"] + 5)
    page.mouse.down()
    for step in range(1, 4):
        before = lever.text_content()
        page.mouse.move(box["x"] + 5 + 60 * step, box["y"] + 5)
        until(page, lambda before=before: lever.text_content() != before)
        users = f"{number(users_of(page), 'aria-valuenow'):,.0f} users × 2,000 tokens"
        why.get_by_text(users).wait_for()
    page.mouse.up()


def test_both_handles_go_by_keys(open_page: OpenPage, one_file: str) -> None:
    page = open_page(one_file, **STILL).page
    users, context = users_of(page), page.get_by_role("slider", name="Context")
    users.focus()
    for _ in range(5):
        users.press("PageUp")
    assert number(users, "aria-valuenow") == 32
    users.press("ArrowLeft")
    assert number(users, "aria-valuenow") < 32
    users.press("Home")
    assert number(users, "aria-valuenow") == 1
    context.press("PageUp")
    assert number(context, "aria-valuenow") == 4000
    context.press("Home")
    assert number(context, "aria-valuenow") == 2
    share = page.get_by_role("slider", name="Share of the memory")
    share.press("ArrowDown")
    assert share.get_attribute("aria-valuetext") == "89%"


def test_users_on_24_gb_subtraction_by_subtraction(open_page: OpenPage, one_file: str) -> None:
    hash_ = "#v=1&tab=calculator&calculator.card=rtx-4090&calculator.input=1999&calculator.output=1"
    page = open_page(one_file + hash_, **STILL).page
    page.get_by_role("row", name="memory holds 21 users").wait_for()
    page.get_by_text("Memory to the byte").click()
    region = page.get_by_role("region", name="Memory to the byte")
    said = region.get_by_role("cell").all_text_contents()
    taken = [float(each.replace(",", "")) for each in said]
    total = load_device("rtx-4090").memory
    assert len(taken) == 5
    assert total + sum(taken[:-1]) == taken[-1]


def plan_of(users: int) -> Any:
    source = open_source(MODEL)
    workload = PlanWorkload(1500, 1000, users, 1.0, 0.05)
    return make_plan(source.title, source.config, Deployment(load_device("a100-sxm-80gb")), workload, ())


@pytest.mark.parametrize("users", [1, 32])
def test_the_sentence_says_what_plan_says(open_page: OpenPage, one_file: str, users: int) -> None:
    page = open_page(f"{one_file}#users={users}", **STILL).page
    page.locator(".sentence").wait_for()
    said = page.locator(".sentence a").all_text_contents()
    decode = plan_of(users).decode
    floor = decode.seconds.floor
    wanted = [say_gb(gb(decode.weight_bytes + decode.kv_read_bytes)), say_seconds(floor), three_digits(1 / floor)]
    wanted += [three_digits(users / floor)] * (users > 1)
    assert said[:-1] == wanted
    assert float(said[-1].removesuffix(" %")) == pytest.approx(100 * decode.idle, abs=0.5)


@pytest.mark.parametrize("users", [1, 32])
def test_expected_figures_have_the_intervals_of_plan(open_page: OpenPage, one_file: str, users: int) -> None:
    page = open_page(f"{one_file}#users={users}", **STILL).page
    page.locator(".levers .now").wait_for()
    plan = plan_of(users)
    step, load, found = plan.decode.seconds, plan.capacity.load, plan.intervals
    beneath = [
        time_interval(found["decode"], step.expected, step.floor),
        rate_interval(found["decode"], 1 / step.expected, 1 / step.floor),
    ]
    rates = (load.tokens_per_user, load.tokens_per_second)
    first = plan.load.ttft_synchronised
    hourly = device_data()["cards"]["a100-sxm-80gb"]["prices"][0]["dollars"]
    million, least = (dollars_per_million(hourly, rate) for rate in (rates[1].expected, rates[1].floor))
    assert million is not None
    assert least is not None
    now = [
        time_interval(found["prefill"], first.expected, first.floor),
        beneath[0],
        cost_interval(found["load"], million, least),
    ]
    leads = [rate_interval(found["load"], rate.expected, rate.floor) for rate in rates]
    intervals = {".beneath": beneath, ".load .lead": leads}
    for place, wanted in {**intervals, ".levers .now": now, ".why": beneath[:1]}.items():
        said = page.locator(f"{place} .interval").all_text_contents()
        assert [each.replace("\N{NO-BREAK SPACE}", " ") for each in said] == wanted, place
    page.locator(".beneath").get_by_text(LEVELS["timed"]).wait_for()
    page.get_by_text("Users and speed as a table").click()
    cells = page.get_by_role("region", name="Users and speed as a table").locator("tbody tr").first.locator(".interval")
    alone = plan.serving.load(1)
    assert (cells.first.text_content() or "").replace("\N{NO-BREAK SPACE}", " ") == time_interval(
        found["load"], alone.ttft.expected, alone.ttft.floor
    )


def test_numbers_lead_to_why_by_keys(open_page: OpenPage, one_file: str) -> None:
    page = open_page(one_file, **STILL).page
    page.locator(".sentence a").first.press("Enter")
    assert (page.evaluate("document.activeElement.textContent") or "").startswith("Read per step")
    page.locator(".beneath a").first.press("Enter")
    assert (page.evaluate("document.activeElement.textContent") or "").startswith("Floor")
    assert "#v=1" in page.url or "#" not in page.url


def test_the_served_model_runs_along_on_a_click(open_page: OpenPage, tales_server: Running) -> None:
    """And not before: what it takes is measured beside what the engine's price said."""
    opened = open_page(f"{tales_server.url}/#tab=calculator", **STILL)
    page = opened.page
    live = page.locator(".racer.live")
    live.get_by_text("live, on this server").wait_for()
    assert not [each for each in opened.asked if "completions" in each]
    live.get_by_role("button", name="Type it live").press("Enter")
    live.get_by_text(re.compile(r"measured: [\d.]+ [mµ]?s to the first token, then [\d,.]+ a second")).wait_for()
    live.get_by_text(re.compile(r"steps [\d.]+ [mµ]?s, predicted [\d.]+ [mµ]?s")).wait_for()
    assert len(live.locator(".story").text_content() or "") > 40
    assert [each.rpartition("/v1/")[2] for each in opened.asked if "completions" in each] == ["chat/completions"]
    tales_server.idle()


def test_the_home_of_a_server_opens_with_the_served_model(open_page: OpenPage) -> None:
    """With a workload that its context has room for, until another is asked; an address that names a model has it."""
    llm = apart(lambda: AsyncLLM("tales"))
    with watched(llm, ServerSettings(models=("story/teller",)), {"story/teller": "tales"}) as up:
        opened = open_page(f"{up.url}/", **STILL)
        page = opened.page
        model = page.get_by_role("combobox", name="model")
        prompt, output = (page.get_by_role("spinbutton", name=name, exact=True) for name in ("input", "output"))
        page.locator(".sentence strong").get_by_text("story/teller", exact=True).wait_for()
        assert model.input_value() == "story/teller"
        assert page.get_by_role("alert").count() == 0
        assert 0 < int(prompt.input_value()) + int(output.input_value()) <= 512
        users_of(page).press("PageUp")
        until(page, lambda: "calculator.users=" in page.url)
        assert "model=" not in page.url
        prompt.fill("400")
        prompt.press("Enter")
        page.get_by_role("alert").get_by_text("512").wait_for()
        model.fill(MODEL)
        model.press("Enter")
        page.locator(".sentence strong").get_by_text(MODEL, exact=True).wait_for()
        until(page, lambda: f"calculator.model={MODEL}" in page.url)
        page.reload()
        page.locator(".sentence strong").get_by_text(MODEL, exact=True).wait_for()
        # Levers ask for ways to store a model that not every model can be stored in.
        opened.said[:] = [each for each in opened.said if "400 (Bad Request)" not in each]


def test_the_dot_takes_one_step_by_itself(open_page: OpenPage, one_file: str) -> None:
    """Once, where motion is not unwelcome."""
    page = open_page("about:blank").page
    page.clock.install()
    page.goto(one_file)
    page.get_by_text("drag me").wait_for()
    until(page, lambda: page.clock.run_for(500) or "calculator.users=32" in page.url)
    assert number(users_of(page), "aria-valuenow") == 32
    page.goto(one_file)
    page.reload()
    users_of(page).wait_for()
    page.clock.run_for(5000)
    assert number(users_of(page), "aria-valuenow") == 1


def test_a_vague_name_opens_the_exact_ones(open_page: OpenPage, one_file: str) -> None:
    page = open_page(one_file, **STILL).page
    card = page.get_by_role("combobox", name="card", exact=True)
    card.fill("h100")
    offered = page.get_by_role("listbox", name="card").get_by_role("option").all_text_contents()
    assert offered == ["h100-sxm", "h100-pcie", "h100-nvl"]
    card.press("ArrowDown")
    card.press("Enter")
    assert card.input_value() == "h100-pcie"
    page.locator(".sentence").get_by_text("NVIDIA H100 PCIe").wait_for()
    card.fill("<b>nobody</b>")
    page.get_by_text("no model has this name").wait_for()
    card.press("Escape")
    assert card.input_value() == "h100-pcie"


def test_a_lever_is_a_ghost_that_can_be_kept_and_a_click_applies_it(open_page: OpenPage, one_file: str) -> None:
    page = open_page(one_file, **STILL).page
    lever = page.get_by_role("button", name="2 GPUs")
    lever.hover()
    page.locator(".roofline .ghost").wait_for()
    page.locator(".sentence").hover()
    page.locator(".roofline .ghost").wait_for(state="detached")
    lever.press("Shift+Enter")
    users_of(page).press("PageUp")
    page.locator(".roofline .ghost").get_by_text("one user").wait_for()  # it stays, as it was
    lever.press("Shift+Enter")
    users_of(page).focus()
    page.locator(".roofline .ghost").wait_for(state="detached")
    lever.click()
    page.locator(".sentence").get_by_text("2 × NVIDIA A100 SXM 80GB").wait_for()


def test_targets_are_dragged_and_change_the_answer(open_page: OpenPage, one_file: str) -> None:
    page = open_page(one_file, **STILL).page
    lead = page.locator(".load .lead")
    before = lead.text_content()
    target = page.get_by_role("slider", name="Target: time per output token")
    target.press("PageUp")
    assert target.get_attribute("aria-valuetext") != "TPOT 50.0 ms"
    until(page, lambda: lead.text_content() != before)


def test_a_statement_of_a_text_sets_the_page(open_page: OpenPage, one_file: str) -> None:
    page = open_page(one_file, **STILL).page
    page.locator(".folklore").scroll_into_view_if_needed()  # what is in sight is computed, and moves what is below it
    until(page, lambda: "…" not in page.locator(".folklore .ledger").all_text_contents())
    page.get_by_role("heading", name="Models and their configs").click()
    page.get_by_role("listitem").filter(has_text="GPT-2").get_by_text("This file does not contain gpt2").wait_for()
    page.get_by_role("heading", name="Many users").click()
    row = page.get_by_role("listitem").filter(has_text="24 GB hold an 8B")
    row.get_by_text("21 users").wait_for()
    row.get_by_role("button").click()
    page.get_by_role("row", name="memory holds 21 users").wait_for()


@pytest.mark.parametrize(("scheme", "width"), [("dark", 360), ("light", 2560)])
def test_the_calculator_keeps_nobody_out(open_page: OpenPage, one_file: str, scheme: str, width: int) -> None:
    page = open_page(one_file, color_scheme=scheme, viewport={"width": width, "height": 900}, **STILL).page
    page.locator(".roofline svg").wait_for()
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert serious(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it is no wider than the screen"
    figures = page.locator(".calculator figure").count()
    assert page.locator(".calculator .as-table").count() >= figures == 3


def test_what_a_model_does_not_take_is_said(open_page: OpenPage, one_file: str, tmp_path: Path) -> None:
    page = open_page(f"{one_file}#input=9000", **STILL).page
    page.get_by_role("alert").get_by_text("more than the model's context of 8192").wait_for()
    page = open_page(f"{one_file}#model=nobody", **STILL).page
    page.get_by_role("alert").get_by_text("this file has no tables/nobody.json").wait_for()
