"""The price of a model as a table: what `Price` says of every step, as data that a page adds up.

Ops are asked (`op_table.py`); what else is here, Python says of the model as it is stored: the pages that its keys and
values are dealt into, the bill of its parameters. A page that knows no model gives from it what `Price.on` gives.
"""

import dataclasses
import shlex
from collections.abc import Mapping
from typing import Any

from ridgeline.backends import priced_backend
from ridgeline.core.checkpoint.source import ModelSource
from ridgeline.core.models import family_of
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.parameter_breakdown import bill, layers_of
from ridgeline.core.ops.backend import ReplayedSteps
from ridgeline.core.ops.cost_features import GatheredRows
from ridgeline.core.ops.kv_layout import KVGroup, deal_layers
from ridgeline.core.ops.matrix.operands import DTYPES
from ridgeline.core.ops.number_formats import format_of
from ridgeline.core.ops.work import AttentionPattern
from ridgeline.learn.page.op_table import LinePool, op_table
from ridgeline.price.activations import replayed_bytes
from ridgeline.price.devices import KINDS, load_device
from ridgeline.price.engine_profile import load_engine, with_own_attention
from ridgeline.price.plan.device_memory import sampler_peak, weights_table
from ridgeline.price.plan.scenario import Deployment, ModelCache, PlanWorkload, Scenario
from ridgeline.util.version import __version__

FORMAT = 1
"""Of the table. A page reads one; another is refused with the command that makes it again (`static/price.js`)."""

_CARD = "h100-sxm"  # any that computes in bf16: a table is of no card


@dataclasses.dataclass(frozen=True, slots=True)
class StoredModel:
    """How the model of a table is stored, and on how many cards. weights, kv: formats by name, None as the config says.
    own_attention: whether each card has requests of its own (`Scenario.ranks`). Raises
    ValueError.
    """

    weights: str | None = None
    kv: str | None = None
    devices: int = 1
    own_attention: bool = False

    def __post_init__(self) -> None:
        if self.own_attention and self.devices == 1:
            raise ValueError("--enable-dp-attention divides requests among cards; give --devices 2 or more")

    @property
    def setup(self) -> Deployment:
        """On a card that computes in whatever a model may be in. Raises ValueError for a format that is none."""
        engine = with_own_attention(load_engine()) if self.own_attention else load_engine()
        return Deployment(load_device(_CARD), self.devices, self.weights, self.kv, engine=engine)

    def command(self, name: str) -> str:
        """What makes the table of a model stored so."""
        words = ["ridgeline", "page", "tables", name]
        words += [] if self.weights is None else ["--weights", self.weights]
        words += [] if self.kv is None else ["--kv", self.kv]
        words += [] if self.devices == 1 else ["--devices", str(self.devices)]
        return shlex.join(words + ["--enable-dp-attention"] * self.own_attention)


def model_table(source: ModelSource, stored: StoredModel, models: ModelCache | None = None) -> dict[str, Any]:
    """The table of a model that writes text. All figures are those of one card, in bytes and FLOPs. models: its own,
    where it has been built before.

    Raises ModelRefused where the model cannot be built or divided so, ValueError for one that writes no text, and for
    an op that does not keep to lines.
    """
    if source.pipeline or not family_of(source.config).writes:
        raise ValueError(f"{source.title} writes no text; tables are of models that do")
    models = ModelCache(source.config) if models is None else models
    case = models.case(stored.setup)
    model, price = case.model, case.price
    steps = priced_backend("cpu").replayed_steps(model)
    reaches = sorted(price.reaches, key=_order)
    pool = LinePool()
    ops = [
        op_table(alone, reaches, pool, gathers=GatheredRows() in priced.op.features)
        for alone, priced in zip(price.gathering(1).ops, price.ops, strict=True)
    ]
    return {
        "format": FORMAT,
        "made_by": f"ridgeline {__version__}",
        "command": stored.command(source.name),
        "model": source.title,
        "asked": {"weights": stored.weights, "kv": stored.kv},
        "weights": case.weights,
        "kv": case.kv,
        "dtype": format_of(model.storage.dtype).name,
        "otherwise": _otherwise(models, stored.setup),
        "devices": price.devices,
        "ranks": case.ranks,
        "native": model.storage.dtype in DTYPES,
        "recorded": steps.largest(model.context).rows if steps is not None and price.devices == 1 else 0,
        "context": model.context,
        "vocabulary": model.vocabulary,
        "encoder": _encoder(model),
        "notes": list(case.notes),
        "parameters": _parameters(models, stored),
        "memory": _memory(case, steps),
        "reaches": [dataclasses.asdict(reach) for reach in reaches],
        "ops": ops,
        "records": pool.records,
    }


def _otherwise(models: ModelCache, setup: Deployment) -> list[str]:
    """The kinds of devices that have the model stored in another way, so that the table is not theirs."""
    kinds = {kind: dataclasses.replace(setup, device=dataclasses.replace(setup.device, kind=kind)) for kind in KINDS}
    return [kind for kind, other in kinds.items() if models.stored(other) != models.stored(setup)]


def _order(reach: AttentionPattern) -> tuple[str, ...]:
    return str(reach), reach.space, reach.keys


def _encoder(model: Model) -> dict[str, Any] | None:
    """What is given to an encoder-decoder's encoder; None where there is none."""
    if not model.encodes:
        return None
    return {"context": model.encoder_context, "reads": "sound" if model.encoder_width else "tokens"}


def _parameters(models: ModelCache, stored: StoredModel) -> Mapping[str, Any]:
    """The bill of the undivided model."""
    whole = models.whole(stored.setup).model
    counted = bill(whole)
    return {
        "total": counted.total,
        "active": counted.active,
        "by_part": counted.parameters,
        "layer": counted.layer,
        "stacks": list(layers_of(whole)),
        "bytes": counted.nbytes,
    }


def _memory(case: Scenario, steps: ReplayedSteps | None) -> Mapping[str, Any]:
    """What of a card's memory the model says: its weights, the pages of keys and values, a row of logits (fp32).
    steps: those that our engine replays on a processor.
    """
    model, page_size = case.model, PlanWorkload().page_size
    layout = deal_layers(model.kv_specs, page_size, model.context)
    return {
        "weights": case.price.weight_bytes,
        "parts": [dataclasses.asdict(row) for row in weights_table(case)],
        "logit_row": sampler_peak(case.price, 1, 1),
        "recorded": replayed_bytes(steps, model, case.price, model.context),
        "token": sum(spec.bytes_per_token for spec in model.kv_specs),
        "state": layout.state_bytes,
        "page_size": page_size,
        "page": layout.page_bytes,
        "groups": list(map(_group, layout.groups)),
    }


def _group(group: KVGroup) -> Mapping[str, Any]:
    """Pages that a sequence has of a group (`KVGroup.kept`): positions a page, what they are positions of, and of one
    that lets positions go those that it has room for beside the ones of a step.
    """
    if group.spec.is_state:
        return {"page_size": 1, "of": "state"}
    kept = {"page_size": group.page_size, "of": "sequence" if group.spec.grows else "encoder"}
    return kept | ({"spans": group.spans} if group.spec.passes else {})
