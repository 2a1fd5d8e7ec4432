"""What cards cost: snapshots of sellers, each dated and sourced, never two of them in one list."""

import re
from pathlib import Path

import pytest

from ridgeline.price.device import HourlyPrice
from ridgeline.price.devices import device_names, load_device
from ridgeline.price.hourly_prices import PriceSnapshot, builtin_snapshots, quotes, read_prices, seller_of, with_prices
from support.planned import card

SELLERS = builtin_snapshots()


@pytest.mark.parametrize("seller", SELLERS, ids=lambda each: each.seller)
def test_a_snapshot_is_of_one_day_and_can_be_looked_up(seller: PriceSnapshot) -> None:
    assert re.fullmatch(r"20\d\d(-\d\d){0,2}", seller.date)
    assert "$ an hour" in seller.source
    assert seller.dollars.keys() <= set(device_names())
    assert all(0.05 < dollars < 20 for dollars in seller.dollars.values())


def test_no_two_snapshots_are_of_one_seller() -> None:
    assert len({each.seller for each in SELLERS}) == len({each.title for each in SELLERS}) == len(SELLERS) >= 5


def test_prices_of_machines_of_several_cards_are_of_one() -> None:
    """Nebius sells eight B200 for $44.00, Lambda eight A100 of 80 GB for $22.32, AWS eight A100 of 40 GB for $32.77."""
    by_name = {each.seller: each.dollars for each in SELLERS}
    assert by_name["nebius"]["b200"] == 44.00 / 8
    assert by_name["lambda"]["a100-sxm-80gb"] == pytest.approx(22.32 / 8)
    assert by_name["aws"]["a100-sxm-40gb"] == pytest.approx(32.77 / 8, abs=0.01)


def test_cards_are_priced_by_one_seller() -> None:
    mine = card(name="mine", price=HourlyPrice(0.5, "2026", "my bill"))
    devices = (load_device("h100-sxm"), load_device("rtx-4090"), mine)
    nebius = seller_of(SELLERS, ["h100-sxm"], "nebius")
    assert nebius is not None
    h100, geforce, own = with_prices(devices, nebius)
    assert h100.price == HourlyPrice(2.95, nebius.date, nebius.source, nebius.title)
    assert geforce.price is None  # another seller has it
    assert own.price == mine.price
    assert [each.price for each in with_prices(devices, None)] == [None, None, mine.price]


def test_a_file_of_prices_stands_over_a_cards_own_price() -> None:
    """`--prices FILE` was ignored for a card whose own file has a price."""
    mine = card(name="mine", price=HourlyPrice(0.5, "2026", "my bill"))
    one, other = (
        PriceSnapshot(name, name, "2026-11", "a bill", {"mine": cost}) for name, cost in (("a", 2.0), ("b", 3.0))
    )
    (at_one,) = with_prices([mine], one, over=True)
    assert at_one.price == HourlyPrice(2.0, "2026-11", "a bill", "a")
    assert [each.price and each.price.dollars for each in quotes([mine, card()], [one, other], over=True)][:2] == [2, 3]
    assert quotes([mine], [one, other]) == (mine,)
    assert quotes([mine], [PriceSnapshot("c", "c", "2026", "s", {})], over=True) == (mine,)


def test_the_seller_is_who_has_most_of_the_cards() -> None:
    def chosen(*cards: str) -> str | None:
        found = seller_of(SELLERS, cards)
        return None if found is None else found.seller

    assert chosen("l40s") == chosen("l40s", "h100-sxm") == "nebius"
    assert chosen("rtx-4090") == "runpod"
    assert chosen("h100-pcie", "a10", "l40s") == "lambda"
    assert chosen("mi300x") is None
    with pytest.raises(ValueError, match="--seller is 'nobody'; it must be one of nebius, verda"):
        seller_of(SELLERS, ["l40s"], "nobody")


def test_a_file_of_prices(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(
        '[Mine]\ntitle = "Mine"\ndate = "2026-11"\nsource = "a bill"\ndollars = { l40s = 1, my-card = 2.5 }\n'
    )
    (found,) = read_prices(path)
    assert found == PriceSnapshot("mine", "Mine", "2026-11", "a bill", {"l40s": 1.0, "my-card": 2.5})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "names no seller"),
        ("[a]\ntitle = 'A'\ndate = 'today'\nsource = 's'\ndollars = {}", "date is 'today'"),
        ("[a]\ntitle = 'A'\ndate = '2026'\nsource = 's'\ndollars = { l40s = -1 }", "a.dollars.l40s is -1"),
        ("[a]\ntitle = 'A'\ndate = '2026'\ndollars = {}", "a.source is missing"),
        ("[a]\ntitle = 'A'\ndate = '2026'\nsource = 's'\nprice = 3\ndollars = {}", "unknown field a.price"),
        ("a = 3", "must be a table of fields"),
        ("a = ", "is not valid TOML"),
    ],
)
def test_a_broken_file_is_refused_in_one_line(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=re.escape(says)) as caught:
        read_prices(path)
    assert "prices.toml" in str(caught.value)
    assert "\n" not in str(caught.value)
