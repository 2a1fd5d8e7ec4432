"""What an architecture's name says: `Qwen3MoeForCausalLM` is Qwen, 3, a mixture of experts, for causal LM."""

import re
from dataclasses import dataclass

_NAME = re.compile(
    r"(?P<family>[A-Za-z]+?)(?P<version>\d+(?:[._]\d+)?)?(?P<kind>Moe)?"
    r"(?P<task>For[A-Z]\w*|LMHeadModel|Model)?"
)
_TASKS = {
    "ForCausalLM": "causal LM",
    "LMHeadModel": "causal LM",
    "ForConditionalGeneration": "conditional generation",
    "Model": "bare model, no head",
}
_MIXTURES = {"Mixtral"}


@dataclass(frozen=True, slots=True)
class ArchitectureName:
    """The parts of an architecture's name; `version` is empty where the name has none."""

    family: str
    version: str
    kind: str
    task: str


def parse(architecture: str) -> ArchitectureName:
    """Take a transformers class name apart. An unforeseen name comes back whole as its family."""
    match = _NAME.fullmatch(architecture)
    if match is None:
        return ArchitectureName(architecture, "", "unknown", "unknown")
    family, task = match["family"], match["task"] or ""
    # GPT2LMHeadModel and T5ForConditionalGeneration carry their version in the name; Phi3 and Qwen3 too.
    moe = match["kind"] is not None or family in _MIXTURES
    spoken = _TASKS.get(task) or re.sub(r"(?<!^)(?=[A-Z][a-z])", " ", task.removeprefix("For")).lower()
    return ArchitectureName(family, (match["version"] or "").replace("_", "."), "MoE" if moe else "dense", spoken)
