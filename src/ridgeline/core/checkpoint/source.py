"""Source: what the name of a model stands for, found and read once: its components, their configs, its defaults."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any

from ridgeline.core.checkpoint.catalogue import (
    CATALOGUE,
    config_of,
    is_listed,
    is_pipeline,
    known_names,
    pipeline_entry,
    spelt_as,
)
from ridgeline.core.checkpoint.folder import leading_dtype
from ridgeline.core.checkpoint.gguf_config import read_gguf_config
from ridgeline.core.checkpoint.gguf_header import GGUFHeader, is_gguf, read_gguf_header
from ridgeline.core.checkpoint.hub_cache import cached_folder, cached_ids, hub_cache, is_id, is_repository, snapshot_of
from ridgeline.core.models.common.fields import Fields, ModelRefused, read_object
from ridgeline.core.models.common.recipes import SECTIONS, method_of
from ridgeline.core.models.registry import not_built

BUILTIN = Path(__file__).resolve().parents[2] / "data" / "builtin"

MODEL, ADAPTER = "model", "adapter"  # components of a folder without model_index.json
_PIPELINE, _ADAPTER = "model_index.json", "adapter_config.json"
# What quantisers write beside a config.json that does not mention them: the method, and what of the file is its own.
_MODELOPT_FILE = "hf_quant_config.json"
_QUANTISED = {
    _MODELOPT_FILE: ("modelopt", "quantization"),
    "quantize_config.json": ("gptq", ""),
    "quant_config.json": ("awq", ""),
}
_WEIGHTS = "*.safetensors"
_INDEX, _MAX_INDEX = "model.safetensors.index.json", 64 << 20  # bytes; that of 10^12 parameters has 10 MB
_SHOWN = 8
_GGUF = ".gguf"


@dataclass(frozen=True, slots=True)
class Component:
    """A part of a source that is a model of its own: a text model, an encoder, a VAE, an adapter.

    kind: its class, by its config or by the pipeline that it is a part of; "" where neither says. config: None where it
    has none; with what a quantiser says in a file of its own, where the config does not mention it.
    """

    name: str
    folder: Path
    kind: str
    config: Fields | None


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model as it was named, and what was found there.

    folder: where weights and tokenizer are; None for a config of the catalogue, which has neither. pipeline: the class
    of a pipeline of several components; "" for a folder that is one model. generation: its generation_config.json; of a
    pipeline of the catalogue what its release is usually asked for. gguf: the header of the GGUF file that is all of
    it, which is its `folder` then.
    """

    name: str
    folder: Path | None
    components: Mapping[str, Component]
    generation: Mapping[str, Any]
    pipeline: str = ""
    gguf: GGUFHeader | None = None

    @property
    def title(self) -> str:
        """What people call it: of a path the folder's own name, or the file's where that is not config.json."""
        path = Path(self.name).resolve()
        if not path.exists() or _steps_back(self.name):
            return self.name
        if path.is_file() and path.name != "config.json":
            return path.stem
        return path.parent.name if path.is_file() else path.name

    @property
    def model(self) -> Component:
        """The one model that it is. Raises ModelRefused where it is something else, and says what."""
        if self.pipeline:
            raise ModelRefused(
                f"{self.folder or self.name} is a {self.pipeline} of several components "
                f"({_listed(self.components.values())}), which draws: ridgeline image takes it, and plan, "
                "or ridgeline video where it draws clips; give the folder of a language model"
            )
        if ADAPTER in self.components:
            beside = (
                ", or move adapter_config.json away to use the model that lies beside it"
                if MODEL in self.components
                else ""
            )
            raise ModelRefused(
                f"{self.folder} holds an adapter ({self.components[ADAPTER].kind}), not a model by itself; "
                f"give the model that it was made for, and --lora {self.folder}{beside}"
            )
        if MODEL not in self.components:
            raise ModelRefused(f"{self.folder} is not a model: it has {_missing_in(self.folder)}")
        return self.components[MODEL]

    @property
    def config(self) -> Fields:
        """The config of the one model that it is. Raises ModelRefused where there is none."""
        config = self.model.config
        assert config is not None
        return config

    @property
    def has_weights(self) -> bool:
        """Whether there is a file of weights in its folder."""
        if self.gguf is not None:
            return True
        return self.folder is not None and any(path.is_file() for path in self.folder.glob(_WEIGHTS))

    @property
    def stated_bytes(self) -> int | None:
        """Bytes of all tensors as the index of its shards states them, whether or not the shards are there; None where
        it does not. Raises ModelRefused for an index that cannot be read.
        """
        if self.folder is None or not (self.folder / _INDEX).is_file():
            return None
        stated = read_object(self.folder / _INDEX, _MAX_INDEX).get("metadata")
        size = stated.get("total_size") if isinstance(stated, dict) else None
        return size if isinstance(size, int) and size > 0 else None


class UnknownModel(ModelRefused):
    """A name that stands for no model. what: says so, and not what to give instead."""

    def __init__(self, what: str, instead: str) -> None:
        super().__init__(what + instead)
        self.what = what


def open_source(name: str) -> ModelSource:
    """Find a model: a folder, a config.json, a GGUF file, a built-in name, one of the catalogue, or an id in the cache
    of Hugging Face's tools; read what describes it. A path comes before a name.

    A folder that nothing in it describes stands for no model that is known by its name.

    Raises ModelRefused if there is none of that name (UnknownModel), or a file that describes it is broken.
    """
    if not name.strip():
        raise ModelRefused(f"the name of the model is empty; give {_wanted()}")
    path = Path(name)
    if path.is_dir() and not _steps_back(name):
        folder = snapshot_of(path) if is_repository(path) else path
        return _of_folder(name, folder, folder / "config.json")
    if path.is_file():
        return _of_gguf(name, path) if is_gguf(path) else _of_folder(name, path.parent, path)
    return _named(name)


def _named(name: str) -> ModelSource:
    """A model of a name that is no path."""
    if is_pipeline(name):
        pipeline, configs, usual = pipeline_entry(name)
        parts = {part: Component(part, CATALOGUE, config.architecture, config) for part, config in configs.items()}
        return ModelSource(name, None, parts, usual, pipeline)
    if is_listed(name):
        config = config_of(name)
        return ModelSource(name, None, {MODEL: Component(MODEL, CATALOGUE, config.architecture, config)}, {})
    if name in builtin_names():
        return _of_folder(name, BUILTIN / name, BUILTIN / name / "config.json")
    folder = cached_folder(name, hub_cache())
    if folder is not None:
        return _of_folder(name, folder, folder / "config.json")
    raise _nowhere(name)


def taken_of_two(name: str) -> str:
    """Which model is taken where a folder has the name of one that is known, and which is not, in words; "" where there
    are not two.
    """
    known = _known(name) if Path(name).is_dir() else ""
    if not known:
        return ""
    if _steps_back(name):
        return f"{name} is {known}, not the folder here, which has no config.json"
    return f"{name} is the folder here, not {known}"


def _steps_back(name: str) -> bool:
    """Whether the folder of a name has nothing that describes a model, where the name is that of a known one."""
    folder = Path(name)
    described = any((folder / file).is_file() for file in ("config.json", _PIPELINE, _ADAPTER))
    return not described and not is_repository(folder) and bool(_known(name))


def _known(name: str) -> str:
    """The model that a name which is no path stands for, in words; "" for none."""
    if name in builtin_names():
        return f"the built-in model {name}"
    if is_listed(name):
        return f"the config {name} of the catalogue"
    return f"the model {name} in the Hugging Face cache" if name in cached_ids(hub_cache()) else ""


def as_source(source: ModelSource | str) -> ModelSource:
    """A source, opened if it is still a name."""
    return open_source(source) if isinstance(source, str) else source


def read_config(name: str) -> Fields:
    """The config of the model of a name, for those who want nothing else of it; where there is none of that name, of
    the one of the catalogue that it spells (`Qwen/Qwen3-8B`). Raises ModelRefused.
    """
    return open_source(catalogue_name(name) or name).config


def catalogue_name(name: str) -> str | None:
    """The model of the catalogue that a name which is nobody's spells: `Qwen/Qwen3-8B` and `qwen3_8b` are qwen3-8b.
    None for a path, a name that is known, and what spells none of them: `qwen3-8b-fp8` is another checkpoint.
    """
    if Path(name).exists() or name in (*builtin_names(), *cached_ids(hub_cache())):
        return None
    return spelt_as(name)


def _of_folder(name: str, folder: Path, config: Path) -> ModelSource:
    generation, index, adapter = (folder / file for file in ("generation_config.json", _PIPELINE, _ADAPTER))
    defaults = read_object(generation) if generation.is_file() else {}
    if index.is_file() and not config.is_file():
        entries = read_object(index)
        return ModelSource(
            name, folder, _listed_in(entries, folder), defaults, str(entries.get("_class_name", "pipeline"))
        )
    components = {MODEL: _with_dtype(_component(MODEL, config))} if config.is_file() else {}
    if adapter.is_file():
        components[ADAPTER] = _component(ADAPTER, adapter, str(read_object(adapter).get("peft_type", "of no type")))
    return ModelSource(name, folder, components, defaults)


def _of_gguf(name: str, path: Path) -> ModelSource:
    """A file that is a model, with its tokenizer."""
    header = read_gguf_header(path)
    config = read_gguf_config(header)
    ends = [header.metadata.get(f"tokenizer.ggml.{role}_token_id") for role in ("eos", "eot", "eom")]
    generation = {"eos_token_id": sorted({end for end in ends if type(end) is int})}
    component = Component(MODEL, path, config.architecture, config)
    return ModelSource(name, path, {MODEL: component}, generation, gguf=header)


def _listed_in(entries: Mapping[str, Any], folder: Path) -> dict[str, Component]:
    """The components that a model_index.json of diffusers lists: {"vae": ["diffusers", "AutoencoderKL"]}."""
    components: dict[str, Component] = {}
    for name, entry in entries.items():
        match entry:
            case [str(), str(kind)] if name.isidentifier():
                components[name] = _with_class(_component(name, folder / name / "config.json", kind))
    return components


def _with_class(part: Component) -> Component:
    """Return a part of a pipeline, its class added to a config that leaves it to the index (T5 of FLUX.1)."""
    config = part.config
    if config is None or config.architecture:
        return part
    stated = Fields({**config.values, "architectures": [part.kind]}, config.source, config.elsewhere)
    return Component(part.name, part.folder, part.kind, stated)


def _component(name: str, config: Path, kind: str = "") -> Component:
    fields = _with_quantisation(Fields.read(config)) if config.is_file() else None
    if fields is not None:
        kind = kind or fields.architecture
    return Component(name, config.parent, kind, fields)


def _with_dtype(component: Component) -> Component:
    """Return a component whose config states the dtype of the weights next to it, if its top states none: a part of the
    config may state another, and transformers goes by the weights. Quantised weights are in several dtypes.
    """
    config = component.config
    assert config is not None
    if any(config.has(section) for section in SECTIONS) or config.own_dtype is not None:
        return component
    dtype = leading_dtype(component.folder)
    if dtype is None:
        return component
    return replace(component, config=Fields({**config.values, "dtype": dtype}, config.source, config.elsewhere))


def _with_quantisation(fields: Fields) -> Fields:
    """A config with what a quantiser says in a file beside it, as the section that it would be in the config. Raises
    ModelRefused for a file that says nothing.
    """
    folder = Path(fields.source).parent
    if any(fields.has(section) for section in SECTIONS):
        return _with_modelopt_file(fields, folder / _MODELOPT_FILE)
    for file, (method, own) in _QUANTISED.items():
        path = folder / file
        if path.is_file():
            section = {SECTIONS[0]: {"quant_method": method, **_said(path, own)}}
            return Fields({**fields.values, **section}, fields.source, {SECTIONS[0]: str(path)})
    return fields


def _with_modelopt_file(fields: Fields, path: Path) -> Fields:
    """Return the config with the keys that its ModelOpt section leaves out and ModelOpt's own file states.

    Some versions write the format of keys and values into the file alone.
    """
    section = fields.value(SECTIONS[0])
    if not path.is_file() or not isinstance(section, dict) or method_of(fields) != "modelopt":
        return fields
    said = _said(path, _QUANTISED[_MODELOPT_FILE][1])
    merged = {**section, **{key: value for key, value in said.items() if section.get(key) is None}}
    return Fields({**fields.values, SECTIONS[0]: merged}, fields.source, fields.elsewhere)


def _said(path: Path, own: str) -> dict[str, Any]:
    """Return the settings in a quantiser's file. own: the key that they stand under; "" for the whole file."""
    values = read_object(path)
    said = values.get(own) if own else values
    if not isinstance(said, dict):
        raise ModelRefused(f"{path} does not say how the weights are quantised ({own!r} is missing)")
    return said


def _listed(components: Iterable[Component]) -> str:
    return ", ".join(f"{c.name}: {c.kind}" for c in islice(components, _SHOWN))


def builtin_names() -> list[str]:
    """The models of the package, sorted."""
    return sorted(path.parent.name for file in ("config.json", _PIPELINE) for path in BUILTIN.glob(f"*/{file}"))


def _missing_in(folder: Path | None) -> str:
    """What would describe a folder and is not there: the index of a pipeline where parts of one are."""
    if folder is not None and any((folder / part / "config.json").is_file() for part in ("transformer", "vae")):
        return f"parts of a pipeline and no {_PIPELINE}; fetch it again"
    return f"no config.json{_files_in(folder)}"


def _files_in(folder: Path | None) -> str:
    """Which GGUF files a folder holds, each a model by itself, for the end of a refusal; "" where there are none."""
    files = [] if folder is None else sorted(path.name for path in folder.glob(f"*{_GGUF}"))
    if not files:
        return ""
    more = f" or {len(files) - _SHOWN} more" if len(files) > _SHOWN else ""
    return f"; give one of its GGUF files by its path: {', '.join(files[:_SHOWN])}{more}"


def _nowhere(name: str) -> ModelRefused:
    """A name that is neither a path nor known, with the nearest of those that are."""
    missing = not_built(name)
    if missing is not None:
        return ModelRefused(missing)
    wanted = _wanted()
    is_file = name.endswith((".json", _GGUF))
    if is_file or ("/" in name and not is_id(name)):
        return UnknownModel(f"no such {'file' if is_file else 'folder'}: {name}", f"; give {wanted}")
    nearest = did_you_mean(name, [*builtin_names(), *known_names(), *cached_ids(hub_cache())])
    if "/" in name:
        cached = f"no such folder: {name}, nor a model of that id in the Hugging Face cache ({hub_cache()})"
        return UnknownModel(cached, f", where `hf download {name}` would put it{nearest} give {wanted}")
    return UnknownModel(f"no such model or folder: {name}", f"{nearest} give {wanted}")


def _wanted() -> str:
    """What may stand for a model."""
    return (
        f"a config.json or its folder, a GGUF file, a built-in model ({', '.join(builtin_names())}), "
        "or a name that `ridgeline plan --list` shows"
    )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean qwen3-8b?`: the names most like one; a model's own name counts, whoever publishes it. A semicolon
    where none is like it.
    """
    by_name = {each.rpartition("/")[2].lower(): each for each in known}
    near = get_close_matches(name.rpartition("/")[2].lower(), by_name, 3, 0.5)
    return f"; did you mean {' or '.join(by_name[each] for each in near)}?" if near else ";"
