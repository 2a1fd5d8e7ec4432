"""What a newcomer types first: `ridgeline` alone, a group or a command without its arguments, and what these offer."""

import shlex
import subprocess
import sys
from typing import Any

import pytest
import typer.main

from cli.running import OK, USAGE, Run, assert_one_line
from cli.test_cli import commands_of
from ridgeline.cli.completion import words_of
from ridgeline.cli.examples import EXAMPLES, PURPOSES, first_lines, help_examples
from ridgeline.cli.main import build_app
from ridgeline.learn.lab.exercise import EXERCISES
from ridgeline.learn.lab.experiments import EXPERIMENTS


@pytest.fixture(scope="module")
def commands() -> dict[str, Any]:
    """Every command by its whole name."""
    return dict(commands_of(typer.main.get_command(build_app())))


def test_ridgeline_alone_prints_a_line_for_each_purpose(ridgeline: Run) -> None:
    """It fits a terminal of 80 columns, and says where all commands are."""
    ended = ridgeline()
    assert (ended.code, ended.err, ended.out) == (OK, "", first_lines() + "\n")
    first, empty, *lines, last = ended.out.splitlines()
    assert first == "An inference engine that predicts, measures and explains its own speed."
    assert (empty, last.split()) == ("", ["all", "commands", "ridgeline", "--help"])
    assert [line.partition("  ")[0] for line in lines] == ["choose hardware", "run a model", "serve it", "learn"]
    assert max(map(len, lines)) < 80


def test_what_ridgeline_alone_offers_works(ridgeline: Run) -> None:
    """`serve` runs until it is stopped; tests/server is about it."""
    for _, command, _ in PURPOSES:
        if command != EXAMPLES["serve"]:
            ended = ridgeline(*shlex.split(command)[1:])
            assert (ended.code, bool(ended.out)) == (OK, True), command


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_a_command_line_that_its_command_reads(ridgeline: Run, name: str) -> None:
    program, *arguments = shlex.split(EXAMPLES[name])
    assert (program, arguments[: len(name.split())]) == ("ridgeline", name.split())
    ended = ridgeline(*arguments, "--print-config")
    assert (ended.code, ended.err) == (OK, "")


def test_every_help_ends_with_examples_that_its_command_reads(ridgeline: Run, commands: dict[str, Any]) -> None:
    """Parse each example of each help as a shell does, comment included."""
    for name, command in commands.items():
        if command.hidden:
            continue
        *_, examples = ridgeline(*name.split(), "--help").out.partition("\nExamples:\n")
        lines = examples.splitlines()
        assert 2 <= len(lines) <= 3, name
        for line in lines:
            program, *arguments = shlex.split(line, comments=True)
            assert (program, arguments[: len(name.split())]) == ("ridgeline", name.split()), line
            assert 0 < len(line.partition("  # ")[2].split()) <= 6, line
            words = len(name.split())  # first, so that no option takes it for its value
            ended = ridgeline(*arguments[:words], "--print-config", *arguments[words:])
            assert (ended.code, ended.err) == (OK, ""), line


@pytest.mark.parametrize("name", ["check", "show", "tokenize", "env", "completion"])
def test_the_examples_of_quick_commands_run(ridgeline: Run, name: str) -> None:
    for command, _ in help_examples(name):
        ended = ridgeline(*shlex.split(command)[1:])
        assert (ended.code, bool(ended.out)) == (OK, True), command


def test_a_command_without_its_arguments_offers_its_example(ridgeline: Run, commands: dict[str, Any]) -> None:
    """Every command that does not run alone has one."""
    needy = [name for name, command in commands.items() if any(param.required for param in command.params)]
    assert len(needy) > 15
    for name in needy:
        said = f" is missing; for example: {EXAMPLES[name]} (see ridgeline {name} --help)\n"
        assert_one_line(ridgeline(*name.split()), USAGE, said)
    for given in ((), ("llama-3-8b",)):
        missing = "--device" if given else "MODEL"
        said = f"{missing} is missing; for example: {EXAMPLES['plan']}; `ridgeline plan --list` shows all names"
        assert_one_line(ridgeline("plan", *given), USAGE, said)


@pytest.mark.parametrize("group", ["lab", "bench", "page"])
def test_a_group_alone_lists_its_commands(ridgeline: Run, commands: dict[str, Any], group: str) -> None:
    """`ridgeline lab` was an error: a missing command."""
    ended = ridgeline(group)
    assert (ended.code, ended.err) == (OK, "")
    listed = [line.split()[0] for line in ended.out.splitlines() if line.startswith("  ") and line[2:3].strip()]
    own = [
        name.removeprefix(f"{group} ")
        for name, command in commands.items()
        if name.startswith(f"{group} ") and not command.hidden
    ]
    assert listed[: len(own)] == own
    assert "\x1b" not in ended.out, "colours are for terminals"
    assert_one_line(ridgeline(group, "nonsense"), USAGE, f"(see ridgeline {group} --help)")


def test_an_old_name_of_a_command_works_but_is_not_listed(ridgeline: Run) -> None:
    """Check `page cards`, which was listed next to `page devices`."""
    assert ridgeline("page", "cards").out == ridgeline("page", "devices").out != ""
    for listed in (ridgeline("page", "--help").out, ridgeline("page").out, ridgeline("page", "nonsense").err):
        assert "devices" in listed
        assert "cards" not in listed
    words = words_of(typer.main.get_command(build_app(["page"])))["page"]
    assert "devices" in words
    assert "cards" not in words


def test_lab_alone_names_experiments_and_exercises(ridgeline: Run) -> None:
    listed = ridgeline("lab").out
    assert all(experiment.question.split("?")[0] in " ".join(listed.split()) for experiment in EXPERIMENTS.values())
    assert f"Exercises: {', '.join(EXERCISES)}." in " ".join(listed.split())
    assert "ridgeline lab heads" in listed
    assert "\nBegin with: ridgeline lab token\n" in listed.partition("Commands:")[0]
    assert "token" in EXPERIMENTS
    assert "ridgeline lab exercise attention" in listed
    for line in ridgeline("lab", "exercise").out.splitlines()[: len(EXERCISES)]:
        assert line.split()[0] in EXERCISES


def test_groups_that_say_no_command_print_no_second_error() -> None:
    """As a process: one that ends by itself, with nothing on stderr."""
    ended = subprocess.run(
        [sys.executable, "-m", "ridgeline", "bench"], capture_output=True, text=True, check=True, timeout=60
    )
    assert (ended.stderr, "serve" in ended.stdout) == ("", True)
