"""docs/models.md says what the code says: each architecture in one table, and the catalogue's parameters."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from unittest.mock import Mock

import pytest
import transformers

from price.test_catalogue import RELEASES
from ridgeline.core.checkpoint import read_config
from ridgeline.core.checkpoint.catalogue import CATALOGUE, model_names
from ridgeline.core.models import ENCODERS, FAMILIES, SPEECH, Fields, ModelRefused, build
from ridgeline.core.models.common.architecture_alias import KIN
from ridgeline.core.models.common.parameter_breakdown import parameter_breakdown
from ridgeline.core.models.from_transformers import installed_package
from ridgeline.core.models.from_transformers.class_lookup import is_known
from ridgeline.core.models.registry import (
    DENOISERS,
    ENCODER_DECODERS,
    IMAGE_GENERATORS,
    REGISTERED,
    VISION,
    unsupported_reason,
)

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
AUTOENCODERS = [name for each in REGISTERED if each.kind == "autoencoder" for name in (each.architecture, *each.also)]


def rows_of(title: str) -> list[list[str]]:
    """The cells of the table under a heading."""
    section = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    assert len(lines) > 2, title
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines[2:]]


def test_what_is_supported() -> None:
    """Every family, and nothing else, each with models and what is its own."""
    rows = rows_of("Text generation")
    assert [row[0] for row in rows] == [family.architecture for family in FAMILIES]
    assert all(len(row) == 3 and all(row) for row in rows)


def test_what_reads() -> None:
    """Every encoder with the architectures that are built alike."""
    rows = [
        [row[0], *(row[1].split(", ") if row[1] != "-" else ())] for row in rows_of("Embedding models and classifiers")
    ]
    assert rows == [[family.architecture, *family.also] for family in ENCODERS]


def test_what_encodes() -> None:
    """Every encoder-decoder."""
    assert [row[0] for row in rows_of("Encoder-decoders")] == [family.architecture for family in ENCODER_DECODERS]


def test_what_hears() -> None:
    """Every family whose encoder reads sound."""
    assert [row[0] for row in rows_of("Speech")] == [family.architecture for family in SPEECH]


def test_what_sees_and_what_writes_images() -> None:
    """Every family whose prompts have images in them; those that write them are built of the same folders."""
    assert [row[0] for row in rows_of("Vision")] == [family.architecture for family in VISION]
    assert {family.architecture for family in IMAGE_GENERATORS} <= {family.architecture for family in VISION}


def test_what_draws() -> None:
    """Every denoiser, none of which is called missing."""
    assert [row[0] for row in rows_of("Denoisers")] == [family.architecture for family in DENOISERS]


def test_what_turns_latents_into_pictures() -> None:
    """The one of denoisers' latents, and the one of tokens."""
    assert [row[0] for row in rows_of("Autoencoders")] == AUTOENCODERS


def test_what_another_family_builds() -> None:
    """By the architecture of that family, unless the config names it."""
    rows, architectures = rows_of("Which architectures are built as another one?"), {f.architecture for f in FAMILIES}
    assert [row[0] for row in rows] == [kin.architecture for kin in KIN]
    for row, kin in zip(rows, KIN, strict=True):
        family = next((family for family in FAMILIES if family.model_type == kin.of), None)
        named = set(re.findall(r"\w+ForCausalLM", row[1]))
        assert named <= architectures
        assert family is None or named == {family.architecture}


def test_what_is_refused_and_why() -> None:
    """Compare the table with the entries of data/catalogue/unsupported.toml that are missing something."""
    entries = tomllib.loads((CATALOGUE / "unsupported.toml").read_text(encoding="utf-8")).values()
    missing = {entry["architecture"]: "; ".join(entry["missing"]) for entry in entries if "missing" in entry}
    assert {row[0]: row[1] for row in rows_of("Which architectures are refused?")} == missing
    built = {known.architecture for known in (*FAMILIES, *KIN, *DENOISERS)}
    assert not missing.keys() & {*AUTOENCODERS, *built}


SOURCES = {row[0]: row[2] for row in rows_of("Where do the catalogue's figures come from?")}


def test_every_config_of_the_catalogue_has_a_source() -> None:
    """A release that is named, or one whose config.json it is compared with."""
    names = set(model_names())
    assert names - RELEASES.keys() <= SOURCES.keys() <= names


@pytest.mark.parametrize("name", SOURCES)
def test_parameters_are_those_of_the_release(name: str) -> None:
    """Within half a percent, or half of the last digit that the release gives."""
    said = float(SOURCES[name])
    digits = len(SOURCES[name].partition(".")[2])
    counted = parameter_breakdown(build(read_config(name))).total / 1e9
    assert abs(counted - said) <= max(0.005 * said, 0.5 * 10**-digits)


def test_only_architectures_without_a_class_are_missing_something() -> None:
    """Compare the list of well-known models with the classes that the installed transformers registers."""
    entries = tomllib.loads((CATALOGUE / "unsupported.toml").read_text(encoding="utf-8")).values()
    for entry in entries:
        known = is_known(Fields({"architectures": [entry["architecture"]], **_typed(entry["architecture"])}, "c"))
        assert known != ("missing" in entry), entry["architecture"]


def _typed(architecture: str) -> dict[str, str]:
    """Return the `model_type` of a class of transformers, as its configs state it."""
    found = getattr(transformers, architecture, None)
    return {} if found is None else {"model_type": found.config_class.model_type}


COPIES = {
    "MiniMaxM3ForCausalLM": "MiniMaxM3SparseForConditionalGeneration",
    "MiniMaxM3SparseForCausalLM": "MiniMaxM3SparseForConditionalGeneration",
    "Step3p7FlashForCausalLM": "Step3p7ForConditionalGeneration",
    "Step3p7ForCausalLM": "Step3p7ForConditionalGeneration",
    "DeepseekV32ForCausalLMMTP": "DeepseekV32ForCausalLM",
    "Glm5NextForCausalLM": "Glm5NextForConditionalGeneration",
    "kimi_linear": "KimiLinearForCausalLM",
}
OTHERS = ("MiniMaxForCausalLM", "MiniMaxM1ForCausalLM", "Step3ForCausalLM", "KimiForCausalLM", "FalconForCausalLM")


@pytest.fixture(params=[True, False], ids=["with transformers", "without"])
def has_transformers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Return whether transformers is installed."""
    if not request.param:
        monkeypatch.setattr(installed_package, "version", Mock(side_effect=PackageNotFoundError))
    return bool(request.param)


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_of_a_class_under_another_name(name: str, has_transformers: bool) -> None:
    """Check that the class is named, and the command that installs it if it is not installed."""
    reason = unsupported_reason(name)
    assert reason is not None
    assert COPIES[name] in reason
    assert ("pip install 'ridgeline[transformers]'" in reason) != has_transformers
    assert ("but transformers 5.24 has its class" in reason) == has_transformers


@pytest.mark.parametrize("name", OTHERS)
def test_a_name_that_only_begins_alike(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that no reason of another architecture is given."""
    assert unsupported_reason(name) is None
    monkeypatch.setattr(installed_package, "version", Mock(side_effect=PackageNotFoundError))
    with pytest.raises(ModelRefused) as caught:
        build(Fields({"architectures": [name]}, "c"))
    said = str(caught.value)
    assert f"architecture {name} is not supported; " in said
    assert "if transformers has a class of this architecture, it would be used, but transformers 5.24 or newer" in said
    assert "is not installed: pip install 'ridgeline[transformers]'" in said
    assert "missing" not in said


@pytest.mark.parametrize("kind", ["decilm", "DeciLMForCausalLM"])
def test_a_refused_family_by_its_name_or_model_type(kind: str, has_transformers: bool) -> None:
    """Check that what is missing is named, whether or not transformers is installed, with no hint to install it."""
    named = {"architectures": [kind]} if kind.startswith("Deci") else {"model_type": kind}
    with pytest.raises(ModelRefused, match="is not supported yet; missing: ") as caught:
        build(Fields(named, "c"))
    assert "transformers" not in str(caught.value)


def test_code_of_the_checkpoint_is_named(has_transformers: bool) -> None:
    remote = {"AutoModelForCausalLM": "modeling_my.MyForCausalLM"}
    with pytest.raises(ModelRefused) as caught:
        build(Fields({"architectures": ["MyForCausalLM"], "model_type": "falcon", "auto_map": remote}, "c"))
    assert "MyForCausalLM is not supported: it needs code of the checkpoint (modeling_my.py)" in str(caught.value)
    assert "which is never run" in str(caught.value)
    assert "pip install" not in str(caught.value)


def test_nothing_that_is_built_is_taken_for_a_copy() -> None:
    """Look for no architecture and no model_type that is built."""
    built = (*FAMILIES, *ENCODERS, *ENCODER_DECODERS, *SPEECH, *VISION, *KIN, *DENOISERS)
    assert [
        known for known in built if unsupported_reason(known.architecture) or unsupported_reason(known.model_type)
    ] == []


@pytest.mark.parametrize("section", ["llm_config", "language_config", "text_config"])
def test_a_larger_model_that_is_not_known(section: str) -> None:
    """Expect the refusal to name the section that a family builds."""
    half = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
    for values in ({section: half}, {"thinker_config": {"text_config": half}}):
        with pytest.raises(
            ModelRefused, match=r"is a Qwen2ForCausalLM, which is supported: give that section as a config\.json"
        ):
            build(Fields({"architectures": ["AnyChatModel"], **values}, "c"))
    with pytest.raises(ModelRefused) as caught:
        build(Fields({"architectures": ["AnyChatModel"], section: {"model_type": "xlstm"}}, "c"))
    assert "give that section" not in str(caught.value)


def test_a_refused_architecture_says_so_of_its_config(tmp_path: Path) -> None:
    """The table's words are those of the error."""
    for architecture, missing in (row[:2] for row in rows_of("Which architectures are refused?")):
        (tmp_path / "config.json").write_text(f'{{"architectures": ["{architecture}"]}}', encoding="utf-8")
        with pytest.raises(ModelRefused) as caught:
            build(read_config(str(tmp_path)))
        assert f"architecture {architecture} is not supported yet; missing: " in str(caught.value)
        assert all(part in str(caught.value) for part in missing.split("; "))
