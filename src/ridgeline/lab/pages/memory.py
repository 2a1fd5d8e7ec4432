"""The page of `lab memory`."""

from collections.abc import Sequence
from dataclasses import asdict

from ridgeline.lab import memory
from ridgeline.lab.memory import Users
from ridgeline.lab.page import Bar, Bars, Page, Table
from ridgeline.roofline.device import Device
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
            f"One {device.title}: {show_gib(gib(device.memory))}", "GiB", tuple(b for one in found for b in _bars(one))
        ),
        tuple(word for one in found for word in _words(one, device, context)),
        memory.__file__,
        {"device": device.name, "context": context, "models": [_data(one) for one in found]},
    )


def _table(one: Users, context: int) -> Table:
    texts = one.texts
    many = f" on {one.cards} cards, figures of one" if one.cards > 1 else ""
    rows = [
        (f"{one.model}{many}: the card", f"{texts.card / 1e9:.1f}", f"{gib(one.total):.2f}", f"{gib(one.total):.2f}")
    ]
    said = {"weights": f"{-texts.weights / 1e9:.1f}"}
    for step in one.steps:
        text = next((value for name, value in said.items() if step.name.startswith(name)), "")
        rows.append((f"- {step.name}", text, f"{-gib(step.takes):.2f}", f"{gib(step.left):.2f}"))
    rows.append(("left for keys and values", f"{texts.left / 1e9:.1f}", "", f"{gib(one.steps[-1].left):.2f}"))
    rows.append((f"/ one user, {context:,} tokens", f"{texts.request / 1e9:.3f}", f"{gib(one.request):.3f}", ""))
    rows.append(("= users", f"{texts.users:,}", f"{one.users:,}", ""))
    return Table(_HEAD, tuple(rows))


def _bars(one: Users) -> list[Bar]:
    bars = [Bar(f"{one.model}: {step.name}", step.takes / 2**30) for step in one.steps]
    left = one.steps[-1].left
    if left <= 0:
        return [*bars, Bar(f"{one.model}: lacking", -left / 2**30, "it does not fit", dim=True)]
    return [*bars, Bar(f"{one.model}: keys and values", left / 2**30, f"{one.users:,} users", dim=True)]


def _words(one: Users, device: Device, context: int) -> tuple[str, ...]:
    texts = one.texts
    cards = f"{one.cards} of them" if one.cards > 1 else "it"
    where = f"{one.model} on {device.title}" + (f" x {one.cards}" if one.cards > 1 else "")
    kept = (
        f"A token keeps {one.token * one.cards:,.0f} bytes, {context:,} of them {one.request * one.cards / 1e6:,.0f} MB"
    )
    if one.users:
        return (
            f"{where}: {one.users:,} users, where the text's subtraction says {texts.users:,}. {kept}.",
            "The texts take the number on the box in GB and subtract the weights alone. The driver shows GiB; a share "
            f"is kept free against fragments; a step needs activations; and there is the rest ({OVERHEAD_RULE}).",
        )
    lacking = show_gib(gib(one.request - one.steps[-1].left))
    more = f"{one.fits_on} cards carry it" if one.fits_on else "not even eight cards carry it"
    return (
        f"{where}: no user at all. {cards.capitalize()} would need {lacking} more for the weights and one user; "
        f"{more}, and a narrower format may (`ridgeline plan` prices both).",
    )


def _data(one: Users) -> dict[str, object]:
    return asdict(one) | {"users": one.users, "texts": asdict(one.texts) | {"users": one.texts.users}}
