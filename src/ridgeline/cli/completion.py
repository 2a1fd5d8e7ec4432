"""`ridgeline completion` prints a shell script that completes commands and options.

The script contains all names, so that completion does not start Python.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from ridgeline.cli.aliases import OptionNames
from ridgeline.cli.help import shown_commands

Words = Mapping[str, Sequence[str]]
"""The completions that may follow each command: subcommands and options. The key "" is for the top level."""

_BASH = """\
_ridgeline() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" command="" word
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case "$command $word" in
            {commands}) command="${{command:+$command }}$word" ;;
        esac
    done
    local words=""
    case "$command" in
{cases}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _ridgeline ridgeline
"""
_ZSH = "#compdef ridgeline\nautoload -Uz bashcompinit && bashcompinit\n"
_FISH = "complete -c ridgeline -n '{condition}' {what}\n"


class Shell(StrEnum):
    """The shells that a completion script exists for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(help="bash, zsh or fish.")]) -> None:
    """Print the shell script that completes commands and options.

    In ~/.bashrc or ~/.zshrc: eval "$(ridgeline completion bash)", or zsh. In fish: ridgeline completion fish | source.
    """
    words = words_of(_whole())
    print(_fish(words) if shell is Shell.FISH else _ZSH * (shell is Shell.ZSH) + _bash(words), end="")


def _whole() -> Any:
    from ridgeline.cli.main import build_app  # imports all commands including this one

    return typer.main.get_command(build_app())


def words_of(group: Any, name: str = "") -> Words:
    """Return the completions of a command group and of all commands below it, by command name."""
    options = OptionNames(group.params).names()
    if not hasattr(group, "commands"):
        return {name: sorted(set(options))}
    words: dict[str, Sequence[str]] = {name: [*sorted(shown_commands(group)), *sorted(set(options))]}
    for each, command in group.commands.items():
        words |= words_of(command, f"{name} {each}".strip())
    return words


def _bash(words: Words) -> str:
    # A case pattern is the command so far, a space, and the next word.
    paths = [path if " " in path else f" {path}" for path in words if path]
    cases = [f'        "{path}") words="{" ".join(names)}" ;;' for path, names in words.items()]
    return _BASH.format(commands=" | ".join(f'"{path}"' for path in paths), cases="\n".join(cases))


def _fish(words: Words) -> str:
    return "".join(
        _FISH.format(condition=_where(path), what=what)
        for path, names in words.items()
        for what in _fish_words(path, names)
    )


def _where(path: str) -> str:
    """Return fish's condition for being inside a command."""
    if not path:
        return "__fish_use_subcommand"
    return "; and ".join(f"__fish_seen_subcommand_from {word}" for word in path.split())


def _fish_words(path: str, names: Sequence[str]) -> Iterator[str]:
    for name in names:
        yield f"-l {name[2:]}" if name.startswith("--") else f"-a {name}"
