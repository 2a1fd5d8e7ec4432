"""The price of a model as a table: the result of `Price` for every step, as data from which the page computes sums.

`op_table.py` evaluates the ops. The other fields describe the stored model, such as its formats, its context, its
memory for weights and KV pages, and its parameter breakdown. From the table and a device the page, which knows no
model, computes the same result as `Price.price_step`.
"""

import dataclasses
import shlex
from collections.abc import Mapping
from typing import Any

from ridgeline.backends import priced_backend
from ridgeline.core.checkpoint.source import ModelSource
from ridgeline.core.models import family_of
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.parameter_breakdown import layers_of, parameter_breakdown
from ridgeline.core.ops.backend import ReplayedSteps
from ridgeline.core.ops.cost_features import GatheredRows
from ridgeline.core.ops.kv_layout import KVGroup, group_layers
from ridgeline.core.ops.matrix.operands import DTYPES
from ridgeline.core.ops.number_formats import format_of
from ridgeline.core.ops.work import AttentionPattern
from ridgeline.learn.page.op_table import LinePool, op_table
from ridgeline.price.activations import replayed_bytes
from ridgeline.price.devices import KINDS, load_device
from ridgeline.price.engine_profile import load_engine, with_own_attention
from ridgeline.price.plan.device_memory import sampler_peak, weights_table
from ridgeline.price.plan.scenario import Deployment, ModelCache, PlanWorkload, Scenario
from ridgeline.util.json_data import json_data, json_select
from ridgeline.util.version import __version__

FORMAT = 1
"""The version of the model tables' format.

The page reads only this version and refuses others with the command that makes the table again (`static/price.js`).
"""

_ANY_DEVICE = "h100-sxm"  # any device that computes in bf16 will do, because a table does not depend on the device


@dataclasses.dataclass(frozen=True, slots=True)
class StoredModel:
    """The formats in which a table's model is stored, and its number of devices.

    Raises:
        ValueError: If `own_attention` is set with a single device.
    """

    weights: str | None = None
    """The weight format by name; None for that of the config."""
    kv: str | None = None
    """The KV format by name; None for that of the config."""
    devices: int = 1
    """The number of devices that share the model."""
    own_attention: bool = False
    """Whether each device has its own requests (`Scenario.ranks`)."""

    def __post_init__(self) -> None:
        if self.own_attention and self.devices == 1:
            raise ValueError("--enable-dp-attention divides requests among GPUs: give --devices 2 or more")

    @property
    def setup(self) -> Deployment:
        """The deployment for which the table is computed: its formats and number of devices, on a fixed device type.

        The type does not matter, because a table has bytes and FLOPs but no seconds.

        Raises:
            ValueError: If a format does not exist.
        """
        engine = with_own_attention(load_engine()) if self.own_attention else load_engine()
        return Deployment(load_device(_ANY_DEVICE), self.devices, self.weights, self.kv, engine=engine)

    def command(self, name: str) -> str:
        """Return the `ridgeline` command that makes the table of a model with these formats and devices."""
        words = ["ridgeline", "page", "tables", name]
        words += [] if self.weights is None else ["--weights", self.weights]
        words += [] if self.kv is None else ["--kv", self.kv]
        words += [] if self.devices == 1 else ["--devices", str(self.devices)]
        return shlex.join(words + ["--enable-dp-attention"] * self.own_attention)


def model_table(source: ModelSource, stored: StoredModel, models: ModelCache | None = None) -> dict[str, Any]:
    """Return the table of a text model in bytes and FLOPs per device.

    Only its parameter breakdown is that of the undivided model.

    Args:
        source: Model.
        stored: Formats and number of devices.
        models: Cache with the built model, if it exists.

    Raises:
        ModelRefused: If the model cannot be built or divided in this way.
        ValueError: If the model does not generate text, or the cost of an op is not piecewise linear.
    """
    if source.pipeline or not family_of(source.config).generates:
        raise ValueError(f"{source.title} does not generate text; tables exist only for models that do")
    models = ModelCache(source.config) if models is None else models
    case = models.scenario(stored.setup)
    model, price = case.model, case.price
    steps = priced_backend("cpu").replayed_steps(model)
    reaches = sorted(price.reaches, key=_order)
    pool = LinePool()
    ops = [
        op_table(alone, reaches, pool, gathers=GatheredRows() in priced.op.features)
        for alone, priced in zip(price.with_active_ranks(1).ops, price.ops, strict=True)
    ]
    return {
        "format": FORMAT,
        "made_by": f"ridgeline {__version__}",
        "command": stored.command(source.name),
        "model": source.title,
        "asked": {"weights": stored.weights, "kv": stored.kv},
        **json_select(case, "weights", "kv"),
        "dtype": format_of(model.storage.dtype).name,
        "otherwise": _otherwise(models, stored.setup),
        "devices": price.devices,
        "ranks": case.ranks,
        "native": model.storage.dtype in DTYPES,
        "recorded": steps.largest(model.context).rows if steps is not None and price.devices == 1 else 0,
        **json_select(model, "context", "vocabulary"),
        "logits": price.vocabulary,
        "encoder": _encoder(model),
        "notes": list(case.notes),
        **json_select(case, "model.traced_from", "unmodelled.fused"),
        "parameters": _parameters(models, stored),
        "memory": _memory(case, steps),
        "reaches": json_data(reaches),
        "ops": ops,
        "records": pool.records,
    }


def _otherwise(models: ModelCache, setup: Deployment) -> list[str]:
    """Return the kinds of devices that store the model in another way, so that the table does not apply to them."""
    kinds = {kind: dataclasses.replace(setup, device=dataclasses.replace(setup.device, kind=kind)) for kind in KINDS}
    return [kind for kind, other in kinds.items() if models.stored(other) != models.stored(setup)]


def _order(reach: AttentionPattern) -> tuple[str, ...]:
    return str(reach), reach.query_axis, reach.key_axis


def _encoder(model: Model) -> dict[str, Any] | None:
    """Return the input of an encoder-decoder's encoder; None if there is no encoder."""
    if not model.has_cross_attention:
        return None
    return {"context": model.encoder_context, "reads": "sound" if model.encoder_width else "tokens"}


def _parameters(models: ModelCache, stored: StoredModel) -> Mapping[str, Any]:
    """Return the parameter breakdown of the undivided model."""
    whole = models.whole(stored.setup).model
    counted = parameter_breakdown(whole)
    return {
        **json_select(counted, "total", "active", "by_part=parameters", "layer"),
        "stacks": list(layers_of(whole)),
        "bytes": counted.nbytes,
    }


def _memory(case: Scenario, steps: ReplayedSteps | None) -> Mapping[str, Any]:
    """Return the memory that the model needs: weights, pages of keys and values, recurrent states, and a row of logits.

    `steps` are those that our engine replays on a CPU. The logits are fp32.
    """
    model, page_size = case.model, PlanWorkload().page_size
    layout = group_layers(model.kv_specs, page_size, model.context)
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
    """Return the page rule of a KV group (`KVGroup.max_pages`).

    It has the positions per page, the kind of positions and, if old positions are freed, the positions that stay in
    addition to those of the current step.
    """
    if group.spec.is_state:
        return {"page_size": 1, "of": "state"}
    kept = {"page_size": group.page_size, "of": "sequence" if group.spec.grows else "encoder"}
    return kept | ({"spans": group.spans} if group.spec.frees_positions else {})
