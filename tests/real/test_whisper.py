"""Whisper tiny.en, converted from CTranslate2's form, against transformers: words, times and likelihoods of a speech.

The speech is eleven seconds of J. F. Kennedy's, from the folder of real data.
"""

import asyncio
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import soundfile
import torch
from tokenizers import Tokenizer
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

from real.ctranslate2 import convert
from real.packages import WHISPER
from ridgeline.core.models.families.whisper import FRAMES
from ridgeline.engine import AsyncLLM
from ridgeline.engine.encoder_features import EncoderFeatures
from ridgeline.engine.setup import LoadedEngine, load_engine
from ridgeline.media.audio.audio_recording import AudioRecording, Samples
from ridgeline.media.audio.mel import HOP, RATE
from ridgeline.media.speech.speech_vocabulary import SpeechVocabulary, speech_vocabulary
from ridgeline.media.speech.transcriber import Transcriber, Transcript, TranscriptionOptions, TranscriptSegment
from ridgeline.server.admission import RequestQueue
from ridgeline.server.lifecycle import build_service
from ridgeline.server.server_settings import ServerSettings
from server.conftest import running

pytestmark = pytest.mark.real

WORDS = "And so my fellow Americans ask not what your country can do for you ask what you can do for your country."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("whisper-tiny.en")


@pytest.fixture(scope="module")
def theirs(folder: Path) -> WhisperForConditionalGeneration:
    """The model that transformers reads from the folder, which is written first."""
    convert(WHISPER.find(), folder)
    model: WhisperForConditionalGeneration = WhisperForConditionalGeneration.from_pretrained(folder)
    return model.eval()


@pytest.fixture(scope="module")
def loaded(theirs: WhisperForConditionalGeneration, folder: Path) -> LoadedEngine:
    return load_engine(str(folder))


@pytest.fixture(scope="module")
def vocabulary(loaded: LoadedEngine, folder: Path) -> SpeechVocabulary:
    vocabulary = speech_vocabulary(str(folder), loaded.tokenizer)
    assert vocabulary is not None
    return vocabulary


@pytest.fixture(scope="module")
def speech_file(data_dir: Path) -> Path:
    return data_dir / "tokenizers/whisper/jfk.flac"


@pytest.fixture(scope="module")
def speech(speech_file: Path) -> Samples:
    """The samples at 16 kHz."""
    with AudioRecording(speech_file) as recording:
        return recording.window(0, 60 * RATE)


def silence(seconds: float) -> Samples:
    """Return the noise of a quiet room, 70 dB below full scale."""
    noise = np.random.default_rng(0).standard_normal(int(seconds * RATE))
    return (noise * 10 ** (-70 / 20)).astype(np.float32)


def wav(samples: Samples) -> io.BytesIO:
    file = io.BytesIO()
    soundfile.write(file, samples, RATE, format="WAV", subtype="FLOAT")
    file.seek(0)
    return file


def ours(
    loaded: LoadedEngine, vocabulary: SpeechVocabulary, sounds: Sequence[Samples], options: TranscriptionOptions
) -> list[Transcript]:
    """Return our transcripts of recordings side by side."""

    async def all_of_them() -> list[Transcript]:
        async with AsyncLLM(loaded) as llm:
            transcriber = Transcriber.of(llm, vocabulary)
            recordings = [AudioRecording(wav(samples), "speech.wav") for samples in sounds]
            return list(await asyncio.gather(*(transcriber.transcribe(each, options) for each in recordings)))

    return asyncio.run(all_of_them())


def features(folder: Path, samples: Samples) -> Any:
    """Return what transformers' model reads of a recording, at least a window long."""
    return WhisperFeatureExtractor.from_pretrained(folder)(
        samples, sampling_rate=RATE, return_tensors="pt", return_attention_mask=True, truncation=False,
        padding="longest" if len(samples) > 30 * RATE else "max_length",
    )  # fmt: skip


def heard(theirs: WhisperForConditionalGeneration, folder: Path, samples: Samples) -> list[dict[str, Any]]:
    """Return the segments of transformers' own loop."""
    with torch.inference_mode():
        found = theirs.generate(
            **features(folder, samples), return_timestamps=True, return_segments=True, condition_on_prev_tokens=False,
            return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
    segments: list[dict[str, Any]] = found["segments"][0]
    return segments


def text_of(folder: Path, segment: TranscriptSegment) -> str:
    """Return the text of a segment by the tokenizers library alone."""
    return str(Tokenizer.from_file(str(folder / "tokenizer.json")).decode([t for t in segment.tokens if t < 50256]))


def test_words_times_and_likelihoods(
    loaded: LoadedEngine,
    vocabulary: SpeechVocabulary,
    theirs: WhisperForConditionalGeneration,
    folder: Path,
    speech: Samples,
) -> None:
    (transcript,) = ours(loaded, vocabulary, [speech], TranscriptionOptions())
    assert (transcript.text, transcript.language) == (WORDS, "en")
    expected = heard(theirs, folder, speech)
    assert [list(each.tokens) for each in transcript.segments] == [each["tokens"].tolist() for each in expected]
    assert len(expected) == 2
    for mine, other in zip(transcript.segments, expected, strict=True):
        assert (mine.start, mine.end) == pytest.approx((float(other["start"]), float(other["end"])), abs=0.001)
        assert mine.text == text_of(folder, mine)
    scores_TV = torch.stack(list(expected[0]["result"]["scores"])).reshape(-1, theirs.config.vocab_size)
    sampled = [*(token for each in expected for token in each["tokens"].tolist()), vocabulary.end]
    logprobs_T = torch.log_softmax(scores_TV.double(), dim=1)[range(len(sampled)), sampled]
    for mine in transcript.segments:
        assert mine.avg_logprob == pytest.approx(float(logprobs_T.mean()), abs=1e-4)


def test_without_timestamps(
    loaded: LoadedEngine,
    vocabulary: SpeechVocabulary,
    theirs: WhisperForConditionalGeneration,
    folder: Path,
    speech: Samples,
) -> None:
    """The model writes another comma than with timestamps, as in transformers."""
    (transcript,) = ours(loaded, vocabulary, [speech], TranscriptionOptions(timestamps=False))
    inputs = features(folder, speech)
    with torch.inference_mode():
        expected = theirs.generate(**inputs, return_timestamps=False)[0].tolist()
    (segment,) = transcript.segments
    assert list(segment.tokens) == expected
    assert "for you, ask" in segment.text


class WholeFile(Transcriber):
    """A transcriber that takes its features from those of a whole recording, as transformers does.

    Both cut off what is 80 dB fainter than the loudest: of the recording there, of a window here.
    """

    frames_FM: torch.Tensor

    def features(self, samples: Samples, start: int) -> EncoderFeatures:
        """Return the frames of a window, followed by zeros."""
        frames = self.vocabulary.frames
        window_FM = self.frames_FM[start // HOP : start // HOP + frames]
        padded_FM = torch.nn.functional.pad(window_FM, (0, 0, 0, frames - len(window_FM)))
        return EncoderFeatures.of(padded_FM.reshape(-1, FRAMES * self.vocabulary.bins).numpy())


def test_a_recording_of_several_windows(
    loaded: LoadedEngine,
    vocabulary: SpeechVocabulary,
    theirs: WhisperForConditionalGeneration,
    folder: Path,
    speech: Samples,
) -> None:
    """The speech three times, aloud, softly and cut off, with pauses between: 42 seconds."""
    samples = np.concatenate([speech, silence(7), speech * 0.4, silence(5), speech[: 8 * RATE]])
    expected = heard(theirs, folder, samples)
    assert len(expected) >= 5

    async def with_their_features() -> Transcript:
        async with AsyncLLM(loaded) as llm:
            transcriber = WholeFile.of(llm, vocabulary)
            transcriber.frames_FM = features(folder, samples)["input_features"][0].T.contiguous()
            return await transcriber.transcribe(AudioRecording(wav(samples), "speech.wav"), TranscriptionOptions())

    transcript = asyncio.run(with_their_features())
    assert [list(each.tokens) for each in transcript.segments] == [each["tokens"].tolist() for each in expected]
    for mine, other in zip(transcript.segments, expected, strict=True):
        assert (mine.start, mine.end) == pytest.approx((float(other["start"]), float(other["end"])), abs=0.001)
    alone, *others = ours(loaded, vocabulary, [samples, speech, samples], TranscriptionOptions())
    assert [each.text for each in alone.segments] == [each.text for each in transcript.segments]
    for mine, other_segment in zip(alone.segments, transcript.segments, strict=True):
        assert (mine.start, mine.end) == pytest.approx((other_segment.start, other_segment.end), abs=0.1)
    assert others[0].text == WORDS
    assert others[1] == alone, "several side by side"


def test_the_server_writes_it_down(
    loaded: LoadedEngine, vocabulary: SpeechVocabulary, speech_file: Path, speech: Samples
) -> None:
    """The official client sends the file as it lies there, 44.1 kHz in stereo."""
    llm, settings = AsyncLLM(loaded), ServerSettings(models=("whisper",), upload_bytes=4 << 20)
    (expected,) = ours(loaded, vocabulary, [speech], TranscriptionOptions())
    service = build_service(llm, RequestQueue(llm.info, settings), settings)
    try:
        with (
            running(service, settings, speech=vocabulary) as up,
            openai.OpenAI(base_url=f"{up.url}/v1", api_key="none", max_retries=0) as client,
        ):
            found = client.audio.transcriptions.create(
                model="whisper", file=speech_file, response_format="verbose_json", language="en"
            )
    finally:
        llm.close()
    assert (found.text, found.language) == (WORDS, "en")
    assert found.segments is not None
    assert [(each.start, each.end, each.text) for each in found.segments] == [
        (each.start, each.end, each.text) for each in expected.segments
    ]
