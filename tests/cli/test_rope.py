"""`--rope` of the commands that run a model, and the factor that their refusals name."""

from pathlib import Path

import pytest

from cli.running import REFUSED, USAGE, Run, assert_one_line
from engine.folders import write_model
from engine.small_models import LLAMA


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("rope") / "model", config={**LLAMA, "max_position_embeddings": 64})


def test_run_extends_the_context_by_the_factor_that_its_refusal_names(ridgeline: Run, folder: Path) -> None:
    asked = ("run", folder, "abcdefgh", "--raw", "--max-tokens", "100", "--ignore-eos", "--json")
    refused = ridgeline(*asked)
    assert_one_line(refused, USAGE, ", or extend the context with --rope yarn:")
    factor = refused.err.split("--rope ")[1].split(" ")[0]
    assert len(ridgeline(*asked, "--rope", factor).json["token_ids"]) == 100
    assert_one_line(ridgeline(*asked, "--rope", "yarn:1.1"), USAGE, f"or extend the context with --rope {factor} (64")


@pytest.mark.parametrize(
    "words",
    [
        ("run", "FOLDER", "hi", "--context", "200"),
        ("serve", "FOLDER", "--context", "200", "--port", "0"),
        ("simulate", "FOLDER", "--device", "l4", "--rate", "1", "--context", "200"),
        ("trace", "FOLDER", "--priced", "l4", "--input", "199"),
    ],
)
def test_refusals_name_the_factor_that_suffices(ridgeline: Run, folder: Path, words: tuple[str, ...]) -> None:
    given = [str(folder) if word == "FOLDER" else word for word in words]
    for rope in ((), ("--rope", "yarn:2")):
        ended = ridgeline(*given, *rope)
        assert ended.code in (USAGE, REFUSED)
        assert "or extend the context with --rope yarn:3.13 (64 positions x 3.13)" in ended.err
