"""The transcriber: walks over a recording window by window, each a request to the engine.

A window begins where the last one's timestamps say that it was understood up to. Windows stand alone: none is told
what the one before it said, and there is no second try at another temperature. One in which nothing is louder than a
step of 16 bits is silence, and is passed over. Several recordings, or callers, run side by side in one engine.
"""

import asyncio
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Self

import numpy as np
import torch

from ridgeline.core.models.families.whisper import FRAMES, MOMENT
from ridgeline.core.text import Tokenizer
from ridgeline.engine import AsyncLLM, Completion, SamplingParams
from ridgeline.engine.encoder_features import EncoderFeatures
from ridgeline.media.audio.audio_recording import AudioRecording, Samples
from ridgeline.media.audio.mel import HOP, RATE, LogMel
from ridgeline.media.speech.speech_vocabulary import SpeechVocabulary, Task

Generate = Callable[[list[int], SamplingParams, EncoderFeatures], Awaitable[Completion]]
"""Has an engine complete a prompt beside what its encoder reads."""

_SILENT: Final = 2.0**-15


@dataclass(frozen=True, slots=True)
class WindowSegment:
    """A part of a window's text. start, end: seconds from its beginning. tokens: its moments included."""

    start: float
    end: float
    tokens: tuple[int, ...]


def read_window(tokens: Sequence[int], first: int, seconds: float) -> tuple[list[WindowSegment], float]:
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
        return ([WindowSegment(0.0, min(end, seconds), tuple(tokens))] if tokens else []), seconds
    if closed:
        cuts.append(len(tokens))
    parts = [tuple(tokens[start:stop]) for start, stop in pairwise([0, *cuts])]
    said = [
        WindowSegment(min((part[0] - first) * MOMENT, seconds), min((part[-1] - first) * MOMENT, seconds), part)
        for part in parts
    ]
    done = seconds if closed else said[-1].end
    return said, done if done > 0 else seconds


@dataclass(frozen=True, slots=True)
class TranscriptionOptions:
    """What is asked for. language: a code; None has the model choose, once for a recording. timestamps: whether
    segments have times of their own; else each is a window, the next begins where it ends, and what is said across
    that is cut. temperature: 0 takes the likeliest token.
    """

    language: str | None = None
    task: Task = "transcribe"
    timestamps: bool = True
    temperature: float = 0.0


@dataclass(frozen=True, slots=True)
class TranscriptSegment:
    """start, end: seconds of the recording. logprob: mean natural log-probability of its tokens. seek: the second at
    which its window began.
    """

    start: float
    end: float
    text: str
    tokens: tuple[int, ...]
    logprob: float
    seek: float

    @property
    def compression(self) -> float:
        """Bytes of the text over those that zlib makes of it: what repeats itself is above 2.4."""
        data = self.text.encode()
        return len(data) / len(zlib.compress(data))


@dataclass(frozen=True, slots=True)
class TranscribedWindow:
    """What was heard of a window. done: seconds of the recording that are dealt with. language: its code, None while
    nothing was heard.
    """

    segments: tuple[TranscriptSegment, ...]
    done: float
    language: str | None


@dataclass(slots=True)
class Transcript:
    """A whole recording. seconds: how long it is."""

    segments: list[TranscriptSegment] = field(default_factory=list)
    language: str | None = None
    seconds: float = 0.0

    def take(self, window: TranscribedWindow) -> None:
        """Add what was heard of the next window."""
        self.segments += window.segments
        self.language, self.seconds = window.language, window.done

    @property
    def text(self) -> str:
        """All that was said."""
        return "".join(segment.text for segment in self.segments).strip()


class Transcriber:
    """A speech model in an engine. Recordings may be transcribed side by side."""

    def __init__(self, generate: Generate, tokenizer: Tokenizer, vocabulary: SpeechVocabulary) -> None:
        self.generate, self.tokenizer, self.vocabulary = generate, tokenizer, vocabulary
        self._mel = LogMel(vocabulary.bins, vocabulary.frames)

    @classmethod
    def of(cls, llm: AsyncLLM, vocabulary: SpeechVocabulary) -> Self:
        """Around an engine."""

        async def generate(prompt: list[int], params: SamplingParams, features: EncoderFeatures) -> Completion:
            return await llm.generate(prompt, params, encoder=features)

        return cls(generate, llm.texts.tokenizer, vocabulary)

    async def windows(
        self, recording: AudioRecording, options: TranscriptionOptions
    ) -> AsyncGenerator[TranscribedWindow, None]:
        """What is heard, window by window. Raises ValueError for a language that the model does not know, a recording
        without any sound in it or damaged, and a request that fails.
        """
        self.vocabulary.check(options.language, options.task)
        start, language = 0, options.language
        while len(samples := await asyncio.to_thread(recording.window, start, self._mel.samples)):
            seconds, begins = len(samples) / RATE, start / RATE
            said, done = list[TranscriptSegment](), seconds
            if float(np.abs(samples).max()) > _SILENT:
                said, done, language = await self._hear(samples, start, language, options)
            start += max(HOP, round(done * RATE))
            yield TranscribedWindow(tuple(said), min(start / RATE, begins + seconds), language)
        if start == 0:
            raise ValueError(f"{recording.name} holds no sound: it has no samples")

    async def transcribe(self, recording: AudioRecording, options: TranscriptionOptions) -> Transcript:
        """The whole, as `windows`."""
        transcript = Transcript()
        async for window in self.windows(recording, options):
            transcript.take(window)
        return transcript

    async def _hear(
        self, samples: Samples, start: int, language: str | None, options: TranscriptionOptions
    ) -> tuple[list[TranscriptSegment], float, str | None]:
        """The segments of a window, the seconds of it that are done with, and its language."""
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
        said, done = read_window(tokens[len(rules.opening) :], first, seconds)
        segments = [self._segment(part, start / RATE, logprob) for part in said]
        known = language or ("en" if not vocabulary.languages else None)
        return [segment for segment in segments if segment.text.strip()], done, known

    def features(self, samples: Samples, start: int) -> EncoderFeatures:
        """A window as the encoder reads it: two frames a position. start: the sample that it begins with."""
        values_FM = self._mel(torch.from_numpy(samples)).numpy()
        return EncoderFeatures.of(values_FM.reshape(-1, FRAMES * self._mel.bins))

    def _segment(self, said: WindowSegment, begins: float, logprob: float) -> TranscriptSegment:
        text = self.tokenizer.decode(token for token in said.tokens if token < self.vocabulary.end)
        return TranscriptSegment(begins + said.start, begins + said.end, text, said.tokens, logprob, begins)


def _sampled(completion: Completion, end: int) -> tuple[list[int], float]:
    """The tokens of a window without its end, and their mean log-probability. Raises ValueError where it failed."""
    (choice,) = completion.choices
    if choice.error is not None:
        raise ValueError(f"the request failed: {choice.error}")
    logprobs = [sampled.logprob for sampled in choice.tokens if sampled.logprob is not None]
    mean = sum(logprobs) / len(logprobs) if logprobs else 0.0
    return [sampled.token for sampled in choice.tokens if sampled.token != end], mean
