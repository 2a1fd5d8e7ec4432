"""The whole trace in the order in which it happened: text, ids, ops, candidates, time, and then the views asked for."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from ridgeline import figures
from ridgeline.trace.ledger import Ledger, Step
from ridgeline.trace.picture import picture
from ridgeline.trace.reason import slowest
from ridgeline.trace.timeline import Slice
from ridgeline.trace.tokens import Choice
from ridgeline.trace.views import heat
from ridgeline.trace.views.chart import chart
from ridgeline.trace.views.inside import attention_view, experts_view, lens_view, memory_view, show_piece
from ridgeline.trace.views.table import LEGEND, op_table

_TOKENS_SHOWN, _STEPS_SHOWN, _BAR = 40, 12, 46
BUSY = 0.1  # interruptions over this share of a step are worth a word
DOUBT = 0.25  # a step with hooks and without them so far apart shows neither


@dataclass(frozen=True, slots=True)
class Shown:
    """How a trace is shown. layer: None, a number, or "all". roofline: whether to draw it. width: columns."""

    layer: int | str | None = None
    roofline: bool = False
    width: int = 112


def story(ledger: Ledger, shown: Shown) -> Iterator[Text]:
    """Every line for the terminal."""
    yield from _text(ledger)
    yield Text()
    yield from op_table(ledger, shown.layer, shown.width)
    yield from (Text(line, style="dim") for line in LEGEND)
    for step in ledger.steps:
        yield from _wrapped(_about(ledger, step), shown.width)
    yield Text()
    yield from _choices(ledger)
    yield Text()
    yield from _timeline(ledger)
    layer = shown.layer if isinstance(shown.layer, int) else None
    if ledger.attention is not None:
        yield from (Text(), *attention_view(ledger, layer))
    if ledger.lens is not None:
        yield from (Text(), *lens_view(ledger.lens))
    if ledger.memory is not None:
        yield from (Text(), *memory_view(ledger.memory, layer))
    if ledger.experts is not None:
        yield from (Text(), *experts_view(ledger, layer))
    if shown.roofline:
        yield from (Text(), *chart(picture(ledger), min(shown.width, 112)))
    broken = (Text(f"impossible: {line}", style="bold red") for line in ledger.impossible())
    yield from _wrapped(broken, shown.width)


def _wrapped(sentences: Iterable[Text], width: int) -> Iterator[Text]:
    """Sentences broken between words, what follows the first line set in."""
    console = Console(width=width)
    for sentence in sentences:
        for index, line in enumerate(sentence.wrap(console, width - 2)):
            line.rstrip()
            yield Text("  ") + line if index else line


def _text(ledger: Ledger) -> Iterator[Text]:
    """From the text to ids, and the machine."""
    tokens = " ".join(show_piece(token) for token in ledger.prompt[:_TOKENS_SHOWN])
    ids = " ".join(str(token.id) for token in ledger.prompt[:_TOKENS_SHOWN])
    more = f" ... {len(ledger.prompt) - _TOKENS_SHOWN} more" if len(ledger.prompt) > _TOKENS_SHOWN else ""
    yield Text.assemble((f"{'text':8}", "bold"), repr(ledger.text))
    yield Text.assemble((f"{'tokens':8}", "bold"), f"{tokens}{more}  ({len(ledger.prompt)})")
    yield Text.assemble((f"{'ids':8}", "bold"), f"{ids}{more}")
    device = ledger.device
    state = "calibrated" if device.calibrated else "not calibrated: expected times are rough"
    where = "" if ledger.at_hand else "; measured on the machine at hand, which is another: compare with care"
    threads = f"{ledger.threads} thread{'s' if ledger.threads > 1 else ''}"
    yield Text.assemble((f"{'device':8}", "bold"), f"{device.title} ({state}), {threads}{where}")


def _about(ledger: Ledger, step: Step) -> Iterator[Text]:
    """How a step was measured, what it cannot beat, what is slowest, and what its score matrix would cost."""
    whole = ledger.whole(step.name)
    held = f"{figures.say(step.working_set, 'B')} of weights and KV in {step.place}"
    parts = [f"floor {figures.say_seconds(step.floor)}, {held}"]
    if whole and step.unhooked:
        left = f", {step.left_out} more interrupted by other processes" if step.left_out else ""
        parts.append(f"medians of {step.repeats} repeat{'s' if step.repeats > 1 else ''}{left}")
        parts.append(f"without hooks {figures.say_seconds(step.unhooked)} ({step.unhooked / whole - 1:+.1%})")
        if step.interruptions > BUSY * whole:
            lost = figures.say_seconds(step.interruptions)
            parts.append(
                f"the machine is busy: other processes held up every repeat, by {lost} at the median, which the table "
                "leaves out and the step without hooks may not"
            )
        if any(one.seconds < 0 for one in step.overheads) or abs(step.unhooked / whole - 1) > DOUBT:
            parts.append("parts and whole do not agree: do not trust these figures, and trace again on a quiet machine")
    yield Text.assemble((f"{step.name}: ", "bold"), "; ".join(parts))
    reason = slowest(ledger, step.name)
    if reason:
        yield Text(reason)
    matrix = step.score_matrix
    if matrix is not None:
        yield Text(
            f"attention in {step.name}, bound: {figures.say_seconds(matrix.bound)} with its scores kept out of memory, "
            f"{figures.say_seconds(matrix.with_matrix)} with them in it ({figures.say(matrix.nbytes, 'B')} more)"
        )


def _choices(ledger: Ledger) -> Iterator[Text]:
    """The candidates of each step, side by side."""
    columns = [_choice(name, choice) for name, choice in ledger.choices.items()]
    for index in range(max(map(len, columns))):
        text = Text()
        for column in columns:
            cell, style = column[index] if index < len(column) else ("", "")
            text.append(f"{cell:56}", style)
        text.rstrip()
        yield text
    yield Text.assemble(("answer  ", "bold"), repr(ledger.answer))


def _choice(name: str, choice: Choice) -> list[tuple[str, str]]:
    how = "greedy" if choice.greedy else "drawn"
    shares = "  model" if choice.greedy else "  model  drawn"
    lines = [(f"{f'candidates after {name} ({how})':32}{shares}", "dim")]
    listed = list(choice.candidates)
    if choice.taken.token.id not in [candidate.token.id for candidate in listed]:
        listed.append(choice.taken)
    for candidate in listed:
        taken = candidate.token.id == choice.taken.token.id
        drawn = "" if choice.greedy else "   cut " if candidate.drawn is None else f" {candidate.drawn:6.1%}"
        mark = "->" if taken else "  "
        line = f"{mark} {show_piece(candidate.token, 20):21}{candidate.token.id:>8} {candidate.raw:6.1%}{drawn}"
        lines.append((line, "bold" if taken else ""))
    return lines


def _timeline(ledger: Ledger) -> Iterator[Text]:
    """The request's own time, step by step, to scale."""
    whole = ledger.timeline
    heads = ("schedule", "forward", "sample", "detokenise")
    names = "".join(f"{head:>11}" for head in heads)
    in_all = f"{figures.say_seconds(whole.seconds)} in all, as it ran"
    yield Text(f"{'request':11}{'seconds':>9}{names}   {in_all}", style="dim")
    for part in whole.parts[:_STEPS_SHOWN]:
        seconds = {inner.name: inner.seconds for inner in part.parts}
        cells = "".join(f"{figures.seconds(seconds[h], 3) if h in seconds else '':>11}" for h in heads)
        yield Text(f"{part.name:11}{figures.seconds(part.seconds, 3):>9}{cells}   {_bar(part, whole)}")
    hidden = whole.parts[_STEPS_SHOWN:]
    if hidden:
        yield Text(f"{len(hidden)} more    {figures.seconds(sum(part.seconds for part in hidden), 3):>9}", style="dim")


def _bar(part: Slice, whole: Slice) -> str:
    return heat.bar(part.start / whole.seconds, part.end / whole.seconds, _BAR)
