"""Chat templates: messages to the prompt's text and token ids, with typed text kept from being control tokens."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2.exceptions import SecurityError

from ridgeline.core.text.conversation import (
    TemplateMessage,
    for_template,
    left_out,
    with_system_in_last_user,
    with_tool_calls,
)
from ridgeline.core.text.preamble import (
    REASONING,
    has_preamble,
    has_running_reasoning,
    lost_preamble,
    reasoning_of,
    with_marks,
)
from ridgeline.core.text.provenance import TrustedStr, concat
from ridgeline.core.text.sandbox import MAX_SOURCE, ChatEnvironment, RefusedByTemplate, failed_at
from ridgeline.core.text.template_budget import Exhausted
from ridgeline.core.text.template_probe import TemplateProbe
from ridgeline.core.text.tokenizer import Part, Tokenizer
from ridgeline.core.text.tokenizer_config import NAMES, read_templates
from ridgeline.util.untrusted import ModelRefused, refuse_pointer

ROLES = frozenset(
    ("system", "developer", "user", "assistant", "tool", "function", "ipython", "model", "chatbot", "tool_results")
)
"""Roles that a template may build control tokens from (`'<|' + role + '|>'`). Other roles are typed text."""

MAX_DEPTH = 64
"""Deepest nesting of a message, tool or document."""

_RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt", *NAMES})


@dataclass(frozen=True)
class RenderedPrompt:
    """A rendered conversation: the text as it reads, and its token ids."""

    text: str
    ids: list[int]


class ChatTemplate:
    """One compiled template, bound to the tokenizer whose control tokens it writes.

    `variables` are the names that the template reads besides messages, tools, documents and add_generation_prompt
    (`enable_thinking`, `date_string`): what a request may set. Raises ValueError when the source is malformed.
    """

    def __init__(self, source: str, tokenizer: Tokenizer, *, where: str = "chat template") -> None:
        if len(source) > MAX_SOURCE:
            raise ValueError(f"{where}: longer than {MAX_SOURCE} characters; give a smaller template")
        self.source = source
        self._tokenizer = tokenizer
        self._named = {name: TrustedStr.by_template(literal) for name, literal in tokenizer.names.items()}
        self._environment = environment = ChatEnvironment()
        try:
            self._compiled, names = environment.compile_chat(source)
        except Exception as error:  # of jinja, and of Python's compiler: `break` outside a loop, loops nested too deep
            raise ValueError(f"{where}: not valid Jinja ({_one_line(error)}); correct the template") from error
        self.variables = names - _RESERVED - environment.globals.keys()
        self.probe = TemplateProbe(self._render_probe)

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        add_special: bool = False,
        most_tokens: int | None = None,
        **variables: Any,
    ) -> RenderedPrompt:
        """Render a conversation, its messages in the form that the template takes (`for_template`).

        No character of `messages`, `tools`, `documents` or `variables` becomes part of a control token, and none is
        changed.

        Args:
            add_special: Add the tokenizer's own tokens (BOS). Most templates write them themselves.
            most_tokens: Refuse a prompt that cannot fit in so many tokens, before it is encoded.

        Raises:
            ValueError: What the template refuses (raise_exception) or would leave out, unknown variables, and text
                that is not valid Unicode.
            ModelRefused: A template that fails, or takes more than its budget.
        """
        unknown = sorted(variables.keys() - self.variables)
        if unknown:
            known = ", ".join(sorted(self.variables)) or "none"
            raise ValueError(f"chat template: no variable {', '.join(unknown)}; the template reads: {known}")
        context = {
            **{name: _plain(value) for name, value in variables.items()},
            "tools": None if tools is None else [_plain(tool) for tool in tools],
            "documents": None if documents is None else [_plain(document) for document in documents],
            "add_generation_prompt": add_generation_prompt,
        }
        written = self._render_best(messages, context)
        text = _text(written)
        if most_tokens is not None:
            self._tokenizer.check_length(text, most_tokens)
        return RenderedPrompt(text, self._tokenizer.encode_parts(self._parts(written), add_special=add_special))

    def _render_best(self, messages: Sequence[Mapping[str, Any]], context: Mapping[str, Any]) -> TrustedStr:
        """Render a conversation in the first form in which the template keeps the text next to calls.

        A form in which it keeps the reasoning next to calls too wins over the others. If the template keeps the text in
        no form, raises the error of the first one.
        """
        messages = with_tool_calls(messages)
        forms = for_template(messages, self.probe)
        if not any(has_preamble(message) for message in messages):
            return self._whole(next(forms), context)
        form, marked = self.probe.calls.form, with_marks(messages)
        has_reasoning = form is not None and form.preambles.keeps_reasoning
        kept: list[Sequence[TemplateMessage]] = []
        failures: list[ValueError] = []
        for turns, marked_turns in zip(forms, for_template(marked, self.probe), strict=True):
            try:
                prompt = self._prompt_with_preambles(marked, marked_turns, context)
            except ValueError as error:
                if isinstance(error.__cause__, Exhausted):
                    raise
                failures.append(error)
                continue
            kept.append(turns)
            if not has_reasoning or has_running_reasoning(marked, prompt):
                return self._whole(turns, context)
        if not kept:
            raise failures[0]
        return self._whole(kept[0], context)

    def _prompt_with_preambles(
        self, marked: Sequence[Mapping[str, Any]], turns: Sequence[TemplateMessage], context: Mapping[str, Any]
    ) -> str:
        """Return the prompt of a marked conversation. Raises ValueError naming a text next to calls that it lacks."""
        prompt = _text(self._whole(turns, context))
        lost = lost_preamble(marked, prompt)
        if lost is not None:
            raise ValueError(
                f"messages[{lost}].content: the model's chat template leaves out this text next to tool calls; "
                "send null"
            )
        return prompt

    def _whole(self, turns: Sequence[TemplateMessage], context: Mapping[str, Any]) -> TrustedStr:
        """Return what the template writes. Raises ValueError that names a message that it leaves out."""
        written = self._rendered_turns(turns, context)
        missing = left_out(turns, _text(written))
        if missing is None:
            return written
        moved = with_system_in_last_user(turns) if missing is turns[0] else None
        if moved is not None:
            written = self._rendered_turns(moved, context)
            if left_out(moved, _text(written)) is None:
                return written
        if missing.calls:
            raise ValueError(
                f"{missing.where}.tool_calls: the model's chat template leaves out these tool calls; send none"
            )
        role = missing.message["role"]
        raise ValueError(
            f"{missing.where}: the model's chat template leaves out this {role} message; put its text into another one"
        )

    def _rendered_turns(self, turns: Sequence[TemplateMessage], context: Mapping[str, Any]) -> TrustedStr:
        told = [_message(turn.message) for turn in turns]
        return self._rendered({**context, "messages": told}, [turn.index for turn in turns])

    def check(self) -> None:
        """Raises ModelRefused for a template that spends its budget on the shortest conversation, or reaches for what
        the sandbox forbids. One that fails otherwise may want another conversation: tools, documents.
        """
        try:
            self._render_probe([{"role": "user", "content": "hi"}], None, True)
        except ModelRefused as error:
            if isinstance(error.__cause__, Exhausted | SecurityError | RecursionError | MemoryError):
                raise
        except ValueError:
            pass  # it says what it wants instead

    def _render_probe(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, opens: bool
    ) -> str:
        """Return what the template makes of messages that are passed as they are. opens: as add_generation_prompt."""
        told = [_message(message) for message in messages]
        context = {"messages": told, "tools": tools, "documents": None, "add_generation_prompt": opens}
        return _text(self._rendered(context, range(len(told))))

    def _rendered(self, context: Mapping[str, Any], indices: Sequence[int]) -> TrustedStr:
        """Return what the template writes. indices: its messages' places in the conversation. Raises as `encode`."""
        try:
            with self._environment.budgeted():
                rendered = self._compiled.render({**self._named, **context})
        except RefusedByTemplate as error:
            raise ValueError(self._failure(error, context["messages"], indices)) from error
        except Exception as error:  # a template is foreign code: what it cannot do is its model's fault
            raise ModelRefused(self._failure(error, context["messages"], indices)) from error
        return rendered if isinstance(rendered, TrustedStr) else concat([rendered])

    def _failure(self, error: Exception, messages: Sequence[object], indices: Sequence[int]) -> str:
        """Return one line that says where in the template and on which message it failed, and why."""
        place = failed_at(error, self._compiled, messages)
        line = f" line {place.line}" if place.line is not None else ""
        message = f" on messages[{indices[place.message]}]" if place.message is not None else ""
        return f"chat template:{line}{message}{':' if line or message else ''} {_one_line(error)}"

    def _parts(self, written: TrustedStr) -> list[Part]:
        """Cut at the control literals that the template wrote in full."""
        parts: list[Part] = []
        for text, by_template in written.runs():
            end = 0
            for match in self._tokenizer.control_pattern.finditer(text) if by_template else ():
                parts += [text[end : match.start()], self._tokenizer.control[match[0]]]
                end = match.end()
            parts.append(text[end:])
        return [part for part in parts if part != ""]


class ChatTemplates:
    """A folder's templates by name. Most folders have one; some have another for conversations with tools."""

    def __init__(self, templates: Mapping[str, ChatTemplate]) -> None:
        assert templates
        self.by_name = dict(templates)

    def pick(self, *, tools: bool = False) -> ChatTemplate:
        """As transformers does: "tool_use" for conversations with tools where it exists, else "default"."""
        if tools and "tool_use" in self.by_name:
            return self.by_name["tool_use"]
        if "default" in self.by_name:
            return self.by_name["default"]
        if len(self.by_name) == 1:
            return next(iter(self.by_name.values()))
        raise ValueError(f"several chat templates and none is the default: {', '.join(self.by_name)}; name one")


def load_templates(folder: Path, tokenizer: Tokenizer) -> ChatTemplates | None:
    """The chat templates of a model's folder, or None where it has none. Raises ValueError naming the folder."""
    found = {
        name: ChatTemplate(source, tokenizer, where=f"{folder}: chat template {name!r}")
        for name, source in read_templates(folder)
    }
    return ChatTemplates(found) if found else None


def read_template(path: Path, tokenizer: Tokenizer) -> ChatTemplates:
    """The chat template in a file, for a model whose folder has none or another. Raises ValueError naming the file."""
    refuse_pointer(path)
    try:
        with path.open(encoding="utf-8") as file:
            source = file.read(MAX_SOURCE + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise ValueError(f"{path}: the chat template cannot be read: {why}") from None
    return ChatTemplates({"default": ChatTemplate(source, tokenizer, where=str(path))})


def _text(written: TrustedStr) -> str:
    """Return a plain string of the same characters."""
    return "".join([text for text, _ in written.runs()])


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message of plain types, its role trusted if known, its reasoning under every name that templates read.

    Keys that hold null are left out, as transformers does, since templates would write "None". A null content stays:
    the probe has found that the template wants it.
    """
    plain: dict[str, Any] = _plain({k: v for k, v in message.items() if v is not None or k == "content"})
    role = plain.get("role")
    if role in ROLES:
        plain["role"] = TrustedStr.by_template(role)
    reasoning = reasoning_of(plain)
    return plain if reasoning is None else {**dict.fromkeys(REASONING, reasoning), **plain, REASONING[0]: reasoning}


def _plain(value: Any, depth: int = MAX_DEPTH) -> Any:
    """Rebuilt out of exact JSON types: other objects could carry methods into the sandbox, or trusted marks."""
    if depth == 0:
        raise ValueError(f"a conversation is nested deeper than {MAX_DEPTH}; flatten it")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return "".join(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, depth - 1) for item in value]
    raise ValueError(f"a conversation holds a {type(value).__name__}; use text, numbers, lists and objects")


def _one_line(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it calls itself too deeply"
    return re.sub(r"\s+", " ", str(error) or type(error).__name__)[:500]
