"""Tokens of a window become segments with times, as transformers has it."""

import random

import pytest
import torch
from transformers.models.whisper.generation_whisper import WhisperGenerationMixin

from ridgeline.media.speech.transcriber import read_window

FIRST = 60


def theirs(tokens: list[int], seconds: float) -> tuple[list[tuple[float, float, list[int]]], float]:
    """Segments and the seconds that are done with, by transformers."""
    frames = round(seconds * 100)
    segments, offset = WhisperGenerationMixin._retrieve_segment(
        seek_sequence=torch.tensor(tokens),
        seek_outputs=[{"sequences": torch.tensor(tokens)}],
        time_offset=torch.zeros(1, dtype=torch.float64),
        timestamp_begin=FIRST,
        seek_num_frames=torch.tensor([frames]),
        time_precision=0.02,
        time_precision_features=0.01,
        input_stride=2,
        prev_idx=0,
        idx=0,
        return_token_timestamps=False,
        decoder_input_ids=torch.zeros(1, 0, dtype=torch.long),
    )
    told = [
        (float(each["start"]), float(each["end"]), without_next(each["tokens"].tolist(), FIRST)) for each in segments
    ]
    return told, int(offset) / 100


def without_next(tokens: list[int], first: int) -> list[int]:
    """A segment without the moment at which the next one begins: transformers leaves it at the last that is whole."""
    return tokens[:-1] if len(tokens) > 1 and min(tokens[-2:]) >= first else tokens


def spoken(rng: random.Random, seconds: float) -> list[int]:
    """Tokens as the rules allow them: moments in pairs that never go back, cut off anywhere."""
    tokens, moment, last = list[int](), 0, round(seconds / 0.02)
    while moment < last and len(tokens) < 30:
        moment = rng.randint(moment, last)
        tokens += [FIRST + moment, *(rng.randrange(FIRST) for _ in range(rng.randint(1, 4)))]
        if rng.random() < 0.15 or moment == last:
            break
        moment = rng.randint(moment + 1, last)
        tokens.append(FIRST + moment)
        if rng.random() < 0.2:
            break
    return tokens


@pytest.mark.parametrize("seconds", [30.0, 4.0])
def test_random_windows(seconds: float) -> None:
    """Of 500: segments, times, tokens, and where the next window begins."""
    rng, kinds = random.Random(5), set()
    for _ in range(500):
        tokens = spoken(rng, seconds)
        said, done = read_window(tokens, FIRST, seconds)
        expected, offset = theirs(tokens, seconds)
        assert [list(each.tokens) for each in said] == [own for _, _, own in expected]
        for ours, (start, end, _) in zip(said, expected, strict=True):
            assert (ours.start, ours.end) == pytest.approx((start, end), abs=1e-4)
        assert done == pytest.approx(offset, abs=1e-4)
        kinds.add((len(said) > 1, done < seconds))
    assert len(kinds) >= 3


def test_a_window_that_says_nothing() -> None:
    """No tokens, no segments; all of it is done with."""
    assert read_window([], FIRST, 12.5) == ([], 12.5)


def test_moments_past_the_sound() -> None:
    """A window that is cut short by the end of the file may be told of as if it were whole."""
    said, done = read_window([FIRST, 5, FIRST + 200], FIRST, 2.5)
    assert [(each.start, each.end) for each in said] == [(0.0, 2.5)]
    assert done == 2.5
