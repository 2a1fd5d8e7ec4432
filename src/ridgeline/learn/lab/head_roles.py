"""The roles that attention heads have learned: to look at their own token, at the previous one, or at the first."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from ridgeline.learn.lab.experiment import Experiment, ExperimentOutcome
from ridgeline.learn.lab.instrumented_model import STORY, ExperimentContext, InstrumentedModel
from ridgeline.util.document.charts import Bar, Bars
from ridgeline.util.document.elements import DocumentTable, TableRow, columns

OTHER = (
    "One day, a big bear was walking in the forest. He saw a small bird with a broken wing. The bear was kind and "
    "helped the bird. The bird said thank you, and they became good friends."
)
"""A second story: a head that has a role in one story should have it in the other too."""
ROLES: dict[str, Callable[[Tensor], Tensor]] = {
    "itself": lambda w_TT: w_TT.diagonal()[1:],
    "the token before": lambda w_TT: w_TT.diagonal(-1)[1:],
    "the first token": lambda w_TT: w_TT[2:, 0],
}
"""The roles of attention heads: functions that select each token's weight on a target from a head's weights [T, T].

The target is the token itself, the token before, or the first token. The first one or two tokens are left out.
"""
REPEATED, DRAWS = 30, 8

Head = tuple[int, int]


def shares(tales: InstrumentedModel, ids: list[int]) -> dict[str, dict[Head, float]]:
    """Return each attention head's mean weight on the target of each role (own, previous or first token).

    Heads are pairs of layer and number, both counted from 0 as in the names of the model's tensors.
    """
    return {
        role: {
            (layer, head): float(of(w_TT).mean())
            for layer, w_HTT in enumerate(tales.weights(ids))
            for head, w_TT in enumerate(w_HTT)
        }
        for role, of in ROLES.items()
    }


def copying(tales: InstrumentedModel) -> tuple[float, float, float]:
    """Test whether the model copies: it reads random tokens twice, averaged over several draws.

    Returns:
        The mean weight on the token that followed the first occurrence, of the head for which it is largest, and the
        nats per token on the first and on the second half.
    """
    after, nats = [], []
    for seed in range(DRAWS):
        draw = torch.Generator().manual_seed(seed)
        once = torch.randint(300, len(tales.table), (REPEATED,), generator=draw).tolist()
        ids = [*tales.ids(""), *once, *once]
        weights_HTT = torch.cat(tales.weights(ids))
        after.append(weights_HTT.diagonal(1 - REPEATED, 1, 2)[:, 2:].mean(1))
        nats.append(functional.cross_entropy(tales.logits(ids)[:-1], torch.tensor(ids[1:]), reduction="none"))
    nats_T = torch.stack(nats).mean(0)
    best = float(torch.stack(after).mean(0).max())
    return best, float(nats_T[:REPEATED].mean()), float(nats_T[REPEATED + 1 :].mean())


def run() -> ExperimentOutcome:
    """Run the experiment: roles in two stories, copying, and layers without attention."""
    tales = InstrumentedModel()
    ids = tales.ids(STORY)
    one, other = shares(tales, ids), shares(tales, tales.ids(OTHER))
    holder = {role: max(found, key=found.__getitem__) for role, found in one.items()}
    again = {role: max(found, key=found.__getitem__) for role, found in other.items()}
    strong = {role: one[role][head] for role, head in holder.items()}
    even = {role: sorted(found.values())[len(found) // 2] for role, found in one.items()}
    copied, first, second = copying(tales)
    layers = len(tales.blocks)
    off = {"none": tales.loss(ids)}
    off |= {f"layer {n}": tales.loss(ids, ExperimentContext(len(ids), without=(n,))) for n in range(layers)}
    off["layers 1 to 3"] = tales.loss(ids, ExperimentContext(len(ids), without=(1, 2, 3)))
    all_on, lowest, *middle, _, three = off.values()
    rows = []
    for role, (layer, head) in holder.items():
        figures = (strong[role], other[role][layer, head], even[role])
        rows.append(TableRow((role, f"layer {layer}, head {head}", *(f"{share:.0%}" for share in figures))))
    return ExperimentOutcome(
        (
            (
                min(strong.values()) > 0.3 and all(strong[role] > 3 * even[role] for role in ROLES),
                ", ".join(f"{role} {share:.0%}" for role, share in strong.items()),
            ),
            (holder == again, f"{sum(holder[role] == again[role] for role in ROLES)} of {len(ROLES)} heads are equal"),
            (
                copied < 0.25 and second > 0.7 * first,
                f"at most {copied:.0%} of a head's attention; {first:.1f} nats per token at first, {second:.1f} later",
            ),
            (
                max(middle) < 1.3 * all_on < 2 * all_on < min(three, lowest),
                ", ".join(f"{name} {nats:.2f}" for name, nats in off.items()),
            ),
        ),
        (
            DocumentTable(
                columns("attends to", "head", "share", "in another story", "median head", words=(0, 1)), tuple(rows)
            ),
            Bars(
                "Loss of the built-in model `tales` on a story with attention switched off",
                "nats per token, lower is better",
                tuple(Bar(name, nats) for name, nats in off.items()),
            ),
        ),
        {"holders": holder, "shares": strong, "copied": copied, "off": off},
    )  # fmt: skip


EXPERIMENT = Experiment(
    "heads",
    "What do the attention heads of a trained model attend to?",
    (
        "One head attends to its own token, one to the previous, one to the first: 3 times as much as most heads do.",
        "The same heads do so in another story: the role belongs to the head, not to the text.",
        "No head finds well which token followed an earlier occurrence: `tales` hardly copies text.",
        "Without attention in one layer the loss rises little. Without it in the first or in three it rises much.",
    ),
    run,
)
