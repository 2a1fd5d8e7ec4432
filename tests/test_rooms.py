"""Imports between rooms run one way: the table in CONTRIBUTING.md is held against every import in src/ridgeline."""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Literal

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "ridgeline"

When = Literal["at import", "in a call", "for types"]


@dataclass(frozen=True)
class Import:
    """An import of one room by a file of another. file: its path in the package."""

    file: str
    line: int
    room: str
    imported: str
    when: When

    def __str__(self) -> str:
        return f"{self.file}:{self.line} ({self.room}) imports {self.imported} {self.when}"


# -- what the code does -----------------------------------------------------------------------------------------------


def rooms_of(package: Path) -> set[str]:
    """Its folders that hold code, and its modules."""
    paths = (path.relative_to(package).parts[0] for path in package.rglob("*.py"))
    return {part.removesuffix(".py") for part in paths}


def imports_of(package: Path) -> list[Import]:
    """The imports between rooms, wherever in a file they stand."""
    rooms, found = rooms_of(package), []
    for path in sorted(package.rglob("*.py")):
        file = path.relative_to(package)
        room = file.parts[0].removesuffix(".py")
        for statement, when in statements(ast.parse(path.read_text(encoding="utf-8")), "at import"):
            for imported in imported_rooms(statement, package.name, rooms) - {room}:
                found.append(Import(file.as_posix(), statement.lineno, room, imported, when))
    return found


def statements(node: ast.AST, when: When) -> Iterator[tuple[ast.Import | ast.ImportFrom, When]]:
    """The import statements under a node, and when they run."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, when
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from statements(child, "for types")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from statements(child, "in a call" if when == "at import" else when)
        else:
            yield from statements(child, when)


def imported_rooms(statement: ast.Import | ast.ImportFrom, package: str, rooms: set[str]) -> set[str]:
    """The rooms that a statement names; `__init__` for what the package itself gives."""
    if isinstance(statement, ast.Import):
        names = [alias.name for alias in statement.names]
    else:
        assert statement.level == 0, f"line {statement.lineno}: imports are absolute, so that they can be looked for"
        names = [f"{statement.module}.{alias.name}" for alias in statement.names]
    parts = [name.split(".") for name in names]
    return {own[1] if len(own) > 1 and own[1] in rooms else "__init__" for own in parts if own[0] == package}


def circle_of(imports: list[Import]) -> list[str]:
    """Rooms that import each other round about, the first again at the end; empty where there are none."""
    graph: dict[str, set[str]] = {}
    for i in imports:
        graph.setdefault(i.room, set()).add(i.imported)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@cache
def imports() -> list[Import]:
    """Those of the package."""
    return imports_of(PACKAGE)


# -- what the table says ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A room of the table. open: whether every room may import it."""

    imports: frozenset[str]
    open: bool


def table_of(text: str) -> dict[str, Row]:
    """The rooms in the section Rooms, in their order."""
    section = text.split("\n## Rooms\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|$", section, re.MULTILINE)
    assert len(rows) == section.count("\n| ") - 2, "a row that cannot be read"
    return {
        room: Row(frozenset(re.findall(r"`(\w+)`", imported)), imported.endswith("every room may import it"))
        for room, imported in rows
    }


def against(found: list[Import], table: Mapping[str, Row]) -> list[Import]:
    """The imports that the table does not have."""
    return [i for i in found if i.imported not in table[i.room].imports and not table[i.imported].open]


@pytest.fixture(scope="module")
def table() -> dict[str, Row]:
    return table_of((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))


# -- both -------------------------------------------------------------------------------------------------------------


def test_the_table_has_every_room(table: dict[str, Row]) -> None:
    """And none that is not there."""
    assert set(table) == rooms_of(PACKAGE)


def test_a_row_names_rooms_above_it(table: dict[str, Row]) -> None:
    """So that a table without circles is what one can see; what is open to all imports nothing."""
    above: set[str] = set()
    for room, row in table.items():
        assert row.imports <= above, f"{room} imports {sorted(row.imports - above)}, which have no row above it"
        assert not (row.open and row.imports), f"{room} is open to every room and imports some"
        above.add(room)


@pytest.mark.parametrize("when", ["at import", "in a call", "for types"])
def test_imports_are_in_the_table(table: dict[str, Row], when: When) -> None:
    """Each sort of import apart: a late one and one for types alone are no way round it."""
    found = [i for i in imports() if i.when == when]
    assert found, f"no import {when} was seen: the search is at fault"
    wrong = against(found, table)
    assert not wrong, "\n".join(map(str, wrong))


def test_permissions_are_needed(table: dict[str, Row]) -> None:
    """What nobody imports any more leaves the table, which says what is."""
    used = {(i.room, i.imported) for i in imports()}
    unused = [(room, name) for room, row in table.items() for name in row.imports if (room, name) not in used]
    assert not unused, f"rows of CONTRIBUTING.md name what their rooms do not import: {unused}"


def test_no_circle() -> None:
    assert not (circle := circle_of(imports())), " -> ".join(circle)


# -- the test itself --------------------------------------------------------------------------------------------------


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A package of two rooms, the lower of which imports the upper in each way there is."""
    for name, text in {
        "__init__.py": "",
        "plain.py": "",
        "low/__init__.py": "",
        "low/a.py": "from house.high import b\n",
        "low/c.py": "def late():\n    class Inner:\n        import house.high.b\n",
        "low/d.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house import high\n",
        "low/e.py": "from house import __name__, plain\nimport math\n",
        "high/__init__.py": "",
        "high/b.py": "try:\n    from house.low.a import x\nexcept ImportError:\n    pass\n",
    }.items():
        path = tmp_path / "house" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "house"


def test_what_is_wrong_is_found(house: Path) -> None:
    """Wherever it hides, with its line; and what stands in the table is let through."""
    text = "\n## Rooms\n\n| room | x | imports |\n| --- | --- | --- |\n| `__init__` | x | nothing |\n"
    text += "| `plain` | x | nothing; every room may import it |\n| `low` | x | nothing |\n| `high` | x | `low` |\n"
    wrong = against(imports_of(house), table_of(text))
    assert list(map(str, wrong)) == [
        "low/a.py:1 (low) imports high at import",
        "low/c.py:3 (low) imports high in a call",
        "low/d.py:3 (low) imports high for types",
        "low/e.py:1 (low) imports __init__ at import",
    ]


def test_a_circle_is_found(house: Path) -> None:
    """By name."""
    found = imports_of(house)
    assert set(circle_of(found)) == {"low", "high"}
    assert not circle_of([i for i in found if i.room == "low"])


def test_relative_imports_are_refused(house: Path) -> None:
    """They name no room."""
    (house / "low" / "f.py").write_text("from ..high import b\n")
    with pytest.raises(AssertionError, match="absolute"):
        imports_of(house)
