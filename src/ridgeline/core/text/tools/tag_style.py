"""The literals of a format that writes each parameter of a tool call as text between tags."""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TagStyle:
    r"""The literals of a format that writes each parameter of a tool call as text between tags.

    A call is `call`, the name, `name_end`, the parameters and `call_end`. A parameter is `parameter`, its key,
    `key_end`, perhaps `value`, the text and `value_end`. White space between tags has no meaning.
    """

    call: str
    """The text before the name of a function, such as `<function=`."""
    name_end: str
    """The text after the name of a function; "" if the next tag ends the name."""
    call_end: str
    """The closing tag of a call."""
    parameter: str
    """The text before the key of a parameter, such as `<parameter=`."""
    key_end: str
    """The text after the key of a parameter."""
    value_end: str
    """The closing tag of a parameter's text."""
    value: str = ""
    """The opening tag of a parameter's text, if it is not a part of `key_end`."""
    section: tuple[str, str] | None = None
    """The tags around one or more calls, if there are any; models leave out the first one at times."""
    separator: str = "\n"
    """The white space that templates write between tags."""
    margin: str = ""
    r"""The line break that templates write before and after a parameter's text, which does not belong to it, or ""."""
    quote: str = ""
    """The quotation mark that templates write around names and keys, if they are attributes of tags."""
    typed: bool = False
    """Whether an attribute `string="true"` or `string="false"` of a parameter tells texts from JSON."""
    cdata: bool = False
    """Whether a parameter's text can be a CDATA section."""

    @property
    def unclosed(self) -> re.Pattern[str] | None:
        """The pattern of what ends a parameter that has no closing tag; its group is the key of the next parameter.

        None if nothing does, because the end of a call alone can be a part of a text.
        """
        if self.section is None:
            return None
        ends = rf"{re.escape(self.call_end)}\s*{re.escape(self.section[1])}\Z"
        key = rf"(?<=\n){re.escape(self.parameter)}([^<>\n]+){re.escape(self.key_end)}\Z" if self.margin else "(?!)()"
        return re.compile(f"{ends}|{key}")

    @property
    def openings(self) -> tuple[str, ...]:
        """The texts that begin tool calls: the section's tag, or a call without it."""
        return (*(self.section or ())[:1], self.call)

    @property
    def markers(self) -> tuple[str, ...]:
        """The literals that can be control tokens of a model: whole tags, and DeepSeek's name of its markup."""
        literals = (self.call, self.name_end, self.call_end, self.parameter, self.key_end, self.value, self.value_end)
        tags = re.findall(r"<[^<>\n]*>", "\n".join((*(self.section or ()), *literals)))
        return (*dict.fromkeys(tags), *(("｜DSML｜",) if "｜DSML｜" in self.call else ()))


CDATA = ("<![CDATA[", "]]>")
"""The beginning and the end of a CDATA section."""
AS_TEXT = ' string="true"'
"""The attribute of a parameter that is text, in formats with `TagStyle.typed`."""
AS_JSON = ' string="false"'
"""The attribute of a parameter that is JSON, in formats with `TagStyle.typed`."""
