"""The parameters of a model from its config: a sum by hand, compared with the breakdown of the built model."""

from ridgeline.core.checkpoint import read_config
from ridgeline.core.models.common.parameter_breakdown import PARTS
from ridgeline.learn.lab.cost_calculator import CostCalculator
from ridgeline.learn.lab.experiment import Experiment, ExperimentOutcome
from ridgeline.util.document.charts import Bar, Bars
from ridgeline.util.document.elements import DocumentTable, TableRow, columns

MODELS = ("llama-3.2-1b", "llama-3-8b", "llama-3-70b", "llama-3.1-405b")


def by_hand(name: str, kv_heads: int | None = None) -> dict[str, int]:
    """Return the parameters of a Llama model by part, from the sizes in its config and whether its head is tied.

    `kv_heads` replaces the config's number of KV heads.
    """
    config = read_config(name).values
    hidden, width, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    head = config.get("head_dim", hidden // config["num_attention_heads"])
    queries, keys = config["num_attention_heads"] * head, (kv_heads or config["num_key_value_heads"]) * head
    table = config["vocab_size"] * hidden
    return {
        "embedding": table,
        "attention": layers * (2 * hidden * queries + 2 * hidden * keys),
        "feed-forward": layers * 3 * hidden * width,
        "norms": (2 * layers + 1) * hidden,
        "head": 0 if config.get("tie_word_embeddings") else table,
    }


def run() -> ExperimentOutcome:
    """Run the experiment: count the parameters of four models of one family, and of the largest by a textbook."""
    ledger = CostCalculator()
    sums, bills = {name: by_hand(name) for name in MODELS}, {name: ledger.bill(name) for name in MODELS}
    equal = all(sums[name] == bills[name].parameters for name in MODELS)
    shares = {name: parts["feed-forward"] / sum(parts.values()) for name, parts in sums.items()}
    tables = {name: (parts["embedding"] + parts["head"]) / sum(parts.values()) for name, parts in sums.items()}
    walked = sum(by_hand("llama-3.1-405b", kv_heads=128).values())
    rows = [
        TableRow(
            (name, *(f"{100 * parts[part] / sum(parts.values()):.1f}" for part in PARTS), f"{sum(parts.values()):,}")
        )
        for name, parts in sums.items()
    ]
    small, large = MODELS[0], MODELS[-1]
    return ExperimentOutcome(
        (
            (equal, f"every part is equal; the largest model has {bills[large].total:,} parameters"),
            (
                shares[small] < shares[large] and tables[small] > 10 * tables[large],
                f"feed-forward {shares[small]:.0%} -> {shares[large]:.0%}, tables {tables[small]:.0%} -> "
                f"{tables[large]:.1%}",
            ),
            (abs(walked / 469e9 - 1) < 0.01, f"{walked / 1e9:.0f} billion"),
        ),
        (
            DocumentTable(columns("percent", *PARTS, "parameters"), tuple(rows)),
            Bars(
                "Parameters of four Llamas by part",
                "percent of all parameters",
                tuple(
                    Bar(f"{name}: {part}", 100 * parts[part] / sum(parts.values()), dim=part != "feed-forward")
                    for name, parts in sums.items()
                    for part in ("embedding", "attention", "feed-forward", "head")
                ),
            ),
        ),
        {"by_hand": sums, "as_mha": walked},
    )


EXPERIMENT = Experiment(
    "parameters",
    "How does a model's number of parameters follow from its config.json?",
    (
        "Seven numbers and a flag of the config are enough: the sum by hand equals the model's number of parameters.",
        "In larger models the feed-forward share is larger, and the share of embedding and head is smaller.",
        "With a KV head for each of its 128 query heads, as one textbook assumes, the 405B would have 469 billion "
        "parameters.",
    ),
    run,
)
