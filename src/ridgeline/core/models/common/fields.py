"""The strict reader of config.json: it names a missing, mistyped or absurd field in a one-line error."""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from ridgeline.core.ops.number_formats import stated_format
from ridgeline.util import untrusted
from ridgeline.util.untrusted import ModelRefused as ModelRefused

# Far above any real model: a config beyond these limits is a mistake, and building it would exhaust the memory.
MAX_LAYERS = 2_000
MAX_WIDTH = 10_000_000
MAX_CONTEXT = 1 << 24  # positions, which rotary embeddings compute in fp32: larger integers are not exact
MAX_EXPERTS = 10_000
MAX_FILE = 16 << 20  # bytes of JSON, a hundred times the largest config; parsing takes 30 times as much memory
_MAX_NUMBER = sys.float_info.max
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_MAX_SHOWN = 200  # characters of a value in an error message
_TEXT = "text_config"

# Fields that do not change a forward pass: bookkeeping of transformers, training, generation, and multi-token
# prediction. tests/models/test_inert.py compares them with the fields that transformers' models read.
_BOOKKEEPING = re.compile(
    r"_(name_or_path|commit_hash|attn_\w+|class_name|diffusers_version|num_labels|from_model_config|pre_quantization\w*)"
    r"|architectures|model_type|(torch_)?dtype|auto_map|tokenizer_class|.*_version|unsloth_.*"
    r"|.*_token|.*_token_ids?|.*token_index|.*placeholder|ignore_index|.*suppress_tokens"
    r"|id2label|label2id|num_labels|problem_type"
    r"|finetuning_task|task_specific_params|prefix|pruned_heads|is_decoder|tie_encoder_decoder"
    r"|.*dropout.*|.*pdrop|.*layerdrop|initializer_.*|.*init_std|.*aux_loss.*|.*_loss(_.*)?|loss_.*|.*jitter.*"
    r"|.*_update_(rate|speed)|label_smoothing.*|.*recompute.*|deepspeed.*|megatron.*|(.*_)?(mtp|nextn)(_.*)?"
    r"|summary_.*|output_(attentions|hidden_states|router_logits|past|scores)|return_dict.*|use_cache|torchscript"
    r"|gradient_checkpointing|use_bfloat16"
    r"|chunk_size_feed_forward|pretraining_tp|ep_size|reorder_and_upcast_attn|.*flash_att.*|.*attn_impl.*|fused?_.*"
    r"|(min|max)_(new_)?(length|tokens)|do_sample|early_stopping|num_beams|num_beam_groups|num_return_sequences"
    r"|temperature|top_[kp]|typical_p|.*penalty|.*ngram_size|bad_words_ids|remove_invalid_values|cache_implementation"
)
# Fields, and sections, about inputs other than text. `show` and `plan` name the sections.
_MEDIA = "vision|visual|images?|videos?|audio|speech|mm|multi_?modal|projector"
_OTHER_INPUTS = re.compile(rf"(?!.*_config$)(.*_)?({_MEDIA})(_.*)?")
_OTHER_SECTIONS = re.compile(rf"(.*_)?({_MEDIA})_config")
# Parts of names of fields that change the computation in some family.
_COMPUTES = re.compile(
    r"soft_?cap|scal|multipl|mup|norm|window|chunk|rope|rotary|alibi|position_emb|bias|resid|logit|att(n|ention)"
    r"|activation|_act(_|$)|act_fn|clip|limit|sink|expert|moe|mixture|layer_types|causal|bidirection|sparse|gate"
    r"|quant|compress|lora|latent|nope|mask|recurren|shortcut|_eps(ilon)?$"
)
_SCALES = re.compile(r"scal|multipl|mup|factor")  # a value of 1 changes nothing
# Switches that are on if absent: false changes the result, whereas false in any other field has no effect.
_SWITCHES = re.compile(r"(use_|is_)?(rope|rotary(_emb\w*)?|causal(_mask\w*)?|position_emb\w*)")


class DivisionRefused(ModelRefused):
    """The error for a model that can be built, but cannot be divided over the requested number of devices."""


def read_object(path: Path, most: int = MAX_FILE) -> dict[str, Any]:
    """Return the JSON object in a file of at most `most` bytes.

    Raises:
        ModelRefused: If the file is too large, is not JSON, or holds something other than an object. Its subclass
            PointerFile says that the file is a Git LFS pointer.
    """
    try:
        # json accepts NaN and Infinity; the readers of Fields refuse them as numbers.
        return untrusted.read_object(path, most)
    except untrusted.PointerFile:
        raise
    except ValueError as error:
        raise ModelRefused(f"{error}; fetch the file again") from None


class Fields:
    """The fields of one config.json, with checked access.

    Every reader raises ModelRefused with the field's name, its value, and what would be valid. The object records which
    fields were read, so that a field that no code reads is not silently ignored.
    """

    def __init__(self, values: Mapping[str, Any], source: str, elsewhere: Mapping[str, str] | None = None) -> None:
        """Wrap the parsed values of a config.json.

        Args:
            values: The parsed JSON object.
            source: The name of the config in error messages.
            elsewhere: The names in error messages of sections that another file states, by section.
        """
        self.values, self.source, self.elsewhere = values, source, elsewhere or {}
        self._read: set[str] = set()
        self._inner: dict[str, Fields] = {}

    @classmethod
    def read(cls, path: Path) -> "Fields":
        """Read a model's config.json at `path`."""
        return cls(read_object(path), str(path))

    @property
    def title(self) -> str:
        """The display name of a model: its folder's name, or its id if it lies in the Hugging Face cache.

        For a GGUF file it is the file's name without extension, and for any other source the source itself.
        """
        path = Path(self.source)
        if path.name != "config.json":
            return path.stem if path.suffix == ".gguf" else self.source
        folder = path.resolve().parent
        if folder.parent.name == "snapshots":
            return folder.parents[1].name.removeprefix("models--").replace("--", "/")
        return folder.name

    def refuse(self, problem: str) -> ModelRefused:
        """Return a one-line error about this config, for the caller to raise."""
        return ModelRefused(f"{self.source}: {' '.join(problem.split())}")

    def has(self, name: str) -> bool:
        """Return whether a field of the config is present and not null."""
        return self.value(name) is not None

    def value(self, name: str) -> Any:
        """Return the raw value of a config field; None if it is absent or null."""
        self._read.add(name)
        return self.values.get(name)

    def ignore(self, *names: str) -> None:
        """Mark config fields as read that have no effect in this family, or none next to other fields."""
        self._read.update(names)

    def ignore_other_inputs(self) -> None:
        """Ignore the config fields about images, video and audio, for a model that reads only text.

        It does so in inner configs too.
        """
        self.ignore(*(name for name in self.values if _OTHER_INPUTS.fullmatch(name)))
        for inner in self._inner.values():
            inner.ignore_other_inputs()

    def unread(self) -> list[str]:
        """Return the config fields that are set and that no code has read, those of inner configs last.

        Bookkeeping fields and scales of 1 do not count.
        """
        own = [
            name
            for name, value in self.values.items()
            if (value or (value is False and _SWITCHES.fullmatch(name)))
            and name not in self._read
            and not _BOOKKEEPING.fullmatch(name)
            and not _leaves_alone(name, value)
        ]
        return own + [name for inner in self._inner.values() for name in inner.unread()]

    def other_inputs(self) -> list[str]:
        """Return the names of config sections on images, video or audio that no code has read; they are not built."""
        return [name for name in self.unread() if _OTHER_SECTIONS.fullmatch(name)]

    def refuse_unread(self) -> None:
        """Raise ModelRefused if a config field that no code read has a name that says that it changes the result.

        Call it after the model was built.
        """
        for inner in self._inner.values():
            inner.refuse_unread()
        name = next((name for name in self.unread() if name in self.values and _COMPUTES.search(name)), None)
        if name is not None:
            raise self.refuse(
                f"{name} = {_shown(self.values[name])} is not supported, and its name says that it changes the result; "
                "remove it from the config if it does not"
            )

    def _get(self, name: str, default: Any) -> Any:
        """Return the value of a config field, or the default if it is absent or null.

        Raises:
            ModelRefused: If the field is missing and there is no default.
        """
        value = self.value(name)
        if value is None:
            if default is None:
                raise self.refuse(f"{name} is missing; it is needed to build the model")
            return default
        return value

    def count(self, name: str, default: int | None = None, *, most: int = MAX_WIDTH) -> int:
        """Return a config field that must be an integer from 1 to `most`."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise self.refuse(f"{name} is {_shown(value)}; it must be an integer from 1 to {most}")
        return value

    def natural(self, name: str) -> int:
        """Return a config field that must be an integer from 0 to MAX_WIDTH."""
        value = self._get(name, None)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_WIDTH:
            raise self.refuse(f"{name} is {_shown(value)}; it must be an integer from 0 to {MAX_WIDTH}")
        return value

    def positive(self, name: str, default: float | None = None) -> float:
        """Return a config field that must be a finite number above 0."""
        value = self._get(name, default)
        if not _is_positive(value):
            raise self.refuse(f"{name} is {_shown(value)}; it must be a finite number above 0")
        return float(value)

    def number(self, name: str, default: float) -> float:
        """Return a config field that must be a finite number."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _MAX_NUMBER:
            raise self.refuse(f"{name} is {_shown(value)}; it must be a finite number")
        return float(value)

    def positives(self, name: str) -> list[float]:
        """Return a config field that must be a list of finite numbers above 0."""
        value = self._get(name, None)
        if not isinstance(value, list) or not all(map(_is_positive, value)):
            raise self.refuse(f"{name} is {_shown(value)}; it must be a list of finite numbers above 0")
        return [float(number) for number in value]

    def flag(self, name: str, default: bool) -> bool:
        """Return a config field that must be true or false."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.refuse(f"{name} is {_shown(value)}; it must be true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """Return a config field that must be a string."""
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self.refuse(f"{name} is {_shown(value)}; it must be a string")
        return value

    def integers(self, name: str) -> list[int]:
        """Return a config field that must be a list of integers; an empty list if it is absent."""
        value = self.value(name) or []
        if not isinstance(value, list) or not all(isinstance(i, int) and not isinstance(i, bool) for i in value):
            raise self.refuse(f"{name} is {_shown(value)}; it must be a list of integers")
        return value

    def section(self, name: str) -> "Fields":
        """Return an object inside the config as Fields; empty if it is absent."""
        value = self.value(name) or {}
        if not isinstance(value, dict):
            raise self.refuse(f"{name} is {_shown(value)}; it must be an object")
        return Fields(value, self.elsewhere.get(name, f"{self.source}: {name}"))

    def inner(self, name: str, *inherited: str, unstated: Mapping[str, Any] = _NOTHING) -> "Fields":
        """Return the config of a part of the model, an object inside this config.

        Fields that no code reads there count as unread here.

        Args:
            name: The name of the object.
            inherited: Fields of this config that override those of the inner one.
            unstated: Defaults for fields that the inner config does not state.
        """
        if name not in self._inner:
            own = {each: self.value(each) for each in inherited if self.has(each)}
            section = self.section(name)
            missing = {each: value for each, value in unstated.items() if section.values.get(each) is None}
            self._inner[name] = Fields({**section.values, **missing, **own}, section.source)
        return self._inner[name]

    def require_off(self, name: str, *allowed: Any) -> None:
        """Refuse any value of a config field except absent, null, false, 0, an empty string or list, and `allowed`.

        It is for features that are not implemented.
        """
        value = self.value(name)
        if value and value not in allowed:
            raise self.refuse(f"{name} = {_shown(value)} is not supported")

    def require(self, name: str, *only: Any) -> None:
        """Refuse any value of a config field except absent, null and `only`, which the reference assumes."""
        value = self.value(name)
        if value is not None and value not in only:
            raise self.refuse(f"{name} = {_shown(value)} is not supported; {' and '.join(map(str, only))} is")

    @property
    def architecture(self) -> str:
        """The first entry of `architectures`, else the class name that diffusers states; "" without either."""
        names = self.values.get("architectures")
        if isinstance(names, list) and names and isinstance(names[0], str):
            return names[0]
        kind = self.values.get("_class_name")
        return kind if isinstance(kind, str) else ""

    @property
    def layers(self) -> int:
        """The number of transformer layers, as the config states it."""
        return self.count("num_hidden_layers", most=MAX_LAYERS)

    def context(self, default: int | None = None) -> int:
        """Return the maximum number of positions of a sequence, as the config states it."""
        return self.count("max_position_embeddings", default, most=MAX_CONTEXT)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which the weights are stored, as the config states it; fp32 if it states none."""
        return self.stated_dtype or torch.float32

    @property
    def stated_dtype(self) -> torch.dtype | None:
        """The dtype that the config states for its weights, at its top or else in `text_config`, or None."""
        text = self.values.get(_TEXT)
        inner = Fields(text, f"{self.source}: {_TEXT}").own_dtype if isinstance(text, Mapping) else None
        return self.own_dtype or inner

    @property
    def own_dtype(self) -> torch.dtype | None:
        """The dtype that the top of the config states: `dtype` or else `torch_dtype`, as transformers reads it.

        It is None if the config states none, null or "auto".
        """
        for name in ("dtype", "torch_dtype"):
            stated = self.values.get(name)
            if stated not in (None, "", "auto"):
                return self._dtype_called(name, stated)
        return None

    def _dtype_called(self, name: str, stated: object) -> torch.dtype:
        """Return the dtype in which a model runs whose config states this one."""
        try:
            return stated_format(str(stated)).dtype
        except ValueError as error:
            raise self.refuse(f"{name}: {error}") from None


def _is_positive(value: object) -> bool:
    """Return whether a value is a finite number above 0: not NaN, and no integer too large for a float."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= _MAX_NUMBER


def _leaves_alone(name: str, value: object) -> bool:
    """Return whether a field is a scale of 1, which changes nothing."""
    return bool(_SCALES.search(name)) and not isinstance(value, bool) and value == 1


def _shown(value: object) -> str:
    """Return a value as one line of an error message, shortened if it is long."""
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
