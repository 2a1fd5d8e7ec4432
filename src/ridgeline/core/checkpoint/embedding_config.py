"""Embedding settings of a model folder, from sentence-transformers' files, and the embedding model built from them.

modules.json lists the modules: a transformer in the model's folder, then a pooling, dense layers and norms, each in a
folder of its own, with a config unless it is a norm. config_sentence_transformers.json contains the prompts that
precede a text (https://sbert.net/docs/sentence_transformer/usage/custom_models.html).
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
    """A layer after the pooling of an embedding model: a dense layer or a norm."""

    folder: Path
    """The folder of an embedding model's layer, with the weights of a dense layer; a norm has none."""
    outputs: int = 0
    """The number of outputs of an embedding model's dense layer; 0 for a norm."""
    bias: bool = True
    """Whether an embedding model's dense layer has a bias."""
    activation: str | None = None
    """The activation of an embedding model's dense layer, or None."""


@dataclass(frozen=True, slots=True)
class EmbeddingConfig:
    """The settings by which a model turns a text into a vector."""

    mode: PoolingMode
    """The pooling mode, by which the hidden states of the tokens become one vector."""
    stages: tuple[PostPoolingLayer, ...] = ()
    """The layers of an embedding model after the pooling, in order."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """The texts (prompts), by name, of which at most one is put before each text to embed."""
    default_prompt: str | None = None
    """The name of the prompt before texts of requests that select none, or None for no prompt."""
    most_tokens: int | None = None
    """The maximum number of tokens of a text to embed, or None if the folder does not say."""
    cuts: tuple[int, ...] | None = None
    """The lengths to which embeddings can be truncated: () for any length, None if truncation is not supported."""
    stated: bool = True
    """Whether the folder, catalogue or architecture defines the embedding settings; False if they are only defaults.

    The defaults are those of sentence-transformers.
    """
    lower: bool = False
    """Whether a text to embed and its prompt are lower-cased before tokenization."""


def read_embedding(source: ModelSource) -> EmbeddingConfig | None:
    """Return the embedding settings of a folder, or of the release of a catalogue config; None if there are none.

    Raises:
        ModelRefused: If the settings are not supported.
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
    """Return the embedding settings of a catalogue config, or None if it has none."""
    entry = tomllib.loads((CATALOGUE / "embedding.toml").read_text(encoding="utf-8")).get(name)
    if entry is None:
        return None
    return EmbeddingConfig(entry["pooling"], (PostPoolingLayer(Path("2_Normalize")),) if entry["normalise"] else ())


def module_folders(source: ModelSource) -> list[Path]:
    """Return the folders of an embedding model's pooling and of the layers after it; a norm needs none.

    Raises:
        ModelRefused: If the settings are not supported.
    """
    if source.folder is None or read_embedding(source) is None:
        return []
    modules = source.folder / _MODULES
    paths = [_inside(source.folder, entry, modules) for entry in untrusted.read_json(modules)[1:]]
    return [path for path in paths if path.is_dir()]


def _read(source: ModelSource, modules: Path) -> EmbeddingConfig:
    """Read the embedding settings from modules.json and the files that it refers to."""
    listed, folder = untrusted.read_json(modules), modules.parent
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        raise ModelRefused(f"{modules} does not hold a list of modules; fetch the file again")
    kinds = [str(entry.get("type", "")).rpartition(".")[2] for entry in listed]
    if kinds[:2] != ["Transformer", "Pooling"]:
        raise ModelRefused(
            f"{modules} lists {', '.join(kinds) or 'no modules'}; only a Transformer and then a Pooling are supported"
        )
    if listed[0].get("path"):
        raise ModelRefused(
            f"{modules}: the Transformer is in a separate folder, which is not supported; move it into the model's"
        )
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
    """Return the prompts that precede texts to embed, by name, and the name of the default prompt.

    Raises:
        ModelRefused: If they are malformed.
    """
    config = _object(path)
    stated, default = config.get("prompts") or {}, config.get("default_prompt_name")
    if not isinstance(stated, dict):
        raise ModelRefused(f"{path}: prompts is not an object that maps names to texts; fetch the file again")
    prompts = {name: text for name, text in stated.items() if isinstance(text, str)}
    if default is not None and not (isinstance(default, str) and default in prompts):
        raise ModelRefused(f"{path}: default_prompt_name {default!r} is not among its prompts; correct the name")
    return prompts, default


def cuts_of(config: Fields) -> tuple[int, ...] | None:
    """Return the lengths to which a model's embeddings can be truncated, according to its config; None if to none.

    The keys are vLLM's `is_matryoshka` and `matryoshka_dimensions` (arXiv:2205.13147). An empty tuple allows any
    length.

    Raises:
        ModelRefused: If they are malformed.
    """
    lengths = config.integers("matryoshka_dimensions")
    return tuple(lengths) if lengths or config.flag("is_matryoshka", False) else None


def _inside(folder: Path, entry: Mapping[str, Any], modules: Path) -> Path:
    """Return the folder of an embedding model's module; raise ModelRefused if its path leaves the model folder."""
    name = entry.get("path")
    if not isinstance(name, str) or Path(name).name != name or not name.isprintable():
        raise ModelRefused(f"{modules} points outside its folder: {name!r}; move that module into the folder")
    return folder / name


def _object(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file, or {} if the file is absent."""
    return untrusted.read_object(path) if path.is_file() else {}


def _mode(folder: Path, prompted: bool) -> PoolingMode:
    """Return the pooling mode of an embedding model; `prompted` says whether there are prompts.

    Raises:
        ModelRefused: If the pooling is not supported.
    """
    path = folder / "config.json"
    config = untrusted.read_object(path)
    if prompted and config.get("include_prompt") is False:
        raise ModelRefused(f"{path}: include_prompt = false is not supported; prompts are always pooled with the text")
    new = config.get("pooling_mode")
    switched = [name for name, on in config.items() if name.startswith("pooling_mode_") and on]
    named, known = ([new], _NEW_MODES) if isinstance(new, str) else (switched, _MODES)
    mode = known.get(named[0]) if len(named) == 1 else None
    if mode is None:
        modes = " and ".join(named) or "nothing"
        raise ModelRefused(f"{path}: pooling by {modes} is not supported; {', '.join(_NEW_MODES)} are")
    return mode


def _stage(kind: str, folder: Path, modules: Path) -> PostPoolingLayer:
    """Return the layer that a module of modules.json describes, after the pooling.

    Raises:
        ModelRefused: If the module is not supported.
    """
    if kind == "Normalize":
        return PostPoolingLayer(folder)
    if kind != "Dense":
        raise ModelRefused(f"{modules}: a {kind!r} module after the pooling is not supported; Dense and Normalize are")
    config = Fields.read(folder / "config.json")
    name = config.text("activation_function", "torch.nn.modules.activation.Tanh").rpartition(".")[2]
    if name not in _ACTIVATIONS:
        raise config.refuse(f"activation_function {name!r} is not supported; {', '.join(_ACTIVATIONS)} are")
    return PostPoolingLayer(folder, config.count("out_features"), config.flag("bias", True), _ACTIVATIONS[name])


def model_of(
    source: ModelSource,
    embedding: EmbeddingConfig | None,
    weights: str | None = None,
    kv: str | None = None,
    shard: Shard = WHOLE,
) -> Model:
    """Build the model of a source on meta, ready to run, with its pooling unless it is a language model without one.

    Args:
        source: Source of the model.
        embedding: Result of `read_embedding`.
        weights: Weight format, as in `build_to_run`.
        kv: Format of keys and values, as in `build_to_run`.
        shard: Shard of this rank.

    Raises:
        ModelRefused: If the model is not supported.
        ValueError: If weights, or keys and values, cannot be stored in the requested format.
    """
    trunk = build_to_run(source.config, weights=weights, kv=kv, shard=shard)
    return with_pooling(trunk, embedding)


def with_pooling(model: Model, embedding: EmbeddingConfig | None) -> Model:
    """Return a model with the pooling that its embedding settings define.

    A model with neither settings nor a head is pooled as its encoder architecture defines, or by the mean, as in
    sentence-transformers. A model with a head but without settings, and one that already pools, is returned unchanged.
    `embedding` is the result of `read_embedding`.
    """
    if isinstance(model, Embedder) or (embedding is None and model.has_head):
        return model
    mode = model.mode if isinstance(model, Encoder) else None
    return _embedder(model, embedding or EmbeddingConfig(mode or "mean", stated=mode is not None))


def _embedder(trunk: Model, embedding: EmbeddingConfig) -> Embedder:
    """Build an embedding model from a model that computes hidden states: add the pooling and the layers after it."""
    width, dtype = sizes_of(trunk).hidden, trunk.storage.dtype
    hidden, stages, elsewhere = width, dict[str, nn.Module](), dict[str, Path]()
    for stage in embedding.stages:
        name = f"stage_{stage.folder.name.lower()}"
        if not stage.outputs:
            stages[name] = Normalise(width, dtype)
            continue
        stages[name] = Dense(width, stage.outputs, dtype, bias=stage.bias, activation=stage.activation)
        width, elsewhere[name] = stage.outputs, stage.folder
    return Embedder(trunk, embedding.mode, hidden, stages, width=width, elsewhere=elsewhere)
