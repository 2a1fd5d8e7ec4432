"""The table of encoders in docs/models.md is that of the installed transformers, and all that run are tested."""

import pytest

from models.encoder_table import COMMAND, committed, rows
from models.test_class_encoders import BY_LENGTH, NATIVE, NOT_RUN, PACKED
from support.registered_encoders import registered_encoders


def test_every_registered_encoder_has_one_line() -> None:
    """Compare the committed table with the installed transformers, and its groups with the tested types."""
    table = {each: line.strip("|\n ").split(" | ") for each, line in committed().items()}
    assert {each: cells[0] for each, cells in table.items()} == registered_encoders(), f"run {COMMAND}"
    groups = {each: cells[2].strip(" |") for each, cells in table.items()}
    assert {each for each, group in groups.items() if group == "native"} == set(NATIVE)
    assert {each for each, group in groups.items() if group == "generic"} == {*PACKED, *BY_LENGTH}
    assert {each for each, group in groups.items() if group in ("priced only", "refused")} == set(NOT_RUN)


@pytest.mark.slow
def test_the_table_is_current() -> None:
    """Compare the committed table with a fresh one, which takes a minute."""
    fresh, known = rows(), committed()
    differ = [fresh[each] for each in fresh if fresh[each] != known[each]]
    assert not differ, f"run {COMMAND}, and check what changed:\n{''.join(differ)}"
