"""The table of the formats in which models write tool calls, by the names of vLLM's --tool-call-parser."""

from collections.abc import Mapping

from ridgeline.core.text.tools.formats.apertus_calls import APERTUS
from ridgeline.core.text.tools.formats.functionary_calls import FUNCTIONARY
from ridgeline.core.text.tools.formats.gemma_calls import FUNCTION_GEMMA, GEMMA4
from ridgeline.core.text.tools.formats.harmony_calls import HARMONY
from ridgeline.core.text.tools.formats.hermes_calls import HERMES
from ridgeline.core.text.tools.formats.json_calls import (
    COHERE_COMMAND3,
    GIGACHAT3,
    GRANITE,
    GRANITE_20B_FC,
    INTERNLM,
    JAMBA,
    LONGCAT,
    MINIMAX,
    NEMOTRON_JSON,
    PHI4_MINI_JSON,
    PHI4_MINI_TAGS,
    XLAM,
)
from ridgeline.core.text.tools.formats.llama_calls import LLAMA3_JSON
from ridgeline.core.text.tools.formats.marked_calls import DEEPSEEK_V3, DEEPSEEK_V31, KIMI_K2, SOLAR_OPEN
from ridgeline.core.text.tools.formats.mistral_calls import MISTRAL, MISTRAL_ARGS
from ridgeline.core.text.tools.formats.pythonic_calls import LFM2, LLAMA4_PYTHONIC, OLMO3, PYTHONIC
from ridgeline.core.text.tools.formats.tagged_calls import (
    DEEPSEEK_V4,
    DEEPSEEK_V32,
    GLM45,
    GLM47,
    HY_V3,
    HY_V3_PREVIEW,
    MINICPM5,
    MINIMAX_M2,
    QWEN3_CODER,
    SEED_OSS,
    SOLAR_OPEN2,
    STEP3,
)
from ridgeline.core.text.tools.tool_format import ToolFormat

ALL_FORMATS = (
    HARMONY,
    HERMES,
    LLAMA3_JSON,
    MISTRAL,
    MISTRAL_ARGS,
    APERTUS,
    COHERE_COMMAND3,
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    DEEPSEEK_V32,
    DEEPSEEK_V4,
    FUNCTIONARY,
    FUNCTION_GEMMA,
    GEMMA4,
    GIGACHAT3,
    GLM45,
    GLM47,
    GRANITE,
    GRANITE_20B_FC,
    HY_V3,
    HY_V3_PREVIEW,
    INTERNLM,
    JAMBA,
    KIMI_K2,
    LFM2,
    LLAMA4_PYTHONIC,
    LONGCAT,
    MINICPM5,
    MINIMAX,
    MINIMAX_M2,
    NEMOTRON_JSON,
    OLMO3,
    PHI4_MINI_JSON,
    PHI4_MINI_TAGS,
    PYTHONIC,
    QWEN3_CODER,
    SEED_OSS,
    SOLAR_OPEN,
    SOLAR_OPEN2,
    STEP3,
    XLAM,
)
"""The tool formats, in the order in which the probe tries them; formats of one name differ in their layouts."""

_ALIASES: Mapping[str, str] = {
    "cohere_command4": "cohere_command3",
    "ernie45": "hermes",
    "hunyuan_a13b": "jamba",
    "llama4_json": "llama3_json",
    "mimo": "qwen3_coder",
    "poolside_v1": "glm45",
    "qwen3_xml": "qwen3_coder",
    "step3p5": "qwen3_coder",
}
"""Further names of vLLM's parsers, with the names of the formats that they read."""

FORMATS: Mapping[str, ToolFormat] = {each.name: each for each in reversed(ALL_FORMATS)}
"""The tool formats by name; of several with one name, the first in `ALL_FORMATS`."""

NAMES = tuple(sorted({*FORMATS, *_ALIASES}))
"""The names that --tool-call-parser accepts."""


def format_named(name: str) -> ToolFormat:
    """Return the tool format with this name of a parser of vLLM.

    Raises:
        ValueError: If there is no such format. The message lists the names.
    """
    found = FORMATS.get(_ALIASES.get(name, name))
    if found is None:
        raise ValueError(f"--tool-call-parser is {name!r}; give one of {', '.join(NAMES)}")
    return found
