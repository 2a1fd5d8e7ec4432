"""How JSON is written where an answer is held to it: as json.dumps writes it, in one line.

A model that may choose its blanks spends tokens on them, and one that is unsure writes them for ever.
"""

from typing import Any

JSON_FORM: dict[str, Any] = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "lenient": False,  # a schema may ask for it, and is then not followed
    "coerce_one_of": False,
}
"""Options of llguidance; a schema that has its own does not get them."""
