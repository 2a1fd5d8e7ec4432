"""Aliases: architectures that another family builds, under another name or as the text model of a multimodal one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.recipes import SECTIONS


@dataclass(frozen=True, slots=True)
class ArchitectureAlias:
    """An architecture whose language model is built by one of the families."""

    architecture: str
    """The architecture (as in `architectures` of config.json) that another architecture's family builds."""
    model_type: str
    """The `model_type` that identifies an architecture in a config without `architectures`."""
    of: str = ""
    """The `model_type` of the family that builds an architecture; "" if the config of its text model states it."""
    section: str = ""
    """The section of a config that describes its text model; "" if the architecture is a text model only."""
    prefixes: tuple[tuple[str, str], ...] = ()
    """Pairs of a prefix of tensor names in the checkpoint and the prefix of the same tensors in the model."""
    ignored: tuple[str, ...] = ()
    """Patterns of checkpoint tensors that an architecture's text model does not load, besides the family's."""
    passed_over: tuple[str, ...] = ()
    """Config fields that have no effect on the text model, in a config without a section for that model."""
    unstated: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of the text model's config that differ from the family's."""
    always: Mapping[str, Any] = field(default_factory=dict)
    """Values that the text model's config has even if it does not state them; other values are refused."""

    def text_of(self, fields: Fields) -> Fields:
        """Return the config of the language model inside the config of an alias.

        Old configs of Qwen's vision models have no section for it. They must state the values that a section may leave
        out.
        """
        fields.ignore(*self.passed_over)
        unstated = {**self.unstated, **self.always}
        if not self.section or not fields.has(self.section):
            missing = next((name for name in unstated if not fields.has(name)), None)
            if missing is not None:
                raise fields.refuse(f"both {missing} and {self.section} are missing; add one of them")
            return fields
        # The text model is built from its section alone; its family reads no field outside.
        fields.ignore(*(name for name in fields.values if not name.endswith(_OTHER_SECTION)))
        inner = fields.inner(self.section, "tie_word_embeddings", "torch_dtype", "dtype", unstated=unstated)
        inner.ignore(*SECTIONS)  # `read_recipe` reads it
        for name, only in self.always.items():
            inner.require(name, only)
        return inner


_OTHER_SECTION = "_config"  # the end of the names of other sections, which `show` lists
# Prefixes of the text model's tensors, in transformers 5 and before, and here.
_TEXT_HALF = (
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("lm_head", "lm_head"),
    ("language_model.lm_head", "lm_head"),
)
_LLAVA = (r"(model\.)?(vision_tower|multi_modal_projector)\..*",)
_LLAMA4 = (r"(model\.)?(vision_model|multi_modal_projector)\..*",)
_KIMI = (r"(model\.)?(vision_tower|mm_projector)\..*",)
_VISUAL = (r"(model\.)?visual\..*",)
_PREDICTED = r"model\.mtp_layers\..*"  # a layer for multi-token prediction
_ROUTED = {"norm_topk_prob": True, "use_sliding_window": False}  # Qwen3-VL's mixture of experts has neither setting
_MIMO = ("attention_bias", "use_mrope")  # biases are those of Qwen2, whatever the config says

KIN = (
    ArchitectureAlias("Gemma3ForConditionalGeneration", "gemma3", "gemma3_text", "text_config", _TEXT_HALF, _LLAVA),
    ArchitectureAlias("Mistral3ForConditionalGeneration", "mistral3", "", "text_config", _TEXT_HALF, _LLAVA),
    ArchitectureAlias("Llama4ForConditionalGeneration", "llama4", "llama4_text", "text_config", _TEXT_HALF, _LLAMA4),
    ArchitectureAlias("KimiK25ForConditionalGeneration", "kimi_k25", "deepseek_v3", "text_config", _TEXT_HALF, _KIMI),
    ArchitectureAlias("Kimi_K25ForConditionalGeneration", "kimi_k25", "deepseek_v3", "text_config", _TEXT_HALF, _KIMI),
    ArchitectureAlias(
        "Qwen3VLForConditionalGeneration", "qwen3_vl", "qwen3", "text_config", _TEXT_HALF, _VISUAL,
        unstated={"rope_theta": 500_000.0},
    ),
    ArchitectureAlias(
        "Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe", "qwen3_moe", "text_config", _TEXT_HALF, _VISUAL,
        unstated={"rope_theta": 500_000.0}, always=_ROUTED,
    ),
    ArchitectureAlias("Qwen3_5ForConditionalGeneration", "qwen3_5", "qwen3_5_text", "text_config", _TEXT_HALF, _VISUAL),
    ArchitectureAlias("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe", "qwen3_5_moe_text", "text_config",
        _TEXT_HALF, _VISUAL),
    ArchitectureAlias(
        "Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl", "qwen2", "text_config", _TEXT_HALF, _VISUAL,
        unstated={"rope_theta": 1_000_000.0},
    ),
    ArchitectureAlias(
        "Qwen2VLForConditionalGeneration", "qwen2_vl", "qwen2", "text_config", _TEXT_HALF, _VISUAL,
        unstated={"rope_theta": 1_000_000.0},
    ),
    ArchitectureAlias("MiMoForCausalLM", "mimo", "qwen2", ignored=(_PREDICTED,), passed_over=_MIMO),
)  # fmt: skip
"""The architectures that the family of another architecture builds."""


def alias_of(name: str, model_type: str) -> ArchitectureAlias | None:
    """Return the entry for an architecture that another one's family builds, by name or `model_type`, or None.

    The `model_type` counts only if the name is empty.
    """
    return next((kin for kin in KIN if name == kin.architecture or (not name and model_type == kin.model_type)), None)
