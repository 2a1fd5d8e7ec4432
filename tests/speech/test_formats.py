"""How transcripts are written."""

from ridgeline.media.speech.transcriber import TranscribedWindow, Transcript, TranscriptSegment
from ridgeline.media.speech.transcript_formats import as_json, clock, line, srt, vtt


def transcript() -> Transcript:
    """Two segments, an hour apart."""
    whole = Transcript()
    whole.take(TranscribedWindow((TranscriptSegment(0.0, 1.5, " Hello, --> you.", (5, 6), -0.25, 0.0),), 30.0, "en"))
    whole.take(TranscribedWindow((TranscriptSegment(3600.04, 3661.9999, " Bye.", (7,), -0.5, 3600.0),), 3662.5, "en"))
    return whole


def test_subtitles() -> None:
    """Numbered cues with commas, or with points below a title; an arrow in the text would be times."""
    assert srt(transcript().segments) == (
        "1\n00:00:00,000 --> 00:00:01,500\nHello, -> you.\n\n2\n01:00:00,040 --> 01:01:02,000\nBye.\n"
    )
    assert vtt(transcript().segments) == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nHello, -> you.\n\n01:00:00.040 --> 01:01:02.000\nBye.\n"
    )
    assert (srt([]), vtt([])) == ("", "WEBVTT\n")


def test_what_would_end_a_cue_or_begin_a_tag() -> None:
    """Empty lines are left out; WebVTT's own characters are escaped where it is read, and nowhere else."""
    segments = [TranscriptSegment(0.0, 1.0, " a < b\n \r\n\nR&B \n", (), 0.0, 0.0)]
    assert srt(segments) == "1\n00:00:00,000 --> 00:00:01,000\na < b\nR&B\n"
    assert vtt(segments) == "WEBVTT\n\n00:00:00.000 --> 00:00:01.000\na &lt; b\nR&amp;B\n"


def test_lines_and_data() -> None:
    """Times for people; everything for programs."""
    assert line(transcript().segments[0]) == "[00:00:00.000 --> 00:00:01.500] Hello, --> you."
    assert clock(59.9996) == "00:01:00.000"
    told = as_json(transcript(), "transcribe")
    assert (told["text"], told["language"], told["duration"]) == ("Hello, --> you. Bye.", "en", 3662.5)
    assert told["segments"][1] == {
        "id": 1, "seek": 360_000, "start": 3600.04, "end": 3662.0, "text": " Bye.", "tokens": [7],
        "avg_logprob": -0.5, "compression_ratio": 5 / 13,
    }  # fmt: skip
