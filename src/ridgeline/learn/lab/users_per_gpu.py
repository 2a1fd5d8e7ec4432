"""The number of users on a GPU, computed by subtracting from its memory.

The memory holds the weights, the activations of a step, and the overhead of libraries. The rest is for keys and values.
Divided by the bytes of one user's context, it is the number of concurrent users.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.core.checkpoint import read_config
from ridgeline.core.models import Fields, build
from ridgeline.core.models.common.parameter_breakdown import parameter_breakdown
from ridgeline.core.ops.kv_layout import KVSpec
from ridgeline.price.device import Device
from ridgeline.price.engine_profile import load_engine
from ridgeline.price.plan import Deployment, PlanWorkload
from ridgeline.price.plan.alternatives import DEVICES, fewest_devices
from ridgeline.price.plan.device_memory import DeviceMemory, memory_of
from ridgeline.price.plan.scenario import ModelCache, Scenario
from ridgeline.util.document.charts import StackedBar, StackedBars
from ridgeline.util.document.elements import Bullets, Document, DocumentTable, Paragraph, TableRow, columns
from ridgeline.util.document.humanize import gib, say, say_gib
from ridgeline.util.json_data import json_data, json_shape


@json_shape(..., "users")
@dataclass(frozen=True, slots=True)
class TextbookUsers:
    """The number of users on a GPU as textbooks compute it, with sizes in GB (10^9 bytes).

    The weights are 2 bytes per parameter, with the rounded count in the model's name. The rest is divided by 2 x layers
    x KV heads x head dim x 2 bytes for every token.
    """

    card: float
    """The bytes of memory of all GPUs together, by the size in the GPU's name."""
    weights: float
    """The bytes of the model's weights by the textbook's count."""
    left: float
    """The bytes of memory of all GPUs together that remain after the weights."""
    request: float
    """The KV bytes of one request by the textbook's formula."""

    @property
    def users(self) -> int:
        """The number of requests that fit by the textbook's calculation."""
        return max(0, int(self.left // self.request))


@dataclass(frozen=True, slots=True)
class Subtraction:
    """One item that is subtracted from a GPU's memory, and the bytes that then remain."""

    name: str
    """The use of the subtracted memory."""
    takes: float
    """The bytes that this item subtracts from the GPU's memory."""
    left: float
    """The bytes of the GPU's memory that remain after this item and all items before it."""


@dataclass(frozen=True, slots=True)
class GpuUsers:
    """The number of users that a model can serve on GPUs of one type.

    All bytes are per GPU, except those in `texts` and `formula`, which are those of all GPUs together.
    """

    model: str
    """The name of the model."""
    cards: int
    """The number of GPUs."""
    total: float
    """The bytes of memory of each GPU, as its driver reports them."""
    steps: tuple[Subtraction, ...]
    """The subtractions from the GPU's memory, in order."""
    token: float
    """The KV bytes that one more position of a request takes on each GPU, over all layers."""
    state: float
    """The bytes of a request's recurrent states, which do not depend on its length."""
    request: float
    """The bytes of a whole request's KV, in whole pages."""
    users: int
    """The number of concurrent requests that fit."""
    texts: TextbookUsers
    """The same calculation as textbooks do it: memory minus weights, divided by the KV bytes of one request."""
    fits_on: int | None
    """The requested number of GPUs if one user fits on them, else the next of 2, 4 and 8 on which one fits.

    None if there is no such number. Without a link only one GPU is possible, and a model's heads must divide over the
    GPUs.
    """
    formula: str
    """The derivation of the KV bytes per token, over all GPUs together, with its factors."""


def users_on(model: str, device: Device, gpus: int, context: int) -> GpuUsers:
    """Run the experiment: a model in its own format on `gpus` GPUs, with users of `context` positions.

    Args:
        model: Name of the model.
        device: GPU.
        gpus: Number of GPUs.
        context: Positions of each user.

    Raises:
        ValueError: If the GPUs have no link, are more than one machine has, or the model does not support the context.
    """
    if gpus > max(DEVICES):
        raise ValueError(f"--devices is {gpus}; one machine has at most {max(DEVICES)}")
    if gpus > 1 and device.link is None:
        raise ValueError(
            f"--devices is {gpus}; {device.name} has no link to other GPUs: use --devices 1, or another GPU"
        )
    fields = read_config(model)
    models, setup = ModelCache(fields), Deployment(device, gpus)
    case = models.scenario(setup)
    if not 2 <= context <= case.model.context:
        raise ValueError(
            f"--context is {context:,}; {model} supports 2 (prompt and response) to {case.model.context:,} tokens"
        )
    workload = PlanWorkload(input=context - 1, output=1)
    memory = memory_of(case, workload)
    fewest = setup if memory.fits else fewest_devices(models, setup, workload, [n for n in DEVICES if n > gpus])
    return GpuUsers(
        model, gpus, memory.total, _subtract(case, workload, memory),
        memory.kv_bytes_per_token, memory.state_bytes, memory.request_bytes, memory.users,
        _texts(fields, device, gpus, context), None if fewest is None else fewest.devices, _formula(fields),
    )  # fmt: skip


def _subtract(case: Scenario, workload: PlanWorkload, memory: DeviceMemory) -> tuple[Subtraction, ...]:
    """Return every item that is subtracted from a GPU's memory (weights, activations, overhead), in order."""
    left, steps = memory.total, []
    for name, nbytes in {
        f"kept free ({1 - case.setup.utilization:.0%} of the GPU)": memory.total - memory.budget,
        f"weights ({case.weights})": memory.weights,
        f"activations of a step of {workload.step_tokens:,}": memory.activations,
        "driver, libraries, graphs": memory.overhead,
    }.items():
        left -= nbytes
        steps.append(Subtraction(name, nbytes, left))
    return tuple(steps)


def _texts(fields: Fields, device: Device, gpus: int, context: int) -> TextbookUsers:
    whole = build(fields)
    gib = device.memory / 2**30
    box = math.ceil(gib) if gib > 64 else 8 * math.ceil(gib / 8)  # a GPU sold with 24 GB reports 22.5 to 24 GiB
    weights = 2 * nominal_parameters(parameter_breakdown(whole).total)
    request = sum(2 * s.heads * s.k_dim * 2 for s in whole.kv_specs if isinstance(s, KVSpec)) * context
    return TextbookUsers(gpus * box * 1e9, weights, gpus * box * 1e9 - weights, request)


def nominal_parameters(parameters: int) -> float:
    """Return a parameter count rounded as in model names: 8B, 1.5B, 120M, 71B, 406B."""
    return float(f"{parameters:.1e}") if parameters < 10e9 else round(parameters / 1e9) * 1e9


# -- the report -------------------------------------------------------------------------------------------------------

_HEAD = ("", "textbook, GB", "cost model, GiB", "left, GiB")


def document(users: Sequence[GpuUsers], device: Device, context: int) -> Document:
    """Return the document with the subtractions of every model and a bar of the GPU's memory."""
    return Document(
        f"Users per GPU: {device.title}",
        (
            Bullets(tuple(word for one in users for word in _words(one, device, context))),
            *(_table(one, context) for one in users),
            StackedBars(
                "Contents of the memory of one GPU",
                "GiB",
                ("weights", "activations, driver, libraries", "kept free", "keys and values"),
                tuple(map(_stack, users)),
                (gib(device.memory), device.title),
            ),
            Paragraph(f"source code of the experiment: {__file__}", "dim"),
        ),
        f"How many concurrent users with {context:,} tokens each fit on a GPU?",
    )


def as_json(users: Sequence[GpuUsers], device: Device, context: int) -> dict[str, object]:
    """Return for every model its users on the GPU and the items subtracted from the GPU's memory, as JSON data."""
    return {"device": device.name, "context": context, "models": json_data(users)}


def _formula(fields: Fields) -> str:
    """Return the KV bytes per token with their factors, one product for each kind of layer."""
    growing = [spec for spec in build(fields).kv_specs if isinstance(spec, KVSpec) and spec.grows]
    alike = Counter((spec.heads, spec.k_dim, spec.v_dim, spec.slot_bytes) for spec in growing)
    products = []
    for (heads, k_dim, v_dim, nbytes), layers in alike.items():
        numbers = f"2 x {k_dim}" if k_dim == v_dim else f"({k_dim} + {v_dim})" if v_dim else f"{k_dim}"
        each = nbytes / (heads * (k_dim + v_dim))
        products.append(f"{layers} layers x {heads} KV head{'s' if heads > 1 else ''} x {numbers} x {each:g} bytes")
    total = sum(layers * nbytes for (*_, nbytes), layers in alike.items())
    return f"{' + '.join(products)} = {total:,.0f} bytes ({total / 1024:g} KiB)" if products else "nothing"


def _table(one: GpuUsers, context: int) -> DocumentTable:
    texts = one.texts
    many = f" on {one.cards} GPUs, figures per GPU" if one.cards > 1 else ""
    whole = _figure(gib(one.total), 2)
    rows = [(f"{one.model}{many}: memory of the GPU", _figure(texts.card / 1e9, 1), whole, whole)]
    for step in one.steps:
        text = _figure(-texts.weights / 1e9, 1) if step.name.startswith("weights") else ""
        rows.append((f"- {step.name}", text, _figure(-gib(step.takes), 2), _figure(gib(step.left), 2)))
    rows.append(("left for keys and values", _figure(texts.left / 1e9, 1), "", _figure(gib(one.steps[-1].left), 2)))
    rows.append((f"/ one user, {context:,} tokens", _figure(texts.request / 1e9, 3), _figure(gib(one.request), 3), ""))
    rows.append(("= users", f"{texts.users:,}", f"{one.users:,}", ""))
    return DocumentTable(columns(*_HEAD), tuple(TableRow(row) for row in rows))


def _figure(value: float, places: int) -> str:
    """Return a number with `places` decimals; a number that would round to 0 has its first nonzero digit instead."""
    return f"{value:.{places}f}" if abs(value) >= 10**-places or not value else f"{value:.1g}"


def _stack(one: GpuUsers) -> StackedBar:
    """Return the bar of a model: its parts and the memory for users, or one user's memory if not even one fits."""
    free, weights, *others = (gib(step.takes) for step in one.steps)
    left, request = gib(one.steps[-1].left), gib(one.request)
    note = f"{one.users:,} users"
    if not one.users:
        note = f"{say_gib(gib(one.total + one.request - one.steps[-1].left))} with one user, does not fit"
    return StackedBar(one.model, (weights, sum(others), free, left if one.users else request), note)


def _words(one: GpuUsers, device: Device, context: int) -> tuple[str, ...]:
    texts = one.texts
    gpus_text = f"{one.cards} GPUs" if one.cards > 1 else "it"
    where = f"{one.model} on {device.title}" + (f" x {one.cards}" if one.cards > 1 else "")
    kept, whole = f"The KV cache takes {one.formula} per token", say(one.request * one.cards, "B")
    if one.state:
        kept += f" and a state of {say(one.state * one.cards, 'B')} per user: {whole} for {context:,} tokens"
    else:
        kept += f", or {whole} for {context:,} tokens"
    if one.users:
        rest = load_engine().memory.describe()
        return (
            f"{where}: {one.users:,} users fit; the textbook's subtraction gives {texts.users:,}. {kept}.",
            "Textbooks take the GB of the product's name and subtract only the weights. The driver reports GiB, a "
            "share is kept free because of fragmentation, a step needs activations, and libraries take memory "
            f"({rest}).",
        )
    lacking = say_gib(gib(one.request - one.steps[-1].left))
    more = f"{one.fits_on} GPUs are enough" if one.fits_on else _no_more(device)
    return (
        f"{where}: not even one user fits. {gpus_text.capitalize()} would need {lacking} more for the weights and one "
        f"user; {more}, and a narrower weight format may be enough too (`ridgeline plan` prices both). {kept}.",
    )


def _no_more(device: Device) -> str:
    if device.link is None:
        return "this GPU has no link to others"
    return f"no number of GPUs up to {max(DEVICES)} that the model can be divided among is enough"
