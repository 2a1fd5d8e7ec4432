"""The path of a token through the model: a text becomes numbers, and the layers decide on the next word."""

import torch

from ridgeline.core.ops.work import Work
from ridgeline.insight.trace.anatomy import final_norm
from ridgeline.learn.lab.cost_calculator import CostCalculator
from ridgeline.learn.lab.experiment import Experiment, ExperimentOutcome
from ridgeline.learn.lab.instrumented_model import InstrumentedModel
from ridgeline.util.document.charts import Chart, Series
from ridgeline.util.document.elements import DocumentTable, TableRow, columns

TEXT = "One day, Tom and his mom went to the"
SHOWN = 3  # most likely final words, which the figure follows through all depths
PARTS = {"embed_tokens": "embedding", "self_attn": "attention", "mlp": "feed-forward", "lm_head": "head"}
"""The part of a decoder to which a module belongs, by module name; all others are norms."""


@torch.inference_mode()
def guesses(tales: InstrumentedModel, ids: list[int]) -> torch.Tensor:
    """Return each depth's next-token probabilities [depths, V], as if it were the last layer.

    The residual stream at each depth goes through the final norm and the head.
    """
    stream_ND = torch.stack([state_TD[-1] for state_TD in tales.states(ids)])
    return tales.model.head(final_norm(tales.model).normalise(stream_ND)).softmax(-1)


def read_by(ledger: CostCalculator, name: str) -> dict[str, float]:
    """Return the bytes of weights that a step of one token reads, by part of the model."""
    price = ledger.price(name)
    found: dict[str, float] = {}
    for row in price.price_step(ledger.gpu("a100"), Work.decode([1], price.reaches)).rows:
        named = set(row.priced.path.split("."))
        part = next((label for word, label in PARTS.items() if word in named), "norms")
        found[part] = found.get(part, 0.0) + row.cost.weight_bytes * row.priced.count
    return found


def run() -> ExperimentOutcome:
    """Run the experiment on a token's path: what the built-in model, in fp32, would say after each layer.

    It also counts the bytes of weights that a token reads, for models in the formats in which they are stored.
    """
    tales, ledger = InstrumentedModel(), CostCalculator()
    ids = tales.ids(TEXT)
    back = tales.tokenizer.decode(ids)
    shares_NV = guesses(tales, ids)
    ends = shares_NV[-1].topk(SHOWN).indices.tolist()
    ranks = [1 + int((row_V > row_V[ends[0]]).sum()) for row_V in shares_NV]
    settled = next(depth for depth in range(len(ranks)) if set(ranks[depth:]) == {1})
    read = {name: read_by(ledger, name) for name in ("tales", "llama-3-8b")}
    big = read["llama-3-8b"]
    whole, layers = sum(big.values()), big["feed-forward"] + big["attention"]
    rows = [
        TableRow(
            (
                part,
                *(f"{one[part]:,.0f}" for one in read.values()),
                f"{big[part] / whole:.2%}",
            )
        )
        for part in ("embedding", "attention", "feed-forward", "norms", "head")
    ]
    lines = tuple(
        Series(
            tales.tokenizer.printable_token(word).strip(),
            tuple((n, 100 * float(share)) for n, share in enumerate(shares_NV[:, word])),
        )
        for word in ends
    )
    return ExperimentOutcome(
        (
            (
                back == TEXT and len(ids) < len(TEXT) / 3,
                f"{len(TEXT)} characters are {len(ids)} tokens including the one that begins every text; decoded: "
                f"{back!r}",
            ),
            (
                ranks[0] > 100 and settled > 1,
                f"{lines[0].name!r} has rank {ranks[0]:,} of 2,048 at the beginning, and rank 1 after the "
                f"first {settled} layers and from then on",
            ),
            (
                big["embedding"] < 1e-5 * whole and layers > 0.9 * whole,
                f"Llama-3-8B: {big['embedding']:,.0f} bytes of the embedding table, {layers:,.0f} bytes of the "
                "layers' matrices",
            ),
        ),
        (
            DocumentTable(columns("bytes read for one token", "tales", "Llama-3-8B", "of Llama-3-8B"), tuple(rows)),
            Chart(f"{TEXT} ...: probability of the next word after each layer", "layers passed", "percent", lines),
        ),
        {"ranks": ranks, "settled": settled, "read": read},
    )


EXPERIMENT = Experiment(
    "token",
    "What happens to a token on its way through a model?",
    (
        "A text becomes token ids, less than a third as many as its characters, and decoding them gives the same text.",
        "At first the final word has a low rank: the model decides on it gradually, layer by layer.",
        "A token reads a single row of the embedding table. Nearly all bytes that it reads are the layers' matrices.",
    ),
    run,
)
