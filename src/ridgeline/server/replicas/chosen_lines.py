"""Lines of a file that are read again where they are wanted: of each only its place is in memory."""

from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import BinaryIO


class LineReader:
    """Reads lines of a file by their places. On Ray an actor on the machine that has the file."""

    def __init__(self, path: str) -> None:
        self._path = path

    def lines(self, places: bytes) -> list[bytes]:
        """The lines at these places, as ChosenLines.part gives them. Raises OSError, also where there are none any
        more.
        """
        with open(self._path, "rb") as file:
            found = [_line(file, place) for place in array("q", places)]
        if not all(found):
            raise OSError(f"{self._path} is shorter than it was; leave it as it is until it is answered")
        return found


def _line(file: BinaryIO, place: int) -> bytes:
    file.seek(place)
    return file.readline()


@dataclass(frozen=True, slots=True)
class ChosenLines:
    """Some lines of a file, in its order. places: the byte that each begins at."""

    path: str
    places: "array[int]"

    def __len__(self) -> int:
        return len(self.places)

    def part(self, first: int, last: int) -> bytes:
        """The places of the lines from `first` to `last`, which is not among them: eight bytes each."""
        return self.places[first:last].tobytes()


@contextmanager
def chosen_lines(stream: Iterable[bytes], path: Path | None, wanted: Callable[[bytes], bool]) -> Iterator[ChosenLines]:
    """The lines of a stream that are wanted, each read once. path: of the file that the stream reads; None where it
    cannot be read again: then it is copied to a file that is gone afterwards.
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
