"""From the tokens of a window to segments with times, and how far the window has been heard."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ridgeline.models.families.whisper import MOMENT


@dataclass(frozen=True, slots=True)
class Said:
    """A part of a window's text. start, end: seconds from its beginning. tokens: its moments included."""

    start: float
    end: float
    tokens: tuple[int, ...]


def read_window(tokens: Sequence[int], first: int, seconds: float) -> tuple[list[Said], float]:
    """What was said in a window of so many seconds, and how many of them are done with: the next window begins there.

    tokens: without the opening and the end. first: the id of the moment 0. Two moments in a row part two segments; what
    follows the last such pair was cut off by the window's end and is heard again. A text that ends with one moment has
    nothing after it. The rules are those of the release (Radford et al., arXiv:2212.04356, `transcribe.py`).
    """
    moment = [token >= first for token in tokens]
    cuts = [place + 1 for place, pair in enumerate(pairwise(moment)) if all(pair)]
    closed = moment[-2:] == [False, True]
    if not cuts:
        times = [token for token in tokens if token >= first]
        end = (times[-1] - first) * MOMENT if times and times[-1] != first else seconds
        return ([Said(0.0, min(end, seconds), tuple(tokens))] if tokens else []), seconds
    if closed:
        cuts.append(len(tokens))
    parts = [tuple(tokens[start:stop]) for start, stop in pairwise([0, *cuts])]
    said = [
        Said(min((part[0] - first) * MOMENT, seconds), min((part[-1] - first) * MOMENT, seconds), part)
        for part in parts
    ]
    done = seconds if closed else said[-1].end
    return said, done if done > 0 else seconds
