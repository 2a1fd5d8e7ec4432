"""How a folder's model embeds a text: sentence-transformers' files beside the weights, read once, and the model of it.

modules.json lists what a text passes: a transformer, a pooling, and after it matrices and a norm, each with a config in
a folder of its own; config_sentence_transformers.json names the prompts that go before a text
(https://sbert.net/docs/sentence_transformer/usage/custom_models.html).
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from ridgeline.core.checkpoint.catalogue import CATALOGUE
from ridgeline.core.checkpoint.source import ModelSource
from ridgeline.core.models.building import build_to_run
from ridgeline.core.models.common.embedder import Dense, Embedder
from ridgeline.core.models.common.encoder import Encoder
from ridgeline.core.models.common.fields import Fields, ModelRefused
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.sizes import sizes_of
from ridgeline.core.ops.pooling import Normalise, PoolingMode
from ridgeline.core.ops.shard import WHOLE, Shard
from ridgeline.util import untrusted

_MODULES, _PROMPTS, _TOKENS = "modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"
_MODES: Mapping[str, PoolingMode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}
_NEW_MODES: Mapping[str, PoolingMode] = {"cls": "cls", "mean": "mean", "max": "max", "lasttoken": "last"}
_ACTIVATIONS = {"Identity": None, "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "SiLU": "silu"}


@dataclass(frozen=True, slots=True)
class PostPoolingLayer:
    """What follows the pooling. folder: where its weights are. outputs: 0 for a norm, which has none."""

    folder: Path
    outputs: int = 0
    bias: bool = True
    activation: str | None = None


@dataclass(frozen=True, slots=True)
class EmbeddingConfig:
    """How a text becomes a vector.

    stages: what follows the pooling, in order. prompts: by name, what goes before a text; default_prompt: the name of
    the one that is taken where none is asked for. most_tokens: of a text, None where the folder does not say. cuts:
    lengths that vectors may be cut to, () for any; None where the model does not say that they may be.
    stated: whether the folder says all that, or it is what sentence-transformers takes where it does not. lower:
    whether a text and its prompt are in lower case before they are cut into tokens.
    """

    mode: PoolingMode
    stages: tuple[PostPoolingLayer, ...] = ()
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    most_tokens: int | None = None
    cuts: tuple[int, ...] | None = None
    stated: bool = True
    lower: bool = False


def read_embedding(source: ModelSource) -> EmbeddingConfig | None:
    """What a folder says; None where it has no modules.json. Of a config of the catalogue what its release says. Raises
    ModelRefused for what is not built.
    """
    if source.folder is None:
        return _listed(source.name)
    modules = source.folder / _MODULES
    if not modules.is_file():
        return None
    try:
        return _read(source, modules)
    except ValueError as error:
        raise error if isinstance(error, ModelRefused) else ModelRefused(f"{error}; fetch the file again") from None


def _listed(name: str) -> EmbeddingConfig | None:
    entry = tomllib.loads((CATALOGUE / "embedding.toml").read_text(encoding="utf-8")).get(name)
    if entry is None:
        return None
    return EmbeddingConfig(entry["pooling"], (PostPoolingLayer(Path("2_Normalize")),) if entry["normalise"] else ())


def _read(source: ModelSource, modules: Path) -> EmbeddingConfig:
    listed, folder = untrusted.read_json(modules), modules.parent
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        raise ModelRefused(f"{modules} holds no list of modules; fetch the file again")
    kinds = [str(entry.get("type", "")).rpartition(".")[2] for entry in listed]
    if kinds[:2] != ["Transformer", "Pooling"]:
        raise ModelRefused(f"{modules}: {', '.join(kinds) or 'nothing'} is not a Transformer and then a Pooling")
    if listed[0].get("path"):
        raise ModelRefused(f"{modules}: the Transformer lies in a folder of its own, which is not supported")
    paths = [_inside(folder, entry, modules) for entry in listed[1:]]
    stages = tuple(_stage(kind, path, modules) for kind, path in zip(kinds[2:], paths[1:], strict=True))
    prompts, default = _prompts(folder / _PROMPTS)
    tokens = _object(folder / _TOKENS)
    most = tokens.get("max_seq_length")
    return EmbeddingConfig(
        _mode(paths[0], any(prompts.values())), stages, prompts, default,
        most if isinstance(most, int) and most > 0 else None, cuts_of(source.config),
        lower=tokens.get("do_lower_case") is True,
    )  # fmt: skip


def _prompts(path: Path) -> tuple[dict[str, str], str | None]:
    """Prompts by name, and the name of the one that is taken where none is asked for. Raises ModelRefused."""
    said = _object(path)
    stated, default = said.get("prompts") or {}, said.get("default_prompt_name")
    if not isinstance(stated, dict):
        raise ModelRefused(f"{path}: prompts is no object of texts by name; fetch the file again")
    prompts = {name: text for name, text in stated.items() if isinstance(text, str)}
    if default is not None and not (isinstance(default, str) and default in prompts):
        raise ModelRefused(f"{path}: default_prompt_name {default!r} is none of its prompts")
    return prompts, default


def cuts_of(config: Fields) -> tuple[int, ...] | None:
    """Lengths that vectors of a model may be cut to, as its config says it (vLLM's `is_matryoshka`,
    `matryoshka_dimensions`; arXiv:2205.13147). Raises ModelRefused.
    """
    lengths = config.integers("matryoshka_dimensions")
    return tuple(lengths) if lengths or config.flag("is_matryoshka", False) else None


def _inside(folder: Path, entry: Mapping[str, Any], modules: Path) -> Path:
    name = entry.get("path")
    if not isinstance(name, str) or Path(name).name != name or not name.isprintable():
        raise ModelRefused(f"{modules} points outside its folder: {name!r}")
    return folder / name


def _object(path: Path) -> dict[str, Any]:
    return untrusted.read_object(path) if path.is_file() else {}


def _mode(folder: Path, prompted: bool) -> PoolingMode:
    """The one way in which states are pooled. prompted: whether there are prompts. Raises ModelRefused."""
    path = folder / "config.json"
    config = untrusted.read_object(path)
    if prompted and config.get("include_prompt") is False:
        raise ModelRefused(f"{path}: include_prompt = false is not supported: prompts are pooled with the text")
    new = config.get("pooling_mode")
    switched = [name for name, on in config.items() if name.startswith("pooling_mode_") and on]
    named, known = ([new], _NEW_MODES) if isinstance(new, str) else (switched, _MODES)
    mode = known.get(named[0]) if len(named) == 1 else None
    if mode is None:
        said = " and ".join(named) or "nothing"
        raise ModelRefused(f"{path}: pooling by {said} is not supported; {', '.join(_NEW_MODES)} are")
    return mode


def _stage(kind: str, folder: Path, modules: Path) -> PostPoolingLayer:
    """What one of the modules after the pooling is. Raises ModelRefused."""
    if kind == "Normalize":
        return PostPoolingLayer(folder)
    if kind != "Dense":
        raise ModelRefused(f"{modules}: a module {kind!r} is not supported after the pooling; Dense and Normalize are")
    config = Fields.read(folder / "config.json")
    name = config.text("activation_function", "torch.nn.modules.activation.Tanh").rpartition(".")[2]
    if name not in _ACTIVATIONS:
        raise config.refuse(f"activation_function {name!r} is not supported; {', '.join(_ACTIVATIONS)} are")
    return PostPoolingLayer(folder, config.count("out_features"), config.flag("bias", True), _ACTIVATIONS[name])


def model_of(
    source: ModelSource,
    said: EmbeddingConfig | None,
    weights: str | None = None,
    kv: str | None = None,
    shard: Shard = WHOLE,
) -> Model:
    """The model of a source, on meta, ready to run. said: what `read_embedding` gave. weights, kv, shard: as
    `build_to_run`. Raises ModelRefused.
    """
    trunk = build_to_run(source.config, weights=weights, kv=kv, shard=shard)
    return pooled(trunk, said)


def pooled(model: Model, said: EmbeddingConfig | None) -> Model:
    """A model with the pooling that its folder says, where it says one; an encoder whose folder says none is pooled as
    its architecture says, or by the mean, as sentence-transformers does it. Others as they are. said: what
    `read_embedding` gave.
    """
    if isinstance(model, Embedder) or (said is None and model.has_head):
        return model
    mode = model.mode if isinstance(model, Encoder) else None
    return _embedder(model, said or EmbeddingConfig(mode or "mean", stated=mode is not None))


def _embedder(trunk: Model, said: EmbeddingConfig) -> Embedder:
    width, dtype = sizes_of(trunk).hidden, trunk.storage.dtype
    hidden, stages, elsewhere = width, dict[str, nn.Module](), dict[str, Path]()
    for stage in said.stages:
        name = f"stage_{stage.folder.name.lower()}"
        if not stage.outputs:
            stages[name] = Normalise(width, dtype)
            continue
        stages[name] = Dense(width, stage.outputs, dtype, bias=stage.bias, activation=stage.activation)
        width, elsewhere[name] = stage.outputs, stage.folder
    return Embedder(trunk, said.mode, hidden, stages, width=width, elsewhere=elsewhere)
