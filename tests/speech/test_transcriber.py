"""Windows over recordings: the same segments as transformers' generate, languages, silence, several side by side."""

import asyncio
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch
from torch import Tensor
from transformers import WhisperForConditionalGeneration

from ridgeline.core.checkpoint import open_source
from ridgeline.core.checkpoint.source_tokenizer import tokenizer_of
from ridgeline.core.models import ModelRefused
from ridgeline.engine import AsyncLLM
from ridgeline.engine.encoder_features import EncoderFeatures
from ridgeline.engine.events import StepRecord
from ridgeline.engine.setup import LoadedEngine, load_engine
from ridgeline.media.audio.audio_recording import AudioRecording, Samples
from ridgeline.media.audio.mel import HOP, RATE, LogMel
from ridgeline.media.speech.speech_vocabulary import SpeechVocabulary, speech_vocabulary
from ridgeline.media.speech.transcriber import TranscribedWindow, Transcriber, Transcript, TranscriptionOptions
from speech.folders import (
    END,
    FIRST,
    GENERATION,
    LANGUAGES,
    POSITIONS,
    START,
    TRANSCRIBE,
    TRANSLATE,
    sound,
    write_speech_model,
)
from speech.test_segments import without_next
from support.checkpoints import edit_config

SECOND = 100  # frames: a window of the model


class Whole(Transcriber):
    """Takes its features from those of a whole recording, as transformers does, which looks at all of it at once."""

    frames_FM: Tensor

    def features(self, samples: Samples, start: int) -> EncoderFeatures:
        """As Transcriber.features."""
        assert start % HOP == 0
        window = self.frames_FM[start // HOP : start // HOP + SECOND]
        padded = torch.nn.functional.pad(window, (0, 0, 0, SECOND - len(window)))
        return EncoderFeatures.of(padded.reshape(POSITIONS, -1).numpy())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("speech")


@pytest.fixture(scope="module")
def theirs(folder: Path) -> WhisperForConditionalGeneration:
    return write_speech_model(folder)


@pytest.fixture(scope="module")
def steps() -> list[StepRecord]:
    return []


@pytest.fixture(scope="module")
def loaded(theirs: WhisperForConditionalGeneration, folder: Path, steps: list[StepRecord]) -> LoadedEngine:
    return load_engine(str(folder), on_step=steps.append)


@pytest.fixture
def vocabulary(loaded: LoadedEngine, folder: Path) -> SpeechVocabulary:
    return SpeechVocabulary.read(open_source(str(folder)), loaded.tokenizer)


def recorded(samples: Tensor, rate: int = RATE) -> AudioRecording:
    """As a file of floats in memory."""
    file = io.BytesIO()
    soundfile.write(file, samples.numpy(), rate, format="WAV", subtype="FLOAT")
    file.seek(0)
    return AudioRecording(file, "sound.wav")


def run(
    loaded: LoadedEngine, vocabulary: SpeechVocabulary, sounds: Sequence[Tensor], options: TranscriptionOptions
) -> list[Transcript]:
    """What is heard in each, side by side."""

    async def all_of_them() -> list[Transcript]:
        async with AsyncLLM(loaded) as llm:
            transcriber = Transcriber.of(llm, vocabulary)
            return list(await asyncio.gather(*(transcriber.transcribe(recorded(each), options) for each in sounds)))

    return asyncio.run(all_of_them())


@pytest.mark.parametrize("task", ["transcribe", "translate"])
@pytest.mark.parametrize("seconds", [1.0, 2.0, 4.31])
def test_segments_are_transformers(
    task: Any,
    seconds: float,
    loaded: LoadedEngine,
    theirs: WhisperForConditionalGeneration,
    vocabulary: SpeechVocabulary,
) -> None:
    """Tokens and times of every segment of recordings of one window and of several: greedy, with rules and seek,
    over the features of the whole, which transformers makes at once. What is past the end, it does not cut."""
    samples = sound(seconds, seed=int(seconds * 100))
    frames_FM = LogMel(80, len(samples) // HOP)(samples)
    asked = theirs.generate(
        frames_FM.T[None], language="fr", task=task, return_timestamps=True, return_segments=True, max_new_tokens=20,
        condition_on_prev_tokens=False, return_dict_in_generate=True,
        attention_mask=torch.ones(1, len(frames_FM), dtype=torch.long),
    )  # fmt: skip

    async def ours() -> Transcript:
        async with AsyncLLM(loaded) as llm:
            transcriber = Whole.of(llm, replace(vocabulary, context=40))
            transcriber.frames_FM = frames_FM
            transcript = Transcript()
            async for window in transcriber.windows(recorded(samples), TranscriptionOptions("fr", task)):
                transcript.take(window)
            return transcript

    segments = asyncio.run(ours()).segments
    expected = [each for each in asked["segments"][0] if each["tokens"].numel()]
    assert [list(each.tokens) for each in segments] == [
        without_next([token for token in each["tokens"].tolist() if token != END], FIRST) for each in expected
    ]
    for mine, other in zip(segments, expected, strict=True):
        start, end = (min(float(other[name]), seconds) for name in ("start", "end"))
        assert (mine.start, mine.end) == pytest.approx((start, end), abs=0.011)
    assert len(segments) >= min(2, int(seconds))


def test_the_language_that_is_heard(
    loaded: LoadedEngine, theirs: WhisperForConditionalGeneration, vocabulary: SpeechVocabulary
) -> None:
    """The model's likeliest of its languages' tokens, as transformers detects it; laid down for the windows after."""
    sounds = [sound(0.9, seed) for seed in range(6)]
    found = run(loaded, vocabulary, sounds, TranscriptionOptions())
    codes = {token: literal[2:-2] for literal, token in LANGUAGES.items()}
    mel = LogMel(80, SECOND)
    detected = [codes[int(theirs.detect_language(mel(each).T[None])[0])] for each in sounds]
    assert [each.language for each in found] == detected
    long = run(loaded, vocabulary, [torch.cat([sounds[0], sounds[1], sounds[2]])], TranscriptionOptions())[0]
    assert long.language == detected[0]


def said(transcript: Transcript) -> list[tuple[float, float, tuple[int, ...]]]:
    """All but how likely it was, which rounding decides."""
    return [(each.start, each.end, each.tokens) for each in transcript.segments]


def test_recordings_side_by_side_are_what_each_is_alone(
    loaded: LoadedEngine, vocabulary: SpeechVocabulary, steps: list[StepRecord]
) -> None:
    """And windows of several run in one step."""
    sounds = [sound(2.5 + seed / 3, seed) for seed in range(4)]
    alone = [run(loaded, vocabulary, [each], TranscriptionOptions())[0] for each in sounds]
    steps.clear()
    together = run(loaded, vocabulary, sounds, TranscriptionOptions())
    assert [said(each) for each in together] == [said(each) for each in alone]
    assert max(len(step.plan.items) for step in steps) >= 3


def test_an_engine_in_a_process(folder: Path, loaded: LoadedEngine, vocabulary: SpeechVocabulary) -> None:
    """As `ridgeline serve` has it: features and rules cross to it."""

    async def heard() -> Transcript:
        async with await AsyncLLM.start(str(folder), threads=1) as llm:
            return await Transcriber.of(llm, vocabulary).transcribe(recorded(sound(1.7)), TranscriptionOptions())

    assert said(asyncio.run(heard())) == said(run(loaded, vocabulary, [sound(1.7)], TranscriptionOptions())[0])


def test_without_timestamps(loaded: LoadedEngine, vocabulary: SpeechVocabulary) -> None:
    """A segment a window, each begins where the last one ends; no token is a moment."""
    (found,) = run(loaded, vocabulary, [sound(2.4)], TranscriptionOptions("en", timestamps=False))
    assert all(token < FIRST for segment in found.segments for token in segment.tokens)
    assert [each.start for each in found.segments] == [0, 1, 2]
    assert [each.end for each in found.segments] == pytest.approx([1, 2, 2.4])
    assert found.seconds == pytest.approx(2.4)


@pytest.mark.parametrize("loud", [0.0, 2.0**-16])
def test_silence_says_nothing(loud: float, loaded: LoadedEngine, vocabulary: SpeechVocabulary) -> None:
    """Its windows are passed over, and what comes after them has its own times."""
    quiet = loud * torch.sin(torch.arange(3 * RATE) / 5)
    (nothing, later) = run(loaded, vocabulary, [quiet, torch.cat([quiet, sound(0.8)])], TranscriptionOptions("en"))
    assert (nothing.text, nothing.segments, nothing.seconds) == ("", [], pytest.approx(3.0))
    assert later.segments
    assert all(3.0 <= segment.start <= segment.end <= 3.8 for segment in later.segments)


def test_what_cannot_be_transcribed(loaded: LoadedEngine, vocabulary: SpeechVocabulary) -> None:
    """A recording without a sample, a language that the model does not know: one line."""
    with pytest.raises(ValueError, match=r"sound\.wav has no audio"):
        run(loaded, vocabulary, [torch.zeros(0)], TranscriptionOptions())
    with pytest.raises(ValueError, match="language is 'xx'; the model supports de, en, fr"):
        run(loaded, vocabulary, [sound(0.5)], TranscriptionOptions("xx"))


def test_a_long_recording_is_told_of_as_it_is_heard(loaded: LoadedEngine, vocabulary: SpeechVocabulary) -> None:
    """Window by window, to its end, with whatever the windows say."""

    async def all_windows() -> list[TranscribedWindow]:
        async with AsyncLLM(loaded) as llm:
            transcriber = Transcriber.of(llm, vocabulary)
            return [window async for window in transcriber.windows(recorded(sound(20.0)), TranscriptionOptions("en"))]

    windows = asyncio.run(all_windows())
    done = [window.done for window in windows]
    assert done == sorted(done)
    assert done[-1] == pytest.approx(20.0)
    assert len(windows) >= 20


# -- what the folder says ---------------------------------------------------------------------------------------------


def test_what_the_tokens_mean(vocabulary: SpeechVocabulary) -> None:
    """From generation_config.json."""
    assert (vocabulary.start, vocabulary.end, vocabulary.no_timestamps) == (START, END, FIRST - 1)
    assert vocabulary.languages == {"en": 258, "fr": 259, "de": 260}
    assert vocabulary.tasks == {"transcribe": TRANSCRIBE, "translate": TRANSLATE}
    assert vocabulary.suppressed == tuple(GENERATION["suppress_tokens"])
    assert (vocabulary.bins, vocabulary.frames, vocabulary.context) == (80, SECOND, 40)
    prompt, rules = vocabulary.prompt("fr", "translate", timestamps=False)
    assert (prompt, rules.opening, rules.timestamps) == ([START, 259, TRANSLATE, FIRST - 1], (), None)
    prompt, rules = vocabulary.prompt(None, "transcribe", timestamps=True)
    assert (prompt, rules.opening) == ([START], ((258, 259, 260), (TRANSCRIBE,)))


def test_without_a_generation_config(theirs: WhisperForConditionalGeneration, folder: Path, tmp_path: Path) -> None:
    """The literals of the tokenizer say as much, but for what is suppressed."""
    for file in folder.iterdir():
        if file.name != "generation_config.json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    edit_config(tmp_path, decoder_start_token_id=None, eos_token_id=None)
    stated, found = (speech_vocabulary(str(each), tokenizer_of(str(each))) for each in (folder, tmp_path))
    assert stated is not None
    assert found == replace(stated, suppressed=(), suppressed_first=(), max_initial_timestamp_index=None)


def test_tables_that_are_none_are_as_good_as_absent(vocabulary: SpeechVocabulary, folder: Path, tmp_path: Path) -> None:
    """A list in the place of an object: the literals say it."""
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    changes = {"task_to_id": ["transcribe"], "lang_to_id": [258]}
    (tmp_path / "generation_config.json").write_text(json.dumps(GENERATION | changes), encoding="utf-8")
    assert SpeechVocabulary.read(open_source(str(tmp_path)), tokenizer_of(str(tmp_path))) == vocabulary


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"no_timestamps_token_id": 99_999}, "notimestamps"),
        ({"suppress_tokens": [-3]}, "suppress_tokens is not a list of token ids"),
        ({"lang_to_id": {"english": 3}}, "none of its tokens is a language"),
        ({"task_to_id": {"transcribe": "x"}}, r"<\|transcribe\|> is not one of its tokens"),
    ],
)
def test_folders_that_make_no_sense(
    changes: dict[str, Any], reason: str, theirs: WhisperForConditionalGeneration, folder: Path, tmp_path: Path
) -> None:
    """Refused by name."""
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "generation_config.json").write_text(json.dumps(GENERATION | changes), encoding="utf-8")
    with pytest.raises(ModelRefused, match=reason):
        SpeechVocabulary.read(open_source(str(tmp_path)), tokenizer_of(str(tmp_path)))


def test_a_model_that_reads_no_sound() -> None:
    """Said so by name; whoever asks without need is told that there is no such vocabulary."""
    with pytest.raises(ModelRefused, match="tales is not a speech model"):
        SpeechVocabulary.read(open_source("tales"), tokenizer_of("tales"))
    assert speech_vocabulary("tales", tokenizer_of("tales")) is None
