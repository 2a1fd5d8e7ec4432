"""The table of docs/models.md that has every encoder of text that transformers registers, in one group.

    PYTHONPATH=src:tests python -m models.encoder_table

writes it with the installed transformers. It takes a minute.
"""

from models.class_table import row_of
from models.test_class_encoders import NATIVE
from support.registered_classes import Standing
from support.registered_encoders import encoder_group, registered_encoders
from support.table_in_page import TableInPage

COMMAND = "PYTHONPATH=src:tests python -m models.encoder_table"
TABLE = TableInPage("encoders", "| class | model type | group | why |\n| --- | --- | --- | --- |\n")


def rows() -> dict[str, str]:
    """Return the line of each registered encoder by its model type, in the order of the classes."""
    registered = registered_encoders()
    return {
        each: _row(each, registered[each]) for each in sorted(registered, key=lambda each: registered[each].lower())
    }


def _row(model_type: str, architecture: str) -> str:
    """Return the line of an encoder; of one that runs, it says how its texts run."""
    if model_type in NATIVE:
        return f"| {architecture} | {model_type} | native |  |\n"
    found = encoder_group(model_type, architecture)
    if found.group == "generic":
        how = "all texts of a step as one sequence" if found.packed else "texts of one length at a time"
        return f"| {architecture} | {model_type} | generic | {how} |\n"
    return row_of([Standing(architecture, found.group, f"config.json: {found.reason}")], [model_type])


def committed() -> dict[str, str]:
    """Return the lines of the table in docs/models.md by model type."""
    return {line.split(" | ")[1]: line for line in TABLE.lines()}


if __name__ == "__main__":
    TABLE.write(rows().values())
