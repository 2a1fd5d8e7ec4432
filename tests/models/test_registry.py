"""The registry: each file of families/ is on its own, and is listed."""

import ast
import importlib
from pathlib import Path

import pytest

from models.covered import check_covered
from ridgeline.core.models import Fields, ModelRefused, family_of, registry
from ridgeline.core.models.registry import REGISTERED

MODELS = Path(registry.__file__).parent
FILES = sorted(path for path in (MODELS / "families").glob("*.py") if path.stem != "__init__")
PACKAGE = "ridgeline.core.models"


def imported_by(path: Path) -> set[str]:
    """The modules and names that a file imports, wherever the import stands."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_family_is_one_file(path: Path) -> None:
    """It imports no other family; what two share is in common/."""
    assert not [name for name in imported_by(path) if name.startswith((f"{PACKAGE}.families", f"{PACKAGE}.registry"))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_family_is_registered(path: Path) -> None:
    """Its file ends with what it builds, all of which the registry lists."""
    module = importlib.import_module(f"{PACKAGE}.families.{path.stem}")
    own = getattr(module, "FAMILIES", None) or (module.FAMILY,)
    assert own
    assert all(family in REGISTERED for family in own), (
        f"families/{path.name} is not in REGISTERED of core/models/registry.py"
    )


def test_common_knows_no_family() -> None:
    """What families share imports none of them."""
    paths = sorted((MODELS / "common").rglob("*.py"))
    assert len(paths) > len(FILES) // 2
    own = {path.name: imported_by(path) for path in paths}
    outside = (f"{PACKAGE}.families", f"{PACKAGE}.registry", f"{PACKAGE}.building")
    assert not {name: found for name, found in own.items() if any(each.startswith(outside) for each in found)}


def test_no_architecture_is_listed_twice() -> None:
    """Janus, which is loaded to read or to draw, is two families under one name."""
    names = [(name, each.kind == "drawer") for each in REGISTERED for name in (each.architecture, *each.also)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("values", "kind", "encodes", "writes"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "decoder", False, True),
        ({"architectures": ["JanusForConditionalGeneration"]}, "vision", False, True),
        ({"model_type": "t5"}, "encoder-decoder", True, True),  # the whole before its encoder
        ({"architectures": ["T5EncoderModel"]}, "encoder", False, False),
        ({"model_type": "bert"}, "encoder", False, False),
        ({"architectures": ["WhisperForConditionalGeneration"]}, "speech", False, True),
    ],
)
def test_kinds(values: dict[str, object], kind: str, encodes: bool, writes: bool) -> None:
    """Expect what callers ask of a family: whether an encoder reads the prompt, and whether it writes text."""
    family = family_of(Fields(values, "config.json"))
    assert (family.kind, family.is_encoder_decoder, family.generates) == (kind, encodes, writes)


@pytest.mark.parametrize("kind", ["denoiser", "autoencoder"])
def test_parts_of_pipelines_are_no_language_models(kind: str) -> None:
    """Each is refused with what it is."""
    own = [family for family in REGISTERED if family.kind == kind]
    assert own
    for family in own:
        with pytest.raises(
            ModelRefused,
            match=rf"{family.architecture} (is a denoiser|is an autoencoder|is the image-token autoencoder)",
        ):
            family_of(Fields({"_class_name": family.architecture}, "config.json"))


def test_a_forgotten_case_is_named() -> None:
    """The failure names the family and the list, and a case that no family has."""
    families = [family for family in REGISTERED if family.model_type in ("llama", "gpt2")]

    def failure(*listed: str) -> str:
        with pytest.raises(AssertionError) as caught:
            check_covered(listed, families, "CASES in cases.py")
        return str(caught.value).splitlines()[0]

    assert failure("llama") == "CASES in cases.py has no case for gpt2; add one"
    unknown = "CASES in cases.py has cases for phi, which core/models/registry.py does not list"
    assert failure("llama", "gpt2", "phi") == unknown
    check_covered(("gpt2", "llama"), families, "CASES in cases.py")
