"""The layout of JSON in structured output: one line, as json.dumps writes it.

A model that can choose its white space spends tokens on it, and an unsure model writes white space endlessly.
"""

from typing import Any

JSON_LAYOUT: dict[str, Any] = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "lenient": False,  # with it the output may violate the schema
    "coerce_one_of": False,
}
"""The llguidance options of a JSON schema; they override the schema's own options."""
