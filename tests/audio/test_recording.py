"""Files of every sort become samples of one channel at 16 kHz, in little memory; what is no sound is refused."""

import io
import struct
import sys
import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr

from ridgeline.media.audio.audio_recording import AudioRecording
from ridgeline.media.audio.mel import RATE


def tone(seconds: float, rate: int, hertz: float = 440.0) -> np.ndarray:
    """A sine, fp32."""
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


def written(folder: Path, samples: np.ndarray, rate: int, suffix: str = ".wav", subtype: str | None = None) -> Path:
    """A file of these samples."""
    path = folder / f"sound{suffix}"
    soundfile.write(path, samples, rate, subtype=subtype)
    return path


def read_whole(path: Path, step: int = 9973) -> np.ndarray:
    """All samples, by windows that follow each other."""
    parts = []
    with AudioRecording(path) as recording:
        while len(part := recording.window(sum(map(len, parts)), step)):
            parts.append(part)
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


@pytest.mark.parametrize(
    ("suffix", "subtype", "error"),
    [
        (".wav", "PCM_16", 1e-4),
        (".wav", "PCM_U8", 1e-2),
        (".wav", "FLOAT", 0.0),
        (".wav", "PCM_24", 1e-6),
        (".flac", "PCM_16", 1e-4),
        (".ogg", "VORBIS", 0.1),
        (".mp3", "MPEG_LAYER_III", 0.1),
    ],
)
def test_formats(suffix: str, subtype: str, error: float, tmp_path: Path) -> None:
    """Each within what its coding loses."""
    samples = tone(1.5, RATE)
    ours = read_whole(written(tmp_path, samples, RATE, suffix, subtype))
    assert abs(len(ours) - len(samples)) <= 2000, "an mp3 is padded to whole blocks"
    middle = slice(4000, 20_000)
    assert float(np.abs(ours[middle] - samples[middle]).max()) <= error


def test_channels_are_averaged(tmp_path: Path) -> None:
    """Stereo: what is in one channel alone is half as loud."""
    left, right = tone(0.5, RATE), tone(0.5, RATE, 700.0)
    ours = read_whole(written(tmp_path, np.stack([left, right], axis=1), RATE, subtype="FLOAT"))
    assert np.allclose(ours, (left + right) / 2, atol=1e-6)


@pytest.mark.parametrize("rate", [8000, 11_025, 22_050, 44_100, 48_000, 96_000])
def test_rates(rate: int, tmp_path: Path) -> None:
    """Read in pieces, equal to the whole changed at once."""
    samples = tone(2.3, rate)
    ours = read_whole(written(tmp_path, samples, rate, subtype="FLOAT"))
    whole = soxr.resample(samples, rate, RATE)
    assert abs(len(ours) - len(whole)) <= 1
    same = min(len(ours), len(whole))
    assert np.allclose(ours[:same], whole[:same], atol=1e-4)


def test_windows_may_skip_and_overlap(tmp_path: Path) -> None:
    """A later window begins where it is told to, in what was seen or past it."""
    samples = np.arange(300_000, dtype=np.float32) / 300_000
    with AudioRecording(written(tmp_path, samples, RATE, subtype="FLOAT")) as recording:
        assert recording.seconds == pytest.approx(300_000 / RATE)
        for start, count in ((0, 1000), (10, 1000), (500, 100_000), (299_000, 5000), (299_999, 5), (300_000, 5)):
            assert np.array_equal(recording.window(start, count), samples[start : start + count])
        assert len(recording.window(400_000, 5)) == 0


def test_a_long_file_takes_the_memory_of_a_window(tmp_path: Path) -> None:
    """Ten minutes are 38 MB as fp32; a window of 30 seconds is 2 MB."""
    path = tmp_path / "long.wav"
    with soundfile.SoundFile(path, "w", RATE, 1, "PCM_U8") as file:
        for _ in range(60):
            file.write(tone(10.0, RATE))
    tracemalloc.start()
    with AudioRecording(path) as recording:
        for start in range(0, 600 * RATE, 30 * RATE):
            assert len(recording.window(start, 30 * RATE)) == 30 * RATE
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 12e6


def test_from_memory() -> None:
    """As a server has it."""
    file = io.BytesIO()
    soundfile.write(file, tone(0.2, RATE), RATE, format="WAV", subtype="FLOAT")
    file.seek(0)
    with AudioRecording(file, "upload.wav") as recording:
        assert np.array_equal(recording.window(0, RATE), tone(0.2, RATE))


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("empty.wav", b"", "is an empty file; give a wav"),
        ("text.wav", b"no sound at all, just a few words\n" * 9, "is not a readable audio file"),
        (
            "text.mp3",
            b"no sound at all, just a few words\n" * 40,
            "is not a readable audio file: Format not recognised",
        ),
        ("header.wav", b"RIFF\x24\0\0\0WAVEfmt ", "is not a readable audio file"),
        ("missing.wav", None, "is not a file"),
    ],
)
def test_what_is_no_sound(
    name: str, content: bytes | None, reason: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """One line, with the file's name; no decoder adds its own to stderr."""
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{name} {reason}") as raised:
        AudioRecording(path)
    assert "\n" not in str(raised.value)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("suffix", "subtype"), [(".wav", "PCM_16"), (".wav", "FLOAT"), (".aiff", "PCM_16")])
def test_a_file_that_was_cut_short(suffix: str, subtype: str, tmp_path: Path) -> None:
    """Is named before anything of it is heard: its reader would take what there is for all."""
    path = written(tmp_path, tone(1.0, RATE), RATE, suffix, subtype)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"sound\.\w+ is truncated: it has [\d,]+ of [36][24],00. bytes") as raised:
        AudioRecording(path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("stated", [0xFFFFFFFF, 0x7FFFFFDB, 0x7FFFF000, 32_000 + 44])
def test_a_wav_file_of_unknown_length(stated: int, tmp_path: Path) -> None:
    """Is whole: who writes to a pipe states the most that there could be, or counts the header in."""
    path = written(tmp_path, tone(1.0, RATE), RATE)
    whole = path.read_bytes()
    place = whole.index(b"data") + 4
    path.write_bytes(whole[:place] + struct.pack("<I", stated) + whole[place + 4 :])
    assert len(read_whole(path)) == RATE


def test_closing_while_another_thread_reads() -> None:
    """Waits until it is out of the decoder, which would read what was freed; the window ends there."""

    class Held(io.BytesIO):
        """Keeps whoever reads from it until it may go on."""

        held, free = threading.Event(), threading.Event()

        def readinto(self, buffer: object) -> int:
            if threading.current_thread() is reader:
                self.held.set()
                assert self.free.wait(10)
            return super().readinto(buffer)

    def read() -> None:
        try:
            recording.window(0, 30 * RATE)
        except ValueError as error:
            ended.append(str(error))

    ended: list[str] = []
    reader = threading.Thread(target=read)
    file = Held()
    soundfile.write(file, tone(30.0, RATE), RATE, format="FLAC")
    file.seek(0)
    recording = AudioRecording(file, "upload")
    closer = threading.Thread(target=recording.close)
    reader.start()
    assert file.held.wait(10)
    closer.start()
    closer.join(0.1)
    waited = closer.is_alive()
    file.free.set()
    closer.join(10)
    reader.join(10)
    assert (waited, ended) == (True, ["upload was closed before it was read"])


def test_samples_that_are_no_numbers(tmp_path: Path) -> None:
    """A file of floats may hold anything."""
    samples = tone(0.1, RATE)
    samples[700] = np.nan
    with (
        AudioRecording(written(tmp_path, samples, RATE, subtype="FLOAT")) as recording,
        pytest.raises(ValueError, match="samples that are NaN or infinite"),
    ):
        recording.window(0, 10)


def test_a_file_without_samples(tmp_path: Path) -> None:
    """A whole header and nothing behind it: no sound, no error."""
    assert len(read_whole(written(tmp_path, np.zeros(0, np.float32), RATE))) == 0


@pytest.mark.parametrize("package", ["soundfile", "soxr"])
def test_without_the_packages(package: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The base install has neither; the line says what to install."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=r"pip install 'ridgeline\[audio\]'"):
        AudioRecording(tmp_path / "sound.wav")
