"""The output formats of a transcript: text, text with times, subtitles and JSON."""

from collections.abc import Iterable
from typing import Any

from ridgeline.media.speech.speech_vocabulary import Task
from ridgeline.media.speech.transcriber import Transcript, TranscriptSegment
from ridgeline.util.json_data import json_select


def clock(seconds: float, point: str = ".") -> str:
    """Return a time like `01:02:03.450`; SubRip uses a comma instead of the point."""
    milliseconds = round(seconds * 1000)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{point}{rest % 1000:03}"


def line(segment: TranscriptSegment) -> str:
    """Return a transcript segment with its start and end time as a line for display."""
    return f"[{clock(segment.start)} --> {clock(segment.end)}] {segment.text.strip()}"


def srt(segments: Iterable[TranscriptSegment]) -> str:
    """Return transcript segments as SubRip (.srt) subtitles."""
    blocks = (
        f"{number}\n{clock(each.start, ',')} --> {clock(each.end, ',')}\n{_cue(each.text)}\n"
        for number, each in enumerate(segments, 1)
    )
    return "\n".join(blocks)


def vtt(segments: Iterable[TranscriptSegment]) -> str:
    """Return transcript segments as WebVTT subtitles (w3.org/TR/webvtt1), with `&` and `<` escaped."""
    blocks = (
        f"{clock(each.start)} --> {clock(each.end)}\n{_cue(each.text).replace('&', '&amp;').replace('<', '&lt;')}\n"
        for each in segments
    )
    return "\n".join(["WEBVTT\n", *blocks])


def _cue(text: str) -> str:
    """Return the text of a subtitle cue without arrows and empty lines.

    Players would read an arrow as times and end the cue at an empty line.
    """
    lines = text.replace("-->", "->").splitlines()
    return "\n".join(line.strip() for line in lines if line.strip())


def as_json(transcript: Transcript, task: Task) -> dict[str, Any]:
    """Return the whole transcript under the names of OpenAI's `verbose_json`; the language is a code.

    The segments have no `temperature` and no `no_speech_prob`.
    """
    return {
        "task": task,
        "language": transcript.language,
        "duration": round(transcript.seconds, 3),
        "text": transcript.text,
        "segments": [_segment_json(number, segment) for number, segment in enumerate(transcript.segments)],
    }


def _segment_json(number: int, segment: TranscriptSegment) -> dict[str, Any]:
    return {
        "id": number,
        "seek": round(segment.seek * 100),
        "start": round(segment.start, 3),
        "end": round(segment.end, 3),
        **json_select(segment, "text", "tokens", "avg_logprob", "compression_ratio=compression"),
    }
