"""The variables of a chat template that a request sets, and those of them that the template does not read."""

from typing import Any

from ridgeline.core.text import ChatTemplate
from ridgeline.server.errors import invalid
from ridgeline.server.routes.request_fields import ChatFields, Conversation, TokenizeFields
from ridgeline.server.routes.responses_to_chat import ResponseFields
from ridgeline.server.routes.served_model import ServedModel

_SWITCHES = ("enable_thinking", "thinking")
"""The variables with which templates turn reasoning on and off; `reasoning_effort` sets them too."""
_OWN_FIELDS = frozenset(
    {"add_generation_prompt", "chat_template", "conversation", "documents", "messages", "tokenize", "tools"}
)
"""Arguments of a rendering that are no variables: most are fields of the request, the others cannot be set."""


def template_variables(fields: Conversation, template: ChatTemplate) -> dict[str, Any]:
    """Return the further variables of a conversation that the chat template reads, such as `reasoning_effort`.

    An effort also turns reasoning off ("none") or on (any other) in templates that have a switch for it. Another value
    of the switch in `chat_template_kwargs` has priority.

    Raises:
        ApiError: If `chat_template_kwargs` has the name of a field of its own.
    """
    given = fields.chat_template_kwargs or {}
    own = sorted(_OWN_FIELDS.intersection(given))
    if own:
        raise invalid(
            f"chat_template_kwargs: {own[0]} is no variable of a template: set the request's own field, if it has one",
            "chat_template_kwargs",
        )
    effort = fields.reasoning_effort
    variables: dict[str, Any] = {}
    if effort is not None:
        if "reasoning_effort" in template.variables:
            variables["reasoning_effort"] = effort
        switch = _switch(template)
        if switch is not None and (effort == "none" or not variables):
            variables[switch] = effort != "none"
    return {**variables, **{name: value for name, value in given.items() if name in template.variables}}


def ignored_variables(fields: object, model: ServedModel) -> tuple[str, ...]:
    """Return the names of the request's fields that set a template variable which the chat template does not read.

    Args:
        fields: The fields of any route; routes without a conversation set no variables.
        model: The served model.
    """
    if isinstance(fields, ResponseFields):
        effort, name, given = (fields.reasoning or {}).get("effort"), "reasoning.effort", {}
    elif isinstance(fields, ChatFields | TokenizeFields):
        effort, name, given = fields.reasoning_effort, "reasoning_effort", fields.chat_template_kwargs or {}
    else:
        return ()
    if model.texts.templates is None or not (given or effort is not None):
        return ()
    template = model.template(tools=bool(fields.tools))
    reads_effort = "reasoning_effort" in template.variables or _switch(template) is not None
    ignored = () if effort is None or reads_effort else (name,)
    return (*ignored, *(f"chat_template_kwargs.{each}" for each in given if each not in template.variables))


def _switch(template: ChatTemplate) -> str | None:
    """Return the variable with which a template turns reasoning on and off, or None if it has none."""
    return next((each for each in _SWITCHES if each in template.variables), None)
