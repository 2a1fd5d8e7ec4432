"""The table of classes in docs/models.md is that of the installed transformers, and all that run are tested."""

from collections import Counter

import pytest

from models.class_table import COMMAND, committed, rows
from models.test_class_decoders import TESTED_AS, TYPES
from ridgeline.core.models.from_transformers.class_lookup import registered_causal_types
from support.registered_classes import READS


@pytest.fixture(scope="module")
def table() -> dict[str, list[str]]:
    """Return the cells of each line of the committed table, by class."""
    return {name: [cell.strip() for cell in line.strip("|\n ").split(" | ")] for name, line in committed().items()}


def test_every_registered_class_has_one_line(table: dict[str, list[str]]) -> None:
    """Compare the types of the committed table with those of the installed transformers."""
    registered = registered_causal_types()
    known = {model_type: name for name, cells in table.items() for model_type in cells[1].split(", ")}
    new, gone = sorted(registered.items() - known.items()), sorted(known.items() - registered.items())
    assert not new, f"transformers registers {new}, in no group yet: run {COMMAND}, and add those that run to TYPES"
    assert not gone, f"transformers no longer registers {gone}: run {COMMAND}"


@pytest.mark.slow
def test_the_table_is_current() -> None:
    """Compare the committed table with a fresh one, which takes a minute and a half."""
    fresh, known = rows(), committed()
    differ = [fresh[name] for name in fresh if fresh[name] != known[name]]
    assert not differ, f"run {COMMAND}, and check what changed:\n{''.join(differ)}"


def test_each_class_that_runs_is_compared_with_transformers(table: dict[str, list[str]]) -> None:
    """Check that TYPES has every type of group generic, and no other."""
    generic = {name for name, cells in table.items() if cells[2] == "generic" and READS not in cells}
    runs = {model_type for model_type, name in registered_causal_types().items() if name in generic}
    tested = {*TYPES, *TESTED_AS}
    assert runs == tested, f"TYPES of test_class_decoders.py lacks {runs - tested} and has {tested - runs} besides"
    assert len(generic) >= 45


def test_groups(table: dict[str, list[str]]) -> None:
    """Check the groups, and that a class that does not run has a reason."""
    assert Counter(cells[2] for cells in table.values()).keys() <= {"native", "generic", "priced only", "refused"}
    for name, (_, types, group, *why) in table.items():
        assert types
        assert any(why) == (group in ("priced only", "refused") or READS in why), name
