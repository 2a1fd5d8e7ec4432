"""The formats in which models write reasoning: the markers that switch the generated stream to another section.

A format has the name of a reasoning parser of vLLM (`--reasoning-parser`), if vLLM has one. Without that option, the
source of the chat template shows the format.
"""

import enum
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass


class Section(enum.Enum):
    """The kind of text that follows a marker."""

    REASONING = enum.auto()
    RESPONSE = enum.auto()
    HEADER = enum.auto()
    """Text that belongs to the format, such as the author of a message; neither reasoning nor response."""
    BODY = enum.auto()
    """The section that the header before the marker names."""


@dataclass(frozen=True, slots=True, eq=False)
class ReasoningFormat:
    """The format in which a family of models separates its reasoning from the response."""

    name: str
    """The name of a reasoning format, in vLLM if vLLM has it."""
    opening: str
    """The text before the reasoning, as chat templates write it."""
    closing: str
    """The text after the reasoning, up to the response."""
    markers: Mapping[str, Section]
    """The literals that switch the stream to another section, which the client does not see."""
    call_markers: tuple[str, ...] = ()
    """The literals that begin tool calls: they end a reasoning section, and the text of the response includes them."""
    header: str = ""
    """The text at the end of `closing` that begins a message with the response; "" if responses have no header."""
    label: str = ""
    """The text that models write between the opening marker and the reasoning."""
    template_literals: tuple[str, ...] = ()
    """The literals of which one in the source of a chat template shows this format."""
    aliases: tuple[str, ...] = ()
    """Further names of reasoning parsers of vLLM that read this format."""
    header_start: str = ""
    """The text with which a header can begin if no marker precedes it; "" if only a marker begins one."""
    read_header: Callable[[str], tuple[Section, str]] | None = None
    """A function that returns the section that a header names, and text of the response in place of the header."""

    @property
    def section_of(self) -> Mapping[str, Section]:
        """The section that follows each marker, including the markers of tool calls."""
        return {**self.markers, **dict.fromkeys(self.call_markers, Section.RESPONSE)}


_CALLS = (
    "<tool_call>",
    "<tool_calls>",
    "<minimax:tool_call>",
    "<|tool_call_start|>",
    "<|tool_calls_section_begin|>",
    "<｜tool▁calls▁begin｜>",
    "<TOOLCALL>",
)
"""The markers of tool calls of the models that write their reasoning between `<think>` and `</think>`."""


def _tags(
    name: str,
    opening: str,
    closing: str,
    *,
    calls: tuple[str, ...] = (),
    dropped: tuple[str, ...] = (),
    template_literals: tuple[str, ...] | None = None,
    aliases: tuple[str, ...] = (),
) -> ReasoningFormat:
    """Return the format of a pair of tags.

    Args:
        name: The name of the format.
        opening: The tag before the reasoning.
        closing: The tag after the reasoning.
        calls: The markers of tool calls.
        dropped: Markers around the response.
        template_literals: The literals that show the format; None for the two tags.
        aliases: Further names of vLLM's parsers.
    """
    return ReasoningFormat(
        name,
        opening,
        closing,
        {opening: Section.REASONING, closing: Section.RESPONSE, **dict.fromkeys(dropped, Section.RESPONSE)},
        calls,
        template_literals=(opening, closing) if template_literals is None else template_literals,
        aliases=aliases,
    )


THINK = _tags(
    "deepseek_r1",
    "<think>",
    "</think>",
    calls=_CALLS,
    aliases=(
        "deepseek_v3",
        "deepseek_v4",
        "glm45",
        "glm47",
        "holo2",
        "kimi_k2",
        "mimo",
        "minimax_m2",
        "nemotron_v3",
        "olmo3",
        "poolside_v1",
        "qwen3",
        "step3",
        "step3p5",
    ),
)
"""The reasoning tags of most models."""

_GEMMA4 = ReasoningFormat(
    "gemma4",
    "<|channel>thought\n",
    "<channel|>",
    {"<|channel>": Section.REASONING, "<channel|>": Section.RESPONSE},
    ("<|tool_call>",),
    label="thought\n",
    template_literals=("<|channel>", "<channel|>"),
)

_SOLAR_OPEN = ReasoningFormat(
    "solar_open",
    "<|think|>",
    "<|end|><|begin|>assistant<|content|>",
    {
        "<|think|>": Section.REASONING,
        "<|content|>": Section.RESPONSE,
        "<|begin|>": Section.HEADER,
        "<|end|>": Section.HEADER,
    },
    ("<|tool_calls|>",),
    header="<|content|>",
    template_literals=("<|begin|>assistant<|think|>",),
)

_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


def _read_harmony_header(header: str) -> tuple[Section, str]:
    """Return the section that the header of a harmony message names, and the text that introduces a tool call.

    A message to a function is a tool call in every channel, and a message to another tool of the model is reasoning.
    """
    recipient, channels = _RECIPIENT.search(header), _CHANNEL.findall(header)
    if recipient is not None and recipient[1].startswith("functions."):
        return Section.RESPONSE, f" to={recipient[1]}"
    is_reasoning = recipient is not None or channels[-1:] == ["analysis"]
    return (Section.REASONING if is_reasoning else Section.RESPONSE), ""


_HARMONY = ReasoningFormat(
    "openai_gptoss",
    "<|channel|>analysis<|message|>",
    "<|end|><|start|>assistant<|channel|>final<|message|>",
    {
        **dict.fromkeys(("<|start|>", "<|channel|>", "<|constrain|>"), Section.HEADER),
        "<|message|>": Section.BODY,
        **dict.fromkeys(("<|end|>", "<|call|>", "<|return|>"), Section.HEADER),
    },
    header="<|channel|>final<|message|>",
    template_literals=("<|channel|>analysis",),
    header_start="to=",
    read_header=_read_harmony_header,
)

REASONING_FORMATS = (
    _HARMONY,
    _GEMMA4,
    _SOLAR_OPEN,
    _tags("apertus", "<|inner_prefix|>", "<|inner_suffix|>", calls=("<|tools_prefix|>",)),
    _tags(
        "cohere_command3",
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        calls=("<|START_ACTION|>",),
        dropped=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
        aliases=("cohere_command4",),
    ),
    _tags(
        "hy_v3",
        "<think:opensource>",
        "</think:opensource>",
        calls=("<tool_calls:opensource>",),
        template_literals=("<think:opensource>", "'<think{}>'.format"),
    ),
    _tags("mistral", "[THINK]", "[/THINK]", calls=("[TOOL_CALLS]",)),
    _tags("seed_oss", "<seed:think>", "</seed:think>", calls=("<seed:tool_call>",)),
    _tags("solar_open2", "<|think:start|>", "<|think:end|>", calls=("<|tool_call:start|>",)),
    THINK,
    _tags("ernie45", "<think>", "</think>", calls=_CALLS, dropped=("<response>", "</response>"), template_literals=()),
    _tags("granite", "Here is my thought process:", "Here is my response:", template_literals=()),
    _tags("hunyuan_a13b", "<think>", "</think>", calls=_CALLS, dropped=("<answer>", "</answer>"), template_literals=()),
)
"""The formats of reasoning, in the order in which a chat template is searched for their literals."""

_BY_NAME: Mapping[str, ReasoningFormat] = {
    name: each for each in REASONING_FORMATS for name in (each.name, *each.aliases)
}
NO_REASONING = "none"
"""The name that stands for a model without reasoning sections."""
REASONING_NAMES = (*sorted(_BY_NAME), NO_REASONING)
"""The names that --reasoning-parser accepts."""


def reasoning_format_of(template_source: str) -> ReasoningFormat | None:
    """Return the reasoning format that the source of a chat template shows, or None if it shows none."""
    for each in REASONING_FORMATS:
        if any(literal in template_source for literal in each.template_literals):
            return each
    return None


def reasoning_format_named(name: str) -> ReasoningFormat | None:
    """Return the reasoning format with this name of a parser of vLLM; None for "none".

    Raises:
        ValueError: If there is no such format. The message lists the names.
    """
    if name not in REASONING_NAMES:
        raise ValueError(f"unknown reasoning format {name!r}; use one of {', '.join(REASONING_NAMES)}")
    return _BY_NAME.get(name)
