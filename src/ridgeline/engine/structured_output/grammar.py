"""The compilation of requested formats to grammars, with a cache for further requests with the same format.

Compiling takes some 2 ms for a schema of ten properties and is bounded by the library's own limits. A server that
accepts schemas from strangers tries them elsewhere first (server/routes/grammar_check.py).
"""

import re
from collections import OrderedDict
from typing import Any

import llguidance
from llguidance.gbnf_to_lark import any_to_lark

from ridgeline.core.text.json_form import JSON_LAYOUT
from ridgeline.engine.structured_output.grammar_vocabulary import GrammarVocabulary
from ridgeline.engine.structured_output_params import StructuredOutputs

CACHE_BYTES = 64 << 20
MAX_REASON = 300
_JSON: Any = JSON_LAYOUT
_ONE_OF = re.compile(r"oneOf constraints are not supported\. Enable 'coerce_one_of'[^.]*anyOf")
_ONE_OF_FIX = (
    "oneOf is not supported for schemas that may overlap; give anyOf, or give each schema one required property with a "
    "const of its own and write out each $ref"
)
_LIMITS = llguidance.LLParserLimits(verbose_errors=False)


def source_of(outputs: StructuredOutputs) -> str:
    """Return the grammar of a format as llguidance takes it.

    Raises:
        ValueError: If a schema is not JSON, or a grammar is not GBNF.
    """
    if outputs.json_object:
        return llguidance.LLMatcher.grammar_from_json_schema('{"type":"object"}', overrides=_JSON)
    if outputs.json is not None:
        assert isinstance(outputs.json, str)
        return llguidance.LLMatcher.grammar_from_json_schema(outputs.json, overrides=_JSON)
    if outputs.regex is not None:
        return llguidance.LLMatcher.grammar_from_regex(outputs.regex)
    if outputs.choice is not None:
        return llguidance.LLMatcher.grammar_from_regex("|".join(map(_literal, outputs.choice)))
    assert outputs.grammar is not None
    return llguidance.LLMatcher.grammar_from_lark(any_to_lark(outputs.grammar))


def _literal(text: str) -> str:
    """Return a regular expression for one text: characters that may have a meaning are escaped by number."""
    return "".join(c if c.isascii() and c.isalnum() else f"\\x{{{ord(c):X}}}" for c in text)


def compiled(outputs: StructuredOutputs, tokenizer: llguidance.LLTokenizer) -> llguidance.LLMatcher:
    """Compile a format and return a matcher at the start of its grammar.

    Raises:
        ValueError: If the format cannot be compiled; the message says why.
    """
    try:
        source = source_of(outputs)
    except RecursionError:
        raise ValueError(_refusal("it is nested too deep")) from None
    except Exception as error:  # the library's GBNF converter raises errors of any type
        raise ValueError(_refusal(str(error))) from None
    matcher = llguidance.LLMatcher(tokenizer, source, log_level=0, limits=_LIMITS)
    if matcher.is_error():
        raise ValueError(_refusal(matcher.get_error()))
    return matcher


def reason_of(matcher: llguidance.LLMatcher) -> str:
    """Return why a matcher has failed, in one line; "" if it has not."""
    return _one_line(matcher.get_error())


def _refusal(reason: str) -> str:
    return f"structured_outputs cannot be enforced: {_one_line(reason) or 'it allows no text'}"


def _one_line(reason: str) -> str:
    """Return an error of llguidance in one line, without its internal states and options, which no user can set."""
    message = _ONE_OF.sub(_ONE_OF_FIX, reason.replace("<non-verbose/>", "").replace("NoExtensionBias", ""))
    return " ".join(message.split())[:MAX_REASON]


class GrammarCache:
    """The compiled grammars; the least recently used is dropped first.

    `compiled` is the number of compilations, `nbytes` the estimated bytes of the cached grammars. The library does not
    report what a grammar takes: 64 KiB and 200 bytes per byte of its source is more than was measured (alternations of
    600 counted repetitions take the most).
    """

    def __init__(self, tables: GrammarVocabulary, limit: int = CACHE_BYTES) -> None:
        self._tables, self._limit = tables, limit
        self._kept: OrderedDict[StructuredOutputs, tuple[llguidance.LLMatcher, int]] = OrderedDict()
        self.compiled = self.nbytes = 0

    def matcher(self, outputs: StructuredOutputs) -> llguidance.LLMatcher:
        """Return a new matcher for a format, at the start of its grammar.

        Raises:
            ValueError: If the format cannot be compiled, or no token of the vocabulary can begin it.
        """
        found = self._kept.get(outputs)
        if found is None:
            found = self._compile(outputs), _nbytes(outputs)
            self._kept[outputs] = found
            self.nbytes += found[1]
            while self.nbytes > self._limit and len(self._kept) > 1:
                self.nbytes -= self._kept.popitem(last=False)[1][1]
        self._kept.move_to_end(outputs)
        return found[0].deep_copy()

    def _compile(self, outputs: StructuredOutputs) -> llguidance.LLMatcher:
        self.compiled += 1
        matcher = compiled(outputs, self._tables.library)
        mask, _ = self._tables.next_of(matcher)
        if not mask.any():
            raise ValueError(_refusal(reason_of(matcher) or "no token of the vocabulary can begin a matching text"))
        return matcher


def _nbytes(outputs: StructuredOutputs) -> int:
    texts = (outputs.json, outputs.regex, outputs.grammar, *(outputs.choice or ()))
    return (64 << 10) + 200 * sum(len(text) for text in texts if isinstance(text, str))
