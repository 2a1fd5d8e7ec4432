"""The image panels of a diffusion trace: the effect of guidance, and the attention of patches to words."""

from collections.abc import Iterator

from torch import Tensor

from ridgeline.insight.trace.guidance_delta import GuidanceDelta
from ridgeline.insight.trace.image_trace import ImageLedger
from ridgeline.insight.trace.word_attention import WordAttention
from ridgeline.util.document import humanize
from ridgeline.util.document.panels import Band, Lines, Panel, Panels


def draw_panels(ledger: ImageLedger) -> Panels | None:
    """Return a figure with the trace's image panels (guidance, word attention), or None without any."""
    bands = tuple(_bands(ledger))
    if not bands:
        return None
    plan = ledger.plan
    where = f"step {ledger.number} of {plan.schedule.steps}, seed {plan.seed}"
    return Panels(f"{ledger.denoise.model}: {plan.request.prompt!r}, {where}", bands)


def _bands(ledger: ImageLedger) -> Iterator[Band]:
    if ledger.guidance_delta is not None:
        yield _pull(ledger.guidance_delta, ledger.plan.guidance.scale)
    if ledger.words is not None:
        yield _words(ledger.words)


def _pull(pull: GuidanceDelta, scale: float) -> Band:
    largest = max(map(max, pull.norms))
    return Band(
        "Effect of guidance",
        (
            Panel("prompt minus negative prompt, norm over channels", _scaled(pull.norms, largest)),
            Panel("prediction with the prompt", _grey(pull.prompt), light=True),
            Panel("prediction with the negative prompt", _grey(pull.negative), light=True),
            Panel(f"prediction with guidance, w = {scale:g}", _grey(pull.guided), light=True),
        ),
        f"The two passes of this step differ by {humanize.percent(pull.relative)} of the negative pass's norm; the "
        f"darkest point is {largest:.3g} per latent. A prediction is the decoded image that would result if this step "
        "were exact. Colours are shown as greys, frames of a video as a sheet.",
    )


def _words(seen: WordAttention) -> Band:
    panels = tuple(
        Panel(f"{word.text}: {_share(word.mean)}, maximum {_share(max(map(max, word.weights)))}", _scaled(word.weights))
        for word in seen.words
    )
    of = f"mean of {seen.layers} layers" if seen.layer is None else f"layer {seen.layer}"
    shown = sum(word.mean for word in seen.words)
    apart = f", {_share(seen.patches)} to patches" if seen.patches else ""
    return Band(
        "Attention of the image's patches to each word",
        panels,
        f"Share of each patch's attention in the pass over the prompt, {of}, mean of heads; each panel from 0 to its "
        f"own largest. On average {_share(shown)} went to these words, {_share(seen.template)} to the rest of the text "
        f"(chat template, end marks, spaces){apart}, {_share(seen.padding)} to padding. The text encoder has mixed the "
        "words before, so a share shows which word a patch attends to, not what it reads there.",
    )


def _share(value: float) -> str:
    return f"{value:.1%}"


def _scaled(values: Lines, largest: float | None = None) -> Lines:
    """Return values scaled to the range 0 to 1."""
    most = largest or max(map(max, values)) or 1.0
    return tuple(tuple(value / most for value in line) for line in values)


def _grey(pixels_CHW: Tensor) -> Lines:
    """Return pixels from -1 to 1 as brightness from 0 to 1, averaged over channels."""
    grey_HW = (pixels_CHW.mean(0) / 2 + 0.5).clamp(0, 1)
    return tuple(tuple(line) for line in grey_HW.tolist())
