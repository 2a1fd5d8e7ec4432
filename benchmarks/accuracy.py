"""The comparison of predictions with published measurements: `make accuracy` writes benchmarks/accuracy.md, and
price/error_intervals.toml, from which the package states its intervals.

Facts are in benchmarks/measured/; the constants are the kernels' of price/cards.toml and the engines' of
price/engines.toml. Nothing is tuned here.
"""

from pathlib import Path

import accuracy_intervals as intervals
from accuracy_findings import find
from accuracy_page import report

OUT = Path(__file__).resolve().parent / "accuracy.md"


def main() -> None:
    """Write the page and the package's table, and say in one line how it went."""
    judged = intervals.judge()
    page = report(find(), judged)
    OUT.write_text(page, encoding="utf-8")
    intervals.OUT.write_text(intervals.written(judged.intervals), encoding="utf-8")
    for line in page.splitlines():
        if line.startswith("**"):
            print(f"{OUT.name}: {line.replace('*', '')}")


if __name__ == "__main__":
    main()
