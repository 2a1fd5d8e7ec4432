"""Aliases: architectures that another family builds, under another name or as the text half of a larger model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.recipes import SECTIONS


@dataclass(frozen=True, slots=True)
class ArchitectureAlias:
    """An architecture whose language model is one of the families'.

    model_type: as of Family. of: the model_type of that family; of a text half whose config names its own, "". section:
    where the config of the text half is; "" where there is no other half. prefixes: as of Family; ignored: too, beside
    the family's own. passed_over: fields that mean nothing to the text, if the config has no section for it. unstated:
    what it takes where that section does not say it and the family takes something else. always: what it takes in any
    case.
    """

    architecture: str
    model_type: str
    of: str = ""
    section: str = ""
    prefixes: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()
    passed_over: tuple[str, ...] = ()
    unstated: Mapping[str, Any] = field(default_factory=dict)
    always: Mapping[str, Any] = field(default_factory=dict)

    def text_of(self, fields: Fields) -> Fields:
        """The config of the language model. Old configs of Qwen's vision models have no section of their own; what a
        section may leave out, these state.
        """
        fields.ignore(*self.passed_over)
        unstated = {**self.unstated, **self.always}
        if not self.section or not fields.has(self.section):
            missing = next((name for name in unstated if not fields.has(name)), None)
            if missing is not None:
                raise fields.refuse(f"{missing} is missing, and so is {self.section}; one of them is needed")
            return fields
        # The text half is built from its section alone. Its family reads none of what stands around it.
        fields.ignore(*(name for name in fields.values if not name.endswith(_OTHER_SECTION)))
        inner = fields.inner(self.section, "tie_word_embeddings", "torch_dtype", "dtype", unstated=unstated)
        inner.ignore(*SECTIONS)  # of the weights: `read_recipe` reads it
        for name, only in self.always.items():
            inner.require(name, only)
        return inner


_OTHER_SECTION = "_config"  # the end of the name of another half's section, which `show` names
# How a tensor of a text half begins, in transformers 5 and before it, and how here.
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
_PREDICTED = r"model\.mtp_layers\..*"  # a layer that guesses the token after the next
_ROUTED = {"norm_topk_prob": True, "use_sliding_window": False}  # Qwen3-VL's mixture, which has neither setting
_MIMO = ("attention_bias", "use_mrope")  # biases are as Qwen 2's, whatever it says

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


def alias_of(name: str, model_type: str) -> ArchitectureAlias | None:
    """The kin of an architecture's name, or of a config's `model_type` where it has none."""
    return next((kin for kin in KIN if name == kin.architecture or (not name and model_type == kin.model_type)), None)
