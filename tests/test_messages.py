"""The list of error and log messages that tools/messages.py prints."""

import ast

from messages import messages

SOURCE = """
def check(size, log):
    log.warning("the cache is full: %d pages", size)
    if size < 0:
        raise ValueError(f"--size is {size}; "
                         "give a number above 0")
    say("two words")
    say("wrote the file")
    return {"this is no": "message at all"}
"""


def test_it_lists_errors_and_log_lines_and_nothing_else() -> None:
    assert sorted(set(messages(ast.parse(SOURCE)))) == [
        (3, "the cache is full: %d pages"),
        (5, "--size is {size}; give a number above 0"),
        (8, "wrote the file"),
    ]
