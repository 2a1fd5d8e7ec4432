"""The reason why a class of transformers is refused, or priced only, names what the engine lacks."""

import pytest

from support.registered_classes import standing

REASONS = {
    "mamba": "keeps a recurrent or convolution state",
    "jamba": "keeps a recurrent or convolution state",
    "granitemoehybrid": "keeps a recurrent or convolution state",  # infinity in its config.json
    "deepseek_v32": "chooses keys by an index",
    "gemma4_unified_assistant": "reads the keys and values of another model",
    "bloom": "reads the attention mask in code of its own",
    "doge": "reads the attention mask in code of its own",
    "falcon": "does not call the attention interface",
    "roberta": "numbers the positions of a text in another way than from 0",
    "bart": "is an encoder-decoder",
    "openai-gpt": "not priced, because it keeps nothing of a text between steps",
    "big_bird": "not priced, because it computes attention in another way for short texts",
    "cpmant": "not priced, because its code does not continue a text from what it keeps",
    "deepseek_v4": "not priced, because it attends to a window and to compressed keys at once",
    "qwen4_exp": "not priced, because its code depends on the values of tensors",
}


@pytest.mark.parametrize("model_type", REASONS)
def test_the_reason(model_type: str) -> None:
    """Check the refusal, or the reason why the model is priced only."""
    found = standing(model_type)
    assert found.group in ("priced only", "refused")
    assert REASONS[model_type] in found.reason


def test_rows_that_depend_on_other_sequences() -> None:
    """Check a rotary embedding of a class's own that scales all rows by the longest sequence of a step."""
    scales = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "short_mscale": 1.0, "long_mscale": 1.3}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 64, **scales}
    assert standing("phimoe").group == "generic"
    found = standing("phimoe", rope_parameters=rope)
    assert found.group == "priced only"
    assert found.reason == "the logits of a sequence depend on the length of the longest one in the step"
