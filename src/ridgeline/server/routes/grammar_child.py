"""The child process in which grammar_check.py compiles untrusted grammars, so that a crash affects nothing else.

It writes the line "ready", and then one line for each line that it reads: for a constraint in JSON, null or a reason.
"""

import resource
import sys

import msgspec
from llguidance import LLMatcher

from ridgeline.core.text.byte_tokenizer import BYTE_SYMBOLS, ByteTokenizer
from ridgeline.engine.structured_output.grammar import compiled, reason_of
from ridgeline.engine.structured_output.grammar_vocabulary import GrammarVocabulary, Mask
from ridgeline.engine.structured_output_params import StructuredOutputs

MAX_FORCED = 1 << 14
"""The most bytes at the beginning of an output that a constraint may dictate, so that they can have one value only."""


def refusal(form: StructuredOutputs, tables: GrammarVocabulary) -> str | None:
    """Return why a constraint cannot be enforced over a vocabulary of single bytes; None if it can."""
    try:
        matcher = compiled(form, tables.library)
    except ValueError as error:
        return str(error).removeprefix("structured_outputs cannot be enforced: ")
    if len(matcher.compute_ff_bytes()) > MAX_FORCED:
        return f"it leaves no choice for more than the first {MAX_FORCED} bytes"
    mask, complete = tables.next_of(matcher)
    if matcher.is_error() or not (mask.any() or complete):
        return "it allows no text, or needs too many steps"
    return None if complete else _dead_end(matcher, mask, tables)


def _dead_end(matcher: LLMatcher, mask: Mask, tables: GrammarVocabulary) -> str | None:
    """Return why llguidance fails after every allowed first byte; None if it continues after at least one."""
    reason = None
    for byte in (byte for byte in range(256) if mask[byte >> 5] >> (byte & 31) & 1):
        trial = matcher.deep_copy()
        trial.consume_token(byte)
        tables.next_of(trial)
        if not trial.is_error():
            return None
        reason = reason_of(trial)
    return reason


def _limit_memory(nbytes: int) -> None:
    """Limit the address space of this process to its present size plus `nbytes`."""
    with open("/proc/self/statm", encoding="ascii") as file:
        held = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + nbytes, held + nbytes))


def main(nbytes: int) -> None:
    """Check the constraints that arrive on standard input, within a memory limit, until it closes."""
    tables = GrammarVocabulary(ByteTokenizer(), BYTE_SYMBOLS)
    _limit_memory(nbytes)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answer = sys.stdout.buffer
    answer.write(b"ready\n")
    answer.flush()
    for line in sys.stdin.buffer:
        answer.write(msgspec.json.encode(refusal(msgspec.json.decode(line, type=StructuredOutputs), tables)) + b"\n")
        answer.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]))
