"""Text on its way into a model and out of it.

In: messages -> `ChatTemplate` (text that remembers who wrote it) -> `Tokenizer.encode_parts` -> ids; or plain text ->
`Tokenizer.encode` -> ids. What a user types never becomes a control token.

Out: ids -> `Detokenizer` (whole characters) -> `Reasoning` (thoughts apart from the answer) -> `StopMatcher` (text that
is safe to show) -> the client. `OutputStream` is the three in one, a push per token.

Where a folder's tokenizer comes from: `tokenizer_loader` picks; `fast_tokenizer`, `bpe`, `sentencepiece` and
`byte_tokenizer` read; `tokenizer_config` holds what the side files say; `protect_control_tokens` (in `fast_tokenizer`)
and `provenance` are the two halves of the promise about control tokens. Folders are strangers' work:
`tokenizers_library` bounds what a tokenizer may take, `template_budget` what a template may.
"""

from ridgeline.core.text.chat_template import ChatTemplate, ChatTemplates, RenderedPrompt, load_templates, read_template
from ridgeline.core.text.detokenizer import Detokenizer, TokenOffsets
from ridgeline.core.text.output_stream import Delta, OutputStream
from ridgeline.core.text.reasoning import Reasoning, SplitText, tags_of
from ridgeline.core.text.stop_strings import StopMatcher, StopResult
from ridgeline.core.text.tokenizer import Density, Part, Tokenizer, TokenPiece, density, pieces
from ridgeline.core.text.tokenizer_loader import load_tokenizer

__all__ = [
    "ChatTemplate",
    "ChatTemplates",
    "Delta",
    "Density",
    "Detokenizer",
    "OutputStream",
    "Part",
    "Reasoning",
    "RenderedPrompt",
    "SplitText",
    "StopMatcher",
    "StopResult",
    "TokenOffsets",
    "TokenPiece",
    "Tokenizer",
    "density",
    "load_templates",
    "load_tokenizer",
    "pieces",
    "read_template",
    "tags_of",
]
