"""The parts of an architecture's name: `Qwen3MoeForCausalLM` is Qwen, version 3, a mixture of experts, causal LM."""

import re
from dataclasses import dataclass

_NAME = re.compile(
    r"(?P<family>T5|[A-Za-z]+?)"
    r"(?:V?_?(?P<version>(?:(?<=MiniMax)M|(?<=Kimi)K|(?<=Kimi_)K)?\d+(?:[._]\d+)?(?:Next|Flash|_?VL)?))?(?P<kind>Mo[eE])?"
    r"(?P<task>For[A-Z]\w*|LMHeadModel|MTModel|(?:Text|Encoder|Vision)?Model(?:WithProjection)?)?"
)
_TASKS = {
    "ForCausalLM": "causal LM",
    "LMHeadModel": "causal LM",
    "ForConditionalGeneration": "conditional generation",
    "MTModel": "conditional generation",
    "Model": "bare model, no head",
}
# Mixtures of experts whose names do not say so.
_MIXTURES = ("Mixtral", "DeepseekV2", "DeepseekV3", "GptOss", "Qwen3Next", "MiniMaxM2", "Llama4", "KimiK25", "Kimi_K25")


@dataclass(frozen=True, slots=True)
class ArchitectureName:
    """The parts of an architecture's name: family, version, dense or mixture of experts, and task."""

    family: str
    version: str
    """The version number in the class name of an architecture; empty if there is none."""
    kind: str
    task: str


def parse(architecture: str) -> ArchitectureName:
    """Split the class name of a transformers model into its parts; an unknown form becomes the family as a whole."""
    match = _NAME.fullmatch(architecture)
    if match is None:
        return ArchitectureName(architecture, "", "unknown", "unknown")
    family, task = match["family"], match["task"] or ""
    moe = match["kind"] is not None or architecture.startswith(_MIXTURES)
    spoken = _TASKS.get(task) or re.sub(r"(?<!^)(?=[A-Z][a-z])", " ", task.removeprefix("For")).lower()
    version = (match["version"] or "").replace("_VL", "VL").replace("_", ".")
    version = re.sub(r"(?=Next|Flash|VL)", "-", version)
    return ArchitectureName(family, version, "MoE" if moe else "dense", spoken)
