"""Predicted beside measured, for published measurements: `python benchmarks/accuracy.py` writes benchmarks/accuracy.md,
and price/accuracy.toml, from which the package states its trust.

Facts are in benchmarks/measured/; the constants are the kernels' of price/cards.toml and the engines' of
price/engines.toml. Nothing is tuned here.
"""

from pathlib import Path

import accuracy_trust as trust
from accuracy_findings import find
from accuracy_page import report

OUT = Path(__file__).resolve().parent / "accuracy.md"


def main() -> None:
    """Write the page and the package's table, and say in one line how it went."""
    found = find()
    page = report(found)
    OUT.write_text(page, encoding="utf-8")
    trust.OUT.write_text(trust.written(trust.trust(found.misses)), encoding="utf-8")
    headline = next(line for line in page.splitlines() if line.startswith("**"))
    print(f"{OUT.name}: {headline.strip('*')}")


if __name__ == "__main__":
    main()
