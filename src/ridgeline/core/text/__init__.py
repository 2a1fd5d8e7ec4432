"""Conversion of prompts to token ids, and of generated token ids to text.

Input: `ChatTemplate` renders messages to text that records its author, and `Tokenizer.encode_parts` encodes it to ids;
`Tokenizer.encode` encodes plain text. User text never becomes a control token in a rendered conversation.

Output: `Detokenizer` turns ids into whole characters, `ReasoningSplitter` separates the reasoning from the response,
and `StopMatcher` releases the text that is safe to show. `OutputStream` combines the three, with one push per token.

`tokenizer_loader` selects the tokenizer of a folder; `fast_tokenizer`, `bpe`, `wordpiece`, `sentencepiece` and
`byte_tokenizer` read it, and `gguf_tokenizer` reads that of a GGUF file; `tokenizer_config` holds the declarations of
the side files. Three parts guarantee that user text yields no control tokens: `provenance` records what users wrote,
and `protect_control_tokens` (in `fast_tokenizer`) and `retype_as_control` (in `sentencepiece`) change the tokenizer.
Model folders are untrusted: `tokenizers_library` limits the time and memory of a tokenizer, `template_budget` those of
a template.
"""

from ridgeline.core.text.chat_template import ChatTemplate, ChatTemplates, RenderedPrompt, load_templates, read_template
from ridgeline.core.text.detokenizer import Detokenizer, TokenOffsets
from ridgeline.core.text.output_stream import Delta, OutputStream
from ridgeline.core.text.reasoning import ReasoningSplitter, SplitText
from ridgeline.core.text.reasoning_format import ReasoningFormat, reasoning_format_named, reasoning_format_of
from ridgeline.core.text.stop_strings import StopMatcher, StopResult
from ridgeline.core.text.tokenizer import PromptPart, TokenCounts, Tokenizer, TokenPiece, count_tokens, token_pieces
from ridgeline.core.text.tokenizer_loader import load_tokenizer

__all__ = [
    "ChatTemplate",
    "ChatTemplates",
    "Delta",
    "Detokenizer",
    "OutputStream",
    "PromptPart",
    "ReasoningFormat",
    "ReasoningSplitter",
    "RenderedPrompt",
    "SplitText",
    "StopMatcher",
    "StopResult",
    "TokenCounts",
    "TokenOffsets",
    "TokenPiece",
    "Tokenizer",
    "count_tokens",
    "load_templates",
    "load_tokenizer",
    "read_template",
    "reasoning_format_named",
    "reasoning_format_of",
    "token_pieces",
]
