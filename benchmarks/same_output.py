"""Save the output of a hundred commands, and compare what two versions of the package said.

    python benchmarks/same_output.py save FOLDER [--only WORD] [--jobs 2]
    python benchmarks/same_output.py compare BEFORE AFTER

`save` runs the commands of same_output.toml as `python -m ridgeline`, and keeps the stdout, stderr, exit code and
written files of each, and the HTTP responses of the servers among them. PYTHONPATH chooses the version:
`PYTHONPATH=OTHER/src python benchmarks/same_output.py save before`. Commands run in folders of their own below a
temporary one, which is HOME and cache too. Each is ended after its limit, which its exit code then says.

`compare` prints a unified diff of each output that differs, and exits with 1 if there is one. It hides only what the
masks in same_output.toml say: measured times and rates, dates, process ids, ports and paths. A case names the
masks that it needs, and a predicted figure is never masked.
"""

import argparse
import difflib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from same_output_cases import Case, read_cases
from same_output_inputs import write_calibration, write_inputs
from same_output_masks import PREFIX, Masks, read_masks
from same_output_running import Place, run_case

LINES = 60
"""Lines of a diff that `compare` prints of one output, unless --all is given."""


def save(folder: Path, only: list[str], jobs: int) -> int:
    """Run the cases that `only` names, and keep what they wrote in a new folder."""
    if folder.exists():
        raise SystemExit(f"{folder} is there already: delete it, or name another folder")
    cases = [case for case in read_cases() if is_wanted(case.name, only)]
    if not cases:
        raise SystemExit(f"no case has {' or '.join(only)} in its name: same_output.toml has the names")
    root = Path(tempfile.mkdtemp(prefix=PREFIX))
    try:
        start = time.monotonic()
        place = Place(root, package_folder())
        write_inputs(place.inputs)
        write_calibration(place)
        folder.mkdir(parents=True)
        about = json.dumps({"source": str(place.source.parent)})
        (folder / "about.json").write_text(about, encoding="utf-8")
        with ThreadPoolExecutor(jobs) as pool:
            for case, seconds in pool.map(lambda case: timed(place, case, folder), cases):
                print(f"{case.name:32} {seconds:6.1f} s", flush=True)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(f"{len(cases)} cases of {place.source} in {time.monotonic() - start:.0f} s, "
              f"{used.ru_utime + used.ru_stime:.0f} s of processor time")  # fmt: skip
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return 0


def is_wanted(name: str, only: list[str]) -> bool:
    """Return whether a case is asked for: all are, or those with one of these words in their names."""
    return not only or any(word in name for word in only)


def timed(place: Place, case: Case, folder: Path) -> tuple[Case, float]:
    """Run a case, and return it with the seconds that it took."""
    start = time.monotonic()
    run_case(place, case, folder / case.name)
    return case, time.monotonic() - start


def package_folder() -> Path:
    """Return the folder `ridgeline` that PYTHONPATH, or else this interpreter, finds."""
    found = subprocess.run(
        [sys.executable, "-c", "import ridgeline; print(ridgeline.__path__[0])"],
        capture_output=True, text=True, check=True, cwd="/", env=os.environ | absolute_path(),
    )  # fmt: skip
    return Path(found.stdout.strip())


def absolute_path() -> dict[str, str]:
    """Return PYTHONPATH with absolute folders, for commands that run in other folders."""
    stated = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, stated.split(os.pathsep)))} if stated else {}


def compare(before: Path, after: Path, only: list[str], lines: int | None) -> int:
    """Print what differs. Return 1 if anything does."""
    cases = {case.name: case for case in read_cases()}
    masks = {folder: read_masks(folder) for folder in (before, after)}
    found = {path.name for folder in (before, after) for path in folder.iterdir() if path.is_dir()}
    names = sorted(name for name in found if is_wanted(name, only))
    differ = 0
    for name in names:
        files = {str(path.relative_to(folder / name)) for folder in (before, after)
                 for path in (folder / name).rglob("*") if path.is_file()}  # fmt: skip
        wanted = cases[name].masks if name in cases else ()
        for file in sorted(files):
            shown = list(difference(before / name / file, after / name / file, masks, wanted))
            differ += bool(shown)
            print("\n".join(shown[:lines]), end="\n" if shown else "")
            if lines is not None and len(shown) > lines:
                print(f"... {len(shown) - lines} further lines; --all shows them")
    print(f"{len(names)} cases compared; {differ} outputs differ" if differ else f"{len(names)} cases are the same")
    return 1 if differ else 0


def difference(before: Path, after: Path, masks: dict[Path, Masks], wanted: tuple[str, ...]) -> Iterator[str]:
    """Yield the lines of a unified diff of one output; none if it is the same."""
    for here, there in ((before, after), (after, before)):
        if not there.exists():
            yield f"--- {here} has no counterpart {there}"
            return
    old, new = (path.read_bytes() for path in (before, after))
    if old == new:
        return
    try:
        texts = old.decode(), new.decode()
    except UnicodeDecodeError:
        yield f"--- {before} and {after} are other bytes: {len(old):,} and {len(new):,} of them"
        return
    olds, news = (
        each.hidden(text, wanted).splitlines() for each, text in zip(masks.values(), texts, strict=True)
    )  # fmt: skip
    yield from difflib.unified_diff(olds, news, str(before), str(after), lineterm="")


def main() -> int:
    """Run the mode that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = parser.add_subparsers(dest="mode", required=True)
    saving = modes.add_parser("save", help="run the commands and keep what they say")
    saving.add_argument("folder", type=Path)
    saving.add_argument("--jobs", type=int, default=2, help="commands at a time")
    comparing = modes.add_parser("compare", help="compare two folders that `save` wrote")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--all", action="store_true", help=f"whole diffs, not {LINES} lines of each")
    for mode in (saving, comparing):
        mode.add_argument(
            "--only",
            action="append",
            default=[],
            metavar="WORD",
            help="cases with this word in their names; repeatable",
        )
    asked = parser.parse_args()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `compare ... | head` ends quietly
    if asked.mode == "save":
        return save(asked.folder, asked.only, asked.jobs)
    return compare(asked.before, asked.after, asked.only, None if asked.all else LINES)


if __name__ == "__main__":
    sys.exit(main())
