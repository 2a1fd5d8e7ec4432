"""A folder is loaded whole, every tensor mapped and put in its place once, or it is refused in one line."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from models.configs import CONFIGS
from ridgeline.backends.model_loader import load_model
from ridgeline.core.checkpoint.folder import open_checkpoint
from ridgeline.core.checkpoint.source import open_source
from ridgeline.core.checkpoint.weight_loader import load_tensors
from ridgeline.core.models import ModelRefused, build
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.registry import family_of
from ridgeline.core.ops.linear import Linear
from ridgeline.core.ops.matrix.plain import PlainMatrix
from ridgeline.core.ops.number_formats import weight_format_named
from support.checkpoints import edit_config, entries_of, parameters_of, random_tensors, write_folder, write_raw
from support.engines import uncached_logits

LLAMA = CONFIGS["llama"]
TIED = LLAMA | {"tie_word_embeddings": True}
NORM, QUERY = "model.norm.weight", "model.layers.0.self_attn.q_proj.weight"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"

Break = Callable[[Path], None]


def refusal(folder: Path) -> str:
    """The one line that a folder is refused with."""
    with pytest.raises(ModelRefused) as caught:
        load_model(str(folder))
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert len(message) < 600
    return message


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small, whole Llama in one file."""
    return write_folder(tmp_path, LLAMA, random_tensors(LLAMA))


# -- what is whole -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", [family for family in CONFIGS if family != "gpt_oss"])  # its experts are cut out
@pytest.mark.parametrize("shards", [1, 3])
def test_every_parameter_is_its_tensor_mapped_and_filled_once(family: str, shards: int, tmp_path: Path) -> None:
    """Values as in the files, memory inside the mapped files, and progress that ends at the sum of all bytes."""
    tensors = random_tensors(CONFIGS[family])
    write_folder(tmp_path, CONFIGS[family])
    write_shards(tmp_path, tensors, shards)
    told: list[tuple[int, int]] = []
    model = load_model(str(tmp_path), progress=lambda done, total: told.append((done, total)))
    parameters = parameters_of(model, CONFIGS[family])
    assert parameters.keys() == tensors.keys()
    # Channels that are put head by head are a copy.
    ordered = [name for name in tensors if family == "qwen3_next" and "conv1d" in name]
    assert all(torch.equal(parameters[name], tensors[name]) for name in tensors if name not in ordered)
    assert all(sorted(parameters[name].flatten()) == sorted(tensors[name].flatten()) for name in ordered)
    ranges = list(mapped_ranges(tmp_path))
    assert len({file for file, _, _ in ranges}) == shards
    for name, parameter in parameters.items():
        start, stop = parameter.data_ptr(), parameter.data_ptr() + parameter.nbytes
        mapped = any(low <= start and stop <= high for _, low, high in ranges)
        assert mapped == (name not in ordered), f"{name} is a copy"
    assert len({parameter.data_ptr() for parameter in parameters.values()}) == len(parameters)
    nbytes = sum(tensor.nbytes for tensor in tensors.values())
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert len(told) == len(tensors)
    assert told[-1] == (nbytes, nbytes)
    assert open_checkpoint(tmp_path).nbytes == nbytes


def write_shards(folder: Path, tensors: dict[str, Tensor], shards: int) -> None:
    """One file, or several and their index."""
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        part = dict(list(tensors.items())[shard::shards])
        name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        save_file(part, folder / name)
        weight_map |= dict.fromkeys(part, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def mapped_ranges(folder: Path) -> Iterator[tuple[str, int, int]]:
    """Where this process has files of a folder in its memory: file, first address, address after the last."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("this system does not say what is mapped")
    for line in maps.read_text().splitlines():
        if str(folder) in line:
            low, high = line.split()[0].split("-")
            yield line.split()[-1], int(low, 16), int(high, 16)


def test_files_beside_the_index_are_not_read(tmp_path: Path) -> None:
    """Mistral's folders hold the same weights a second time, in one file of another layout."""
    write_folder(tmp_path, LLAMA)
    write_shards(tmp_path, random_tensors(LLAMA), 2)
    save_file({"layers.0.attention.wq.weight": torch.ones(2, 2)}, tmp_path / "consolidated.safetensors")
    load_model(str(tmp_path))


def test_a_directory_named_like_a_shard_is_none(folder: Path) -> None:
    """Only files are weights."""
    (folder / "old.safetensors").mkdir()
    load_model(str(folder))


def test_metadata_is_no_tensor(folder: Path) -> None:
    """The format's `__metadata__` is read over."""
    save_file(load_file(folder / "model.safetensors"), folder / "model.safetensors", metadata={"format": "pt"})
    load_model(str(folder))


def test_a_tied_head_that_is_there_too(tmp_path: Path) -> None:
    """Equal, it is the embedding; different in any number, each is used, as transformers does; it has to fit."""
    values = TIED | {"vocab_size": 257}
    tensors = random_tensors(values)
    assert HEAD not in tensors
    write_folder(tmp_path, values, tensors | {HEAD: tensors[EMBEDDING].clone()})
    model = load_model(str(tmp_path))
    assert model.get_parameter("lm_head.matrix.weight").data_ptr() == model.get_parameter(EMBEDDING).data_ptr()
    row_33 = tensors[EMBEDDING].clone()
    row_33[33, 7] += 1  # every fourth row was compared
    for other in (row_33, tensors[EMBEDDING] + 1):
        write_folder(tmp_path, values, tensors | {HEAD: other})
        model = load_model(str(tmp_path))
        assert torch.equal(model.get_parameter("lm_head.matrix.weight"), other)
        assert torch.equal(model.get_parameter(EMBEDDING), tensors[EMBEDDING])
    write_folder(tmp_path, values, tensors | {HEAD: tensors[EMBEDDING][:-1].clone()})
    assert f"tensor {HEAD} has shape " in refusal(tmp_path)


def test_weights_are_in_the_dtype_that_the_config_says(tmp_path: Path) -> None:
    """As stored, or cast (test_mixed_dtypes.py)."""
    values = LLAMA | {"torch_dtype": "bfloat16"}
    write_folder(tmp_path, values, random_tensors(values))
    assert {parameter.dtype for parameter in load_model(str(tmp_path)).parameters()} == {torch.bfloat16}
    edit_config(tmp_path, torch_dtype="float16")
    assert {parameter.dtype for parameter in load_model(str(tmp_path)).parameters()} == {torch.float16}


# -- tensors that are wrong --------------------------------------------------------------------------------------------


def edited(**changes: Tensor | None) -> Break:
    """Replace, add or (None) remove tensors; `__` stands for a dot."""

    def apply(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        for name, tensor in changes.items():
            tensors.pop(name.replace("__", "."), None)
            if tensor is not None:
                tensors[name.replace("__", ".")] = tensor
        save_file(tensors, folder / "model.safetensors")

    return apply


def poisoned(name: str, value: float) -> Break:
    """One entry of a tensor is NaN or infinite."""

    def apply(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        tensors[name][3] = value
        save_file(tensors, folder / "model.safetensors")

    return apply


def header_with(change: Callable[[dict[str, Any]], object]) -> Break:
    """The header is changed (in place, or replaced by what `change` returns), the data stay as they are."""

    def apply(folder: Path) -> None:
        header, data = entries_of(load_file(folder / "model.safetensors"))
        replaced = change(header)
        write_raw(folder / "model.safetensors", header if replaced is None else replaced, data)

    return apply


def set_entry(name: str, **changes: object) -> Break:
    """Change what the header says of one tensor."""
    return header_with(lambda header: header[name].update(changes))


def cut(keep: Callable[[int], int]) -> Break:
    """Keep the beginning of the file."""

    def apply(folder: Path) -> None:
        raw = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(raw[: keep(len(raw))])

    return apply


def shift_after_first(header: dict[str, Any]) -> None:
    """Leave eight bytes free after the first tensor."""
    for name in list(header)[1:]:
        header[name]["data_offsets"] = [offset + 8 for offset in header[name]["data_offsets"]]


def appended(folder: Path) -> None:
    """Bytes after the last tensor."""
    with (folder / "model.safetensors").open("ab") as file:
        file.write(b"12345678")


def twice_in_header(folder: Path) -> None:
    """A name that the JSON of the header has two times."""
    header, data = entries_of(load_file(folder / "model.safetensors"))
    raw = json.dumps(header)
    write_raw(folder / "model.safetensors", f'{raw[:-1]}, "{NORM}": {json.dumps(header[NORM])}}}'.encode(), data)


def lying_length(length: int) -> Break:
    """The header claims to be so long."""

    def apply(folder: Path) -> None:
        header, data = entries_of(load_file(folder / "model.safetensors"))
        write_raw(folder / "model.safetensors", header, data, length)

    return apply


def move_norm(header: dict[str, Any]) -> None:
    """Let a tensor begin in the one before it."""
    header[NORM]["data_offsets"] = [offset - 8 for offset in header[NORM]["data_offsets"]]


FILE, GARBAGE = "model.safetensors", "broken safetensors header"
QUERY_BIAS = QUERY.replace("weight", "bias")
BROKEN: dict[str, tuple[Break, tuple[str, ...]]] = {
    "missing": (edited(model__norm__weight=None), ("lacks tensors", NORM)),
    "extra": (edited(model__layers__0__self_attn__q_norm__weight=torch.ones(10)), ("model lacks", "q_norm.weight")),
    "of a third layer": (edited(model__layers__2__mlp__up_proj__bias=torch.ones(44)), ("model lacks", "layers.2.mlp")),
    "mis-shaped": (edited(lm_head__weight=torch.ones(48, 97)), (HEAD, "[48, 97]", "[97, 48]")),
    "one row short": (edited(lm_head__weight=torch.ones(96, 48)), (HEAD, "[96, 48]", "[97, 48]")),
    "of another dtype": (edited(model__norm__weight=torch.ones(48).char()), (NORM, "int8", "float32")),
    "integers": (edited(model__norm__weight=torch.ones(48, dtype=torch.int32)), (NORM, "int32")),
    "NaN in a norm": (poisoned(NORM, float("nan")), (NORM, "NaN")),
    "infinity in a bias": (poisoned(QUERY_BIAS, float("-inf")), (QUERY_BIAS, "infinity")),
    "with and without the trunk's prefix": (edited(norm__weight=torch.ones(48)), (NORM, "another tensor fills too")),
    "overlapping": (header_with(move_norm), (NORM, "overlap", FILE)),
    "two in one place": (header_with(lambda h: h[NORM].update(data_offsets=[0, 192])), ("overlap", FILE)),
    "with a gap between": (header_with(shift_after_first), ("belong to no tensor", FILE)),
    "with bytes after the last": (appended, ("after the last tensor", FILE)),
    "without its last bytes": (cut(lambda size: size - 5), ("is truncated", FILE, "ends at byte")),
    "without any data": (cut(lambda size: 8 + 6000), (FILE,)),
    "cut in the header": (cut(lambda size: 100), ("is truncated", FILE)),
    "cut in the length": (cut(lambda size: 7), ("is truncated", FILE, "7 bytes")),
    "empty": (cut(lambda size: 0), ("is truncated", FILE, "0 bytes")),
    "with a header longer than the file": (lying_length(1 << 40), ("its header claims 1099511627776 bytes", FILE)),
    "with the longest header there is": (lying_length((1 << 64) - 1), ("its header claims", FILE)),
    "with a header cut short": (lying_length(50), (GARBAGE, FILE)),
    "with no header": (lying_length(0), (GARBAGE, FILE)),
    "with a header that is no JSON": (header_with(lambda h: b"\x00\x01garbage"), (GARBAGE, FILE)),
    "with a header in UTF-16": (header_with(lambda h: json.dumps(h).encode("utf-16")), (GARBAGE, FILE)),
    "with a header that is a list": (header_with(list), (GARBAGE, FILE)),
    "with a header nested too deep": (header_with(lambda h: b"[" * 100_000), (GARBAGE, FILE)),
    "with a name twice": (twice_in_header, (GARBAGE, FILE)),
    "with metadata that are no strings": (header_with(lambda h: h.update(__metadata__={"a": 1})), (FILE,)),
    "with an entry that is a number": (header_with(lambda h: h.update({NORM: 5})), (NORM, "lacks a valid", FILE)),
    "with an entry without a dtype": (
        header_with(lambda h: h[NORM].pop("dtype") and None),
        (NORM, "lacks a valid", FILE),
    ),
    "with one offset": (set_entry(NORM, data_offsets=[0]), (NORM, "lacks a valid", FILE)),
    "with offsets that are text": (set_entry(NORM, data_offsets=["0", "192"]), (NORM, "lacks a valid", FILE)),
    "with an infinite offset": (set_entry(NORM, data_offsets=[0, float("inf")]), (NORM, "lacks a valid", FILE)),
    "with negative sizes": (set_entry(QUERY, shape=[-60, -48]), (QUERY, "lacks a valid", FILE)),
    "with a fractional size": (set_entry(NORM, shape=[48.0]), (NORM, "lacks a valid", FILE)),
    "with a thousand dimensions": (set_entry(NORM, shape=[10**18] * 1000), (NORM, "lacks a valid", FILE)),
    "with an absurd size": (set_entry(NORM, shape=[10**12]), (NORM, "needs 4000000000000 bytes", FILE)),
    "with an unknown dtype": (set_entry(NORM, dtype="F4"), (NORM, "unknown dtype 'F4'", FILE)),
    "with backward offsets": (set_entry(NORM, data_offsets=[192, 0]), (NORM, "but its data_offsets span -192", FILE)),
    "with a name of two lines": (header_with(lambda h: h.update({"a\nb": h.pop(NORM)})), ("a\\nb", FILE)),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_a_tensor_that_is_wrong(what: str, folder: Path) -> None:
    """The tensor is named, and where the file itself is broken the file."""
    apply, named = BROKEN[what]
    apply(folder)
    message = refusal(folder)
    assert all(part in message for part in named), message


def test_many_missing_tensors_are_counted(folder: Path) -> None:
    """Three are named, the rest is a number."""
    edit_config(folder, num_hidden_layers=5)
    assert re.search(
        r"lacks tensors of the model: (model\.layers\.2\S+, ){2}\S+ and \d+ more; "
        r"use the checkpoint's own config.json, or fetch the checkpoint again$",
        refusal(folder),
    )


# -- folders that are wrong --------------------------------------------------------------------------------------------


def indexed(folder: Path, **weight_map: object) -> None:
    """Put an index over the folder's one file."""
    names = dict.fromkeys(load_file(folder / FILE), FILE) | weight_map
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


@pytest.mark.parametrize("outside", ["../model.safetensors", "/model.safetensors", "sub/model.safetensors", "..\n"])
def test_an_index_that_points_outside(outside: str, folder: Path) -> None:
    """A shard is a file of the folder, whatever else there is."""
    save_file({"x": torch.ones(1)}, folder.parent / FILE)
    indexed(folder, **{NORM: outside})
    message = refusal(folder)
    assert "points outside its folder" in message
    assert "model.safetensors.index.json" in message
    assert "put that shard next to the index" in message


@pytest.mark.parametrize("name", ["model-00002-of-00002.safetensors", "", ".."])
def test_a_shard_that_is_missing(name: str, folder: Path) -> None:
    """It is named."""
    indexed(folder, **{NORM: name})
    assert f"lacks the shard {name}" in refusal(folder)


@pytest.mark.parametrize("index", [True, False], ids=["index", "no index"])
@pytest.mark.parametrize("gone", [[1], [3], [1, 2, 3, 5]], ids=str)
def test_shards_that_are_missing_are_named(gone: list[int], index: bool, tmp_path: Path) -> None:
    """By the index, or where there is none by the numbers of those that are there; three are named."""
    write_folder(tmp_path, LLAMA)
    write_shards(tmp_path, random_tensors(LLAMA), 5)
    if not index:
        (tmp_path / "model.safetensors.index.json").unlink()
    names = [f"model-{number:05}-of-00005.safetensors" for number in gone]
    for name in names:
        (tmp_path / name).unlink()
    message = refusal(tmp_path)
    assert f"shard{'s' * (len(gone) > 1)} {', '.join(names[:3])}" in message
    assert (" and 1 more;" in message) == (len(gone) == 4)
    assert "fetch" in message


def test_shards_that_count_from_zero(tmp_path: Path) -> None:
    """Some tools number them so; without an index nothing is missing."""
    write_folder(tmp_path, LLAMA)
    write_shards(tmp_path, random_tensors(LLAMA), 3)
    (tmp_path / "model.safetensors.index.json").unlink()
    for number in (1, 2, 3):
        (tmp_path / f"model-{number:05}-of-00003.safetensors").rename(
            tmp_path / f"model-{number - 1:05}-of-00003.safetensors"
        )
    load_model(str(tmp_path))


def test_what_the_index_says_beside_its_files_stops_nothing(tmp_path: Path) -> None:
    """A tensor that it does not name, or names in another shard, is where it is, as transformers loads it."""
    tensors = random_tensors(LLAMA)
    write_folder(tmp_path, LLAMA)
    write_shards(tmp_path, tensors, 3)
    path = tmp_path / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    first, second = list(tensors)[:2]
    index["weight_map"][first] = index["weight_map"][second]
    del index["weight_map"][second]
    path.write_text(json.dumps(index))
    assert torch.equal(load_model(str(tmp_path)).get_parameter(EMBEDDING), tensors[EMBEDDING])


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "5", "{}", '{"weight_map": []}', '{"weight_map": {}}', '{"weight_map": {"a": 1}}',
     '{"weight_map": {"a": ["b"]}}', '{"weight_map": {"a": null, "b": "c"}}', "[" * 100_000],
    ids=lambda content: content[:30],
)  # fmt: skip
def test_an_index_that_is_none(content: str, folder: Path) -> None:
    """Whatever is in it."""
    (folder / "model.safetensors.index.json").write_text(content)
    assert "model.safetensors.index.json is not a safetensors index" in refusal(folder)


def test_a_tensor_in_two_shards(folder: Path) -> None:
    """Both files are named, with an index and without."""
    save_file({NORM: torch.ones(48)}, folder / "more.safetensors")
    indexed(folder, **{NORM: "more.safetensors"})
    message = refusal(folder)
    assert all(part in message for part in (NORM, FILE, "more.safetensors"))
    (folder / "model.safetensors.index.json").unlink()
    (folder / FILE).rename(folder / "first.safetensors")
    message = refusal(folder)
    assert all(part in message for part in (NORM, "first.safetensors", "more.safetensors"))


@pytest.mark.parametrize("name", ["more.safetensors", "model-00001-of-00002.safetensors", "adapter_model.safetensors"])
def test_weights_that_nothing_would_read_are_named(name: str, folder: Path) -> None:
    """A file beside the one that is read, or beside those of an index: whoever put it there expects it to count."""
    save_file({"model.norm.bias": torch.ones(48)}, folder / name)
    assert f"{name} holds weights that would be ignored (the engine reads model.safetensors)" in refusal(folder)
    indexed(folder)
    assert f"{name} holds weights that would be ignored (model.safetensors.index.json" in refusal(folder)


def test_a_whole_file_beside_the_shards_of_an_index(tmp_path: Path) -> None:
    """Two sets of weights, of which transformers would read the other one."""
    tensors = random_tensors(LLAMA)
    write_folder(tmp_path, LLAMA, tensors)
    write_shards(tmp_path, tensors, 2)
    assert "model.safetensors holds weights that would be ignored" in refusal(tmp_path)


@pytest.mark.parametrize("name", ["consolidated.safetensors", "consolidated.00.safetensors", "model.fp16.safetensors"])
def test_second_copies_that_releases_carry_are_not_read(name: str, folder: Path) -> None:
    """The same weights in Meta's layout or another number format, beside the one file."""
    save_file({"layers.0.attention.wq.weight": torch.ones(2, 2)}, folder / name)
    load_model(str(folder))


def test_files_as_diffusers_names_them(folder: Path) -> None:
    """The one file or the shards of an index, a variant beside them, and nothing else."""
    tensors, stem = random_tensors(LLAMA), "diffusion_pytorch_model"
    (folder / FILE).rename(folder / f"{stem}.safetensors")
    save_file({"other": torch.ones(2)}, folder / f"{stem}.fp16.safetensors")
    assert {path.name for path in open_checkpoint(folder).files.values()} == {f"{stem}.safetensors"}
    save_file({"other": torch.ones(2)}, folder / "other.safetensors")
    assert f"other.safetensors holds weights that would be ignored (the engine reads {stem}.safetensors)" in refusal(
        folder
    )
    for path in (folder / "other.safetensors", folder / f"{stem}.safetensors"):
        path.unlink()
    write_shards(folder, tensors, 2)
    (folder / "model.safetensors.index.json").rename(folder / f"{stem}.safetensors.index.json")
    assert open_checkpoint(folder).entries.keys() == tensors.keys()


def test_pickles_are_not_opened(folder: Path) -> None:
    """Weights as pickle only are refused, and why."""
    (folder / FILE).unlink()
    assert "holds no *.safetensors file" in refusal(folder)
    for name in ("pytorch_model.bin", "model.pt", "model.pth", "model.ckpt"):
        (folder / name).write_bytes(b"\x80\x04cos\nsystem\n")
        message = refusal(folder)
        assert "only as pickle" in message
        assert str(folder) in message
        (folder / name).unlink()


def test_the_cases_are_there() -> None:
    """A table that lost its entries would pass."""
    assert len(BROKEN) == 41


# -- other forms -------------------------------------------------------------------------------------------------------


def filled(folder: Path, change: Callable[[Model], None]) -> Model:
    """The model of a folder, changed before it is filled."""
    source = open_source(str(folder))
    model = build(source.config)
    change(model)
    load_tensors(model, open_checkpoint(folder), family_of(source.config))
    return model


def logits_of(model: Model) -> Tensor:
    """Of every position of a prompt."""
    (logits,) = uncached_logits(model, [[3, 1, 4, 1, 5, 9, 2, 6]])
    return logits


def test_a_matrix_is_stored_as_its_path_says(folder: Path) -> None:
    """One tensor fills two parameters, numbers of 8 bits and a scale of bf16 a row; the model is the one whose tensors
    have these values."""
    int8 = weight_format_named("int8")
    model = filled(folder, lambda model: model.store(lambda place: int8 if place.name.endswith("down_proj") else None))
    tensors = load_file(folder / "model.safetensors")
    narrow = [name for name in tensors if name.endswith("down_proj.weight")]
    for name in narrow:
        scale_O = (tensors[name].abs().amax(dim=1) / 127).bfloat16().float()
        matrix = model.get_submodule(name.removesuffix(".weight") + ".matrix")
        assert matrix.codes.dtype == torch.uint8
        assert torch.equal(matrix.scale[:, 0].float(), scale_O)
        tensors[name] = (tensors[name] / scale_O[:, None]).round().clamp(-127, 127) * scale_O[:, None]
    assert narrow
    before = logits_of(load_model(str(folder)))
    save_file(tensors, folder / "model.safetensors")
    wanted = logits_of(load_model(str(folder)))
    assert torch.allclose(logits_of(model), wanted, atol=1e-5 * float(wanted.abs().max()))
    assert not torch.allclose(before, wanted, atol=1e-4 * float(wanted.abs().max())), "too little was rounded"


class Halves(PlainMatrix):
    """A matrix that a checkpoint holds as two tensors, of its even and of its odd outputs."""

    unnamed = True

    def tensors(self) -> tuple[str, ...]:
        return ("even", "odd", *super().tensors()[1:])

    def dtype_of(self, name: str) -> torch.dtype | None:
        return self.spec.dtype

    def load_tensor(self, name: str, full: Tensor) -> Mapping[str, Tensor]:
        if name == "bias":
            return super().load_tensor(name, full)
        whole = torch.zeros(self.weight.shape) if self.weight.is_meta else self.weight.data
        whole[self.tensors().index(name) :: 2] = full
        return {"weight": whole}


@pytest.mark.usefixtures("torch_only")
def test_several_tensors_fill_one_parameter(folder: Path) -> None:
    """All of them are wanted, in any order, and each is put where its module says."""

    def halve(model: Model) -> None:
        for path, op in model.ops():
            if path.endswith(("o_proj", "down_proj")):
                assert isinstance(op, Linear)
                with torch.device("meta"):
                    op.matrix = Halves(op.matrix.spec)

    whole = logits_of(load_model(str(folder)))
    path, tensors = folder / "model.safetensors", load_file(folder / "model.safetensors")
    for name in [name for name in tensors if re.search(r"(o_proj|down_proj)\.weight$", name)]:
        tensor = tensors.pop(name)
        tensors |= {name.replace("weight", half): tensor[i::2].contiguous() for i, half in enumerate(("even", "odd"))}
    save_file(tensors, path)
    assert torch.equal(logits_of(filled(folder, halve)), whole)
    del tensors["model.layers.0.mlp.down_proj.odd"]
    save_file(tensors, path)
    with pytest.raises(ModelRefused, match=r"lacks tensors of the model: model\.layers\.0\.mlp\.down_proj\.odd"):
        filled(folder, halve)
