"""The page of `lab memory`."""

from collections.abc import Sequence
from dataclasses import asdict

from ridgeline.figures import say
from ridgeline.lab import memory
from ridgeline.lab.memory import Users
from ridgeline.lab.page import Bar, Bars, Page, Table
from ridgeline.roofline.device import Device
from ridgeline.roofline.plan.fit import DEVICES
from ridgeline.roofline.plan.memory import OVERHEAD_RULE
from ridgeline.roofline.plan.units import gib, show_gib

_HEAD = ("", "texts, GB", "ledger, GiB", "left, GiB")


def page(found: Sequence[Users], device: Device, context: int) -> Page:
    """The subtraction of every model, and the bar of the card."""
    return Page(
        f"Users on a card: {device.title}",
        f"How many users of {context:,} tokens does a card carry at a time?",
        tuple(_table(one, context) for one in found),
        Bars(
            f"What takes the {show_gib(gib(device.memory))} of one {device.title}",
            "GiB",
            tuple(bar for one in found for bar in _bars(one)),
        ),
        tuple(word for one in found for word in _words(one, device, context)),
        memory.__file__,
        {"device": device.name, "context": context, "models": [_data(one) for one in found]},
    )


def _table(one: Users, context: int) -> Table:
    texts = one.texts
    many = f" on {one.cards} cards, figures of one" if one.cards > 1 else ""
    whole = _figure(gib(one.total), 2)
    rows = [(f"{one.model}{many}: the card", _figure(texts.card / 1e9, 1), whole, whole)]
    for step in one.steps:
        text = _figure(-texts.weights / 1e9, 1) if step.name.startswith("weights") else ""
        rows.append((f"- {step.name}", text, _figure(-gib(step.takes), 2), _figure(gib(step.left), 2)))
    rows.append(("left for keys and values", _figure(texts.left / 1e9, 1), "", _figure(gib(one.steps[-1].left), 2)))
    rows.append((f"/ one user, {context:,} tokens", _figure(texts.request / 1e9, 3), _figure(gib(one.request), 3), ""))
    rows.append(("= users", f"{texts.users:,}", f"{one.users:,}", ""))
    return Table(_HEAD, tuple(rows))


def _figure(value: float, places: int) -> str:
    """So many places after the point; of what would be 0.00 the first digit that is not."""
    return f"{value:.{places}f}" if abs(value) >= 10**-places or not value else f"{value:.1g}"


def _bars(one: Users) -> list[Bar]:
    bars = [Bar(f"{one.model}: {step.name}", step.takes / 2**30) for step in one.steps]
    left = one.steps[-1].left
    if not one.users:
        return [*bars, Bar(f"{one.model}: lacking for one user", (one.request - left) / 2**30, dim=True)]
    return [*bars, Bar(f"{one.model}: keys and values", left / 2**30, f"{one.users:,} users", dim=True)]


def _words(one: Users, device: Device, context: int) -> tuple[str, ...]:
    texts = one.texts
    cards = f"{one.cards} of them" if one.cards > 1 else "it"
    where = f"{one.model} on {device.title}" + (f" x {one.cards}" if one.cards > 1 else "")
    kept = f"A token keeps {one.token * one.cards:,.0f} bytes, {context:,} of them {say(one.request * one.cards, 'B')}"
    if one.users:
        return (
            f"{where}: {one.users:,} users, where the text's subtraction says {texts.users:,}. {kept}.",
            "The texts take the number on the box in GB and subtract the weights alone. The driver shows GiB; a share "
            f"is kept free against fragments; a step needs activations; and there is the rest ({OVERHEAD_RULE}).",
        )
    lacking = show_gib(gib(one.request - one.steps[-1].left))
    more = f"{one.fits_on} cards carry it" if one.fits_on else _no_more(device)
    return (
        f"{where}: no user at all. {cards.capitalize()} would need {lacking} more for the weights and one user; "
        f"{more}, and a narrower format may (`ridgeline plan` prices both).",
    )


def _no_more(device: Device) -> str:
    if device.link is None:
        return "this card has no link to others"
    return f"no number of cards up to {max(DEVICES)} that the model divides over carries it"


def _data(one: Users) -> dict[str, object]:
    return asdict(one) | {"texts": asdict(one.texts) | {"users": one.texts.users}}
