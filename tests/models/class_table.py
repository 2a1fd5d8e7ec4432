"""The table of docs/models.md that has every class that transformers registers for text generation, in one group.

    PYTHONPATH=src:tests python -m models.class_table

writes it with the installed transformers. It takes half a minute.
"""

import re
from collections import defaultdict

from ridgeline.core.models.from_transformers.class_lookup import registered_causal_types
from support.registered_classes import Standing, standing
from support.table_in_page import TableInPage

COMMAND = "PYTHONPATH=src:tests python -m models.class_table"
TABLE = TableInPage("classes", "| class | model types | group | why |\n| --- | --- | --- | --- |\n")
_SUBJECT = re.compile(r"config\.json: (\w+ of transformers [\d.]+:? (has no family here(, and |; ))?)?")
_FIGURE = re.compile(r" by \S+ of the largest$")  # which depends on the processor


def rows() -> dict[str, str]:
    """Return the line of each registered class by its name."""
    types = defaultdict[str, list[str]](list)
    for model_type, name in registered_causal_types().items():
        types[name].append(model_type)
    return {
        name: row_of([standing(each) for each in types[name]], types[name]) for name in sorted(types, key=str.lower)
    }


def row_of(found: list[Standing], types: list[str]) -> str:
    """Return the line of a class, which has the same group for each of its model types."""
    (group,) = {each.group for each in found}
    why = _FIGURE.sub("", _SUBJECT.sub("", found[0].reason))
    why = f"it {why}" if why.startswith("is ") else why.replace("|", "/")
    return f"| {found[0].name} | {', '.join(types)} | {group} | {why} |\n"


def committed() -> dict[str, str]:
    """Return the lines of the table in docs/models.md by class."""
    return {line.split(" ")[1]: line for line in TABLE.lines()}


if __name__ == "__main__":
    TABLE.write(rows().values())
