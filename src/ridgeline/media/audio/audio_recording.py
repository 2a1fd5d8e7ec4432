"""Audio files, read on demand as mono samples at 16 kHz.

libsndfile determines the supported file formats (wav, flac, ogg, mp3, ...); soxr resamples.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Any, BinaryIO, Final, Self

import numpy as np
from numpy.typing import NDArray

from ridgeline.media.audio.mel import RATE

Samples = NDArray[np.float32]

MAX_RATE: Final = 768_000
MAX_CHANNELS: Final = 64
_BLOCK = 1 << 16  # samples per read, over all channels

# libsndfile reads a truncated wav or aiff file without an error and mentions it only in its log.
_CUT = re.compile(r"^ *(?:data|SSND) *: (\d+) \(should be (\d+)\)", re.MULTILINE)
_UNKNOWN = (1 << 31) - (1 << 20)  # bytes: a program that writes to a pipe states the maximum size
_HEADER = 64  # bytes: some programs include the header in the stated size


class AudioRecording:
    """An audio file of any length, of which only the current window is in memory.

    Use it in `with`, or call `close`, from any thread.

    Attributes:
        name: Name for errors.
        seconds: Duration according to the file; None if it is unknown.
    """

    def __init__(self, source: Path | BinaryIO, name: str | None = None) -> None:
        """Open an audio file.

        Args:
            source: Path, or a seekable binary file.
            name: Name for errors; by default the path.

        Raises:
            ValueError: If the file is not audio, has too many channels or samples per second, is a truncated wav or
                aiff file, or the packages that read it are missing. The message is one line.
        """
        self.name = str(source) if name is None else name or "''"
        soundfile, self._soxr = _packages()
        self._errors = (soundfile.LibsndfileError, soundfile.SoundFileRuntimeError)
        self._own: BinaryIO | None = None  # the file, if this object opened it
        self._closed, self._reading = False, Lock()  # closing would free memory that another thread reads
        self._file = self._open(soundfile, source)
        rate, frames = self._file.samplerate, self._file.frames
        try:
            self._check_whole()
        except ValueError:
            self.close()
            raise
        self.seconds = frames / rate if 0 < frames < 1 << 62 else None
        self._blocks = self._read()
        self._held: Samples = np.zeros(0, np.float32)
        self._first = 0  # index of the first sample in `_held`
        self._ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the audio file.

        If another thread is in `window`, this waits for its current block; `window` raises ValueError if it needs more.
        """
        self._closed = True
        with self._reading:
            self._file.close()
            self._close_own()

    def _close_own(self) -> None:
        if self._own is not None:
            self._own.close()

    def window(self, start: int, count: int) -> Samples:
        """Return `count` audio samples from `start` on, fewer at the end of the recording, and none after it.

        A later window must not begin before an earlier one.

        Raises:
            ValueError: If the file is damaged or closed.
        """
        assert start >= self._first, "the samples before the last window were discarded"
        with self._reading:
            while not self._ended and self._first + len(self._held) < start + count:
                if self._closed:
                    raise ValueError(f"{self.name} was closed before it was read")
                block = next(self._blocks, None)
                if block is None:
                    self._ended = True
                else:
                    self._held = np.concatenate((self._held, block))
                    self._drop(start)
            self._drop(start)
            return self._held[:count].copy()

    def _drop(self, start: int) -> None:
        """Discard the audio samples before position `start` of the recording."""
        gone = min(start - self._first, len(self._held))
        self._held, self._first = self._held[gone:], self._first + gone

    def _open(self, soundfile: ModuleType, source: Path | BinaryIO) -> Any:
        if isinstance(source, Path):
            if not source.is_file():
                raise ValueError(f"{self.name} is not a file; {_FIX}")
            if not source.stat().st_size:
                raise ValueError(f"{self.name} is an empty file; {_FIX}")
            # Pass an open file: given a path, libsndfile trusts its suffix, and its mp3 decoder writes to stderr.
            try:
                self._own = source = source.open("rb")
            except OSError as error:
                raise ValueError(f"{self.name} cannot be read: {error.strerror}") from None
        try:
            return soundfile.SoundFile(source)
        except self._errors as error:
            self._close_own()
            raise ValueError(f"{self.name} is not a readable audio file: {_reason(error)}; {_FIX}") from None

    def _check_whole(self) -> None:
        """Raise ValueError if an audio file has too many channels or samples per second, or is truncated."""
        rate, channels = self._file.samplerate, self._file.channels
        if not 1 <= rate <= MAX_RATE or not 1 <= channels <= MAX_CHANNELS:
            raise ValueError(
                f"{self.name} has {channels} channels at {rate:,} Hz; convert it to at most {MAX_CHANNELS} channels "
                f"and {MAX_RATE:,} Hz"
            )
        for found in _CUT.finditer(self._file.extra_info):
            stated, held = int(found[1]), int(found[2])
            if held + _HEADER < stated < _UNKNOWN:
                raise ValueError(
                    f"{self.name} is truncated: it has {held:,} of {stated:,} bytes of samples; fetch it again, or "
                    "re-encode the part that exists"
                )

    def _read(self) -> Iterator[Samples]:
        """Yield the audio file block by block as mono samples at 16 kHz."""
        rate, frames = self._file.samplerate, max(1, _BLOCK // self._file.channels)
        resampler = None if rate == RATE else self._soxr.ResampleStream(rate, RATE, 1, dtype="float32")
        while True:
            try:
                block = self._file.read(frames, dtype="float32", always_2d=True)
            except self._errors as error:
                raise ValueError(f"{self.name} is damaged: {_reason(error)}; {_FIX}") from None
            mono: Samples = block.mean(axis=1, dtype=np.float32)
            if not np.isfinite(mono).all():
                raise ValueError(f"{self.name} has samples that are NaN or infinite; {_FIX}")
            last = len(block) == 0
            yield mono if resampler is None else resampler.resample_chunk(mono, last=last)
            if last:
                return


_FIX = "give a wav, flac, ogg or mp3 file"


def _reason(error: Exception) -> str:
    """Return libsndfile's error in one line, without the names of its objects."""
    return " ".join(str(getattr(error, "error_string", error)).split()).rstrip(".")


def _packages() -> tuple[ModuleType, ModuleType]:
    try:
        import soundfile
        import soxr
    except (ImportError, OSError) as error:  # OSError: libsndfile itself is missing
        raise ValueError(
            f"reading audio files needs soundfile and soxr: pip install 'ridgeline[audio]' ({error})"
        ) from None
    return soundfile, soxr
