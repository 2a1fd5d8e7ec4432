"""Files of strangers nested deep enough to end a recursion, in every place that reads one."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ridgeline.core.checkpoint import read_config
from ridgeline.core.checkpoint.folder import open_checkpoint
from ridgeline.core.checkpoint.source import open_source
from ridgeline.core.checkpoint.source_tokenizer import tokenizer_of
from ridgeline.core.models import ModelRefused
from ridgeline.insight.calibrate import calibration_file
from ridgeline.price.devices import load_device

DEEP_JSON = '{"a": ' * 5000 + "1" + "}" * 5000
PARSED_JSON = '{"a": ' * 200 + "1" + "}" * 200  # json reads it; what walks through the value would not for long
DEEP_TOML = "a = " + "[" * 5000 + "]" * 5000
DOTTED_TOML = ".".join("a" * 5000) + " = 1"  # read without recursion, into tables that end one later

CASES: dict[str, tuple[Callable[[Path], object], type[ValueError]]] = {
    "config.json": (lambda folder: read_config(str(folder)), ModelRefused),
    "generation_config.json": (lambda folder: open_source(str(folder)), ModelRefused),
    "tokenizer.json": (lambda folder: tokenizer_of(str(folder)), ModelRefused),
    "tokenizer_config.json": (lambda folder: tokenizer_of(str(folder)), ModelRefused),
    "special_tokens_map.json": (lambda folder: tokenizer_of(str(folder)), ModelRefused),
    "chat_template.json": (lambda folder: tokenizer_of(str(folder)), ModelRefused),
    "model.safetensors.index.json": (open_checkpoint, ModelRefused),
    "card.json": (lambda folder: load_device(str(folder / "card.json")), ValueError),
    "card.toml": (lambda folder: load_device(str(folder / "card.toml")), ValueError),
    "calibration.json": (lambda _: calibration_file.load(1), calibration_file.Uncalibrated),
}


@pytest.mark.parametrize("deep", [0, 1])
@pytest.mark.parametrize("name", CASES)
def test_deep_files_are_refused_in_one_line(
    name: str, deep: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path))
    text = (DEEP_TOML, DOTTED_TOML)[deep] if name.endswith(".toml") else (DEEP_JSON, PARSED_JSON)[deep]
    (tmp_path / name).write_text(text, encoding="utf-8")
    read, refusal = CASES[name]
    with pytest.raises(refusal) as caught:
        read(tmp_path)
    assert "\n" not in str(caught.value)
    assert name in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("text", ["5", '"deep"', "null", "[1]"])
def test_values_that_are_no_objects(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(ModelRefused, match="is not a JSON object"):
        read_config(str(tmp_path))
