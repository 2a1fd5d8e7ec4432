"""However the header of a file is damaged, it loads or is refused: nothing else, and never a half-filled model."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from models.configs import CONFIGS
from ridgeline.backends.model_loader import load_model
from ridgeline.core.models import ModelRefused
from support.checkpoints import entries_of, random_tensors, write_folder, write_raw

# One small file of few tensors: a damaged byte is likely to matter.
GPT2 = CONFIGS["gpt2"] | {"n_layer": 1, "vocab_size": 11, "n_positions": 8, "n_embd": 8, "n_inner": 8}
EXAMPLES = settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose model.safetensors is whole."""
    return write_folder(tmp_path_factory.mktemp("whole"), GPT2, random_tensors(GPT2))


@pytest.fixture(scope="module")
def parts(whole: Path) -> tuple[dict[str, Any], bytes]:
    """Its header and its data."""
    return entries_of(load_file(whole / "model.safetensors"))


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A folder for damaged copies."""
    return write_folder(tmp_path, GPT2)


def load_or_refusal(folder: Path) -> str | None:
    """None if every parameter was filled, else the one line of the refusal. Anything else is raised."""
    try:
        model = load_model(str(folder))
    except ModelRefused as refused:
        assert len(str(refused).splitlines()) == 1  # noqa: PT017 - a refusal is one of two good ends
        assert len(str(refused)) < 2000  # noqa: PT017
        return str(refused)
    assert not any(parameter.is_meta for parameter in model.parameters())
    return None


def test_the_whole_file_loads(whole: Path) -> None:
    """What is damaged below is whole before."""
    assert load_or_refusal(whole) is None


@EXAMPLES
@given(data=st.data())
def test_damaged_bytes(data: st.DataObject, whole: Path, damaged: Path) -> None:
    """A few bytes of the length or the header are others."""
    raw = bytearray((whole / "model.safetensors").read_bytes())
    end = 8 + struct.unpack("<Q", raw[:8])[0]
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, end - 1))] = data.draw(st.integers(0, 255))
    (damaged / "model.safetensors").write_bytes(raw)
    load_or_refusal(damaged)


@EXAMPLES
@given(data=st.data())
def test_a_file_of_another_length(data: st.DataObject, whole: Path, damaged: Path) -> None:
    """Bytes lost at the end, or put in anywhere: it never loads."""
    raw = (whole / "model.safetensors").read_bytes()
    at = data.draw(st.integers(0, len(raw) - 1))
    extra = data.draw(st.binary(max_size=9))
    rest = raw[at:] if data.draw(st.booleans()) and extra else b""
    (damaged / "model.safetensors").write_bytes(raw[:at] + extra + rest)
    if at + len(extra) + len(rest) != len(raw):
        assert load_or_refusal(damaged) is not None


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, -1, 8, 32, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64, 10**400])
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["F32", "I32", "U32", "F64", "BF16", "F8_E4M3", "F4", "BOOL", "C64"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)
NATURALS = st.sampled_from([0, 1, 2, 8, 2**31, 2**62, 2**63 - 1])
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "I32", "F64", "BF16", "BOOL"]),
        "shape": st.lists(NATURALS, max_size=4),
        "data_offsets": st.lists(NATURALS, min_size=2, max_size=2),
    }
)


@settings(parent=EXAMPLES, max_examples=200)
@given(data=st.data())
def test_damaged_values(data: st.DataObject, parts: tuple[dict[str, Any], bytes], damaged: Path) -> None:
    """The JSON is whole, but what it says of some tensors is not true."""
    header: dict[str, Any] = json.loads(json.dumps(parts[0]))
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from(sorted(header)))
        match data.draw(st.integers(0, 4)):
            case 0:
                header[name] = data.draw(VALUES)
            case 1 if isinstance(header[name], dict):
                header[name][data.draw(st.sampled_from(["dtype", "shape", "data_offsets", "more"]))] = data.draw(VALUES)
            case 2:
                header[data.draw(st.text(max_size=9))] = header.pop(name)
            case 3:
                header[data.draw(st.text(max_size=9) | st.just("__metadata__"))] = data.draw(VALUES)
            case _:
                header[name] = data.draw(ENTRIES)
    write_raw(damaged / "model.safetensors", header, parts[1])
    load_or_refusal(damaged)


@settings(parent=EXAMPLES, max_examples=100)
@given(header=VALUES, data=st.binary(max_size=64), length=st.none() | st.integers(0, 2**64 - 1))
@example(header={"a": {"dtype": "F32", "shape": [0, 2**62], "data_offsets": [0, 0]}}, data=b"", length=None)
def test_any_header(header: object, data: bytes, length: int | None, damaged: Path) -> None:
    """Files made up from nothing never load."""
    write_raw(damaged / "model.safetensors", header, data, length)
    assert load_or_refusal(damaged) is not None


@EXAMPLES
@given(content=st.binary(max_size=200) | VALUES.map(lambda value: json.dumps({"weight_map": value}).encode()))
def test_any_index(content: bytes, whole: Path, damaged: Path) -> None:
    """An index made up from nothing, beside a file that is whole."""
    (damaged / "model.safetensors").write_bytes((whole / "model.safetensors").read_bytes())
    (damaged / "model.safetensors.index.json").write_bytes(content)
    assert load_or_refusal(damaged) is not None
