"""The generated tables of docs/models.md, each between two comments."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

_PAGE = Path(__file__).parents[2] / "docs" / "models.md"


@dataclass(frozen=True)
class TableInPage:
    """A generated table of docs/models.md."""

    rows_are: str
    """The name of its rows in the comments around it, such as `classes`."""
    head: str
    """The first two lines of a table."""

    def lines(self) -> Sequence[str]:
        """Return the lines of the table in the page, without its head."""
        return self._parts()[1].removeprefix(self.head).splitlines(keepends=True)

    def write(self, lines: Iterable[str]) -> None:
        """Replace the table in the page by one with these lines."""
        before, _, after = self._parts()
        _PAGE.write_text("".join((before, self.head, *lines, after)), encoding="utf-8")

    def _parts(self) -> tuple[str, str, str]:
        """Return the parts of the page before, in and after the table."""
        begin, end = (f"<!-- {self.rows_are} of transformers: {place} -->\n" for place in ("begin", "end"))
        before, _, rest = _PAGE.read_text(encoding="utf-8").partition(begin)
        inside, found, after = rest.partition(end)
        assert found, f"docs/models.md has lost the comments around its table of {self.rows_are}"
        return before + begin, inside, end + after
