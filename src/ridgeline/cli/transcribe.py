"""`ridgeline transcribe` turns speech files into text, subtitles or JSON."""

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, cast, get_args

import typer
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from ridgeline.cli import options
from ridgeline.cli.console import clean, err, print_json
from ridgeline.cli.engine_flags import EngineFlags
from ridgeline.cli.flags import with_flags
from ridgeline.core.checkpoint import open_source
from ridgeline.engine import AsyncLLM
from ridgeline.media.audio.audio_recording import AudioRecording
from ridgeline.media.speech.speech_vocabulary import SpeechVocabulary, Task
from ridgeline.media.speech.transcriber import TranscribedWindow, Transcriber, Transcript, TranscriptionOptions
from ridgeline.media.speech.transcript_formats import as_json as transcript_json
from ridgeline.media.speech.transcript_formats import line, srt, vtt
from ridgeline.util.document.printable import printable

_MODEL = "The folder of a speech model, such as Whisper's, or its id in the Hugging Face cache; none is built in."
_TIMESTAMPS = (
    "Write segments with their times. With --no-timestamps every window is one segment, and speech "
    "across the end of a window is cut."
)
_SIDE_BY_SIDE: Final = 16  # concurrent files; each holds a window of samples in memory


@with_flags
def transcribe(
    files: Annotated[list[str], typer.Argument(help="Audio files: wav, flac, ogg or mp3, at any sample rate.")],
    *,
    model: Annotated[
        str | None, typer.Option("--model", help=_MODEL, callback=options.report_model_choice, show_default=False)
    ] = None,
    language: Annotated[
        str | None,
        typer.Option(help="The language of the speech, as a code like en; by default the model detects it."),
    ] = None,
    task: Annotated[str, typer.Option(help="transcribe, or translate to translate into English.")] = "transcribe",
    timestamps: Annotated[bool | None, typer.Option("--timestamps/--no-timestamps", help=_TIMESTAMPS)] = None,
    subrip: Annotated[bool, typer.Option("--srt", help="Write subtitles in SubRip format; for one file.")] = False,
    webvtt: Annotated[bool, typer.Option("--vtt", help="Write subtitles in WebVTT format; for one file.")] = False,
    engine: EngineFlags,
    as_json: options.Json = False,
) -> None:
    """Transcribe or translate speech from audio files; several files run in one batch.

    Audio is processed in windows of 30 seconds; each begins where the timestamps of the previous one end. Windows are
    decoded independently, and once each: there is no retry at another temperature.
    """
    if model is None:
        raise ValueError("--model is missing: no speech model is built in; give the folder of one, such as Whisper's")
    if task not in get_args(Task):
        raise ValueError(f"--task is {task!r}; give {' or '.join(get_args(Task))}")
    if as_json + subrip + webvtt > 1:
        raise ValueError("--json, --srt and --vtt are alternative output formats; give one of them")
    if (subrip or webvtt) and (len(files) > 1 or timestamps is False):
        raise ValueError("subtitles need a single file with timestamps; give one file, and leave out --no-timestamps")
    speech_options = TranscriptionOptions(language, cast(Task, task), timestamps is not False)
    source = open_source(model)
    with ExitStack() as opened:  # refuse non-audio files before anything is loaded
        recordings = [opened.enter_context(AudioRecording(Path(name), name)) for name in files]
        llm = engine.load(model, prefix_cache=False)
        vocabulary = SpeechVocabulary.read(source, llm.tokenizer)
        vocabulary.check(speech_options.language, speech_options.task)
        several = len(files) > 1
        streams = not (as_json or subrip or webvtt or several)
        shown = _SegmentPrinter(timestamps is True) if streams else None
        transcripts = asyncio.run(_transcribe(AsyncLLM(llm.loaded), vocabulary, recordings, speech_options, shown))
    if subrip or webvtt:
        print((srt if subrip else vtt)(transcripts[0].segments), end="")
    elif as_json:
        print_json(_json(files, transcripts, speech_options.task))
    elif several:
        for name, transcript in zip(files, transcripts, strict=True):
            print(clean(f"{name}: {transcript.text}" if timestamps is not True else _listed(name, transcript)))


class _SegmentPrinter:
    """A printer of one file's transcript as it is recognised."""

    def __init__(self, timed: bool) -> None:
        self._timed, self._begun = timed, False

    def window(self, window: TranscribedWindow) -> None:
        """Print the text of the segments of a transcribed window."""
        for segment in window.segments:
            text = segment.text if self._begun or self._timed else segment.text.lstrip()
            print(clean(line(segment) if self._timed else text), end="\n" if self._timed else "", flush=True)
            self._begun = True

    def end(self) -> None:
        """End the output of a transcribed file with a newline, unless segments are printed on lines of their own."""
        if not self._timed:
            print(flush=True)


async def _transcribe(
    llm: AsyncLLM,
    vocabulary: SpeechVocabulary,
    recordings: Sequence[AudioRecording],
    speech_options: TranscriptionOptions,
    shown: _SegmentPrinter | None,
) -> list[Transcript]:
    """Transcribe all recordings concurrently and return their transcripts."""
    transcriber, places = Transcriber.of(llm, vocabulary), asyncio.Semaphore(_SIDE_BY_SIDE)
    async with llm:
        with _bar(recordings) as on_progress:

            async def one(number: int, recording: AudioRecording) -> Transcript:
                transcript = Transcript()
                async with places:
                    async for window in transcriber.windows(recording, speech_options):
                        transcript.take(window)
                        on_progress(number, window.done)
                        if shown is not None:
                            shown.window(window)
                return transcript

            tasks = [asyncio.create_task(one(*numbered)) for numbered in enumerate(recordings)]
            try:
                transcripts = await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
    if shown is not None:
        shown.end()
    return list(transcripts)


@contextmanager
def _bar(recordings: Sequence[AudioRecording]) -> Iterator[Any]:
    """Yield a callback for the recognised seconds of a file, which updates a bar per file if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda number, seconds: None
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed:.0f} s"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True) as bar:
        bars: list[TaskID] = [bar.add_task(printable(each.name), total=each.seconds) for each in recordings]
        yield lambda number, seconds: bar.update(bars[number], completed=seconds)


def _json(files: Sequence[str], transcripts: Sequence[Transcript], task: Task) -> dict[str, Any]:
    """Return the JSON fields of one transcribed file, or those of several files as a list."""
    each = [{"file": name} | transcript_json(own, task) for name, own in zip(files, transcripts, strict=True)]
    return each[0] if len(each) == 1 else {"files": each}


def _listed(name: str, transcript: Transcript) -> str:
    return "\n".join([f"{name}:", *map(line, transcript.segments)])
