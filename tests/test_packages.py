"""Imports between packages run one way, files import each other in no circle, and a name means one thing.

The table in CONTRIBUTING.md is held against every import in src/ridgeline.
"""

import ast
import re
from collections import Counter, defaultdict
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

GROUPS = ("core", "media", "insight", "learn")
"""The packages whose folders have rows of their own in the table."""

ORDER = (
    "util",
    "core",
    "backends",
    "price",
    "engine",
    "media",
    "insight",
    "learn",
    "server",
    "__init__",
    "cli",
    "__main__",
)
"""The packages from the bottom to the top: each imports those before it."""

SAME_NAME = {"__init__", "__main__", "config"}
"""The names that several modules may have."""


@dataclass(frozen=True)
class Import:
    """An import by a file of the package. file, imported: modules, without the name of the package."""

    file: str
    line: int
    imported: str
    when: When

    @property
    def package(self) -> str:
        return package_of(self.file)

    @property
    def imported_package(self) -> str:
        return package_of(self.imported)

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.imported} {self.when}"


# -- what the code does -----------------------------------------------------------------------------------------------


def package_of(module: str) -> str:
    """Return the row of the table that a module belongs to: `engine`, or `core.ops` in a group of packages."""
    first, _, rest = module.partition(".")
    return f"{first}.{rest.partition('.')[0]}" if first in GROUPS and rest else first


def modules_of(package: Path) -> dict[str, Path]:
    """Return the files of a package by their modules; a folder's `__init__` has the folder's name."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)] = path
    return found


def imports_of(package: Path) -> list[Import]:
    """Return the imports of the package's own modules, wherever in a file they stand."""
    modules, found = modules_of(package), []
    for file, path in modules.items():
        for statement, when in statements(ast.parse(path.read_text(encoding="utf-8")), "at import"):
            for imported in imported_modules(statement, package.name, modules) - {file}:
                found.append(Import(file, statement.lineno, imported, when))
    return found


def statements(node: ast.AST, when: When) -> Iterator[tuple[ast.Import | ast.ImportFrom, When]]:
    """Yield the import statements under a node, and when they run."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, when
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from statements(child, "for types")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from statements(child, "in a call" if when == "at import" else when)
        else:
            yield from statements(child, when)


def imported_modules(statement: ast.Import | ast.ImportFrom, package: str, modules: Mapping[str, Path]) -> set[str]:
    """Return the modules that a statement names; `__init__` for what the package itself gives."""
    if isinstance(statement, ast.Import):
        names = [alias.name for alias in statement.names]
    else:
        assert statement.level == 0, f"line {statement.lineno}: imports are absolute, so that they can be looked for"
        names = [f"{statement.module}.{alias.name}" for alias in statement.names]
    found = set()
    for name in names:
        first, *parts = name.split(".")
        if first != package:
            continue
        while parts and ".".join(parts) not in modules and not is_folder(".".join(parts), modules):
            parts.pop()  # a class or a function of the module
        found.add(".".join(parts) or "__init__")
    return found


def is_folder(module: str, modules: Mapping[str, Path]) -> bool:
    """Return whether a name is that of a folder without an `__init__` file."""
    return any(other.startswith(f"{module}.") for other in modules)


def circle_of(graph: Mapping[str, set[str]]) -> list[str]:
    """Return nodes that lead round to each other, the first again at the end; empty if there are none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def graph_of_files(found: list[Import]) -> dict[str, set[str]]:
    """Return what each file imports."""
    graph: dict[str, set[str]] = defaultdict(set)
    for i in found:
        graph[i.file].add(i.imported)
    return graph


@cache
def imports() -> list[Import]:
    """Return those of the package."""
    return imports_of(PACKAGE)


# -- what the table says ----------------------------------------------------------------------------------------------


def table_of(text: str) -> dict[str, frozenset[str]]:
    """Return the packages in the section Packages, in their order, with those that each may import."""
    section = text.split("\n## Packages\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([\w.]+)` \| [^|]+ \| ([^|]+) \|$", section, re.MULTILINE)
    assert len(rows) == section.count("\n| ") - 2, "a row that cannot be read"
    return {package: frozenset(re.findall(r"`([\w.]+)`", imported)) for package, imported in rows}


def against(found: list[Import], table: Mapping[str, frozenset[str]]) -> list[Import]:
    """Return the imports of other packages that the table does not have. All may import `util`."""
    return [
        i
        for i in found
        if i.imported_package not in (i.package, "util", i.package.partition(".")[0])
        and i.imported_package not in table[i.package]
    ]


@pytest.fixture(scope="module")
def table() -> dict[str, frozenset[str]]:
    return table_of((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))


# -- both -------------------------------------------------------------------------------------------------------------


def test_the_table_has_every_package(table: dict[str, frozenset[str]]) -> None:
    """And none that is not there."""
    assert set(table) == {package_of(module) for module in modules_of(PACKAGE)} - set(GROUPS)


def test_a_row_names_packages_above_it(table: dict[str, frozenset[str]]) -> None:
    """A table without circles is one that can be read from top to bottom."""
    above: set[str] = set()
    for package, imported in table.items():
        assert imported <= above, f"{package} imports {sorted(imported - above)}, which have no row above it"
        above.add(package)
    ranks = [ORDER.index(package.partition(".")[0]) for package in table]
    assert ranks == sorted(ranks), f"the rows are not in the order {ORDER}"


@pytest.mark.parametrize("when", ["at import", "in a call", "for types"])
def test_imports_are_in_the_table(table: dict[str, frozenset[str]], when: When) -> None:
    """Each sort of import is looked at: a late one and one for types alone are no way round the table."""
    found = [i for i in imports() if i.when == when]
    assert found, f"no import {when} was seen: the search is at fault"
    wrong = against(found, table)
    assert not wrong, "\n".join(map(str, wrong))


def test_permissions_are_needed(table: dict[str, frozenset[str]]) -> None:
    """What nobody imports any more leaves the table, which says what is."""
    used = {(i.package, i.imported_package) for i in imports()}
    unused = [(package, name) for package, row in table.items() for name in row if (package, name) not in used]
    assert not unused, f"rows of CONTRIBUTING.md name what their packages do not import: {unused}"


def test_no_circle_of_files() -> None:
    """Imports inside functions and for types count: a circle that is held open by them is still one."""
    assert len(graph_of_files(imports())) > 500, "hardly any file imports another: the search is at fault"
    assert not (circle := circle_of(graph_of_files(imports()))), " -> ".join(circle)


def test_a_module_name_means_one_module() -> None:
    """A reader finds a file by its name. Files of exercises are texts that are shown, and no module imports them."""
    names = Counter(
        name
        for module in modules_of(PACKAGE)
        if ".exercises." not in module
        and (name := module.rpartition(".")[2]) not in SAME_NAME
        and not (PACKAGE / Path(*module.split("."))).is_dir()
    )
    assert not (twice := {name: count for name, count in names.items() if count > 1}), twice


def test_a_class_name_means_one_class() -> None:
    """Names of classes are unique in the package, those that begin with `_` too."""
    homes = defaultdict(list)
    for module, path in modules_of(PACKAGE).items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(module)
    assert len(homes) > 1000, "hardly any class was seen: the search is at fault"
    assert not (twice := {name: found for name, found in homes.items() if len(found) > 1}), twice


def test_no_family_imports_another() -> None:
    """A family of models is one file; what two of them share is in core/models/common."""
    wrong = [i for i in imports() if all(m.startswith("core.models.families.") for m in (i.file, i.imported))]
    assert not wrong, "\n".join(map(str, wrong))


# -- the test itself --------------------------------------------------------------------------------------------------


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A package of two parts, the lower of which imports the upper in each way there is."""
    for name, text in {
        "__init__.py": "",
        "util/plain.py": "",
        "low/__init__.py": "",
        "low/a.py": "from house.high import b\n",
        "low/c.py": "def late():\n    class Inner:\n        import house.high.b\n",
        "low/d.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house import high\n",
        "low/e.py": "from house import __name__\nfrom house.util import plain\nimport math\n",
        "high/__init__.py": "",
        "high/b.py": "try:\n    from house.low.a import x\nexcept ImportError:\n    pass\n",
    }.items():
        path = tmp_path / "house" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "house"


def test_what_is_wrong_is_found(house: Path) -> None:
    """Wherever it hides, with its line; and what stands in the table is let through."""
    text = "\n## Packages\n\n| package | x | imports |\n| --- | --- | --- |\n| `__init__` | x | nothing |\n"
    text += "| `util` | x | nothing |\n| `low` | x | nothing |\n| `high` | x | `low` |\n"
    wrong = against(imports_of(house), table_of(text))
    assert list(map(str, wrong)) == [
        "low.a:1 imports high.b at import",
        "low.c:3 imports high.b in a call",
        "low.d:3 imports high for types",
        "low.e:1 imports __init__ at import",
    ]


def test_a_circle_is_found(house: Path) -> None:
    """By the names of its files."""
    found = imports_of(house)
    assert set(circle_of(graph_of_files(found))) == {"low.a", "high.b"}
    assert not circle_of(graph_of_files([i for i in found if i.file != "high.b"]))


def test_relative_imports_are_refused(house: Path) -> None:
    """They name no package."""
    (house / "low" / "f.py").write_text("from ..high import b\n")
    with pytest.raises(AssertionError, match="absolute"):
        imports_of(house)
