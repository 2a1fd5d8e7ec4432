"""What a shell, a disk, a terminal and strangers can do to a command, and that it is one line at most."""

import errno
import io
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cli.running import FAULT, INTERRUPTED, OK, REFUSED, USAGE, Run, assert_one_line
from cli.test_cli import change_config
from cli.test_cli import folder as folder
from cli.test_cli import own_folder as own_folder
from ridgeline.cli.console import one_line
from ridgeline.cli.run import _generate
from ridgeline.engine import SamplingParams
from ridgeline.engine.events import Event
from ridgeline.util.document.printable import printable
from ridgeline.util.files import check_apart, check_writable, write_whole

# -- streams ----------------------------------------------------------------------------------------------------------

# What the process does before it imports anything large, and a stand-in for what comes after.
PREPARED = [
    sys.executable,
    "-c",
    "from ridgeline.cli.process_setup import *; prepare(); exec(__import__('sys').argv[1])",
]


def shell(redirections: str, program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A small program in a prepared process, with the redirections of a shell. It hears interrupts, even
    where the tests run in the background of a script."""
    line = f'"$0" "$1" "$2" "$3" {redirections}'
    return subprocess.run(
        ["bash", "-c", line, *PREPARED, program],
        capture_output=True, text=True, check=False, timeout=60, env=os.environ | environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def test_a_closed_stdout_is_refused_at_once() -> None:
    ended = shell(">&-", "assert False")
    assert (ended.returncode, ended.stderr.count("\n")) == (USAGE, 1)
    assert ended.stderr.startswith("ridgeline: standard output is closed; ")


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_without_a_stderr_results_come_all_the_same(redirection: str) -> None:
    ended = shell(redirection, "print('lost' * 9999, file=sys.stderr, flush=True); print('kept'); sys.exit(3)")
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "kept\n", "")


def test_a_file_does_not_become_the_stream_that_was_closed() -> None:
    """Whatever a library writes to descriptor 2 would end up in it."""
    assert shell("<&- 2>&-", "print(open('/dev/zero').fileno() > 2)").stdout == "True\n"


def test_an_encoding_without_our_characters() -> None:
    ended = shell("", "print('█ é', sys.stdin.read())", PYTHONIOENCODING="ascii")
    assert (ended.returncode, ended.stdout) == (OK, "\\u2588 \\xe9 \n")
    assert shell("<<< é", "print(sys.stdin.read())", PYTHONIOENCODING="ascii").stdout == "\\xe9\n\n"


@pytest.mark.parametrize(("columns", "kept"), [("0", ""), ("7", ""), ("20", "20"), ("many", "many")])
def test_a_terminal_without_columns(columns: str, kept: str) -> None:
    assert shell("", "print(os.environ.get('COLUMNS', ''))", COLUMNS=columns).stdout == f"{kept}\n"


def test_the_whole_command_on_a_full_disk(folder: Path) -> None:
    """The one that starts the program itself: one line, and Python says nothing more when it exits."""
    program = [sys.executable, "-m", "ridgeline", "tokenize", str(folder), "hi"]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=120)
    assert ended.returncode == USAGE
    assert ended.stderr.startswith("ridgeline: the output cannot be written: No space left on device; ")
    assert ended.stderr.count("\n") == 1


def test_a_stdin_without_text(ridgeline: Run, folder: Path) -> None:
    for command in ("run", "tokenize"):
        assert_one_line(ridgeline(command, folder, "-", stdin=None), USAGE, "standard input is closed; give the text")
        image = io.TextIOWrapper(io.BytesIO(b"\x89PNG"), encoding="utf-8")
        assert_one_line(ridgeline(command, folder, "-", stdin=image), USAGE, "standard input is not text in UTF-8")


# -- interrupts -------------------------------------------------------------------------------------------------------


def test_an_interrupt_among_imports_ends_the_process() -> None:
    """An import that takes any error for an optional module's absence does not swallow it."""
    program = "\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\nexcept BaseException:\n    pass\nprint('swallowed')"
    ended = shell("", program)
    assert (ended.returncode, ended.stdout, ended.stderr) == (INTERRUPTED, "", "")


def test_an_interrupt_is_an_exception_while_a_command_runs() -> None:
    program = (
        "signal_interrupts(quit_at_once=False)\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\n"
        "except KeyboardInterrupt:\n    print('raised')"
    )
    assert shell("", program).stdout == "raised\n"


def test_interrupts_that_are_ignored_stay_so() -> None:
    """As in the background of a script."""
    ended = subprocess.run(
        [*PREPARED, "os.kill(os.getpid(), signal.SIGINT); print('went on')"],
        capture_output=True, text=True, check=False, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )  # fmt: skip
    assert ended.stdout == "went on\n"


# -- what escapes -----------------------------------------------------------------------------------------------------


class Panic(BaseException):
    """What Rust's libraries raise."""


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (KeyError("x"), FAULT, "a bug in Ridgeline: KeyError: 'x'; please report it with the output of"),
        (Panic("index out\nof bounds"), FAULT, "a bug in Ridgeline: Panic: index out of bounds; please report"),
        (RecursionError("maximum depth"), FAULT, "a bug in Ridgeline: RecursionError: maximum depth; please"),
        (MemoryError(), USAGE, "out of memory: an allocation was refused; use a smaller model or batch"),
        (
            MemoryError("out of memory: an allocation of 3.00 GiB was refused; why"),
            USAGE,
            "of 3.00 GiB was refused; why",
        ),
        (OSError(errno.ENOSPC, "No space left on device"), USAGE, "the output cannot be written: No space left on"),
        (OSError(errno.EACCES, "Permission denied", "x.json"), USAGE, "ridgeline: x.json: Permission denied\n"),
    ],
)
def test_what_escapes_is_one_line(
    ridgeline: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, says: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("ridgeline.cli.tokenize.tokenizer_of", fail)
    assert_one_line(ridgeline("tokenize", folder, "hi"), code, says)
    if code == FAULT:
        with pytest.raises(type(error)):
            ridgeline("--traceback", "tokenize", folder, "hi")


def test_torch_says_how_much_it_could_not_have(ridgeline: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ridgeline.cli.tokenize.tokenizer_of", lambda _: torch.empty(1 << 60, dtype=torch.uint8))
    says = f"out of memory: an allocation of {2**30:,}.00 GiB was refused"
    assert_one_line(ridgeline("tokenize", folder, "hi"), USAGE, says)


def test_threads_by_the_ten_thousand(ridgeline: Run, folder: Path) -> None:
    for command in (("run", folder, "hi"), ("trace", folder, "hi"), ("lab", "kv-cache"), ("calibrate",)):
        assert_one_line(ridgeline(*command, "--threads", 40_000), USAGE, "--threads is 40000; it must be from 1 to ")


# -- strangers' text --------------------------------------------------------------------------------------------------


def test_text_that_would_steer_a_terminal() -> None:
    assert printable("a\tb\nc \x1b[2J\x07\x9b\u202ed é 🙂") == "a\tb\nc \\x1b[2J\\x07\\x9b\\u202ed é 🙂"


def test_a_config_steers_no_terminal(ridgeline: Run, own_folder: Path) -> None:
    """Not by way of an error, nor of what is printed beside one."""
    change_config(own_folder, architectures=["\x1b[2J\x1b]0;owned\x07ForCausalLM"])
    for command in (("show", own_folder), ("run", own_folder, "hi")):
        ended = ridgeline(*command)
        assert ended.code == REFUSED
        assert "x1b[2J" in ended.err
        assert not set(ended.out + ended.err) & {"\x1b", "\x07"}


@pytest.mark.parametrize("terminal", [True, False])
def test_what_a_model_says_steers_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool
) -> None:
    """A file gets the text as it is."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    model: Any = SimpleNamespace(stream=lambda *_, **__: [Event(0, 0, text="\x1b[2Jboo")])
    _generate(model, [1], SamplingParams(), "", None, shown=True)
    assert capsys.readouterr().out == ("\\x1b[2Jboo\n" if terminal else "\x1b[2Jboo\n")


def test_long_names_are_shortened(ridgeline: Run) -> None:
    for name in ("x" * 5000, "/" + "y/" * 2500, "'" + "two words " * 500 + "'"):
        for command in ("run", "tokenize"):
            ended = ridgeline(command, name, "hi")
            assert_one_line(ended, ended.code)
            assert ended.code in (USAGE, REFUSED)
            assert len(ended.err) < 500
    assert one_line("no such folder: " + "x" * 5000 + "; give another") == (
        "no such folder: " + "x" * 198 + "..." + "x" * 98 + "; give another"
    )


# -- files ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def full_disk() -> Any:
    """Files of this process may have 4,096 bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, full_disk: None) -> None:
    path = tmp_path / "x.json"
    write_whole(path, "old")
    with pytest.raises(ValueError, match=r"x\.json cannot be written: File too large; free some space or name a file"):
        write_whole(path, "new" * 5000)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("x.json", "old")]


def test_files_are_put_in_place(tmp_path: Path) -> None:
    """A link stays one, a file keeps its mode, and /dev/null is written to, not replaced."""
    (tmp_path / "real").mkdir()
    target, link = tmp_path / "real" / "x.csv", tmp_path / "x.csv"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    for path in (link, Path("/dev/null")):
        check_writable(path)
        write_whole(path, "new")
    assert link.is_symlink()
    assert (target.read_text(), target.stat().st_mode & 0o777) == ("new", 0o640)
    assert Path("/dev/null").is_char_device()
    assert len(list((tmp_path / "real").iterdir())) == 1


def test_two_outputs_in_one_file(ridgeline: Run, folder: Path, tmp_path: Path) -> None:
    """By the same name, through a folder's parent, or through a link."""
    (tmp_path / "below").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "x")
    for other in ("x", "below/../x", "link"):
        ended = ridgeline("trace", folder, "hi", "--csv", tmp_path / "x", "--perfetto", tmp_path / other)
        assert_one_line(ended, USAGE, "--csv and --perfetto both name", "give each its own file")
    check_apart({"--csv": Path("/dev/null"), "--perfetto": Path("/dev/null"), "--svg": tmp_path / "x"})
    assert_one_line(ridgeline("trace", folder, "hi", "--csv", "-"), USAGE, "--csv is -; name a file")


def test_a_trace_longer_than_the_context(ridgeline: Run, folder: Path) -> None:
    """Refused as `run` refuses it; where nobody asked for a number, what fits is traced."""
    says = "2 tokens of prompt and 500 of --max-tokens are 502; the model's context is 256; give --max-tokens 254 or"
    for command in ("run", "trace"):
        assert_one_line(ridgeline(command, folder, "hi", "--max-tokens", 500), USAGE, says)
    ended = ridgeline("trace", folder, "x" * 252, "--repeats", 1, "--device", "h100-sxm", "--json")
    assert (ended.code, len(ended.json["answer"]["tokens"])) == (OK, 4)
