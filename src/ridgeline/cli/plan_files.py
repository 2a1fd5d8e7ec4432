"""The options of `ridgeline plan` for the files that it writes."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ridgeline.cli.console import say
from ridgeline.cli.flags import given_flags, panel
from ridgeline.util.files import check_outputs, write_whole

_files = panel("Files")
_file = partial(_files, metavar="FILE")


@dataclass(frozen=True, slots=True)
class PlanFileFlags:
    """The options for the files that a plan writes."""

    report: Path | None = _file(
        "Write an HTML file, to read in a browser or on paper: the answer, the roofline, the comparison, all sections "
        "and the sources. It needs no network."
    )
    csv: Path | None = _file(
        "Write the comparison to this file, with one line per offer; - prints only these lines. For --compare and "
        "--compare-devices."
    )
    force: bool = _files("Overwrite existing files.", default=False)

    @property
    def prints_csv(self) -> bool:
        """Whether standard output has the lines of the comparison instead of anything else."""
        return str(self.csv) == "-"

    def check(self, *, compares: bool, as_json: bool, listed: bool) -> None:
        """Raise ValueError, before anything is computed, for a file that could not be written.

        Args:
            compares: Whether devices are compared.
            as_json: Whether standard output has JSON.
            listed: Whether only names are listed.
        """
        given = given_flags(self)
        if listed and given:
            raise ValueError(f"--list writes no file; leave out --list or {' and '.join(given)}")
        if given == ["--force"]:
            raise ValueError("--force overwrites the files of --report and --csv; give one of these, or leave it out")
        if self.csv is not None and not compares:
            raise ValueError(
                "--csv writes a comparison, with one line per offer; add --compare or --compare-devices, or leave it "
                "out (--json prints the figures of one plan)"
            )
        if self.prints_csv and as_json:
            raise ValueError(
                "--csv - and --json both print on standard output; name a file for --csv, or leave out --json"
            )
        if str(self.report) == "-":
            raise ValueError("--report is -; name a file, or /dev/stdout for standard output")
        check_outputs({"--report": self.report, "--csv": None if self.prints_csv else self.csv}, overwrite=self.force)

    def write(self, *, report: Callable[[], str], csv: Callable[[], str]) -> None:
        """Write the requested files and report them on stderr; `--csv -` prints the lines.

        Raises:
            ValueError: If a file cannot be written.
        """
        if self.report is not None:
            write_whole(self.report, report())
            say(f"report written to {self.report}")
        if self.prints_csv:
            print(csv(), end="")
        elif self.csv is not None:
            write_whole(self.csv, csv())
            say(f"comparison written to {self.csv}")
