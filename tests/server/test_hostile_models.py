"""Hostile model folders, at the loader that the server's engine runs: 31, 47 and 48 of the hostile inputs.

Each is refused in one line that names what is wrong, as ModelRefused, before its weights take memory; a good folder
loads afterwards and answers.
"""

import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.folders import CHAT, write_model
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.llm import LLM
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.setup import load_engine
from ridgeline.util.untrusted import ModelRefused
from server.attacked import GREET, attacked
from server.test_hostile_requests import numbered

Damage = Callable[[Path], None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model", template=CHAT)


def header_of(folder: Path) -> tuple[dict[str, Any], bytes]:
    """The header and the data of a folder's safetensors file."""
    data = (folder / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def with_header(change: Callable[[dict[str, Any]], object], text: Callable[[str], str] = str) -> Damage:
    """Damage that changes the header; text: its JSON."""

    def damage(folder: Path) -> None:
        header, data = header_of(folder)
        change(header)
        encoded = text(json.dumps(header)).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(encoded)) + encoded + data)

    return damage


def largest(header: dict[str, Any]) -> dict[str, Any]:
    """The entry of the largest tensor."""
    return max((v for k, v in header.items() if k != "__metadata__"), key=lambda entry: entry["data_offsets"][1])


def _overlap(header: dict[str, Any]) -> None:
    entries = sorted((v for k, v in header.items() if k != "__metadata__"), key=lambda e: e["data_offsets"][0])
    entries[1]["data_offsets"] = entries[0]["data_offsets"]


def _twice(text: str) -> str:
    name, entry = next((k, v) for k, v in json.loads(text).items() if k != "__metadata__")
    return text[:-1] + f", {json.dumps(name)}: {json.dumps(entry)}}}"


def _only_pickle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(_Bomb()))


class _Bomb:
    """Writes a file when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.system, ("touch bomb-went-off",)


def _long_header(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 1 << 30) + path.read_bytes()[8:])


def _device(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("/dev/zero")


def _pipe(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder.parent / "pipe")
    (folder / "model.safetensors").symlink_to(folder.parent / "pipe")


def _outside(folder: Path) -> None:
    header, _ = header_of(folder)
    (folder / "model.safetensors").rename(folder.parent / "x.safetensors")
    index = {"weight_map": {name: "../x.safetensors" for name in header if name != "__metadata__"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("damage", "word"),
    numbered(
        ("47-pickle", _only_pickle, "safetensors"),
        ("47-overlap", with_header(_overlap), "data_offsets|bytes|overlap"),
        ("47-beyond", with_header(lambda h: largest(h).update(data_offsets=[0, 1 << 40])), "bytes|end"),
        ("47-negative-offset", with_header(lambda h: largest(h).update(data_offsets=[-8, 0])), "offsets"),
        ("47-header", _long_header, "header"),
        ("47-shape", with_header(lambda h: largest(h).update(shape=[-1, -64])), "shape"),
        ("47-huge-shape", with_header(lambda h: largest(h).update(shape=[1 << 40, 1 << 40])), "shape|bytes"),
        ("47-twice", with_header(lambda h: None, _twice), "twice|name"),
        ("47-device", _device, "safetensors"),
        ("47-pipe", _pipe, "safetensors"),
        ("47-outside", _outside, r"\.\./x"),
    ),
)
def test_weights_that_lie(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Damage, word: str
) -> None:
    monkeypatch.chdir(tmp_path)
    damage(folder)
    with pytest.raises(ModelRefused, match=word) as refused:
        load_engine(str(folder))
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "bomb-went-off").exists()
    _a_good_one_loads(tmp_path)


def test_47_links_out_of_the_folder_are_how_a_hub_cache_is_made(folder: Path, tmp_path: Path) -> None:
    """Every file of a snapshot leads to ../../blobs. What is mapped is a regular file; else see 47-device."""
    blobs, snapshot = tmp_path / "models--a--b" / "blobs", tmp_path / "models--a--b" / "snapshots" / "0"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, path in enumerate(sorted(folder.iterdir())):
        path.rename(blobs / str(number))
        (snapshot / path.name).symlink_to(Path("..", "..", "blobs", str(number)))
    answer = LLM(str(snapshot)).generate(["a"], SamplingParams(max_tokens=1))
    assert answer[0].choices[0].token_ids


def config(**changes: Any) -> Damage:
    def damage(folder: Path) -> None:
        path = folder / "config.json"
        text = json.dumps({**json.loads(path.read_text()), **changes})
        path.write_text(text)

    return damage


@pytest.mark.parametrize(
    ("damage", "word"),
    numbered(
        (
            "48-auto-map",
            config(model_type="evil", architectures=["Evil"], auto_map={"AutoModel": "evil.py--Evil"}),
            "Evil|evil",
        ),
        ("48-layers", config(num_hidden_layers=10**9), "layers"),
        ("48-no-heads", config(num_attention_heads=0), "heads"),
        ("48-theta", config(rope_theta=float("nan")), "NaN|nan|theta"),
        ("48-vocabulary", config(vocab_size=7), r"requires \[7, 32\]"),
        ("48-negative", config(hidden_size=-64), "hidden_size"),
        ("48-huge", config(hidden_size=2**40), "hidden_size"),
    ),
)
def test_configs_that_lie(folder: Path, tmp_path: Path, damage: Damage, word: str) -> None:
    damage(folder)
    with pytest.raises(ModelRefused, match=word) as refused:
        load_engine(str(folder))
    assert "\n" not in str(refused.value)
    _a_good_one_loads(tmp_path)


def test_48_code_beside_a_model_is_not_run(folder: Path) -> None:
    """A known architecture with an auto_map is that architecture; the file it names is not looked at."""
    config(auto_map={"AutoModelForCausalLM": "evil.Evil"})(folder)
    (folder / "evil.py").write_text("import os; os.abort()")
    assert load_engine(str(folder)).model.vocabulary


def _a_good_one_loads(tmp_path: Path) -> None:
    good = LLM(str(write_model(tmp_path / "good")))
    assert good.generate(["a"], SamplingParams(max_tokens=1))[0].choices[0].token_ids


EXPLODING = pytest.mark.parametrize(
    "template",
    numbered(
        ("31-classes", "{{ messages.__class__.__mro__[1].__subclasses__() }}"),
        ("31-loops", "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}"),
        ("31-gigabyte", "{% set a = [0] * 10**9 %}{{ a }}"),
        ("31-text", "{{ 'a' * 10**9 }}"),
        ("31-power", "{{ 10 ** (10 ** 9) }}"),
        ("31-recursion", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
    ),
)


@EXPLODING
def test_templates_that_walk_loop_or_grow_are_refused_as_the_model_is_loaded(tmp_path: Path, template: str) -> None:
    folder = write_model(tmp_path / "model", template=template)
    with pytest.raises(ModelRefused, match="chat template: ") as refused:
        load_engine(str(folder))
    assert "\n" not in str(refused.value)
    assert str(folder) in str(refused.value)
    alone = tmp_path / "template.jinja"
    alone.write_text(template)
    with pytest.raises(ValueError, match=r"template\.jinja: chat template: ") as wrong:
        load_engine("tales", EngineSettings(chat_template=str(alone)))
    assert not isinstance(wrong.value, ModelRefused), "the option is wrong, not the model: exit code 2"


@EXPLODING
def test_templates_that_do_so_with_some_conversations(tmp_path: Path, template: str) -> None:
    """A 400 that leaves the server as it was, and completions work."""
    late = "{% if messages | length > 1 %}" + template + "{% endif %}"
    with attacked(model=str(write_model(tmp_path / "model", template=late))) as server:
        reply = server.chat(GREET * 2)
        error = reply.json()["error"]
        assert (reply.status, error["code"], error["param"]) == (400, "template", "messages")
        assert str(tmp_path) not in error["message"]
        assert "; send other messages, or their text as the prompt of /v1/completions" in error["message"]
        server.check()


@pytest.mark.parametrize(
    "template", ["{{ raise_exception('no system message') }}", "{{ tools[0].name }}", "{{ documents | length }}"]
)
def test_31_templates_that_want_another_conversation_are_taken(folder: Path, template: str) -> None:
    write_model(folder, template=template)
    assert load_engine(str(folder)).templates


def test_31_attributes_of_python_are_undefined(tmp_path: Path) -> None:
    folder = write_model(
        tmp_path / "model",
        template="x{{ messages|attr('__class__') }}{{ messages|attr('append') }}{{ messages[0].content }}",
    )
    with attacked(model=str(folder)) as server:
        assert (
            server.post("/v1/chat/completions/render", {"messages": GREET}).json()["prompt"]
            == "x" + GREET[0]["content"]
        )
        server.check()


def test_31_a_template_that_is_none_is_refused_as_the_model_is_loaded(folder: Path) -> None:
    write_model(folder, template="{% for %}")
    with pytest.raises(ModelRefused, match="chat template"):
        load_engine(str(folder))
