"""`ridgeline lab exercise` lets the user write a function and compares it with the engine."""

from pathlib import Path
from typing import Annotated

import typer

from ridgeline.learn.lab.exercise import EXERCISES, Exercise, check, read_function, stub_of
from ridgeline.util.files import check_writable, write_whole


def exercise(
    name: Annotated[str | None, typer.Argument(help="The exercise; without one, all are listed.")] = None,
    checked: Annotated[
        bool,
        typer.Option("--check", help="Compare the function in the file with the engine's instead of writing the file."),
    ] = False,
    file: Annotated[
        Path | None,
        typer.Option("--file", metavar="FILE", help="The file; by default NAME.py in the current folder."),
    ] = None,
) -> None:
    """Write the skeleton of a function for you to finish; --check compares yours with the engine's."""
    if name is None:
        if checked or file is not None:
            option = "--check" if checked else "--file"
            raise ValueError(f"{option} needs the name of an exercise: ridgeline lab exercise NAME {option}")
        width = max(map(len, EXERCISES))
        for each in EXERCISES.values():
            print(f"{each.name:{width}}  {_first_line(each)}")
        print(f"\n{'write one':{width}}  ridgeline lab exercise attention")
        return
    if name not in EXERCISES:
        raise ValueError(f"unknown exercise {name!r}; the exercises are {', '.join(EXERCISES)}")
    one = EXERCISES[name]
    path = file or Path(one.file)
    if checked:
        _check(one, path)
    else:
        _write(one, path)


def _write(one: Exercise, path: Path) -> None:
    if path.exists():
        raise ValueError(f"{path} already exists; check it with --check, or name another --file")
    check_writable(path)
    write_whole(path, stub_of(one))
    print(f"wrote {path}; complete the function in it, then run: {_again(one, path)}")


def _check(one: Exercise, path: Path) -> None:
    if not path.exists():
        raise ValueError(f"{path} does not exist; create it with `ridgeline lab exercise {one.name}`")
    different = check(one, read_function(one, path), path)
    if different:
        print(different)
        raise typer.Exit(1)
    print(f"correct: {one.name} agrees with the engine in {len(one.cases)} cases")


def _again(one: Exercise, path: Path) -> str:
    return f"ridgeline lab exercise {one.name} --check" + ("" if str(path) == one.file else f" --file {path}")


def _first_line(one: Exercise) -> str:
    return stub_of(one).splitlines()[0].strip('"')
