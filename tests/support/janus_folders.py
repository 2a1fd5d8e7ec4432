"""A folder of a small random Janus with all that a release has: weights, tokenizer, template, how images are brought to
it."""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from transformers import JanusForConditionalGeneration

from support.januses import their_janus
from text.tiny_tokenizers import byte_level

SPECIAL = ("<bos>", "<eos>", "<begin_of_image>", "<end_of_image>", "<image_placeholder>")
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.role }}: "
    "{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}"
    "{% if c.type == 'image' %}<image_placeholder>{{ '\\n' }}{% else %}{{ c.text }}{% endif %}"
    "{% endfor %}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
PREPROCESSING: dict[str, Any] = {
    "size": {"height": 12, "width": 12},
    "min_size": 3,
    "image_mean": [0.5, 0.4, 0.3],
    "image_std": [0.5, 0.25, 0.2],
    "rescale_factor": 1 / 255,
    "resample": 3,
}


def write_janus(folder: Path, seed: int = 0, template: str | None = TEMPLATE) -> JanusForConditionalGeneration:
    """Fill a folder; transformers' model."""
    pipeline = byte_level()
    pipeline.add_special_tokens([AddedToken(literal, normalized=False) for literal in SPECIAL])
    size, ids = pipeline.get_vocab_size(), pipeline.get_vocab()
    text = {"vocab_size": size, "bos_token_id": ids["<bos>"], "eos_token_id": ids["<eos>"]}
    theirs = their_janus(folder, seed, text_config=text, image_token_id=ids["<image_placeholder>"])
    pipeline.save(str(folder / "tokenizer.json"))
    names: dict[str, Any] = {"bos_token": "<bos>", "eos_token": "<eos>", "tokenizer_class": "PreTrainedTokenizerFast"}
    names |= {"boi_token": "<begin_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_placeholder>"}
    if template is not None:
        names["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(names), encoding="utf-8")
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSING), encoding="utf-8")
    return theirs
