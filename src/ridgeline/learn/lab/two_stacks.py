"""An encoder-decoder compared with a decoder-only model: the first token's state, cross-attention, and the costs."""

from collections.abc import Sequence

import torch

from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.kv_context import Uncached
from ridgeline.core.ops.work import StepSegment
from ridgeline.engine import LLM, SamplingParams
from ridgeline.insight.trace.cross_attention import CrossAttentionWeights, cross_attention
from ridgeline.insight.trace.token_candidates import Token
from ridgeline.learn.lab.cost_calculator import CostCalculator
from ridgeline.learn.lab.experiment import Experiment, ExperimentOutcome
from ridgeline.learn.lab.instrumented_model import InstrumentedModel
from ridgeline.util.document.elements import DocumentTable, TableRow, columns
from ridgeline.util.document.heat_map import HeatMap

SOURCE, OTHER = "The red car is new.", "The red car is old."
CROSSED = ((" voiture", " car"), (" rou", " red"), (" ne", " new"))
"""The beginnings of words that the decoder writes, and the source words that it should attend to.

The word order of the two languages differs there.
"""
TWO, ONE, INPUT, GPU = "flan-t5-xxl", "falcon3-10b", 1000, "a100"


@torch.inference_mode()
def encoded(model: Model, ids: Sequence[int]) -> torch.Tensor:
    """Return the encoder's output for a text, one row per token."""
    kv = Uncached([StepSegment(1, 1, len(ids), runs_encoder=True)])
    return model.encode(torch.tensor(ids), torch.arange(len(ids)), kv)


def translated(llm: LLM) -> CrossAttentionWeights:
    """Translate the experiment's sentence and return the cross-attention weights of each generated token."""
    (answer,) = llm.generate([SOURCE], SamplingParams(temperature=0.0))
    read = llm.tokenizer.encode(SOURCE)
    sources, produced = (
        [Token(token, llm.tokenizer.printable_token(token)) for token in ids]
        for ids in (read, answer.choices[0].token_ids)
    )
    return cross_attention(llm.loaded.model, read, llm.loaded.text_processor.decoder_prompt(read), sources, produced)


def run() -> ExperimentOutcome:
    """Run the experiment in the built-in translation model, in `tales`, and in the cost model.

    The cost model compares two models of similar size.
    """
    llm, tales, ledger = LLM("translate"), InstrumentedModel(), CostCalculator()
    first, other = (encoded(llm.loaded.model, llm.tokenizer.encode(text))[0] for text in (SOURCE, OTHER))
    read_both = float((first - other).norm() / first.norm())
    states = [tales.states(tales.ids(text))[-1][1] for text in (SOURCE, OTHER)]
    read_one = float((states[0] - states[1]).norm())
    looks = translated(llm)
    sources, produced = [t.piece for t in looks.sources], [t.piece for t in looks.produced]
    last = looks.weights[-1]
    found = {word: sources[max(range(len(sources)), key=last[produced.index(word)].__getitem__)] for word, _ in CROSSED}
    reading = ledger.encode(TWO, GPU, INPUT).flops, ledger.prefill(ONE, GPU, INPUT).flops
    writing = ledger.decode(TWO, GPU, 1, 2, INPUT), ledger.decode(ONE, GPU, 1, INPUT + 1)
    bills = ledger.bill(TWO), ledger.bill(ONE)
    used = [step.weights / bill.nbytes for step, bill in zip(writing, bills, strict=True)]
    rows = [
        TableRow(
            (name, f"{bill.total / 1e9:.2f} B", f"{read / INPUT / 1e9:.1f}", f"{one.flops / 1e9:.1f}", f"{share:.0%}")
        )
        for name, bill, read, one, share in zip((TWO, ONE), bills, reading, writing, used, strict=True)
    ]
    return ExperimentOutcome(
        (
            (
                read_both > 0.01 and read_one == 0.0,
                f"the first row changes by {read_both:.0%} in the encoder, and by {read_one:g} in the decoder",
            ),
            (all(found[word] == wanted for word, wanted in CROSSED), f"{found}"),
            (
                used[0] < 0.6 < 0.9 < used[1],
                f"the encoder-decoder reads {used[0]:.0%} of its weights, the decoder-only model {used[1]:.0%}",
            ),
        ),
        (
            DocumentTable(
                columns(
                    f"{INPUT:,} input tokens",
                    "parameters",
                    "GFLOP per input token",
                    "GFLOP per output token",
                    "weights read for it",
                ),
                tuple(rows),
            ),
            HeatMap(
                "Attention of the decoder to the input while it generates (last layer, mean of heads, percent)",
                tuple(map(_shown, produced)),
                tuple(map(_shown, sources)),
                last,
                "Rows: output tokens, from top to bottom. Columns: input tokens of the encoder.",
            ),
        ),
        {"moved": {"encoder": read_both, "decoder": read_one}, "looked_at": found, "used": used},
    )


def _shown(piece: str) -> str:
    return piece.strip() or piece


EXPERIMENT = Experiment(
    "two-stacks",
    "How does an encoder-decoder differ from a decoder-only model?",
    (
        "Changing the last word changes the first token's state in an encoder, but not in a decoder.",
        "The decoder attends to the word that it translates, even if French has another word order.",
        "To generate a token, it reads half of its weights. A decoder-only model reads nearly all of its weights.",
    ),
    run,
)
