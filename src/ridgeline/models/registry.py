"""The families that can be built, and which of them a config names."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from importlib import resources
from typing import Any

from ridgeline.models.common.architecture_alias import KIN, Kin, kin_of
from ridgeline.models.common.family import Family
from ridgeline.models.common.fields import Fields
from ridgeline.models.families import (
    bart,
    bert,
    clip,
    cohere,
    deepseek,
    exaone4,
    flux,
    gemma2,
    gemma3,
    glm,
    gpt2,
    gpt_oss,
    granite,
    janus,
    llama,
    llama4,
    minimax_m2,
    ministral3,
    mistral,
    modernbert,
    nemotron_h,
    olmo2,
    phi,
    phi3,
    pixart,
    qwen2,
    qwen3,
    qwen3_5,
    qwen3_next,
    smollm3,
    starcoder2,
    t5,
    wan,
    whisper,
    z_image,
)
from ridgeline.models.families.autoencoder_kl import ARCHITECTURE as AUTOENCODER
from ridgeline.models.families.autoencoder_kl import PACKED as PACKED_AUTOENCODER
from ridgeline.models.families.vq_autoencoder import ARCHITECTURE as VQ_AUTOENCODER
from ridgeline.ops.formats import MXFP4

# In this order: a name that one rename gives may be what the one before it takes.
_GLM_0414 = (
    (".post_attention_layernorm", ".pre_feedforward_layernorm"),
    (".post_self_attn_layernorm", ".post_attention_layernorm"),
    (".post_mlp_layernorm", ".post_feedforward_layernorm"),
)
_SHARED_EXPERT = ((".mlp.shared_expert.", ".mlp.shared_experts."),)
_PREDICTED = (r"mtp\..*",)  # layers that guess the tokens after the next
_PHI = (
    (".self_attn.dense", ".self_attn.o_proj"),
    (".q_layernorm", ".q_norm"),
    (".k_layernorm", ".k_norm"),
    ("model.final_layernorm", "model.norm"),
)

# The sections in which configs of larger models keep that of their text half.
_TEXT_SECTIONS = ("text_config", "language_config", "llm_config", "thinker_config.text_config")

FAMILIES = (
    Family("LlamaForCausalLM", "llama", llama.build),
    Family("MistralForCausalLM", "mistral", mistral.build),
    Family("Ministral3ForCausalLM", "ministral3", ministral3.build),
    Family("Qwen2ForCausalLM", "qwen2", qwen2.build),
    Family("Qwen3ForCausalLM", "qwen3", qwen3.build, also=("Qwen3Model",)),
    Family("Phi3ForCausalLM", "phi3", phi3.build),
    Family("MixtralForCausalLM", "mixtral", mistral.build_mixture, renames=((".block_sparse_moe.", ".mlp."),)),
    Family("Qwen3MoeForCausalLM", "qwen3_moe", qwen3.build_mixture),
    Family(
        "Qwen2MoeForCausalLM",
        "qwen2_moe",
        qwen2.build_mixture,
        renames=_SHARED_EXPERT,
    ),
    Family(
        "Qwen3NextForCausalLM",
        "qwen3_next",
        qwen3_next.build,
        renames=_SHARED_EXPERT,
        ignored=_PREDICTED,
    ),
    Family("Qwen3_5ForCausalLM", "qwen3_5_text", qwen3_5.build, ignored=_PREDICTED),
    Family(
        "Qwen3_5MoeForCausalLM",
        "qwen3_5_moe_text",
        qwen3_5.build_mixture,
        renames=_SHARED_EXPERT,
        ignored=_PREDICTED,
    ),
    Family("DeepseekV2ForCausalLM", "deepseek_v2", deepseek.build_v2),
    Family("DeepseekV3ForCausalLM", "deepseek_v3", deepseek.build_v3),
    Family(
        "MiniMaxM2ForCausalLM",
        "minimax_m2",
        minimax_m2.build,
        renames=(
            (".block_sparse_moe.", ".mlp."),
            (".mlp.e_score_correction_bias", ".mlp.gate.e_score_correction_bias"),
        ),
    ),
    Family(
        "Llama4ForCausalLM",
        "llama4_text",
        llama4.build,
        renames=((".feed_forward.", ".mlp."), (".mlp.router.", ".mlp.gate."), *_SHARED_EXPERT),
    ),
    Family(
        "GptOssForCausalLM",
        "gpt_oss",
        gpt_oss.build,
        renames=((".mlp.router.", ".mlp.gate."), (".self_attn.sinks", ".self_attn.attend.sinks_H")),
        widens=(MXFP4.name,),
    ),
    Family("Gemma2ForCausalLM", "gemma2", gemma2.build),
    Family("Gemma3ForCausalLM", "gemma3_text", gemma3.build),
    Family("GraniteForCausalLM", "granite", granite.build),
    Family("Olmo2ForCausalLM", "olmo2", olmo2.build),
    Family("Olmo3ForCausalLM", "olmo3", olmo2.build_third),
    Family("SmolLM3ForCausalLM", "smollm3", smollm3.build),
    Family("GlmForCausalLM", "glm", glm.build),
    Family("Glm4ForCausalLM", "glm4", glm.build_0414, renames=_GLM_0414),
    Family("CohereForCausalLM", "cohere", cohere.build),
    Family("Cohere2ForCausalLM", "cohere2", cohere.build_second),
    Family("Starcoder2ForCausalLM", "starcoder2", starcoder2.build),
    Family("Exaone4ForCausalLM", "exaone4", exaone4.build),
    Family("PhiForCausalLM", "phi", phi.build, renames=_PHI),
    Family(
        "NemotronHForCausalLM",
        "nemotron_h",
        nemotron_h.build,
        renames=(("model.embeddings.", "model.embed_tokens."), ("model.norm_f.", "model.norm.")),
        ignored=_PREDICTED,
        prefixes=(("backbone.", "model."),),
    ),
    Family("GPT2LMHeadModel", "gpt2", gpt2.build, "transformer.", ignored=(r"(.*\.)?h\.\d+\.attn\.(masked_)?bias",)),
)

_OLD_NORMS = (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias"))
_POSITIONS = r"(.*\.)?embeddings\.position_ids"
_BERT_HEADS = (_POSITIONS, r"(bert\.)?pooler\..*", r"cls\..*")
_ROBERTA_HEADS = (_POSITIONS, r"(roberta\.)?pooler\..*", r"lm_head\..*")

_TEXT_ENCODERS = (
    Family(
        "BertModel", "bert", bert.build, "bert.", ignored=_BERT_HEADS, old_names=_OLD_NORMS,
        also=("BertForMaskedLM", "BertForPreTraining"),
    ),
    Family(
        "RobertaModel", "roberta", bert.build_roberta, "roberta.", ignored=_ROBERTA_HEADS, also=("RobertaForMaskedLM",)
    ),
    Family(
        "XLMRobertaModel", "xlm-roberta", bert.build_roberta, "roberta.", ignored=_ROBERTA_HEADS,
        also=("XLMRobertaForMaskedLM",),
    ),
    Family(
        "ModernBertModel", "modernbert", modernbert.build, renames=modernbert.RENAMES,
        ignored=(r"head\..*", r"decoder\..*"), also=("ModernBertForMaskedLM",),
    ),
    Family(
        "BertForSequenceClassification", "bert", bert.build_classifier, "bert.", (("bert.pooler.", "pooler."),),
        ignored=(_POSITIONS,), old_names=_OLD_NORMS,
    ),
    Family(
        "RobertaForSequenceClassification", "roberta", bert.build_roberta_classifier, "roberta.",
        ignored=_ROBERTA_HEADS[:2], also=("XLMRobertaForSequenceClassification",),
    ),
    Family(
        "ModernBertForSequenceClassification", "modernbert", modernbert.build_classifier,
        renames=(*modernbert.RENAMES, ("head.", "prediction.")),
    ),
    Family("CLIPTextModel", "clip_text_model", clip.build, "text_model.", ignored=clip.BUFFERS),
    Family("CLIPTextModelWithProjection", "clip_text_model", clip.build_projected, "text_model.", ignored=clip.BUFFERS),
    Family("CLIPModel", "clip", clip.build_half, "text_model.", ignored=clip.IMAGE_HALF),
    Family("T5EncoderModel", "t5", t5.build_encoder, "", t5.RENAMES, t5.BESIDE_ENCODER, widens_fp16=True),
    Family("UMT5EncoderModel", "umt5", t5.build_umt5_encoder, "", t5.RENAMES, t5.BESIDE_ENCODER, widens_fp16=True),
)  # fmt: skip
ENCODERS = tuple(replace(family, writes=False) for family in _TEXT_ENCODERS)
"""The families that read a text and write none: they give hidden states, or the scores of labels."""

ENCODER_DECODERS = (
    Family("BartForConditionalGeneration", "bart", bart.build, "model.", bart.RENAMES, bart.IGNORED, encodes=True),
    Family("MarianMTModel", "marian", bart.build_marian, "model.", bart.RENAMES, bart.IGNORED_OF_MARIAN, encodes=True),
    Family("T5ForConditionalGeneration", "t5", t5.build, "", t5.RENAMES, t5.IGNORED, encodes=True, widens_fp16=True),
    Family(
        "UMT5ForConditionalGeneration",
        "umt5",
        t5.build_umt5,
        "",
        t5.RENAMES,
        t5.IGNORED,
        encodes=True,
        widens_fp16=True,
    ),
)
"""The families whose encoder reads the prompt."""

SPEECH = (Family("WhisperForConditionalGeneration", "whisper", whisper.build, renames=whisper.RENAMES),)
"""The families whose encoder reads sound."""

VISION = (Family(janus.ARCHITECTURE, "janus", janus.build, ignored=janus.PASSED_OVER_BY_READERS, prefixes=janus.READS),)
"""The families whose prompts may have images in them."""

DRAWERS = (
    Family(janus.ARCHITECTURE, "janus", janus.build_drawer, ignored=janus.PASSED_OVER_BY_DRAWERS, prefixes=janus.DRAWS),
)
"""The families that write the tokens of an image."""

DENOISERS = (
    Family("ZImageTransformer2DModel", "", z_image.build, "", z_image.RENAMES, ()),
    Family("FluxTransformer2DModel", "", flux.build, "", flux.RENAMES, ()),
    Family("Flux2Transformer2DModel", "", flux.build_second, "", flux.RENAMES_OF_SECOND, ()),
    Family("WanTransformer3DModel", "", wan.build, "", wan.RENAMES, ()),
    Family(
        "PixArtTransformer2DModel", "", pixart.build, "", pixart.RENAMES, pixart.IGNORED, also=("Transformer2DModel",)
    ),
)
"""The families that draw, with a text encoder and a VAE beside them. A config names them as its `_class_name`."""


def family_of(fields: Fields) -> Family:
    """The family of a config. Raises ModelRefused naming what it is and what there is."""
    name = fields.architecture
    kind = str(fields.values.get("model_type", ""))
    for family in (*FAMILIES, *VISION, *ENCODER_DECODERS, *ENCODERS, *SPEECH):  # T5 whole before its encoder
        if family.builds(name) or (not name and kind == family.model_type):
            return family
    kin = kin_of(name, kind)
    if kin is not None:
        return _of_kin(kin, fields)
    if any(family.builds(name) for family in DENOISERS):
        raise fields.refuse(
            f"{name} is a denoiser, a part of a pipeline that draws: ridgeline image takes the pipeline's folder, or "
            "ridgeline video where it draws clips; give that of a language model"
        )
    if name in (AUTOENCODER, PACKED_AUTOENCODER):
        raise fields.refuse(
            f"{name} makes pictures of latents, a part of a pipeline that draws: ridgeline image takes the pipeline's "
            "folder; give that of a language model"
        )
    if name == VQ_AUTOENCODER:
        raise fields.refuse(
            f"{name} makes pictures of tokens, a part of Janus; from Python "
            "ridgeline.checkpoint.load_vq_autoencoder runs it; give the folder of a language model"
        )
    called = name or kind
    if not called:
        raise fields.refuse("names no architecture and no model_type; is this the config.json of a language model?")
    missing = not_built(called) or (not_built(kind) if kind else None)
    if missing is not None:
        raise fields.refuse(f"architecture {missing}")
    families: tuple[Family | Kin, ...] = (*FAMILIES, *VISION, *ENCODERS, *ENCODER_DECODERS, *SPEECH, *KIN)
    names = {known.architecture.partition("For")[0]: known.architecture for known in families}  # all end alike
    near = [names[name] for name in get_close_matches(called.partition("For")[0], names, 3)]
    nearest = f"; did you mean {' or '.join(near)}?" if near else ";"
    known = "`ridgeline plan --list` shows models of those that are"
    raise fields.refuse(f"architecture {called} is not supported{_text_inside(fields)}{nearest} {known}")


def _text_inside(fields: Fields) -> str:
    """Return a hint for a refusal, if a section of an unknown model's config is the config of a family; else ""."""
    for path in _TEXT_SECTIONS:
        section: object = fields.values
        for name in path.split("."):
            section = section.get(name) if isinstance(section, dict) else None
        inside = Fields(section if isinstance(section, dict) else {}, path)
        for family in FAMILIES:
            if family.builds(inside.architecture) or inside.values.get("model_type") == family.model_type:
                return f" (its {path} is a {family.architecture}, which is: give that section as a config.json)"
    return ""


def _of_kin(kin: Kin, fields: Fields) -> Family:
    """The family that builds the language model of a kin, with what is the kin's own."""
    model_type = kin.of or kin.text_of(fields).text("model_type")
    family = next((family for family in FAMILIES if family.model_type == model_type), None)
    if family is None:
        missing = missing_for(model_type)
        raise fields.refuse(f"its text half is {missing or f'of the type {model_type}, which is not supported'}")
    return Family(
        kin.architecture,
        kin.model_type,
        lambda fields, storage: family.build(kin.text_of(fields), storage),
        family.trunk,
        family.renames,
        (*kin.ignored, *family.ignored),
        prefixes=kin.prefixes,
    )


def not_built(name: str) -> str | None:
    """Of a well-known model, by its name or its architecture's, that it is not built yet, what is missing, and where to
    find what is; None for one that is not known to be missing anything."""
    missing = missing_for(name)
    return None if missing is None else f"{missing}; `ridgeline plan --list` shows models that are"


def drawer_of(fields: Fields) -> Family:
    """The family of the config of a model that writes the tokens of an image. Raises ModelRefused."""
    for family in DRAWERS:
        if family.builds(fields.architecture):
            return family
    names = ", ".join(family.architecture for family in DRAWERS)
    raise fields.refuse(f"architecture {fields.architecture or '(none)'} writes no tokens of images; {names} does")


def denoiser_of(fields: Fields) -> Family:
    """The family of the config of a denoiser. Raises ModelRefused."""
    for family in DENOISERS:
        if family.builds(fields.architecture):
            return family
    names = ", ".join(family.architecture for family in DENOISERS)
    raise fields.refuse(f"architecture {fields.architecture or '(none)'} is no denoiser that is built; {names} are")


_NO_LETTERS = re.compile(r"[^a-z0-9]")
_VERSION, _WORD = re.compile(r"\d"), re.compile(r"[A-Z][A-Za-z]*")


def missing_for(name: str) -> str | None:
    """Return a sentence with what is missing for a model that is not covered; None for any other model. name: of the
    catalogue, of its architecture, or its `model_type`."""
    text = resources.files("ridgeline").joinpath("catalogue", "unsupported.toml").read_text(encoding="utf-8")
    entries = tomllib.loads(text)
    entry = next((entry for known, entry in entries.items() if _is_named(name, known, entry)), None)
    entry = entry or next((entry for entry in entries.values() if _is_copy(name, entry["architecture"])), None)
    if entry is None:
        return None
    architecture = "" if entry["architecture"] == name else f" ({entry['architecture']})"
    return f"{name}{architecture} is not supported yet; missing: {', '.join(entry['missing'])}"


def _is_named(name: str, known: str, entry: Mapping[str, Any]) -> bool:
    """Return whether a name is one of an entry's own. known: the name of the catalogue."""
    architectures = (entry["architecture"], *entry.get("also", ()))
    stems = (known, *map(_stem, architectures))
    return name in architectures or _letters(name) in map(_letters, stems)


def _is_copy(name: str, architecture: str) -> bool:
    """Return whether a name is an architecture's with another ending or a word more or less before it: copies of
    MiniMaxM3SparseForConditionalGeneration say MiniMaxM3ForCausalLM. Both have the version, and the word has none."""
    short, long = sorted((_stem(name), _stem(architecture)), key=len)
    more = long.removeprefix(short)
    return bool(_VERSION.search(short)) and long.startswith(short) and (not more or bool(_WORD.fullmatch(more)))


def _stem(architecture: str) -> str:
    return architecture.partition("For")[0]


def _letters(name: str) -> str:
    return _NO_LETTERS.sub("", name.lower())
