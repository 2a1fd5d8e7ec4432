"""The effect of one changed word on a model: none on earlier tokens, and a change of the states of all later ones."""

import torch

from ridgeline.learn.lab.experiment import Experiment, ExperimentOutcome
from ridgeline.learn.lab.instrumented_model import InstrumentedModel
from ridgeline.util.document.elements import DocumentTable, TableRow, columns
from ridgeline.util.document.panels import Band, Panel, Panels

ONE, OTHER = "The dog was hungry and went to", "The dog was tired and went to"
"""Two sentences that differ in one word in the middle."""

_ALIKE = 1e-5  # rounding error of fp32 sums in another order


def next_words(tales: InstrumentedModel, ids: list[int], count: int = 3) -> list[tuple[str, float]]:
    """Return the model's most likely next words after a text, with their probabilities."""
    shares_V = tales.logits(ids)[-1].softmax(-1)
    best = shares_V.topk(count)
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [(tales.tokenizer.printable_token(token).strip(), share) for token, share in pairs]


def without(weights_HTT: torch.Tensor, column: int) -> torch.Tensor:
    """Return the attention weights among all keys but one: [H, T, T - 1], each row normalised to 1 again."""
    kept = torch.cat([weights_HTT[..., :column], weights_HTT[..., column + 1 :]], -1)
    return kept / kept.sum(-1, keepdim=True)


def run() -> ExperimentOutcome:
    """Run the experiment: compare attention in two sentences that differ in one word, layer by layer."""
    tales = InstrumentedModel()
    one, other = tales.ids(ONE), tales.ids(OTHER)
    (word,) = [at for at, (a, b) in enumerate(zip(one, other, strict=True)) if a != b]
    first, second = tales.weights(one), tales.weights(other)
    moved = [(a - b).abs() for a, b in zip(first, second, strict=True)]  # [H, T, T] for each layer
    streams = zip(tales.states(one), tales.states(other), strict=True)
    states = [(a - b).norm(dim=-1) / a.norm(dim=-1) for a, b in streams]  # [T] after the table and after each layer
    before = max(float(change_T[:word].max()) for change_T in states)
    others = [without(a, word) - without(b, word) for a, b in zip(first, second, strict=True)]
    among = [float(change_HTT[:, word + 1 :].abs().max()) for change_HTT in others]
    then = [next_words(tales, ids) for ids in (one, other)]
    pieces = [piece.strip() or piece for piece in tales.pieces(ONE)]
    rows = [
        TableRow((piece, *(f"{float(change_T[at]):.2f}" for change_T in states))) for at, piece in enumerate(pieces)
    ]
    return ExperimentOutcome(
        (
            (
                before == 0.0 and all(float(change_HTT[:, :word].max()) == 0.0 for change_HTT in moved),
                f"hidden states and attention weights of the {word} tokens before it differ by {before:g} in every "
                "layer",
            ),
            (
                among[0] < _ALIKE < 0.01 < min(among[1:]),
                f"attention weights among the other tokens change by at most {among[0]:.0e} in layer 0, "
                f"{among[1]:.2f} in layer 1",
            ),
            (
                float(states[0][word + 1 :].max()) == 0.0 < 0.01 < min(float(x_T[word:].min()) for x_T in states[1:]),
                "relative change of the last word's state by layer: "
                f"{', '.join(f'{float(change_T[-1]):.2f}' for change_T in states)}",
            ),
            (
                then[0][0][0] not in dict(then[1]) and then[1][0][0] not in dict(then[0]),
                " against ".join(", ".join(f"{name} {share:.0%}" for name, share in words) for words in then),
            ),
        ),
        (
            DocumentTable(columns("token", "table", *(f"layer {n}" for n in range(len(states) - 1))), tuple(rows)),
            _figure(moved, pieces),
        ),
        {"word": word, "states": [change_T.tolist() for change_T in states], "among": among, "then": then},
    )


def _figure(moved: list[torch.Tensor], pieces: list[str]) -> Panels:
    """Return a figure of the change of each attention weight, the largest over the heads of a layer."""
    panels = tuple(
        Panel(f"layer {number}", tuple(map(tuple, change_HTT.amax(0).clamp(max=1.0).tolist())))
        for number, change_HTT in enumerate(moved)
    )
    note = f"Rows are queries, columns are keys: {' '.join(pieces[1:])}"
    return Panels(
        "Change of each attention weight when one word changes: the largest of six heads", (Band("", panels, note),)
    )


EXPERIMENT = Experiment(
    "change-a-word",
    "Which parts of the computation change when one word of the prompt changes?",
    (
        "Nothing before the word changes by a single bit, in any layer, so prompts can share a prefix's keys and "
        "values.",
        "In the first layer, the attention among the other tokens stays the same. From the second layer on it changes.",
        "The hidden state of every later token changes, although these tokens stay the same.",
        "As a result, the model predicts another next word.",
    ),
    run,
)
