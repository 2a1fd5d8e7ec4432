"""Model sources: resolve the name of a model and read its components, their configs and its generation defaults."""

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
    match_spelling,
    pipeline_entry,
)
from ridgeline.core.checkpoint.folder import leading_dtype
from ridgeline.core.checkpoint.gguf_config import read_gguf_config
from ridgeline.core.checkpoint.gguf_header import GGUFHeader, is_gguf, read_gguf_header
from ridgeline.core.checkpoint.hub_cache import cached_folder, cached_ids, hub_cache, is_id, is_repository, snapshot_of
from ridgeline.core.models.common.fields import Fields, ModelRefused, read_object
from ridgeline.core.models.common.recipes import SECTIONS, method_of
from ridgeline.core.models.registry import unsupported_reason
from ridgeline.core.models.rope_override import parse_rope

BUILTIN = Path(__file__).resolve().parents[2] / "data" / "builtin"
"""The folder of the models that the package includes."""

MODEL, ADAPTER = "model", "adapter"  # components of a folder without model_index.json
_PIPELINE, _ADAPTER = "model_index.json", "adapter_config.json"
# Settings files that quantisers write next to a config.json without their section: the method, and the settings' key.
_MODELOPT_FILE = "hf_quant_config.json"
_QUANTISED = {
    _MODELOPT_FILE: ("modelopt", "quantization"),
    "quantize_config.json": ("gptq", ""),
    "quant_config.json": ("awq", ""),
}
_WEIGHTS = "*.safetensors"
_INDEX, _MAX_INDEX = "model.safetensors.index.json", 64 << 20  # bytes; the index of 10^12 parameters has 10 MB
_WEIGHT_FILES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")
_SHOWN = 8
_GGUF = ".gguf"


@dataclass(frozen=True, slots=True)
class Component:
    """A model or an adapter, with its config: a part of a pipeline (text model, encoder, VAE), or of a folder."""

    name: str
    """The name of a component in its pipeline; "model" or "adapter" if the source is no pipeline."""
    folder: Path
    """The folder of a component; for a GGUF file the file, for a catalogue config the folder of the catalogue."""
    kind: str
    """The class of a component, from its config or its pipeline, or the type of an adapter; "" if none is stated."""
    config: Fields | None
    """The config of a component, or None if it has none.

    It includes the settings of a quantiser's separate file if the config does not mention them.
    """


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model that a user named, with the folder, configs and components found under that name."""

    name: str
    """The name or path of a model as the user gave it."""
    folder: Path | None
    """The folder of a model's weights and tokenizer, or its GGUF file; None for a catalogue config, without either."""
    components: Mapping[str, Component]
    """The models found under a name, by component name: the parts of a pipeline, or a model, an adapter or both."""
    generation: Mapping[str, Any]
    """The contents of generation_config.json; empty if there is none.

    For a pipeline of the catalogue it is the pipeline's usual request settings, for a GGUF file the ids of the end
    tokens.
    """
    pipeline: str = ""
    """The class of a pipeline with several components, or "" for a single model."""
    gguf: GGUFHeader | None = None
    """The header of the GGUF file, if the model is one."""
    change: str = ""
    """The option by which the user changed the config, like `--rope yarn:4`; "" for the config as it is."""

    @property
    def title(self) -> str:
        """The short name of a model: the name as given, or for a path the name of its folder or file.

        A path to a config.json gives the name of its folder, and a path to another file its name without the suffix. An
        option that changes the config follows.
        """
        return f"{self._short_name} with {self.change}" if self.change else self._short_name

    @property
    def _short_name(self) -> str:
        """The short name of the model without the option that changes its config."""
        path = Path(self.name).resolve()
        if not path.exists() or _yields_to_known_model(self.name):
            return self.name
        if path.is_file() and path.name != "config.json":
            return path.stem
        return path.parent.name if path.is_file() else path.name

    @property
    def model(self) -> Component:
        """The only model of a source; raises ModelRefused if the source is something else, such as a pipeline."""
        if self.pipeline:
            raise ModelRefused(
                f"{self.folder or self.name} is a {self.pipeline} of several components "
                f"({_listed(self.components.values())}), which generates images or video: give it to ridgeline image, "
                "ridgeline video or ridgeline plan, and give the folder of a language model here"
            )
        if ADAPTER in self.components:
            beside = (
                ", or move adapter_config.json away to use the model in the same folder"
                if MODEL in self.components
                else ""
            )
            raise ModelRefused(
                f"{self.folder} holds an adapter ({self.components[ADAPTER].kind}), not a model by itself; "
                f"give its base model, and --lora {self.folder}{beside}"
            )
        if MODEL not in self.components:
            raise ModelRefused(f"{self.folder} is not a model: it has {_missing_in(self.folder)}")
        return self.components[MODEL]

    @property
    def config(self) -> Fields:
        """The config of the only model of a source; raises ModelRefused if there is none."""
        config = self.model.config
        assert config is not None
        return config

    def with_config(self, config: Fields, change: str) -> "ModelSource":
        """Return the same source with another config of its only model.

        Args:
            config: The config.
            change: The option by which the user requested it.
        """
        model = replace(self.model, config=config)
        return replace(self, components={**self.components, MODEL: model}, change=change)

    def with_rope(self, rope: str | None) -> "ModelSource":
        """Return the same source with the scaled context that --rope describes; None changes nothing.

        Raises:
            ValueError: If the text is malformed, or if the model's context cannot be scaled.
        """
        if rope is None:
            return self
        if self.pipeline:
            raise ValueError(f"--rope is for language models, but {self.title} is a diffusion pipeline; leave it out")
        override = parse_rope(rope)
        return self.with_config(override.of(self.config), f"--rope {override}")

    @property
    def has_weights(self) -> bool:
        """Whether a model source has weights: a GGUF file, or a safetensors file in its folder."""
        if self.gguf is not None:
            return True
        return self.folder is not None and any(path.is_file() for path in self.folder.glob(_WEIGHTS))

    @property
    def index_total_bytes(self) -> int | None:
        """The total bytes of a model's tensors, as stated by the index of its weight files; None if not stated.

        The shards themselves can be missing.

        Raises:
            ModelRefused: If the index cannot be read.
        """
        if self.folder is None or not (self.folder / _INDEX).is_file():
            return None
        stated = read_object(self.folder / _INDEX, _MAX_INDEX).get("metadata")
        size = stated.get("total_size") if isinstance(stated, dict) else None
        return size if isinstance(size, int) and size > 0 else None


class UnknownModel(ModelRefused):
    """An error for a name that matches no model; `what` is the message without the suggestion."""

    def __init__(self, what: str, instead: str, with_weights: str) -> None:
        """Create the error.

        Args:
            what: The problem.
            instead: The suggestion, which begins with a semicolon.
            with_weights: The suggestion if the model must have weights.
        """
        super().__init__(what + instead)
        self.what, self._with_weights = what, with_weights

    def with_weights(self) -> ModelRefused:
        """Return the error for a command that needs weights: it suggests only language models that have them."""
        return ModelRefused(self.what + self._with_weights)


def open_source(name: str) -> ModelSource:
    """Resolve the name of a model and read its configs.

    The name can be a folder, a config.json, a GGUF file, a built-in model, a catalogue config, or an id in the Hugging
    Face cache. A path has priority over a name, unless it is a folder that has no model files and its name is that of a
    known model.

    Raises:
        ModelRefused: If the name is empty or that of a model that is known not to be supported, if a config or GGUF
            file is invalid, or if it is unclear which snapshot of a cached model to use.
        UnknownModel: If no model has this name.
    """
    if not name.strip():
        raise ModelRefused(f"the name of the model is empty; give {_wanted()}")
    path = Path(name)
    if path.is_dir() and not _yields_to_known_model(name):
        folder = snapshot_of(path) if is_repository(path) else path
        return _of_folder(name, folder, folder / "config.json")
    if path.is_file():
        _refuse_weights_file(path)
        return _of_gguf(name, path) if is_gguf(path) else _of_folder(name, path.parent, path)
    return _named(name)


def _refuse_weights_file(path: Path) -> None:
    """Raise ModelRefused for a file with weights, or with their index, which is only a part of a model."""
    if path.suffix in _WEIGHT_FILES or path.name.endswith(".index.json"):
        kind = "a weights file" if path.suffix in _WEIGHT_FILES else "the index of weights files"
        raise ModelRefused(f"{path} is {kind}; give the folder that holds it and config.json")


def _named(name: str) -> ModelSource:
    """Return the model source that a name, which is not a path, refers to."""
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


def name_conflict_note(name: str) -> str:
    """Return a note about which model is used if a folder has the name of a known model.

    The note is "" if there is no conflict.
    """
    known = _known(name) if Path(name).is_dir() else ""
    if not known:
        return ""
    if _yields_to_known_model(name):
        return f"{name} means {known}, not the folder of that name here, which has no config.json"
    return f"{name} means the folder of that name here, not {known}"


def _yields_to_known_model(name: str) -> bool:
    """Return whether a folder has no model files but the name of a known model."""
    folder = Path(name)
    described = any((folder / file).is_file() for file in ("config.json", _PIPELINE, _ADAPTER))
    return not described and not is_repository(folder) and bool(_known(name))


def _known(name: str) -> str:
    """Return a description of the model that a name refers to if it is not a path, or "" if there is none."""
    if name in builtin_names():
        return f"the built-in model {name}"
    if is_listed(name):
        return f"the config {name} of the catalogue"
    return f"the model {name} in the Hugging Face cache" if name in cached_ids(hub_cache()) else ""


def as_source(source: ModelSource | str) -> ModelSource:
    """Return a model source; resolve it first if it is a name."""
    return open_source(source) if isinstance(source, str) else source


def read_config(name: str) -> Fields:
    """Return the config of the model that a user names.

    An unknown name can also be a spelling of a catalogue name (`Qwen/Qwen3-8B`).

    Raises:
        ModelRefused: If there is no such model, or `open_source` refuses it.
    """
    return open_source(catalogue_name(name) or name).config


def catalogue_name(name: str) -> str | None:
    """Return the catalogue model that a name spells, for example qwen3-8b for `Qwen/Qwen3-8B` or `qwen3_8b`.

    The result is None for an existing path, a built-in model, a model in the Hugging Face cache, and a name that spells
    none: `qwen3-8b-fp8` is another checkpoint.
    """
    if Path(name).exists() or name in (*builtin_names(), *cached_ids(hub_cache())):
        return None
    return match_spelling(name)


def _of_folder(name: str, folder: Path, config: Path) -> ModelSource:
    """Return the model source (configs and components) of a folder."""
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
    """Return the model source (config and header) of a GGUF file."""
    header = read_gguf_header(path)
    config = read_gguf_config(header)
    ends = [header.metadata.get(f"tokenizer.ggml.{role}_token_id") for role in ("eos", "eot", "eom")]
    generation = {"eos_token_id": sorted({end for end in ends if type(end) is int})}
    component = Component(MODEL, path, config.architecture, config)
    return ModelSource(name, path, {MODEL: component}, generation, gguf=header)


def _listed_in(entries: Mapping[str, Any], folder: Path) -> dict[str, Component]:
    """Return the components that diffusers' model_index.json lists: {"vae": ["diffusers", "AutoencoderKL"]}."""
    components: dict[str, Component] = {}
    for name, entry in entries.items():
        match entry:
            case [str(), str(kind)] if name.isidentifier():
                components[name] = _with_class(_component(name, folder / name / "config.json", kind))
    return components


def _with_class(part: Component) -> Component:
    """Return a pipeline component with its class added to the config, if the config states none (T5 of FLUX.1).

    The index of the pipeline states the class.
    """
    config = part.config
    if config is None or config.architecture:
        return part
    stated = Fields({**config.values, "architectures": [part.kind]}, config.source, config.elsewhere)
    return Component(part.name, part.folder, part.kind, stated)


def _component(name: str, config: Path, kind: str = "") -> Component:
    """Return a pipeline's or a model's component with its config, if it has one."""
    fields = _with_quantisation(Fields.read(config)) if config.is_file() else None
    if fields is not None:
        kind = kind or fields.architecture
    return Component(name, config.parent, kind, fields)


def _with_dtype(component: Component) -> Component:
    """Return a component whose config states the dtype of its weights, if its top level states none.

    A section of the config may state another dtype, and transformers goes by the weights. Configs of quantised weights
    stay as they are, since such weights have several dtypes.
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
    """Return a config with a quantiser's settings added as a section, if the quantiser stored them in a separate file.

    Raises:
        ModelRefused: If the file has no settings.
    """
    folder = Path(fields.source).parent
    if any(fields.has(section) for section in SECTIONS):
        return _with_modelopt_file(fields, folder / _MODELOPT_FILE)
    for file, (method, own) in _QUANTISED.items():
        path = folder / file
        if path.is_file():
            section = {SECTIONS[0]: {"quant_method": method, **_quantiser_settings(path, own)}}
            return Fields({**fields.values, **section}, fields.source, {SECTIONS[0]: str(path)})
    return fields


def _with_modelopt_file(fields: Fields, path: Path) -> Fields:
    """Return a config completed from ModelOpt's separate file with the keys that its own section lacks.

    Some versions write the format of keys and values only to the file.
    """
    section = fields.value(SECTIONS[0])
    if not path.is_file() or not isinstance(section, dict) or method_of(fields) != "modelopt":
        return fields
    settings = _quantiser_settings(path, _QUANTISED[_MODELOPT_FILE][1])
    merged = {**section, **{key: value for key, value in settings.items() if section.get(key) is None}}
    return Fields({**fields.values, SECTIONS[0]: merged}, fields.source, fields.elsewhere)


def _quantiser_settings(path: Path, own: str) -> dict[str, Any]:
    """Return the settings in a quantiser's file, which are under the key `own`, or the whole file if it is ""."""
    values = read_object(path)
    settings = values.get(own) if own else values
    if not isinstance(settings, dict):
        raise ModelRefused(f"{path} does not say how the weights are quantized ({own!r} is missing)")
    return settings


def _listed(components: Iterable[Component]) -> str:
    """Return the names and classes of a pipeline's first components, for an error message."""
    return ", ".join(f"{c.name}: {c.kind}" for c in islice(components, _SHOWN))


def builtin_names() -> list[str]:
    """Return the names of the models that the package includes, sorted."""
    return sorted(path.parent.name for file in ("config.json", _PIPELINE) for path in BUILTIN.glob(f"*/{file}"))


def _missing_in(folder: Path | None) -> str:
    """Return a description of the files that a folder lacks to be a model: the index if it has pipeline parts."""
    if folder is not None and any((folder / part / "config.json").is_file() for part in ("transformer", "vae")):
        return f"parts of a pipeline and no {_PIPELINE}; fetch it again"
    return f"no config.json{_files_in(folder) or '; give a folder with config.json and weights'}"


def _files_in(folder: Path | None) -> str:
    """Return a hint that names the GGUF files of a folder, each a separate model; "" if there are none."""
    files = [] if folder is None else sorted(path.name for path in folder.glob(f"*{_GGUF}"))
    if not files:
        return ""
    more = f" or {len(files) - _SHOWN} more" if len(files) > _SHOWN else ""
    return f"; give one of its GGUF files by its path: {', '.join(files[:_SHOWN])}{more}"


def _nowhere(name: str) -> ModelRefused:
    """Return the error for a name that is neither a path nor a known model, with similar known names.

    The similar names are omitted if the name has the form of a file or folder.
    """
    missing = unsupported_reason(name)
    if missing is not None:
        return ModelRefused(missing)
    wanted, weights = _wanted(), _wanted_with_weights()
    is_file = name.endswith((".json", _GGUF))
    if is_file or ("/" in name and not is_id(name)):
        return UnknownModel(
            f"no such {'file' if is_file else 'folder'}: {name}", f"; give {wanted}", f"; give {weights}"
        )
    cached = cached_ids(hub_cache())
    nearest = did_you_mean(name, [*builtin_names(), *known_names(), *cached])
    nearest_weights = did_you_mean(name, [*_builtin_language_models(), *cached])
    if "/" in name:
        what = f"no such folder: {name}, and no model of that id in the Hugging Face cache ({hub_cache()})"
        where = f", where `hf download {name}` would put it"
        return UnknownModel(what, f"{where}{nearest} give {wanted}", f"{where}{nearest_weights} give {weights}")
    what = f"no such model or folder: {name}"
    return UnknownModel(what, f"{nearest} give {wanted}", f"{nearest_weights} give {weights}")


def _wanted() -> str:
    """Return a description of what a model name can be, for errors."""
    return (
        f"a config.json or its folder, a GGUF file, a built-in model ({', '.join(builtin_names())}), "
        "or a name that `ridgeline plan --list` shows"
    )


def _wanted_with_weights() -> str:
    """Return a description of what the name of a language model with weights can be, for errors."""
    return (
        f"the folder of a checkpoint, a GGUF file, a built-in model ({', '.join(_builtin_language_models())}), or an "
        "id in the Hugging Face cache"
    )


def _builtin_language_models() -> list[str]:
    return [name for name in builtin_names() if not _generates_images(BUILTIN / name)]


def _generates_images(folder: Path) -> bool:
    """Return whether a built-in model is a pipeline, or writes tokens that a vector quantiser decodes to an image."""
    if (folder / _PIPELINE).is_file():
        return True
    return "vq_config" in read_object(folder / "config.json")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean qwen3-8b?` with the known model names most similar to one, or ";" if none is.

    The comparison ignores publishers.
    """
    by_name = {each.rpartition("/")[2].lower(): each for each in known}
    near = get_close_matches(name.rpartition("/")[2].lower(), by_name, 3, 0.5)
    return f"; did you mean {' or '.join(by_name[each] for each in near)}?" if near else ";"
