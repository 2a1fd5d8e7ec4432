"""The page's modules have no arithmetic that belongs to an op."""

import re
from pathlib import Path

import pytest

from ridgeline.learn.page.assets import STATIC

MODULES = sorted(STATIC.glob("*.js"))
_TEXT = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.DOTALL)
_SIZE = r"\b(?:\w+_|num|kv|query)?(?:layers?|heads?|head_?dim|hidden_?(?:size|dim)|vocabulary)\b"
_ARITHMETIC = re.compile(rf"{_SIZE}(?:\.\w+|\]|\))*\s*[-+*/%](?!/)|[-+*/%]=?\s*(?:\w+\.)*{_SIZE}", re.IGNORECASE)


def arithmetic(source: str) -> list[str]:
    """Where a source computes with sizes of a model; comments and texts are none of it."""
    return [found[0] for found in _ARITHMETIC.finditer(_TEXT.sub('""', source))]


def test_the_search_finds_what_it_is_for() -> None:
    wrong = ["2 * table.layers * 4", "heads / groups", "x += config.hidden_size", "a[layers] * 2", "-numHeads"]
    assert all(arithmetic(source) for source in wrong)
    right = ["const hidden = true;", "// layers * heads", '"layers - heads"', "if (hidden) show(heads);"]
    assert not [source for source in right if arithmetic(source)]


@pytest.mark.parametrize("path", MODULES, ids=[path.name for path in MODULES])
def test_no_formula_of_a_model_lives_in_javascript(path: Path) -> None:
    """An op says what it costs; a page that knew better would drift from it."""
    assert not arithmetic(path.read_text(encoding="utf-8"))
