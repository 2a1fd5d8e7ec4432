"""The models of the published rows: each has a line, and each named configuration is that of the model."""

import re
import sys
from pathlib import Path

import pytest

from ridgeline.core.checkpoint.catalogue import model_names
from ridgeline.core.checkpoint.source import read_config
from ridgeline.core.models import build
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.parameter_breakdown import parameter_breakdown
from ridgeline.core.models.registry import REGISTERED

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import published_rows
from published_rows import MEASURED, read_models, read_published

NOT_IMPLEMENTED = re.compile(r"its architecture is not implemented: (\w+)(, .+)?")
PARAMETERS = {
    "mistral-7b-v0.1": 7.24,
    "mistral-7b-v0.2": 7.24,
    "mixtral-8x22b": 141,
    "phi-4-mini": 3.8,
    "qwen2-0.5b": 0.49,
    "qwen2-7b": 7.6,
    "qwen2.5-1.5b": 1.54,
    "qwen2.5-3b": 3.09,
    "qwen2.5-14b": 14.7,
    "qwen3-1.7b": 1.7,
    "qwen3-30b-a3b-2507": 30.5,
    "qwen3.5-4b": 4,
    "qwen3.5-27b": 27,
    "qwen3.5-122b-a10b": 122,
    "qwen3.5-397b-a17b": 397,
    "qwen3.6-35b-a3b": 35,
}
"""The billions of parameters of the configurations next to the rows, as the releases round them."""
WITHIN = {"qwen3.5-4b": 0.06}
"""The relative distance of a count from its published number where that has few digits; else 1.5 %."""


def test_each_model_has_a_line_and_each_line_a_row() -> None:
    assert set(read_models()) == {row.model for row in read_published()}


def test_each_configuration_builds_and_says_where_it_is_from() -> None:
    """Check that the line of a configuration next to the rows cites a repository, a path and a commit."""
    entries = [entry for entry in read_models().values() if entry.config]
    named = {entry.config for entry in entries}
    for name in named & set(model_names()):
        assert build(read_config(name)).kv_specs, name
    assert named - set(model_names()) == set(PARAMETERS)
    for entry in entries:
        if entry.config in PARAMETERS:
            assert re.search(r"[\w-]+/[\w.-]+ \S+ [0-9a-f]{40}", entry.source), entry.config


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_configuration_next_to_the_rows_has_the_published_size(name: str) -> None:
    fields = Fields.read(MEASURED / "models" / f"{name}.json")
    counted = parameter_breakdown(build(fields)).total / 1e9
    assert counted == pytest.approx(PARAMETERS[name], rel=WITHIN.get(name, 0.015))


def test_a_model_without_price_has_no_family() -> None:
    """Check that a family that is added gets configurations here. A class of transformers is no family of ours."""
    reasons = {entry.reason for entry in read_models().values() if entry.reason}
    assert reasons
    for reason in reasons:
        found = NOT_IMPLEMENTED.fullmatch(reason)
        assert found is not None, reason
        assert not any(family.builds(found[1]) for family in REGISTERED)


@pytest.mark.parametrize(
    ("lines", "message"),
    [("m,,,\n", "must have a configuration or a reason"), ("m,c,,\nm,c,,\n", "two lines")],
)
def test_a_wrong_line_is_refused(lines: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "models.csv"
    file.write_text("model,config,reason,source\n" + lines, encoding="utf-8")
    monkeypatch.setattr(published_rows, "MODELS", file)
    with pytest.raises(ValueError, match=message):
        read_models()
