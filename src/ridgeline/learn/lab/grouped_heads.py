"""KV heads shared by several query heads (MHA, GQA, MQA): the memory saved, and the cost of sharing without training.

MQA: Shazeer, arXiv:1911.02150. GQA, and heads averaged into one: Ainslie et al., arXiv:2305.13245.
"""

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from torch import Tensor
from typing_extensions import override

from ridgeline.core.checkpoint import read_config
from ridgeline.core.ops.attention import Attention
from ridgeline.learn.lab.cost_calculator import CostCalculator
from ridgeline.learn.lab.experiment import Experiment, ExperimentOutcome
from ridgeline.learn.lab.instrumented_model import STORY, ExperimentContext, InstrumentedModel
from ridgeline.util.document.charts import Chart, Series
from ridgeline.util.document.elements import DocumentTable, TableRow, columns

MODEL, GPU, CONTEXT = "llama-3-8b", "a100-sxm-80gb", 2000
HEADS = {"MHA": 32, "GQA": 8, "MQA": 1}
HEADS_OF_TALES = 6, 3  # query heads, KV heads
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Regrouped(ExperimentContext):
    """An attention context that replaces the keys and values [T, K, D] by other heads of the same model."""

    def __init__(self, length: int, heads: Callable[[Tensor], Tensor]) -> None:
        super().__init__(length)
        self.heads = heads

    @override
    def attend(self, op: Attention, q_THD: Tensor, k_NKD: Tensor | None, v_NKW: Tensor | None) -> Tensor:
        """Attend to the keys and values that `heads` returns; see `KVContext.attend`."""
        assert k_NKD is not None
        assert v_NKW is not None
        return super().attend(op, q_THD, self.heads(k_NKD), self.heads(v_NKW))


def one_for_all(x_TKD: Tensor) -> Tensor:
    """Return keys or values [T, K, D] in which the mean over all KV heads replaces each head."""
    return x_TKD.mean(1, keepdim=True).expand_as(x_TKD)


def losses(tales: InstrumentedModel) -> dict[str, float]:
    """Return the built-in model's loss (nats per token) on a story for each way of sharing KV heads."""
    ids = tales.ids(STORY)
    each = HEADS_OF_TALES[0] // HEADS_OF_TALES[1]
    return {
        "as trained": tales.loss(ids),
        "a copy for each head": tales.loss(ids, Regrouped(len(ids), lambda x_TKD: x_TKD.repeat_interleave(each, 1))),
        "one for all, the mean": tales.loss(ids, Regrouped(len(ids), one_for_all)),
    }


def as_if(folder: Path, heads: int) -> str:
    """Write a model's config.json with another number of KV heads to a folder and return its path."""
    path = folder / str(heads) / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(dict(read_config(MODEL).values) | {"num_key_value_heads": heads}), encoding="utf-8")
    return str(path)


def run() -> ExperimentOutcome:
    """Run the experiment: price the large model with three numbers of KV heads, and measure the small one's loss."""
    ledger = CostCalculator()
    with TemporaryDirectory() as folder:
        models = {name: as_if(Path(folder), heads) for name, heads in HEADS.items()}
        kept = {name: ledger.kv(model) for name, model in models.items()}
        users = {name: ledger.users(model, "rtx-4090", CONTEXT).users for name, model in models.items()}
        most = {name: ledger.endless_batch(model, GPU, CONTEXT) for name, model in models.items()}
        curves = {
            name: tuple((users, users / ledger.decode(model, GPU, users, CONTEXT).floor) for users in BATCHES)
            for name, model in models.items()
        }
    nats, ridge = losses(InstrumentedModel()), ledger.gpu(GPU).ridge("bf16")
    queries, own = HEADS_OF_TALES
    whole, copied, mean = nats.values()
    mha, gqa, mqa = kept.values()
    rows = [
        TableRow((f"{name}: {heads}", f"{kept[name] / 1024:,.0f} KiB", f"{users[name]:,}", f"{most[name]:.1f}"))
        for name, heads in HEADS.items()
    ]
    return ExperimentOutcome(
        (
            (mha == 4 * gqa == 32 * mqa, f"{mha:,.0f}, {gqa:,.0f} and {mqa:,.0f} bytes per token"),
            (4 * users["MHA"] < users["GQA"] < users["MQA"] / 8, ", ".join(f"{name} {n}" for name, n in users.items())),
            (
                most["MHA"] < most["GQA"] < ridge < most["MQA"],
                f"at most {', '.join(f'{each:.0f}' for each in most.values())} FLOP/byte, and the ridge is {ridge:.0f}",
            ),
            (abs(copied - whole) < 1e-5, f"{copied:.4f} nats per token with {queries} KV heads, {whole:.4f} for {own}"),
            (mean > 2 * whole, f"{mean:.2f} nats per token with one KV head, {whole:.2f} with the {own} trained ones"),
        ),
        (
            DocumentTable(columns("heads", "KV bytes per token", "users on 24 GB", "max. FLOP/byte"), tuple(rows)),
            Chart(
                f"Llama-3-8B on an A100, users with {CONTEXT:,} tokens each", "users", "max. tokens per second",
                tuple(Series(name, curve) for name, curve in curves.items()), log_x=True, log_y=True,
            ),
        ),
        {"kept": kept, "users": users, "intensity": most, "nats": nats},
    )  # fmt: skip


EXPERIMENT = Experiment(
    "grouped-heads",
    "Why do query heads share keys and values?",
    (
        "Llama-3-8B's KV cache is a quarter of that with a KV head per query head. With one KV head it would be 1/32.",
        "The number of users on a 24 GB GPU grows by more than that, because the key and value matrices shrink too.",
        "With 32 or 8 KV heads, no batch size makes decode compute-bound at 2,000 tokens; with one KV head, some do.",
        "Sharing itself changes no result: copying the shared KV head for each query head gives the same output.",
        "But a model must be trained for it: replacing each KV head by the mean of all of them ruins a trained model.",
    ),
    run,
)
