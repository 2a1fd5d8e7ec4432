"""Word order without positions: the effect of removing the rotations, and then the causal mask as well."""

from ridgeline.core.ops.work import AttentionPattern
from ridgeline.learn.lab.experiment import Experiment, ExperimentOutcome
from ridgeline.learn.lab.instrumented_model import STORY, ExperimentContext, InstrumentedModel
from ridgeline.util.document.charts import Chart, Series
from ridgeline.util.document.elements import DocumentTable, TableRow, columns

ONE, OTHER = "The dog and the cat sat", "The cat and the dog sat"
"""Two sentences with the same words, two of them swapped, and the same last word."""

_ALIKE = 2e-6  # rounding error of fp32 sums in another order


def differences(tales: InstrumentedModel, *, turned: bool, masked: bool) -> list[float]:
    """Return the relative difference of the last word's state between two sentences with two words swapped.

    It has one value for the embedding and one after each layer.
    """
    one, other = tales.ids(ONE), tales.ids(OTHER)
    assert sorted(one) == sorted(other)
    assert one[-1] == other[-1]
    reach = None if masked else AttentionPattern("full")
    first, second = (tales.states(ids, ExperimentContext(len(ids), reach), turned=turned) for ids in (one, other))
    return [float((a[-1] - b[-1]).norm() / a[-1].norm()) for a, b in zip(first, second, strict=True)]


def run() -> ExperimentOutcome:
    """Run the experiment on word order with rotation and causal mask, with the mask alone, and with neither."""
    tales = InstrumentedModel()
    found = {
        "neither": differences(tales, turned=False, masked=False),
        "causal mask alone": differences(tales, turned=False, masked=True),
        "mask and rotation": differences(tales, turned=True, masked=True),
    }
    nothing, mask, both = found.values()
    ids = tales.ids(STORY)
    with_turns, without = tales.loss(ids), tales.loss(ids, turned=False)
    rows = [TableRow((name, *(f"{x:.1e}" if x < 1e-3 else f"{x:.3f}" for x in line))) for name, line in found.items()]
    lines = tuple(Series(name, tuple(enumerate(line))) for name, line in found.items())
    return ExperimentOutcome(
        (
            (max(nothing) < _ALIKE, f"the change is at most {max(nothing):.0e} in any layer, which is only rounding"),
            (
                mask[1] < _ALIKE < 0.01 < mask[2],
                f"{mask[1]:.0e} after layer 0, {mask[2]:.3f} after layer 1, {mask[-1]:.3f} after the last layer",
            ),
            (both[1] > 0.01, f"{both[1]:.3f} after layer 0"),
            (
                without > 1.5 * with_turns,
                f"{without:.2f} nats per token without rotary embedding, {with_turns:.2f} with it",
            ),
        ),
        (
            DocumentTable(columns("", "table", *(f"layer {n}" for n in range(len(mask) - 1))), tuple(rows)),
            Chart(
                "Relative change of the last word's state when two words are swapped", "layers passed", "change", lines
            ),
        ),
        {"changes": found, "nats": {"with": with_turns, "without": without}},
    )


EXPERIMENT = Experiment(
    "order",
    "How does a model know the order of words?",
    (
        "Without rotary embedding and without a causal mask it does not: a sentence is a set of words, in every layer.",
        "The causal mask alone shows the order, but only from the second layer on: to the first it is still a set.",
        "With rotary embedding, the first layer already depends on the order.",
        "A trained model needs its rotary embedding: without it, the loss on a story rises by more than half.",
    ),
    run,
)
