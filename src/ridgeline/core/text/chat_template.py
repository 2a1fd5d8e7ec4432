"""Chat templates: render messages to a prompt and its token ids, and prevent user text from becoming control tokens."""

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
from ridgeline.core.text.tokenizer import PromptPart, Tokenizer
from ridgeline.core.text.tokenizer_config import NAMES, read_templates
from ridgeline.core.text.tool_definitions import with_needed_keys
from ridgeline.util.untrusted import ModelRefused, refuse_pointer

ROLES = frozenset(
    ("system", "developer", "user", "assistant", "tool", "function", "ipython", "model", "chatbot", "tool_results")
)
"""The roles that a template can build control tokens from (`'<|' + role + '|>'`); other roles are user text."""

MAX_DEPTH = 64
"""The nesting limit of a message, tool, document or variable that a chat template receives."""

_RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt", *NAMES})


@dataclass(frozen=True)
class RenderedPrompt:
    """A conversation that a chat template rendered, as text and as token ids."""

    text: str
    """The rendered prompt of a conversation as text."""
    ids: list[int]
    """The token ids of the rendered prompt of a conversation."""


class ChatTemplate:
    """A compiled chat template, bound to the tokenizer whose control tokens it writes.

    `variables` are the names that a request can set, such as `enable_thinking` and `date_string`: those that the
    template reads, except messages, tools, documents, add_generation_prompt, special tokens (`bos_token`) and the
    globals of the Jinja environment.
    """

    def __init__(self, source: str, tokenizer: Tokenizer, *, where: str = "chat template") -> None:
        """Compile a Jinja chat template.

        Args:
            source: Jinja source.
            tokenizer: Tokenizer of the model.
            where: Name of the template in errors.

        Raises:
            ValueError: If the source is too long or not valid Jinja.
        """
        if len(source) > MAX_SOURCE:
            raise ValueError(f"{where}: the template is longer than {MAX_SOURCE} characters; give a shorter one")
        self.source = source
        self._tokenizer = tokenizer
        self._named = {name: TrustedStr.by_template(literal) for name, literal in tokenizer.names.items()}
        self._environment = environment = ChatEnvironment()
        try:
            self._compiled, names = environment.compile_chat(source)
        except Exception as error:  # from Jinja or Python's compiler: `break` outside a loop, loops nested too deep
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
        """Render a conversation and encode it to token ids.

        The messages are first converted to the form that the template accepts (`for_template`). Apart from the roles in
        `ROLES`, no character of `messages`, `tools`, `documents` or `variables` becomes part of a control token.

        Args:
            messages: The conversation in OpenAI's format.
            tools: Tools that the model can call.
            documents: Documents for templates that support retrieval.
            add_generation_prompt: Whether the prompt ends with the opening of an assistant response.
            add_special: Whether to add the tokenizer's own tokens (BOS). Most templates write them themselves.
            most_tokens: Maximum prompt length. A prompt that certainly exceeds it is rejected before it is encoded.
            **variables: Values of the template's own variables.

        Raises:
            ValueError: If a message or other argument is malformed or nested too deeply, if the template rejects the
                conversation (raise_exception) or would omit a part, if a variable is unknown, if the prompt certainly
                exceeds `most_tokens`, or if the tokenizer cannot encode the text (for example invalid Unicode).
            ModelRefused: If the template fails or exceeds its budget.
        """
        unknown = sorted(variables.keys() - self.variables)
        if unknown:
            known = ", ".join(sorted(self.variables)) or "none"
            raise ValueError(f"chat template: unknown variable {', '.join(unknown)}; the template reads: {known}")
        needed = self.probe.needed_keys if tools else ()
        context = {
            **{name: _plain(value) for name, value in variables.items()},
            "tools": None if tools is None else [_plain(with_needed_keys(tool, needed)) for tool in tools],
            "documents": None if documents is None else [_plain(document) for document in documents],
            "add_generation_prompt": add_generation_prompt,
        }
        written = self._render_best(messages, context)
        text = _text(written)
        if most_tokens is not None:
            self._tokenizer.check_length(text, most_tokens)
        return RenderedPrompt(text, self._tokenizer.encode_parts(self._parts(written), add_special=add_special))

    def _render_best(self, messages: Sequence[Mapping[str, Any]], context: Mapping[str, Any]) -> TrustedStr:
        """Render a conversation in the first form in which the template preserves the text next to tool calls.

        A form that also preserves the reasoning next to tool calls has priority. If no form preserves the text, raise
        the error of the first form.
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
        """Return a conversation's prompt, or raise ValueError if the template omits a text next to tool calls.

        Unique placeholders in the conversation's texts show what it omits.
        """
        prompt = _text(self._whole(turns, context))
        lost = lost_preamble(marked, prompt)
        if lost is not None:
            raise ValueError(
                f"messages[{lost}].content: the model's chat template leaves out this text next to tool calls; "
                "send null"
            )
        return prompt

    def _whole(self, turns: Sequence[TemplateMessage], context: Mapping[str, Any]) -> TrustedStr:
        """Render messages; raise ValueError naming the first message that the chat template omits.

        If the template omits a leading system message, try again with its text in the last user message.
        """
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
        """Render the prompt of messages that are already in the form that the chat template accepts."""
        rendered = [_message(turn.message) for turn in turns]
        return self._rendered({**context, "messages": rendered}, [turn.index for turn in turns])

    def check(self) -> None:
        """Render a minimal conversation to test a chat template.

        Other failures are ignored, because the template may need a different conversation (tools, documents).

        Raises:
            ModelRefused: If the template exceeds its budget, recurses too deeply or accesses what the sandbox forbids.
        """
        try:
            self._render_probe([{"role": "user", "content": "hi"}], None, True)
        except ModelRefused as error:
            if isinstance(error.__cause__, Exhausted | SecurityError | RecursionError | MemoryError):
                raise
        except ValueError:
            pass  # the template rejects this conversation and says why

    def _render_probe(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, opens: bool
    ) -> str:
        """Render test messages without converting them; `opens` is the template's add_generation_prompt."""
        rendered = [_message(message) for message in messages]
        context = {"messages": rendered, "tools": tools, "documents": None, "add_generation_prompt": opens}
        return _text(self._rendered(context, range(len(rendered))))

    def _rendered(self, context: Mapping[str, Any], indices: Sequence[int]) -> TrustedStr:
        """Run a chat template within its budget of time and memory, and return the prompt.

        Args:
            context: Variables of the template.
            indices: Index in the request of each message of the context, for errors.

        Raises:
            ValueError: If the template calls raise_exception.
            ModelRefused: If the template fails in any other way.
        """
        try:
            with self._environment.budgeted():
                rendered = self._compiled.render({**self._named, **context})
        except RefusedByTemplate as error:
            reason = self._failure(error, context["messages"], indices)
            raise ValueError(f"{reason}; the template refuses these messages") from error
        except Exception as error:  # a template is untrusted code: any failure is the fault of the model
            raise ModelRefused(self._failure(error, context["messages"], indices)) from error
        return rendered if isinstance(rendered, TrustedStr) else concat([rendered])

    def _failure(self, error: Exception, messages: Sequence[object], indices: Sequence[int]) -> str:
        """Return a one-line error with the line and the message at which a chat template failed, and the reason."""
        place = failed_at(error, self._compiled, messages)
        line = f" line {place.line}" if place.line is not None else ""
        message = f" on messages[{indices[place.message]}]" if place.message is not None else ""
        return f"chat template:{line}{message}{':' if line or message else ''} {_one_line(error)}"

    def _parts(self, written: TrustedStr) -> list[PromptPart]:
        """Split a rendered prompt at the control tokens whose literals the template wrote in full."""
        parts: list[PromptPart] = []
        for text, by_template in written.runs():
            end = 0
            for match in self._tokenizer.control_pattern.finditer(text) if by_template else ():
                parts += [text[end : match.start()], self._tokenizer.control[match[0]]]
                end = match.end()
            parts.append(text[end:])
        return [part for part in parts if part != ""]


class ChatTemplates:
    """The chat templates of a model folder by name: usually one, sometimes another for conversations with tools."""

    def __init__(self, templates: Mapping[str, ChatTemplate]) -> None:
        assert templates
        self.by_name = dict(templates)

    def pick(self, *, tools: bool = False) -> ChatTemplate:
        """Return the chat template for a conversation with or without tools.

        As in transformers this is "tool_use" if the conversation has tools and that template exists, and otherwise
        "default". A single template is used whatever its name.

        Raises:
            ValueError: If there are several templates and none is the default.
        """
        if tools and "tool_use" in self.by_name:
            return self.by_name["tool_use"]
        if "default" in self.by_name:
            return self.by_name["default"]
        if len(self.by_name) == 1:
            return next(iter(self.by_name.values()))
        raise ValueError(f"there are several chat templates and no default: {', '.join(self.by_name)}; name one")


def load_templates(folder: Path, tokenizer: Tokenizer) -> ChatTemplates | None:
    """Load the chat templates of a model folder, or return None if it has none.

    Raises:
        ValueError: If a template is malformed. The message names the folder.
    """
    return templates_of(dict(read_templates(folder)), tokenizer, folder)


def templates_of(sources: Mapping[str, str], tokenizer: Tokenizer, where: Path) -> ChatTemplates | None:
    """Return the chat templates with these sources, by name, or None if there are none; errors name `where`."""
    found = {
        name: ChatTemplate(source, tokenizer, where=f"{where}: chat template {name!r}")
        for name, source in sources.items()
    }
    return ChatTemplates(found) if found else None


def read_template(path: Path, tokenizer: Tokenizer) -> ChatTemplates:
    """Load a chat template from a file, for a model whose folder has no template or a different one.

    Raises:
        ValueError: If the file cannot be read or is not a valid template.
    """
    refuse_pointer(path)
    try:
        with path.open(encoding="utf-8") as file:
            source = file.read(MAX_SOURCE + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ValueError(f"{path}: the chat template cannot be read: {why}") from None
    return ChatTemplates({"default": ChatTemplate(source, tokenizer, where=str(path))})


def _text(written: TrustedStr) -> str:
    """Return the rendered prompt as a plain string."""
    return "".join([text for text, _ in written.runs()])


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a message to plain types, with a trusted role and the reasoning under every key that templates read.

    A role is trusted only if it is one of `ROLES`. Keys with null values are omitted, as in transformers, since
    templates would write "None". A null content stays, because the probe has found that the template needs it.
    """
    plain: dict[str, Any] = _plain({k: v for k, v in message.items() if v is not None or k == "content"})
    role = plain.get("role")
    if role in ROLES:
        plain["role"] = TrustedStr.by_template(role)
    reasoning = reasoning_of(plain)
    return plain if reasoning is None else {**dict.fromkeys(REASONING, reasoning), **plain, REASONING[0]: reasoning}


def _plain(value: Any, depth: int = MAX_DEPTH) -> Any:
    """Copy a value using only exact JSON types; other objects could bring methods or trusted marks into the sandbox.

    Raises:
        ValueError: If the value is nested too deeply or contains another type.
    """
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
    """Return an error message as one line of at most 500 characters."""
    if isinstance(error, RecursionError):
        return "the template recurses too deeply"
    return re.sub(r"\s+", " ", str(error) or type(error).__name__)[:500]
