"""The list of model families, and the lookup of the family that a config names."""

import re
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import resources
from typing import Any

from ridgeline.core.models.common.architecture_alias import KIN, ArchitectureAlias, alias_of
from ridgeline.core.models.common.family import Family, FamilyKind
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.families import (
    autoencoder_kl,
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
    vq_autoencoder,
    wan,
    whisper,
    z_image,
)
from ridgeline.core.models.from_transformers.class_config import checkpoint_code
from ridgeline.core.models.from_transformers.class_lookup import contradiction, is_known, registered_causal_types
from ridgeline.core.models.from_transformers.installed_package import package_name, package_problem

# The sections of multimodal configs that hold the config of the text model.
_TEXT_SECTIONS = ("text_config", "language_config", "llm_config", "thinker_config.text_config")

REGISTERED: tuple[Family, ...] = (
    llama.FAMILY,
    *mistral.FAMILIES,
    ministral3.FAMILY,
    *qwen2.FAMILIES,
    *qwen3.FAMILIES,
    phi3.FAMILY,
    qwen3_next.FAMILY,
    *qwen3_5.FAMILIES,
    *deepseek.FAMILIES,
    minimax_m2.FAMILY,
    llama4.FAMILY,
    gpt_oss.FAMILY,
    gemma2.FAMILY,
    gemma3.FAMILY,
    granite.FAMILY,
    *olmo2.FAMILIES,
    smollm3.FAMILY,
    *glm.FAMILIES,
    *cohere.FAMILIES,
    starcoder2.FAMILY,
    exaone4.FAMILY,
    phi.FAMILY,
    nemotron_h.FAMILY,
    gpt2.FAMILY,
    *bert.FAMILIES,
    *modernbert.FAMILIES,
    *clip.FAMILIES,
    *bart.FAMILIES,
    *t5.FAMILIES,
    whisper.FAMILY,
    *janus.FAMILIES,
    z_image.FAMILY,
    *flux.FAMILIES,
    wan.FAMILY,
    pixart.FAMILY,
    autoencoder_kl.FAMILY,
    vq_autoencoder.FAMILY,
)
"""All model families that can be built, in the order in which the documentation lists them."""


def _of_kind(kind: FamilyKind) -> tuple[Family, ...]:
    """Return the registered model families of one kind."""
    return tuple(family for family in REGISTERED if family.kind == kind)


FAMILIES = _of_kind("decoder")
"""The families of decoder-only language models."""
ENCODERS = _of_kind("encoder")
"""The families that read a text and generate none: they return hidden states, or the scores of labels."""
ENCODER_DECODERS = _of_kind("encoder-decoder")
"""The text-to-text families, whose encoder reads the prompt."""
SPEECH = _of_kind("speech")
"""The model families whose encoder reads audio."""
VISION = _of_kind("vision")
"""The model families whose prompts may contain images."""
IMAGE_GENERATORS = _of_kind("drawer")
"""The model families that generate the tokens of an image."""
DENOISERS = _of_kind("denoiser")
"""The diffusion transformers, which generate images or video together with a text encoder and a VAE.

A config names one in `_class_name`.
"""


def has_family(fields: Fields) -> bool:
    """Return whether a family here builds a config's model, so that no class of transformers is imported for it."""
    name, kind = _named(fields)
    return _own_family(name, kind) is not None or alias_of(name, kind) is not None


def _named(fields: Fields) -> tuple[str, str]:
    """Return the architecture and the `model_type` that a config names, "" for none."""
    stated = fields.values.get("model_type")
    return fields.architecture, stated if isinstance(stated, str) else ""


def _own_family(name: str, kind: str) -> Family | None:
    """Return the model family for an architecture, or for a `model_type` without one; None if there is none."""
    known = (*FAMILIES, *VISION, *ENCODER_DECODERS, *ENCODERS, *SPEECH)  # T5 before its encoder alone
    return next((each for each in known if each.builds(name) or (not name and kind == each.model_type)), None)


def family_of(fields: Fields) -> Family:
    """Return the model family that a config names, by its architecture or its `model_type`.

    An architecture that none of the families builds has that of its class in the installed package transformers.

    Raises:
        ModelRefused: If no language model, encoder or speech model has this architecture. The message says what the
            config is and what is supported.
    """
    name, kind = _named(fields)
    if (own := _own_family(name, kind)) is not None:
        return own
    kin = alias_of(name, kind)
    if kin is not None:
        return _of_kin(kin, fields)
    if any(family.builds(name) for family in DENOISERS):
        raise fields.refuse(
            f"{name} is a denoiser, a part of a pipeline that generates images or video: give the pipeline's folder to "
            "ridgeline image or ridgeline video, and give the folder of a language model here"
        )
    if autoencoder_kl.FAMILY.builds(name):
        raise fields.refuse(
            f"{name} is an autoencoder, a part of a pipeline that generates images: give the pipeline's folder to "
            "ridgeline image, and give the folder of a language model here"
        )
    if vq_autoencoder.FAMILY.builds(name):
        raise fields.refuse(
            f"{name} is the image-token autoencoder of Janus: load it in Python with "
            "ridgeline.backends.model_loader.load_vq_autoencoder, and give the folder of a language model here"
        )
    called = name or kind
    if not called:
        raise fields.refuse(
            "the config has neither architectures nor model_type; give the config.json of a language model"
        )
    if is_known(fields):
        from ridgeline.core.models.from_transformers.class_family import class_family

        return class_family(fields)
    if contradicted := contradiction(fields):
        raise fields.refuse(contradicted)
    key = "architecture" if name else "model_type"
    missing = unsupported_reason(called) or (unsupported_reason(kind) if kind else None)
    if missing is not None:
        raise fields.refuse(f"{key} {missing}")
    families: tuple[Family | ArchitectureAlias, ...] = (*FAMILIES, *VISION, *ENCODERS, *ENCODER_DECODERS, *SPEECH, *KIN)
    names = {known.architecture.partition("For")[0]: known.architecture for known in families}  # by stem
    if package_problem() is None:
        names = {name.partition("For")[0]: name for name in registered_causal_types().values()} | names
    near = [names[name] for name in get_close_matches(called.partition("For")[0], names, 3)]
    nearest = f"; did you mean {' or '.join(near)}?" if near else ";"
    known = f"`ridgeline plan --list` shows supported models{_install_hint(fields)}"
    code = checkpoint_code(fields)
    raise fields.refuse(f"{key} {called} is not supported{code}{_text_inside(fields)}{nearest} {known}")


def _install_hint(fields: Fields) -> str:
    """Return a hint to install or mend the package whose class may define an unknown architecture.

    It is "" if the package is usable, or if the config names code of the checkpoint instead of a class.
    """
    problem = package_problem()
    if problem is None or checkpoint_code(fields):
        return ""
    return f"; if transformers has a class of this architecture, it would be used, but {problem}"


def _text_inside(fields: Fields) -> str:
    """Return a hint for an error message if a section of an unknown config belongs to a known family; else ""."""
    for path in _TEXT_SECTIONS:
        section: object = fields.values
        for name in path.split("."):
            section = section.get(name) if isinstance(section, dict) else None
        inside = Fields(section if isinstance(section, dict) else {}, path)
        for family in FAMILIES:
            if family.builds(inside.architecture) or inside.values.get("model_type") == family.model_type:
                return (
                    f" (its {path} is a {family.architecture}, which is supported: give that section as a config.json)"
                )
    return ""


def _of_kin(kin: ArchitectureAlias, fields: Fields) -> Family:
    """Return the family that builds an alias's language model, with the alias's prefixes and ignored tensors.

    An alias is an architecture that another one's family builds.

    Raises:
        ModelRefused: If the text config has an unsupported `model_type`.
    """
    model_type = kin.of or kin.text_of(fields).text("model_type")
    family = next((family for family in FAMILIES if family.model_type == model_type), None)
    if family is None and is_known(fields):
        from ridgeline.core.models.from_transformers.class_family import class_family

        return class_family(fields)
    if family is None:
        missing = missing_features(model_type)
        hint = _install_hint(fields)
        raise fields.refuse(f"its text model is {missing or f'of type {model_type}, which is not supported'}{hint}")
    return Family(
        kin.architecture,
        kin.model_type,
        lambda fields, storage: family.build(kin.text_of(fields), storage),
        family.backbone_prefix,
        family.renames,
        (*kin.ignored, *family.ignored),
        prefixes=kin.prefixes,
    )


def unsupported_reason(name: str) -> str | None:
    """Return why a well-known model without a family is not built, and what to do; None for any other model.

    The name may be that of the model or of its architecture.
    """
    missing, entry = missing_features(name), _well_known(name)
    if missing is not None:
        return f"{missing}; `ridgeline plan --list` shows supported models"
    if entry is None:
        return None
    architecture = entry["architecture"]
    wanted = f"give a folder or config.json with the architecture {architecture} and its model_type"
    problem = package_problem()
    if problem is None:
        return f"{name} has no family here, but {package_name()} has its class: {wanted}"
    return f"{name} has no family here, but transformers has its class; {problem}, and {wanted}"


def image_generator_of(fields: Fields) -> Family:
    """Return the family of a config whose model generates the tokens of an image.

    Raises:
        ModelRefused: If the config names another architecture.
    """
    return _family_among(IMAGE_GENERATORS, fields, "architecture {} cannot generate image tokens; {} can")


def denoiser_of(fields: Fields) -> Family:
    """Return the model family that the config of a denoiser (a diffusion model) names.

    Raises:
        ModelRefused: If the config names another architecture.
    """
    return _family_among(DENOISERS, fields, "denoiser architecture {} is not supported; {} are")


def _family_among(families: tuple[Family, ...], fields: Fields, refusal: str) -> Family:
    """Return the one of some families that a config names, or refuse its architecture and name theirs."""
    for family in families:
        if family.builds(fields.architecture):
            return family
    names = ", ".join(family.architecture for family in families)
    raise fields.refuse(refusal.format(fields.architecture or "(none)", names))


_NO_LETTERS = re.compile(r"[^a-z0-9]")
_VERSION, _WORD = re.compile(r"\d"), re.compile(r"[A-Z][A-Za-z]*")


def missing_features(name: str) -> str | None:
    """Return a sentence that lists what is missing to support a well-known model; None for any other model.

    The name may be that of the catalogue, of the architecture, or the `model_type`. Nothing is missing if transformers
    has a class of the architecture.
    """
    entry = _well_known(name)
    if entry is None or "missing" not in entry:
        return None
    architecture = "" if entry["architecture"] == name else f" ({entry['architecture']})"
    return f"{name}{architecture} is not supported yet; missing: {', '.join(entry['missing'])}"


def _well_known(name: str) -> Mapping[str, Any] | None:
    """Return the entry of unsupported.toml for a well-known model, or for the model that a name is a copy of."""
    text = resources.files("ridgeline").joinpath("data", "catalogue", "unsupported.toml").read_text(encoding="utf-8")
    entries = tomllib.loads(text)
    entry = next((entry for known, entry in entries.items() if _is_named(name, known, entry)), None)
    return entry or next((entry for entry in entries.values() if _is_copy(name, entry["architecture"])), None)


def _is_named(name: str, known: str, entry: Mapping[str, Any]) -> bool:
    """Return whether a name is one of a model's in the catalogue, whose key there is `known`."""
    architectures = (entry["architecture"], *entry.get("also", ()))
    stems = (known, *map(_stem, architectures))
    return name in architectures or _letters(name) in map(_letters, stems)


def _is_copy(name: str, architecture: str) -> bool:
    """Return whether two architecture names differ only in the ending, or in one word more or less before it.

    Copies of MiniMaxM3SparseForConditionalGeneration call themselves MiniMaxM3ForCausalLM, for example. Both names must
    contain the version number, and the additional word must not.
    """
    short, long = sorted((_stem(name), _stem(architecture)), key=len)
    more = long.removeprefix(short)
    return bool(_VERSION.search(short)) and long.startswith(short) and (not more or bool(_WORD.fullmatch(more)))


def _stem(architecture: str) -> str:
    """Return the part of an architecture's name before "For", as `Qwen3` of `Qwen3ForCausalLM`."""
    return architecture.partition("For")[0]


def _letters(name: str) -> str:
    """Return a name in lower case without anything but letters and digits."""
    return _NO_LETTERS.sub("", name.lower())
