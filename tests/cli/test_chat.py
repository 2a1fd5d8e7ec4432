"""`ridgeline chat`: a conversation with a model and with a server, and what Ctrl-C does on a real terminal."""

import io
import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cli.running import OK, UNREACHABLE, USAGE, Run, assert_one_line
from engine.folders import CHAT, THINKING_CHAT, write_model
from ridgeline.cli.chat import ChatSession
from ridgeline.cli.chat_backend import HttpChatBackend
from ridgeline.cli.console import ResponsePrinter
from ridgeline.engine.async_llm import AsyncLLM
from ridgeline.engine.setup import load_engine
from ridgeline.server.server_settings import ServerSettings
from ridgeline.server.service import Service
from server.conftest import Everybody, Running, running

GREEDY = ("--temperature", "0", "--max-tokens", "8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), template=CHAT)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    """The model of the folder, served."""
    llm = AsyncLLM(load_engine(str(folder)))
    with running(Service(llm, Everybody()), ServerSettings(models=("mine", "other"))) as up:
        yield up
    llm.close()


def saved(path: Path) -> list[dict[str, str]]:
    return list(json.loads(path.read_text()))


# -- a conversation ----------------------------------------------------------------------------------------------------


def test_a_conversation_and_its_commands(ridgeline: Run, folder: Path, tmp_path: Path) -> None:
    """What is said becomes part of the next prompt; /reset forgets it, /system stays, /save writes it."""
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    lines = [
        "hello",
        "",
        "again",
        f"/save {first}",
        "/reset",
        "/system be brief",
        "hello",
        f"/save {second}",
        "/what",
        "/save",
    ]
    ended = ridgeline("chat", folder, *GREEDY, stdin="\n".join(lines))
    assert ended.code == OK, ended.err
    told = saved(first)
    assert [message["role"] for message in told] == ["user", "assistant", "user", "assistant"]
    assert [message["content"] for message in told[::2]] == ["hello", "again"]
    answers = [message["content"] for message in told[1::2]]
    assert saved(second)[:2] == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    answers.append(saved(second)[2]["content"])
    assert ended.out == "".join(f"{answer}\n" for answer in answers)
    assert answers[0] != answers[2], "a system message is in the prompt"
    timings = [line for line in ended.err.splitlines() if line.startswith("TTFT ")]
    assert len(timings) == 3
    assert all(
        "tok/s, 8 tokens" in line and line.endswith("; cut off at the length limit (--max-tokens)") for line in timings
    )
    assert "16 tokens of the prompt were cached" in timings[1], "the first exchange is found again"
    assert "unknown command /what" in ended.err
    assert "/save needs a file name, like /save talk.json" in ended.err


def test_a_server_answers_as_the_model_does(ridgeline: Run, folder: Path, server: Running) -> None:
    """The same sampling, the same answers, counts and all; with /v1 in the URL and without."""
    said = "hello\nagain\n"
    here = ridgeline("chat", folder, *GREEDY, "--system", "be brief", stdin=said)
    for url in (server.url, f"{server.url}/v1/"):
        there = ridgeline("chat", url, *GREEDY, "--system", "be brief", stdin=said)
        assert there.code == OK, there.err
        assert there.out == here.out
        assert all(", 8 tokens" in line for line in there.err.splitlines() if line.startswith("TTFT"))
    other = ridgeline("chat", server.url, "--server-model", "absent", stdin=said)
    assert other.code == OK
    assert (
        f"{server.url} responded with status 404: no model 'absent' is served here; "
        "the models of this server are mine, other" in other.err
    )
    server.idle()


def test_thoughts_are_apart(ridgeline: Run, tmp_path: Path) -> None:
    """They go to stderr, and not into the conversation."""
    folder = write_model(tmp_path / "thinks", template=THINKING_CHAT)
    ended = ridgeline("chat", folder, *GREEDY, stdin=f"hello\n/save {tmp_path / 'saved'}")
    assert ended.out == "\n", "it has not done thinking"
    assert len(ended.err.partition("TTFT")[0].strip()) > 0
    assert saved(tmp_path / "saved") == [], "a message without an answer is taken back"
    plain = ridgeline("chat", folder, *GREEDY, "--reasoning-parser", "none", stdin="hello")
    assert plain.out != "\n"


def test_reasoning_ends_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    printer = ResponsePrinter()
    for text, reasoning in (("", "hm"), ("", ", tea"), ("Mi", ""), ("lk.", "")):
        printer.show(text, reasoning)
    printer.end()
    assert capsys.readouterr() == ("Milk.\n", "hm, tea\n")
    printer.show("", "hm")
    printer.end()
    assert capsys.readouterr() == ("\n", "hm\n")


def test_a_message_that_gets_no_answer(ridgeline: Run, folder: Path, tmp_path: Path) -> None:
    """What the model refuses is said in a line, and the conversation goes on without it."""
    ended = ridgeline("chat", folder, *GREEDY, stdin=f"{'x' * 3000}\nhello\n/save {tmp_path / 'saved'}")
    assert ended.code == OK
    assert "shorten it" in ended.err
    assert saved(tmp_path / "saved")[0]["content"] == "hello"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["http://127.0.0.1:1"], UNREACHABLE, "no server responds at http://127.0.0.1:1: Connection refused"),
        (["http://"], USAGE, "http:// is not a server's address"),
        (["http://127.0.0.1:x"], USAGE, "http://127.0.0.1:x is not a server's address; give one like"),
        (["http://[::1"], USAGE, "http://[::1 is not a server's address"),
        (["http://127.0.0.1:1", "--max-model-len", "5"], USAGE, "--context is for a model in this process"),
        (["tales", "--api-key", "x"], USAGE, "--api-key and --server-model need the URL of a server"),
    ],
)
def test_what_is_refused(ridgeline: Run, arguments: list[str], code: int, says: str) -> None:
    assert_one_line(ridgeline("chat", *arguments), code, says)


def test_a_model_without_a_template(ridgeline: Run, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "plain")
    assert_one_line(ridgeline("chat", folder), USAGE, "has no chat template; give one with --chat-template FILE")
    template = tmp_path / "chat.jinja"
    template.write_text(CHAT)
    assert ridgeline("chat", folder, *GREEDY, "--chat-template", template, stdin="hello").code == OK


# -- interrupts --------------------------------------------------------------------------------------------------------


def test_an_interrupt_leaves_the_server(
    server: Running, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C closes the connection, on which the server ends the request; what was said stays said."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n"))
    conversation = ChatSession(
        HttpChatBackend(server.url, {"max_tokens": 200, "ignore_eos": True, "temperature": 0}), None
    )
    shown: list[str] = []

    def show(text: str) -> None:
        shown.append(text)
        if len("".join(shown)) >= 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(ResponsePrinter, "show", lambda self, text, reasoning: show(text))
    conversation.run()
    assert conversation.history[1]["content"] == "".join(shown)
    assert len(conversation.history[1]["content"]) < 100
    assert capsys.readouterr().err.endswith("; interrupted\n")
    server.idle()


# How the program begins: with the terminal as its own, and not ignoring interrupts, as a worker of xdist does.
ON_A_TERMINAL = (
    "import fcntl, os, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)


class Terminal:
    """A program on a terminal of its own. It is no fork of this process, whose threads may hold locks."""

    def __init__(self, *arguments: str) -> None:
        self._descriptor, other = pty.openpty()
        program = [sys.executable, "-c", ON_A_TERMINAL, "-m", "ridgeline", *arguments]
        self._process = subprocess.Popen(program, stdin=other, stdout=other, stderr=other, start_new_session=True)
        os.close(other)
        self.said = ""

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def wait(self, wanted: Callable[[str], bool], seconds: float = 90.0) -> str:
        """What it says until it is what is wanted; then that is forgotten."""
        end = time.monotonic() + seconds
        while not wanted(self.said):
            assert time.monotonic() < end, self.said
            if select.select([self._descriptor], [], [], 0.1)[0]:
                try:
                    self.said += os.read(self._descriptor, 4096).decode("utf-8", "replace")
                except OSError:  # the other end is closed
                    break
        told, self.said = self.said, ""
        return told

    def end(self) -> int:
        """Wait for its exit code."""
        self.wait(lambda _: False)
        return self._process.wait()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._descriptor)


def test_interrupts_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends an answer and not the program, at the prompt it gives a hint; Ctrl-D leaves."""
    monkeypatch.setenv("TERM", "dumb")
    terminal = Terminal("chat", "tales", "--ignore-eos", "--max-tokens", "400", "--threads", "1")
    try:
        terminal.wait(lambda said: said.endswith("> "))
        terminal.type("Once upon a time\n")
        terminal.wait(lambda said: len(said) > 60)  # the message's echo and the answer's beginning
        terminal.type("\x03")
        told = terminal.wait(lambda said: said.endswith("> "))
        assert "; interrupted" in told
        terminal.type("\x03\n")  # readline notices an interrupt that comes just before it waits with the next key
        terminal.wait(lambda said: "Ctrl-D quits" in said and said.endswith("> "))
        terminal.type("/help\n")
        terminal.wait(lambda said: "/reset" in said and said.endswith("> "))
        terminal.type("\x04")
        assert terminal.end() == OK
    finally:
        terminal.kill()


@pytest.mark.parametrize("template", ["{% for %}", "{{ 'a' * 10**9 }}"])
def test_a_bad_chat_template_file_is_a_wrong_option_in_every_command(
    ridgeline: Run, tmp_path: Path, template: str
) -> None:
    """Check the exit code: one of these said that the model is refused, the other that an option is wrong."""
    file = tmp_path / "chat.jinja"
    file.write_text(template, encoding="utf-8")
    for command in (("run", "tales", "Once"), ("chat", "tales"), ("serve", "tales", "--port", "0")):
        ended = ridgeline(*command, "--chat-template", file)
        assert ended.code == USAGE
        assert ended.err.splitlines()[-1].startswith(f"ridgeline: {file}: ")  # serve logs its start before
