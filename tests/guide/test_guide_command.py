"""`ridgeline guide`: where the guide is, and how it is made where it is not."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from ridgeline.cli import guide
from ridgeline.cli.main import build_app


def test_the_guide_is_found_here_or_beside_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of that name is no guide; the working folder counts before the checkout."""
    here, source = tmp_path / "here", tmp_path / "source"
    (here / "guide" / "index.html").mkdir(parents=True)
    monkeypatch.chdir(here)
    monkeypatch.setattr(guide, "_CHECKOUT", source)
    app = build_app(("guide",))
    ended = CliRunner().invoke(app, ["guide", "--path"])
    assert str(ended.exception) == (
        "the guide has not been built: read docs/guide/README.md in a checkout of Ridgeline, or build the site "
        "with `make guide` there; experiments and questions are here: ridgeline lab, ridgeline quiz"
    )
    (source / "docs" / "guide").mkdir(parents=True)
    assert f"read docs/guide/README.md in {source}, or" in str(CliRunner().invoke(app, ["guide"]).exception)
    for folder in (source, here):
        page = folder / "guide" / "index.html"
        if page.is_dir():
            page.rmdir()
        page.parent.mkdir(parents=True, exist_ok=True)
        page.touch()
        assert CliRunner().invoke(app, ["guide"]).stdout == f"{page}\n"
