"""`ridgeline chat` holds a conversation in the terminal, with a local model or a server."""

import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli import options
from ridgeline.cli.chat_backend import ChatBackend, ChatDelta, HttpChatBackend, LocalChatBackend, Unreachable
from ridgeline.cli.console import ResponsePrinter, say
from ridgeline.cli.engine_flags import TextFlags
from ridgeline.cli.flags import given_flags, with_flags
from ridgeline.cli.process_setup import UNREACHABLE
from ridgeline.cli.text_request import SamplingFlags
from ridgeline.util.files import write_whole

_URL = ("http://", "https://")
_PARTNER = "A model as for `ridgeline run`, or the URL of a server, like http://127.0.0.1:8000."
_HELP = """\
/system TEXT   set the system message from the next response on; without a text, remove it
/reset         forget the conversation, but keep the system message
/save FILE     write the conversation to a JSON file
/help          show this list
Ctrl-C stops a response; Ctrl-D quits."""


@with_flags
def chat(
    model: Annotated[str, typer.Argument(help=_PARTNER, metavar="MODEL|URL", callback=options.report_model_choice)],
    *,
    system: options.System = None,
    api_key: Annotated[
        str | None,
        typer.Option(help=f"The API key of a server; by default {' or '.join(options.API_KEYS)} from the environment."),
    ] = None,
    served_model_name: Annotated[
        str | None,
        typer.Option("--server-model", help="The model to talk to, if the server has several; its first by default."),
    ] = None,
    sampling: SamplingFlags,
    engine: TextFlags,
) -> None:
    """Chat with a model in the terminal; each response is followed by its speed.

    Ctrl-C stops a response but not the program, Ctrl-D exits, and /help lists more commands. If standard input is not a
    terminal, each line is a message.
    """
    try:
        if model.startswith(_URL):
            partner = _server(model, sampling, engine, api_key, served_model_name)
        else:
            if api_key is not None or served_model_name is not None:
                raise ValueError("--api-key and --server-model need the URL of a server as the model; leave them out")
            llm = engine.load(model)
            partner = LocalChatBackend(model, llm, sampling.params(llm.loaded.defaults))
        ChatSession(partner, system).run()
    except Unreachable as error:
        say(f"ridgeline: {error}")
        raise typer.Exit(UNREACHABLE) from None


def _server(url: str, sampling: SamplingFlags, engine: TextFlags, key: str | None, name: str | None) -> ChatBackend:
    """Return the chat backend of a server.

    Raises:
        ValueError: If an option only applies to an engine in this process.
    """
    for option in given_flags(engine):
        raise ValueError(f"{option} is for a model in this process; leave it out, because the server has its own")
    parameters = sampling.given() | {"max_tokens": sampling.most_tokens}
    return HttpChatBackend(url, parameters, options.api_key_of(key), name)


@dataclass(slots=True)
class ResponseTiming:
    """The latency of a response as this process observes it, with its token counts."""

    began: float = field(default_factory=time.monotonic)
    first: float | None = None
    last: float = 0.0
    tokens: int = 0
    cached: int | None = None
    finish: str | None = None

    def take(self, piece: ChatDelta) -> None:
        """Record a piece of the response. Pieces count as tokens if the server does not report tokens."""
        if piece.text or piece.reasoning:
            self.last = time.monotonic()
            self.first = self.last if self.first is None else self.first
        counted = self.tokens + bool(piece.text or piece.reasoning)
        self.tokens = counted if piece.tokens is None else piece.tokens
        self.cached = self.cached if piece.cached is None else piece.cached
        self.finish = self.finish or piece.finish

    def line(self) -> str:
        """Return TTFT, token rate, tokens, cached prompt tokens and, if not a normal end, why the response ended."""
        if self.first is None:
            return "no response" if self.finish is None else "an empty response"
        decode = self.last - self.first
        rate = f", {(self.tokens - 1) / decode:.1f} tok/s" if self.tokens > 1 and decode > 0 else ""
        cached = f", {self.cached:,} tokens of the prompt were cached" if self.cached else ""
        ended = {None: "; interrupted", "length": "; cut off at the length limit (--max-tokens)"}.get(self.finish, "")
        return f"TTFT {self.first - self.began:.3f} s{rate}, {self.tokens:,} tokens{cached}{ended}"


class ChatSession:
    """A conversation between a terminal and a chat backend."""

    def __init__(self, partner: ChatBackend, system: str | None) -> None:
        self.backend, self.system = partner, system
        self.history: list[dict[str, str]] = []
        self._terminal = sys.stdin.isatty()

    @property
    def messages(self) -> list[dict[str, str]]:
        """The conversation as the model receives it."""
        return [*([{"role": "system", "content": self.system}] if self.system else []), *self.history]

    def run(self) -> None:
        """Exchange messages until the input ends.

        Raises:
            Unreachable: If the server is gone.
        """
        if self._terminal:
            say(f"chatting with {self.backend.name}; /help lists the commands, Ctrl-D quits", style="dim")
        for line in self._lines():
            if line.startswith("/"):
                self._command(line)
            elif line.strip():
                self._exchange(line)

    def _lines(self) -> Iterator[str]:
        """Yield the messages that the user types, or the lines of standard input."""
        if not self._terminal:
            yield from (line.rstrip("\n") for line in sys.stdin)
            return
        with suppress(ImportError):
            import readline  # noqa: F401 - gives `input` line editing and history
        while True:
            try:
                yield input("> ")
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                print()
                say("Ctrl-D quits; /help lists the commands", style="dim")

    def _command(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        rest = rest.strip()
        if name == "/system":
            self.system = rest or None
        elif name == "/reset":
            self.history.clear()
        elif name == "/save":
            if rest:
                self._save(Path(rest).expanduser())
            else:
                say("/save needs a file name, like /save talk.json")
        elif name == "/help":
            say(_HELP)
        else:
            say(f"unknown command {name}; /help lists the commands")

    def _save(self, path: Path) -> None:
        try:
            write_whole(path, json.dumps(self.messages, ensure_ascii=False, indent=2) + "\n")
        except ValueError as error:
            say(str(error))
        else:
            say(f"{len(self.messages)} messages written to {path}", style="dim")

    def _exchange(self, text: str) -> None:
        """Send a message and show the response.

        The text of an interrupted response stays in the conversation. A message without any response is removed again.
        """
        self.history.append({"role": "user", "content": text})
        took, parts, printer = ResponseTiming(), list[str](), ResponsePrinter()
        try:
            with self._interruptible() as interrupted, closing(self.backend.answer(self.messages)) as pieces:
                for piece in pieces:
                    took.take(piece)
                    parts.append(piece.text)
                    printer.show(piece.text, piece.reasoning)
                    if interrupted:
                        break
        except KeyboardInterrupt:
            pass
        except ValueError as error:
            say(str(error))
        printer.end()
        answer = "".join(parts)
        if answer:
            self.history.append({"role": "assistant", "content": answer})
        else:
            self.history.pop()
        say(took.line(), style="dim")

    @contextmanager
    def _interruptible(self) -> Iterator[list[int]]:
        """Record Ctrl-C in the yielded list, or let it raise KeyboardInterrupt if the backend allows that."""
        noted: list[int] = []
        if self.backend.raises or signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
            yield noted
            return
        before = signal.signal(signal.SIGINT, lambda number, _: noted.append(number))
        try:
            yield noted
        finally:
            signal.signal(signal.SIGINT, before)
