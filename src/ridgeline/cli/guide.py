"""`ridgeline guide` opens the guide."""

import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

_CHECKOUT = Path(__file__).resolve().parents[3]
_SITE = Path("guide", "index.html")
_CHAPTERS = Path("docs", "guide")


def guide(
    path: Annotated[bool, typer.Option("--path", help="Print its path instead of opening it.")] = False,
) -> None:
    """Open the guide in a browser, or say how to build it."""
    places = [Path.cwd() / _SITE, _CHECKOUT / _SITE]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        where = _CHECKOUT if (_CHECKOUT / _CHAPTERS).exists() else "a checkout of Ridgeline"
        raise ValueError(
            f"the guide has not been built: read {_CHAPTERS}/README.md in {where}, or build the site with "
            f"`make guide` there; experiments and questions are here: ridgeline lab, ridgeline quiz"
        )
    if not path and sys.stdout.isatty() and webbrowser.open(found.as_uri()):
        return
    print(found)
