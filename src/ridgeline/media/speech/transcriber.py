"""The transcriber: it processes a recording window by window, each as a request to the engine.

A window begins at the last pair of timestamps in the window before it, or at the end of that window if it has no pair
or its text ends with a single timestamp (`read_window`). Windows are independent: they do not receive the previous
window's text, and there is no fallback to a higher temperature. A window is silent and is skipped if no sample exceeds
one step of 16-bit audio. Several recordings, or callers, can share one engine.
"""

import asyncio
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Self

import numpy as np
import torch

from ridgeline.core.models.families.whisper import FRAMES, SECONDS_PER_ROW
from ridgeline.core.text import Tokenizer
from ridgeline.engine import AsyncLLM, Completion, SamplingParams
from ridgeline.engine.encoder_features import EncoderFeatures
from ridgeline.media.audio.audio_recording import AudioRecording, Samples
from ridgeline.media.audio.mel import HOP, RATE, LogMel
from ridgeline.media.speech.speech_vocabulary import SpeechVocabulary, Task

Generate = Callable[[list[int], SamplingParams, EncoderFeatures], Awaitable[Completion]]
"""A function that has an engine complete a prompt with encoder features."""

_SILENT: Final = 2.0**-15


@dataclass(frozen=True, slots=True)
class WindowSegment:
    """A segment of the transcript of one audio window."""

    start: float
    """The start in seconds from the beginning of the window."""
    end: float
    """The end in seconds from the beginning of the window."""
    tokens: tuple[int, ...]
    """The tokens of the segment, including its timestamps."""


def read_window(tokens: Sequence[int], first: int, seconds: float) -> tuple[list[WindowSegment], float]:
    """Return the segments of an audio window, and the seconds from its start after which the next window begins.

    Two consecutive timestamps separate two segments. The text after the last such pair was cut off by the end of the
    window and is transcribed again in the next one. A text that ends with a single timestamp has nothing after it. The
    rules are those of the release (Radford et al., arXiv:2212.04356, `transcribe.py`).

    Args:
        tokens: Generated tokens, without the opening and the end token.
        first: Id of the timestamp 0.
        seconds: Duration of the window.
    """
    moment = [token >= first for token in tokens]
    cuts = [place + 1 for place, pair in enumerate(pairwise(moment)) if all(pair)]
    closed = moment[-2:] == [False, True]
    if not cuts:
        times = [token for token in tokens if token >= first]
        end = (times[-1] - first) * SECONDS_PER_ROW if times and times[-1] != first else seconds
        return ([WindowSegment(0.0, min(end, seconds), tuple(tokens))] if tokens else []), seconds
    if closed:
        cuts.append(len(tokens))
    parts = [tuple(tokens[start:stop]) for start, stop in pairwise([0, *cuts])]
    segments = [
        WindowSegment(
            min((part[0] - first) * SECONDS_PER_ROW, seconds), min((part[-1] - first) * SECONDS_PER_ROW, seconds), part
        )
        for part in parts
    ]
    done = seconds if closed else segments[-1].end
    return segments, done if done > 0 else seconds


@dataclass(frozen=True, slots=True)
class TranscriptionOptions:
    """The options of a transcription: language, task, timestamps and temperature."""

    language: str | None = None
    """The language code; None lets the model choose, once per recording."""
    task: Task = "transcribe"
    """The task: transcribe, or translate to English."""
    timestamps: bool = True
    """Whether segments have their own timestamps.

    Without them each segment is a window, the next window begins at its end, and speech across that boundary is cut.
    """
    temperature: float = 0.0
    """The sampling temperature; 0 takes the most likely token."""


@dataclass(frozen=True, slots=True)
class TranscriptSegment:
    """A segment of a recording's transcript, with its times and tokens."""

    start: float
    """The start of the segment, in seconds from the beginning of the recording."""
    end: float
    """The end of the segment, in seconds from the beginning of the recording."""
    text: str
    """The text of the transcript segment."""
    tokens: tuple[int, ...]
    """The tokens of the segment, including its timestamps."""
    avg_logprob: float
    """The mean natural log-probability of the tokens of the segment's window."""
    seek: float
    """The second of the recording at which the segment's window began."""

    @property
    def compression(self) -> float:
        """The ratio of the text's bytes to their zlib-compressed size; repetitive text is above 2.4."""
        data = self.text.encode()
        return len(data) / len(zlib.compress(data))


@dataclass(frozen=True, slots=True)
class TranscribedWindow:
    """The transcript of one audio window."""

    segments: tuple[TranscriptSegment, ...]
    """The transcript segments of the window."""
    done: float
    """The seconds of the recording that are transcribed so far."""
    language: str | None
    """The language code; None until the first speech if the options state no language."""


@dataclass(slots=True)
class Transcript:
    """The transcript of a whole recording: its segments, language and duration."""

    segments: list[TranscriptSegment] = field(default_factory=list)
    """The transcript segments of all windows."""
    language: str | None = None
    """The language code; None if there was no speech and the options state no language."""
    seconds: float = 0.0
    """The duration of the recording."""

    def take(self, window: TranscribedWindow) -> None:
        """Append the segments of the next window, and update the language and the duration."""
        self.segments += window.segments
        self.language, self.seconds = window.language, window.done

    @property
    def text(self) -> str:
        """The text of all transcript segments."""
        return "".join(segment.text for segment in self.segments).strip()


class Transcriber:
    """A speech model in an engine, which can transcribe several recordings at the same time."""

    def __init__(self, generate: Generate, tokenizer: Tokenizer, vocabulary: SpeechVocabulary) -> None:
        self.generate, self.tokenizer, self.vocabulary = generate, tokenizer, vocabulary
        self._mel = LogMel(vocabulary.bins, vocabulary.frames)

    @classmethod
    def of(cls, llm: AsyncLLM, vocabulary: SpeechVocabulary) -> Self:
        """Return a transcriber that uses a given engine."""

        async def generate(prompt: list[int], params: SamplingParams, features: EncoderFeatures) -> Completion:
            return await llm.generate(prompt, params, encoder=features)

        return cls(generate, llm.texts.tokenizer, vocabulary)

    async def windows(
        self, recording: AudioRecording, options: TranscriptionOptions
    ) -> AsyncGenerator[TranscribedWindow, None]:
        """Transcribe a recording and yield the result of each window.

        Raises:
            ValueError: If the model does not support the language or the task, the recording has no samples or is
                damaged, or a request fails.
        """
        self.vocabulary.check(options.language, options.task)
        start, language = 0, options.language
        while len(samples := await asyncio.to_thread(recording.window, start, self._mel.samples)):
            seconds, begins = len(samples) / RATE, start / RATE
            segments, done = list[TranscriptSegment](), seconds
            if float(np.abs(samples).max()) > _SILENT:
                segments, done, language = await self._transcribe_window(samples, start, language, options)
            start += max(HOP, round(done * RATE))
            yield TranscribedWindow(tuple(segments), min(start / RATE, begins + seconds), language)
        if start == 0:
            raise ValueError(f"{recording.name} has no audio: it has no samples")

    async def transcribe(self, recording: AudioRecording, options: TranscriptionOptions) -> Transcript:
        """Transcribe a whole recording; for errors see `windows`."""
        transcript = Transcript()
        async for window in self.windows(recording, options):
            transcript.take(window)
        return transcript

    async def _transcribe_window(
        self, samples: Samples, start: int, language: str | None, options: TranscriptionOptions
    ) -> tuple[list[TranscriptSegment], float, str | None]:
        """Transcribe one audio window.

        Returns:
            The segments, the seconds from the window's start after which the next window begins, and the language.
        """
        vocabulary = self.vocabulary
        features = await asyncio.to_thread(self.features, samples, start)
        prompt, rules = vocabulary.prompt(language, options.task, timestamps=options.timestamps)
        params = SamplingParams(
            temperature=options.temperature, max_tokens=vocabulary.context // 2, logprobs=0, rules=rules
        )
        completion = await self.generate(prompt, params, features)
        tokens, logprob = _sampled(completion, vocabulary.end)
        if len(rules.opening) > len(tokens):
            return [], len(samples) / RATE, language
        if rules.opening:
            language = vocabulary.language_of(tokens[0])
        first, seconds = vocabulary.no_timestamps + 1, len(samples) / RATE
        window_segments, done = read_window(tokens[len(rules.opening) :], first, seconds)
        segments = [self._segment(part, start / RATE, logprob) for part in window_segments]
        known = language or ("en" if not vocabulary.languages else None)
        return [segment for segment in segments if segment.text.strip()], done, known

    def features(self, samples: Samples, start: int) -> EncoderFeatures:
        """Return a window's features as the encoder reads them, two frames per position."""
        values_FM = self._mel(torch.from_numpy(samples)).numpy()
        return EncoderFeatures.of(values_FM.reshape(-1, FRAMES * self._mel.bins))

    def _segment(self, segment: WindowSegment, begins: float, logprob: float) -> TranscriptSegment:
        text = self.tokenizer.decode(token for token in segment.tokens if token < self.vocabulary.end)
        return TranscriptSegment(begins + segment.start, begins + segment.end, text, segment.tokens, logprob, begins)


def _sampled(completion: Completion, end: int) -> tuple[list[int], float]:
    """Return the tokens of a window without the end token, and their mean log-probability.

    Raises:
        ValueError: If the request failed.
    """
    (choice,) = completion.choices
    if choice.error is not None:
        raise ValueError(f"the request failed: {choice.error}")
    logprobs = [sampled.logprob for sampled in choice.tokens if sampled.logprob is not None]
    mean = sum(logprobs) / len(logprobs) if logprobs else 0.0
    return [sampled.token for sampled in choice.tokens if sampled.token != end], mean
