"""The tool calls of models that write each parameter as text between tags, such as Qwen3-Coder and MiniMax-M2."""

from dataclasses import replace
from functools import partial

from ridgeline.core.text.tools.call_reader import Reader
from ridgeline.core.text.tools.tag_reader import read_tagged_calls
from ridgeline.core.text.tools.tag_style import TagStyle
from ridgeline.core.text.tools.tagged_parameters import tagged_parameters
from ridgeline.core.text.tools.tool_format import CallLayout, NewCall, ToolFormat


def _format(name: str, style: TagStyle, middle: str, *, each: bool = False) -> ToolFormat:
    """Return the format of a style.

    Args:
        name: The name of the format in vLLM.
        style: Its literals.
        middle: The text between the name of a function and the first parameter, as templates write it.
        each: Whether each call has a section of its own.
    """
    begin, end = style.section or ("", "")
    start, stop = (begin + style.separator, style.separator + end) if begin else ("", "")
    return ToolFormat(
        name,
        style.openings,
        partial(read_tagged_calls, style),
        CallLayout(
            start=start,
            before=style.call + style.quote,
            middle=style.quote + middle,
            after=style.call_end,
            between=stop + "\n" + start if each else "\n",
            end=stop,
        ),
        markers=style.markers,
        arguments=partial(tagged_parameters, style),
    )


_QWEN = TagStyle(
    section=("<tool_call>", "</tool_call>"),
    call="<function=",
    name_end=">",
    call_end="</function>",
    parameter="<parameter=",
    key_end=">",
    value_end="</parameter>",
    margin="\n",
)
_SEED = replace(_QWEN, section=("<seed:tool_call>", "</seed:tool_call>"), margin="")
_MINIMAX = TagStyle(
    section=("<minimax:tool_call>", "</minimax:tool_call>"),
    call="<invoke name=",
    name_end=">",
    call_end="</invoke>",
    parameter="<parameter name=",
    key_end=">",
    value_end="</parameter>",
    quote='"',
)
_DSML = TagStyle(
    section=("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"),
    call="<｜DSML｜invoke name=",
    name_end=">",
    call_end="</｜DSML｜invoke>",
    parameter="<｜DSML｜parameter name=",
    key_end=">",
    value_end="</｜DSML｜parameter>",
    quote='"',
    typed=True,
)
_OLDER_DSML = replace(_DSML, section=("<｜DSML｜function_calls>", "</｜DSML｜function_calls>"))
_MINICPM = TagStyle(
    call="<function name=",
    name_end=">",
    call_end="</function>",
    parameter="<param name=",
    key_end=">",
    value_end="</param>",
    separator="",
    quote='"',
    cdata=True,
)
_GLM = TagStyle(
    call="<tool_call>",
    name_end="",
    call_end="</tool_call>",
    parameter="<arg_key>",
    key_end="</arg_key>",
    value="<arg_value>",
    value_end="</arg_value>",
)
_SOLAR = TagStyle(
    call="<|tool_call:start|>",
    name_end="",
    call_end="<|tool_call:end|>",
    parameter="<|tool_arg:start|>",
    key_end="<|tool_arg:value|>",
    value_end="<|tool_arg:end|>",
)
_STEP3 = TagStyle(
    section=("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"),
    call="<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=",
    name_end=">",
    call_end="</steptml:invoke><｜tool_call_end｜>",
    parameter="<steptml:parameter name=",
    key_end=">",
    value_end="</steptml:parameter>",
    quote='"',
)


def _hunyuan(suffix: str) -> TagStyle:
    """Return the style of Tencent's Hy3 with a suffix in the names of all tags."""
    return TagStyle(
        section=(f"<tool_calls{suffix}>", f"</tool_calls{suffix}>"),
        call=f"<tool_call{suffix}>",
        name_end=f"<tool_sep{suffix}>",
        call_end=f"</tool_call{suffix}>",
        parameter=f"<arg_key{suffix}>",
        key_end=f"</arg_key{suffix}>",
        value=f"<arg_value{suffix}>",
        value_end=f"</arg_value{suffix}>",
    )


_HUNYUAN, _HUNYUAN_PREVIEW = _hunyuan(":opensource"), _hunyuan("")


def _read_hunyuan(new: NewCall, opening: str) -> Reader:
    """Read the calls of Hy3 or of its preview, whose tags have no suffix."""
    style = _HUNYUAN if opening.endswith(":opensource>") else _HUNYUAN_PREVIEW
    yield from read_tagged_calls(style, new, opening)


QWEN3_CODER = _format("qwen3_coder", _QWEN, ">\n", each=True)
"""The format of Qwen3-Coder, Qwen3.5, Nemotron 3, Step 3.5 and MiMo V2."""
SEED_OSS = _format("seed_oss", _SEED, ">\n", each=True)
"""The format of ByteDance's Seed-OSS."""
MINIMAX_M2 = _format("minimax_m2", _MINIMAX, ">\n")
"""The format of MiniMax-M2."""
DEEPSEEK_V32 = _format("deepseek_v32", _OLDER_DSML, ">\n")
"""The format of DeepSeek V3.2."""
DEEPSEEK_V4 = _format("deepseek_v4", _DSML, ">\n")
"""The format of DeepSeek V4."""
MINICPM5 = _format("minicpm5", _MINICPM, ">")
"""The format of MiniCPM5."""
GLM45 = _format("glm45", _GLM, "\n")
"""The format of GLM-4.5 and 4.6."""
GLM47 = _format("glm47", replace(_GLM, separator=""), "")
"""The format of GLM-4.7 and later, which has no line breaks; its reader is that of `GLM45`."""
HY_V3, HY_V3_PREVIEW = (
    replace(
        _format("hy_v3", style, style.name_end + "\n"),
        openings=(*_HUNYUAN.openings, *_HUNYUAN_PREVIEW.openings),
        read=_read_hunyuan,
        markers=(*_HUNYUAN.markers, *_HUNYUAN_PREVIEW.markers),
    )
    for style in (_HUNYUAN, _HUNYUAN_PREVIEW)
)
"""The formats of Tencent's Hy3 and of its preview."""
SOLAR_OPEN2 = _format("solar_open2", _SOLAR, "\n")
"""The format of Upstage's Solar Open 2."""
STEP3 = _format("step3", _STEP3, ">\n")
"""The format of StepFun's Step 3; Step 3.5 writes that of `QWEN3_CODER`."""
