"""`ridgeline page`: what it prints is what the page reads."""

import json

from cli.running import OK, REFUSED, USAGE, Run, assert_one_line
from page.pages import opened, put
from ridgeline.price.devices import device_names


def test_a_table_and_cards_are_json_that_the_page_reads(ridgeline: Run) -> None:
    table, cards = ridgeline("page", "tables", "Qwen/Qwen3-0.6B", "--weights", "int8"), ridgeline("page", "devices")
    assert table.code == cards.code == OK
    page = opened("price.js", "work.js")
    put(page, json.loads(table.out))
    assert page.eval("[kept.table.model, kept.table.weights]") == ["qwen3-0.6b", "int8"]
    page.keep("data", json.loads(cards.out))
    assert page.eval("Object.keys(openCards(kept.data).cards)") == list(device_names())


def test_what_has_no_table_is_refused_in_a_line(ridgeline: Run) -> None:
    assert_one_line(ridgeline("page", "tables", "bert-base-uncased"), USAGE, "does not generate text")
    assert_one_line(ridgeline("page", "tables", "gpt2", "--devices", "8"), USAGE, "do not divide over 8")
    assert_one_line(ridgeline("page", "tables", "gpt2", "--weights", "int3"), USAGE, "--weights is 'int3'")
    assert_one_line(ridgeline("page", "tables", "nowhere"), REFUSED, "no such model")
