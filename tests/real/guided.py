"""The greedy loop of transformers under a grammar: llguidance's masks leave the tokens that may come next."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import llguidance
import llguidance.hf
import torch
from llguidance.numpy import allocate_token_bitmask, apply_token_bitmask_inplace, fill_next_token_bitmask
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedModel, PreTrainedTokenizerBase

ONE_LINE: Mapping[str, Any] = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""The options of llguidance that make it write JSON as json.dumps does."""


def schema_grammar(schema: Mapping[str, Any]) -> str:
    """Return the grammar of a JSON schema."""
    return llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=dict(ONE_LINE))


def call_grammar(functions: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the grammar of one call in Hermes' format. functions: schemas of their arguments, by name."""
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "arguments": arguments},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for name, arguments in functions.items()
    ]
    call = json.dumps({"anyOf": calls, "x-guidance": ONE_LINE})
    return llguidance.LLMatcher.grammar_from_lark(f'start: "<tool_call>\\n" call "\\n</tool_call>"\ncall: %json {call}')


class Masked(LogitsProcessor):
    """A processor of `generate` that leaves only the tokens that a grammar allows next, or that end its text."""

    def __init__(self, matcher: llguidance.LLMatcher, prompt: int) -> None:
        """Take a matcher and the number of tokens before the text that it is about."""
        self.matcher, self.prompt = matcher, prompt

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if input_ids.shape[1] > self.prompt:
            assert self.matcher.consume_token(int(input_ids[0, -1]))
        bits, masked_BV = allocate_token_bitmask(1, scores.shape[1]), scores.clone()
        fill_next_token_bitmask(self.matcher, bits)
        apply_token_bitmask_inplace(masked_BV.numpy(), bits)
        return masked_BV


def guided(
    theirs: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: Sequence[int], grammar: str, most: int
) -> str:
    """Return what the model writes after a prompt: up to the end of the grammar, or `most` tokens."""
    matcher = llguidance.LLMatcher(llguidance.hf.from_tokenizer(tokenizer, theirs.config.vocab_size), grammar)
    assert not matcher.is_error(), matcher.get_error()
    masked = LogitsProcessorList([Masked(matcher, len(prompt))])
    found = theirs.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=most, logits_processor=masked)
    return str(tokenizer.decode(found[0, len(prompt) :], skip_special_tokens=True))
