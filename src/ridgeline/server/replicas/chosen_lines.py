"""Lines of a file that are read again where they are wanted: of each only its place is in memory."""

from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import NamedTemporaryFile


class ChosenLines:
    """Some lines of a file, in its order. On Ray an actor: whoever is given a part of them asks for it there."""

    def __init__(self, path: str, places: "array[int]") -> None:
        """places: the byte that each begins at."""
        self.path, self.places = path, places

    def __len__(self) -> int:
        return len(self.places)

    def part(self, first: int, last: int) -> list[bytes]:
        """The lines from `first` to `last`, which is not among them. Raises OSError."""
        lines = []
        with open(self.path, "rb") as file:
            for place in self.places[first:last]:
                file.seek(place)
                lines.append(file.readline())
        return lines


@contextmanager
def chosen_lines(stream: Iterable[bytes], path: Path | None, wanted: Callable[[bytes], bool]) -> Iterator[ChosenLines]:
    """The lines of a stream that are wanted, each read once. path: of the file that the stream reads; None where it
    cannot be read again: then it is copied to a file that is gone afterwards."""
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
