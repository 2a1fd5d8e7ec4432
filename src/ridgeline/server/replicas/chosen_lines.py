"""Selected lines of a file, of which only the byte offsets are in memory; a line is read again when it is needed."""

from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import BinaryIO


class LineReader:
    """A reader of lines by their byte offsets; on Ray, an actor on the machine that has the file."""

    def __init__(self, path: str) -> None:
        self._path = path

    def lines(self, places: bytes) -> list[bytes]:
        """Return the lines at these offsets, in the encoding of `ChosenLines.part`.

        Raises:
            OSError: If the file cannot be read or has become shorter.
        """
        with open(self._path, "rb") as file:
            found = [_line(file, place) for place in array("q", places)]
        if not all(found):
            raise OSError(f"{self._path} became shorter: do not change it while the batch runs")
        return found


def _line(file: BinaryIO, place: int) -> bytes:
    file.seek(place)
    return file.readline()


@dataclass(frozen=True, slots=True)
class ChosenLines:
    """Selected lines of a file, in file order."""

    path: str
    places: "array[int]"
    """The byte offset of each line."""

    def __len__(self) -> int:
        return len(self.places)

    def part(self, first: int, last: int) -> bytes:
        """Return the offsets of the lines from `first` to before `last`, as eight bytes each."""
        return self.places[first:last].tobytes()


@contextmanager
def chosen_lines(stream: Iterable[bytes], path: Path | None, wanted: Callable[[bytes], bool]) -> Iterator[ChosenLines]:
    """Yield the selected lines of a stream, each of which is read once.

    Args:
        stream: The lines.
        path: The file that the stream reads; None for a stream that cannot be read again, which is copied to a
            temporary file.
        wanted: Returns whether a line is selected.
    """
    with nullcontext() if path is not None else NamedTemporaryFile(prefix="ridgeline-") as copy:
        places, place = array("q"), 0
        for line in stream:
            if copy is not None:
                copy.write(line)
            if wanted(line):
                places.append(place)
            place += len(line)
        if copy is not None:
            copy.flush()
        yield ChosenLines(copy.name if copy is not None else str(path), places)
