"""Log-mel features against transformers' extractor, on random signals and on speech."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import WhisperFeatureExtractor

from ridgeline.media.audio.audio_recording import AudioRecording
from ridgeline.media.audio.mel import HOP, RATE, LogMel, mel_filters

TOLERANCE = 1e-4  # of features that lie between -1 and 1.5
SPEECH = Path(os.environ.get("RIDGELINE_DATA", ""), "tokenizers", "whisper", "jfk.flac")
STRETCH = 30 * RATE


def signals() -> dict[str, np.ndarray]:
    """Random ones, of odd lengths."""
    rng = np.random.default_rng(3)
    time = np.arange(7 * RATE + 13) / RATE
    sweep = np.sin(2 * np.pi * (50 * time + 500 * time**2))
    return {
        "noise": rng.standard_normal(STRETCH).astype(np.float32) * 0.3,
        "faint": rng.standard_normal(5 * RATE + 77).astype(np.float32) * 1e-4,
        "sweep": (0.8 * sweep).astype(np.float32),
        "click": np.eye(1, 3 * RATE, 4321, dtype=np.float32)[0],
        "silence": np.zeros(RATE, np.float32),
        "one sample": np.ones(1, np.float32),
        "nothing": np.zeros(0, np.float32),
    }


def check(samples: np.ndarray, bins: int) -> None:
    """Assert that features are transformers'."""
    extractor = WhisperFeatureExtractor(feature_size=bins)
    padded = np.pad(samples, (0, STRETCH - len(samples)))  # it takes no empty signal
    theirs = extractor(padded, sampling_rate=RATE, return_tensors="pt").input_features[0].T
    ours = LogMel(bins, STRETCH // HOP)(torch.from_numpy(samples))
    assert ours.shape == theirs.shape == (3000, bins)
    assert float((ours - theirs).abs().max()) <= TOLERANCE


@pytest.mark.parametrize("bins", [80, 128])
@pytest.mark.parametrize("name", signals())
def test_features_of_random_signals(name: str, bins: int) -> None:
    """Loud, faint, short, and none at all."""
    check(signals()[name], bins)


@pytest.mark.parametrize("bins", [80, 128])
def test_features_of_speech(bins: int) -> None:
    """Eleven seconds of a voice."""
    if not SPEECH.is_file():
        pytest.skip("RIDGELINE_DATA is not set")
    with AudioRecording(SPEECH) as recording:
        samples = recording.window(0, STRETCH)
    assert len(samples) == 11 * RATE
    check(samples, bins)


@pytest.mark.parametrize("bins", [80, 128])
def test_filters(bins: int) -> None:
    """The triangles themselves, against those that Whisper was trained with as transformers computes them."""
    theirs = torch.from_numpy(WhisperFeatureExtractor(feature_size=bins).mel_filters).float()
    assert torch.allclose(mel_filters(bins), theirs, rtol=0, atol=1e-7)


def test_a_shorter_stretch_is_the_beginning_of_a_longer_one() -> None:
    """A model with a smaller window sees the same frames, but for the last, whose window looks past the end."""
    samples = torch.from_numpy(signals()["noise"])[: 40 * HOP]
    short, long = LogMel(80, 40)(samples), LogMel(80, 60)(torch.nn.functional.pad(samples, (0, 20 * HOP)))
    assert torch.allclose(short[:38], long[:38], atol=1e-5)
