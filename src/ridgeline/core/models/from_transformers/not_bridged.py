"""NotBridged: the error for a class of transformers whose code our ops cannot run."""

from ridgeline.util.untrusted import first_line

NO_INTERFACE = "its attention does not call the attention interface of transformers"
"""The reason for which the engine does not run a class whose attention it cannot replace."""


class NotBridged(ValueError):
    """The error for a class whose attention, or what it keeps of a sequence, is not that of our `Attention` op.

    Its message is a clause about the class: "it reads the keys and values of another model".
    """


def summarise_error(error: Exception) -> str:
    """Return the kind of an error and the first line of its message."""
    kind, line = type(error).__name__, first_line(error, 100)
    return kind if line == kind else f"{kind}: {line}"
