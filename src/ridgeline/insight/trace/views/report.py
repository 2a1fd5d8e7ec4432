"""The report of a traced request: its text and times, every op, how it was measured, and the requested views."""

from collections.abc import Iterator
from dataclasses import dataclass

from ridgeline.insight.trace.bottleneck import above_roofs, slowest
from ridgeline.insight.trace.interference import BUSY, FAR, calibration, describe_interference
from ridgeline.insight.trace.timeline import TimelineSlice
from ridgeline.insight.trace.token_candidates import TokenChoice
from ridgeline.insight.trace.trace_ledger import Ledger, LedgerStep, StepLedger
from ridgeline.insight.trace.views.expert_sources_view import sources_view
from ridgeline.insight.trace.views.interpretability import (
    attention_view,
    cross_view,
    experts_view,
    lens_view,
    memory_view,
    show_piece,
)
from ridgeline.insight.trace.views.ledger_roofline import ledger_roofline
from ridgeline.insight.trace.views.table import op_table
from ridgeline.util.document import humanize
from ridgeline.util.document.elements import (
    Bullets,
    Cell,
    Column,
    Document,
    DocumentBlock,
    DocumentTable,
    Facts,
    Strip,
    TableRow,
    Tone,
    columns,
)

WIDTH = 112
"""The width in columns at which two steps fit next to each other."""

_TOKENS_SHOWN, _STEPS_SHOWN = 40, 12
_DRAWN = (
    "model: the probability by the logits. drawn: the probability with which sampling drew it, after temperature, "
    "top-k, top-p and the like; cut: they exclude it. ->: the token that was taken."
)


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """The options of a trace report: the layers that it lists op by op, and whether it draws the roofline."""

    layer: int | str | None = None
    """The layers to list op by op: None for sums over layers, a number, or "all"."""
    roofline: bool = False
    """Whether to draw the roofline."""


def build_report(ledger: Ledger, shown: ReportOptions) -> Document:
    """Return the report of a traced request as a document."""
    layer = shown.layer if isinstance(shown.layer, int) else None
    blocks: list[DocumentBlock] = [
        _request(ledger),
        Bullets(tuple(summarise_step(ledger, step) for step in ledger.steps)),
        op_table(ledger, shown.layer),
        Bullets(tuple(sentence for step in ledger.steps for sentence in describe_step(ledger, step))),
        _choices(ledger),
        _timeline(ledger),
    ]
    if ledger.attention is not None:
        blocks += attention_view(ledger, layer)
    if ledger.cross is not None:
        blocks += cross_view(ledger.cross, layer)
    if ledger.lens is not None:
        blocks += lens_view(ledger.lens)
    if ledger.memory is not None:
        blocks += memory_view(ledger.memory, layer)
    if ledger.experts is not None:
        blocks += experts_view(ledger, layer)
    if ledger.sources is not None:
        blocks += sources_view(ledger.sources)
    if shown.roofline:
        blocks.append(ledger_roofline(ledger))
    blocks += physics_guard(ledger)
    return Document(f"{ledger.model}: one request, predicted and measured", tuple(blocks))


def physics_guard(ledger: StepLedger) -> list[DocumentBlock]:
    """Return a block that lists the measurements that are faster than physics allows, or no block if there are none."""
    broken = ledger.impossible()
    return [Bullets(tuple(f"impossible: {line}" for line in broken), "error")] if broken else []


def _request(ledger: Ledger) -> Facts:
    """Return the report section with a request's text, tokens and response, and with its device."""
    tokens = " ".join(show_piece(token) for token in ledger.prompt[:_TOKENS_SHOWN])
    ids = " ".join(str(token.id) for token in ledger.prompt[:_TOKENS_SHOWN])
    more = f" ... {len(ledger.prompt) - _TOKENS_SHOWN} more" if len(ledger.prompt) > _TOKENS_SHOWN else ""
    return Facts(
        (
            ("text", repr(ledger.text)),
            ("tokens", f"{tokens}{more}  ({len(ledger.prompt)})"),
            ("ids", f"{ids}{more}"),
            ("answer", repr(ledger.answer)),
            ("device", describe_device(ledger)),
            ("stored", f"weights {ledger.weights}, KV {ledger.kv}"),
        )
    )


def describe_device(ledger: StepLedger) -> str:
    """Return a text that names the device whose price is used, and whether it is calibrated and the one at hand."""
    where = "" if ledger.at_hand else "; measured on this machine, which is another device: compare with care"
    threads = f"{ledger.threads} thread{'s' if ledger.threads > 1 else ''}"
    return f"{ledger.device.title} ({calibration(ledger.device)}), {threads}{where}"


def summarise_step(ledger: StepLedger, step: LedgerStep) -> str:
    """Return a sentence with the time of a step and its slowest part.

    The prediction is compared with what it covers: the whole step, or its ops if the rest is not predicted.
    """
    took = humanize.say_seconds(ledger.whole(step.name))
    if not ledger.predicts_whole:
        took = f"{took}, its ops {humanize.say_seconds(ledger.ops(step.name).measured)}"
    beside = f"{humanize.say_seconds(step.expected)} expected, {humanize.say_seconds(step.bound)} bound"
    names = ", ".join(ledger.not_predicted(step.name))
    left = f"; not compared, because it is not predicted: {names}" if names else ""
    return f"{step.name} took {took} ({beside}){left}; {slowest(ledger, step.name)}"


def describe_step(ledger: StepLedger, step: LedgerStep) -> Iterator[str]:
    """Yield sentences on how a step was measured, its floor, and the cost of its score matrix."""
    kept = "weights and KV" if step.cost.kv_read_bytes or step.cost.kv_write_bytes else "weights"
    held = f"{humanize.say(step.working_set, 'B')} of {kept} in {step.memory_level}"
    parts = [f"{step.name}: floor {humanize.say_seconds(step.floor)}, {held}", *_measured(ledger, step)]
    yield "; ".join(parts)
    if ledger.at_hand and ledger.ops(step.name).measured:
        yield above_roofs(ledger, step.name)
    matrix = step.score_matrix
    if matrix is not None:
        yield describe_scores(step.name, matrix.bound, matrix.with_matrix, matrix.nbytes)


def describe_scores(step: str, fused: float, unfused: float, nbytes: float) -> str:
    """Return what it costs a step to write the scores of its attention to memory.

    Args:
        step: The name of the step.
        fused: The bound of attention in seconds without writing them.
        unfused: The same if they are written.
        nbytes: The bytes that are written and read for it.
    """
    return (
        f"attention in {step}, bound: {humanize.say_seconds(fused)} without writing its scores to memory, "
        f"{humanize.say_seconds(unfused)} if they are written ({humanize.say(nbytes, 'B')} more)"
    )


def _measured(ledger: StepLedger, step: LedgerStep) -> Iterator[str]:
    """Yield how often a step was measured, and how well its parts agree with the whole."""
    whole = ledger.whole(step.name)
    if not whole or not step.unhooked:
        return
    left = f", {step.left_out} more interrupted by other processes" if step.left_out else ""
    yield f"medians of {step.repeats} repeat{'s' if step.repeats > 1 else ''}{left}"
    if step.recorded:
        yield "replayed from a recording: its kernels are timed one by one"
    yield f"without hooks {humanize.say_seconds(step.unhooked)} ({step.unhooked / whole - 1:+.1%})"
    yield from list_doubts(ledger, step)


def list_doubts(ledger: StepLedger, step: LedgerStep) -> Iterator[str]:
    """Yield the reasons to distrust the figures of a step: other processes ran, or the parts do not add up."""
    whole = ledger.whole(step.name)
    if not whole or not step.unhooked:
        return
    if step.interruptions > BUSY * whole:
        yield (
            f"{describe_interference('every repeat', step.interruptions)} at the median; the table excludes that time, "
            "but the step without hooks may include it"
        )
    if any(one.seconds < 0 for one in step.overheads) or abs(step.unhooked / whole - 1) > FAR:
        yield "the parts do not add up to the whole: do not trust these figures, and trace again on an idle machine"


def _choices(ledger: Ledger) -> DocumentTable:
    """Return the table of each step's token candidates, next to each other."""
    heads: list[Column] = []
    for name, choice in ledger.choices.items():
        group = f"candidates after {name} ({'greedy' if choice.greedy else 'drawn'})"
        drawn = () if choice.greedy else (Column("drawn", group=group),)
        words = (Column("", words=True, group=group), Column("token", words=True, group=group))
        heads += [*words, Column("id", group=group), Column("model", group=group), *drawn]
    lists = [_candidates(choice) for choice in ledger.choices.values()]
    rows = []
    for index in range(max(map(len, lists))):
        missing = [[Cell("")] * len(cells[0]) if index >= len(cells) else cells[index] for cells in lists]
        rows.append(TableRow(tuple(cell for cells in missing for cell in cells)))
    notes = () if all(choice.greedy for choice in ledger.choices.values()) else (_DRAWN,)
    return DocumentTable(tuple(heads), tuple(rows), notes)


def _candidates(choice: TokenChoice) -> list[list[Cell]]:
    """Return the table cells of each candidate of one step."""
    listed = list(choice.candidates)
    if choice.taken.token.id not in [candidate.token.id for candidate in listed]:
        listed.append(choice.taken)
    lines = []
    for candidate in listed:
        taken = candidate.token.id == choice.taken.token.id
        tone: Tone = "strong" if taken else ""
        texts = [
            "->" if taken else "",
            show_piece(candidate.token, 20),
            str(candidate.token.id),
            f"{candidate.raw:.1%}",
        ]
        if not choice.greedy:
            texts.append("cut" if candidate.drawn is None else f"{candidate.drawn:.1%}")
        lines.append([Cell(text, tone) for text in texts])
    return lines


def _timeline(ledger: Ledger) -> DocumentTable:
    """Return the timeline of the request as it ran, to scale."""
    whole = ledger.timeline
    parts = ("schedule", "forward", "sample", "detokenise")
    in_all = f"{humanize.say_seconds(whole.seconds)} in total, as it ran"
    rows = [_slice(part, whole, parts) for part in whole.parts[:_STEPS_SHOWN]]
    hidden = whole.parts[_STEPS_SHOWN:]
    if hidden:
        rows.append(TableRow((f"{len(hidden)} more", humanize.seconds(sum(part.seconds for part in hidden), 3)), "dim"))
    return DocumentTable(columns("request", "seconds", *parts, in_all, words=(0, 2 + len(parts))), tuple(rows))


def _slice(part: TimelineSlice, whole: TimelineSlice, names: tuple[str, ...]) -> TableRow:
    seconds = {inner.name: inner.seconds for inner in part.parts}
    cells = (humanize.seconds(seconds[name], 3) if name in seconds else "" for name in names)
    strip = Strip(part.start / whole.seconds, part.end / whole.seconds)
    return TableRow((part.name, humanize.seconds(part.seconds, 3), *cells, strip))
