"""Textbook statements about tokens, experts, probabilities and images, checked by arithmetic and models."""

import math
from collections.abc import Iterator

from ridgeline.backends.model_loader import load_model
from ridgeline.core.checkpoint import read_config
from ridgeline.core.checkpoint.source_tokenizer import tokenizer_of
from ridgeline.core.text.byte_tokenizer import BYTE_SYMBOLS
from ridgeline.core.text.tokenizer import count_tokens
from ridgeline.insight.trace.expert_sources import expert_sources
from ridgeline.learn.lab.attention_by_hand import KEYS, QUERY, VALUES, mix, shares
from ridgeline.learn.lab.cost_calculator import CostCalculator
from ridgeline.learn.lab.statement import Statement
from ridgeline.util.document.humanize import percent

PROSE = (
    "The old sailor lived by the harbour. In the morning he walked along the pier, looked at the boats and talked to "
    "the people who mended their nets. When the wind was right he went out himself, far enough to lose sight of the "
    "white houses, and thought of nothing at all. In the evening he came back with a basket of fish, gave half of it "
    "away, and sat on the steps before his door until the first lamps were lit. His neighbours said that he knew every "
    "rock on the coast. He said that the rocks knew him."
)
VERSE = (
    "Good sir, I pray thee, tell me whither thou goest, for the night is dark and the road is full of peril. My lord, "
    "I ride unto the castle of the king, where mine own brother lieth sick, and would speak with him ere he die. Then "
    "God keep thee, and take this sword; it hath served my father well, and shall serve thee. I thank thee, noble sir. "
    "If ever I return I shall remember what thou hast done, and thou shalt have what thy heart desireth. Nay, speak "
    "not of it. Away, and let no man stay thee, for the hour is late and thy brother waiteth."
)
"""A text about as long as PROSE, in the English of another time; both were written for this file."""


def by_hand(_: CostCalculator) -> Iterator[Statement]:
    """Yield three textbook statements on attention, products and logits that simple arithmetic checks.

    They have the numbers 14, 23 and 24 in the list of textbook statements.
    """
    parts = shares(QUERY, KEYS)
    result = mix(parts, VALUES)
    yield Statement(
        "attention-by-hand", 14,
        "The query [1, 0] with three keys and the values [10, 0], [0, 10], [5, 5]: weights .40 .20 .40, so [6, 4].",
        f"{' '.join(f'{part:.4f}' for part in parts)}, so [{result[0]:.4f}, {result[1]:.4f}].",
        "The textbook rounds the weights before it multiplies.",
        {"first": result[0], "second": result[1], "share": parts[0]},
    )  # fmt: skip
    product = sum(a * b for a, b in zip((1, 2, 3), (4, 5, 6), strict=True))
    rows = [sum(a * b for a, b in zip((1, 2), row, strict=True)) for row in ((2, 1), (1, 2))]
    yield Statement(
        "products-by-hand", 23, "[1, 2, 3] . [4, 5, 6] = 32; x = [1, 2] times the rows [2, 1], [1, 2] is [4, 5].",
        f"{product} and {rows}.",
        "The same. Each row of a matrix gives one number of the output.",
        {"product": product, "first": rows[0], "second": rows[1]},
    )  # fmt: skip
    times = math.exp(12.5 - 8.2)
    yield Statement(
        "impossible-chances", 24, "Logits of 12.5 and 8.2 become probabilities of 0.7 and 0.2.",
        f"The first is e^4.3 = {times:.1f} times as likely as the second, not 3.5 times.",
        "Only the difference of logits counts. Logits with probabilities of 0.7 and 0.2 are 1.25 apart.",
        {"times": times},
    )  # fmt: skip


def words(_: CostCalculator) -> Iterator[Statement]:
    """Yield the textbook statements 19 and 20 on tokenizers, and one on model runs per word."""
    yield Statement(
        "byte-tokenizer", 19, "A byte-level tokenizer has 257 symbols.",
        f"{BYTE_SYMBOLS}: all values of a byte, and one that marks beginning and end of a text.",
        "The same. It can encode any text, but each character of other alphabets takes several tokens.",
        {"symbols": BYTE_SYMBOLS},
    )  # fmt: skip
    ratio = count_tokens(tokenizer_of("tales"), PROSE)
    yield Statement(
        "characters-a-token", 20, "A token is 3.5 to 4 characters or three quarters of a word.",
        f"For the tokenizer of tales with 2,048 tokens, in plain prose: {ratio.characters_per_token:.2f} characters, "
        f"{1 / ratio.tokens_per_word:.2f} words.",
        "It holds for plain English, even with a small vocabulary. Code, numbers and other languages take more tokens.",
        {"characters": ratio.characters_per_token, "words": 1 / ratio.tokens_per_word},
    )  # fmt: skip
    yield Statement(
        "words-are-runs", None, "1,000 words take 1,000 runs of the model.",
        f"At three quarters of a word per token: {1000 / 0.75:,.0f} runs.",
        "A run gives one token, and a word is often several tokens.",
        {"runs": 1000 / 0.75},
    )  # fmt: skip


def experts(_: CostCalculator) -> Iterator[Statement]:
    """Yield a textbook statement on experts and domains, measured on the built-in mixture of experts."""
    model, tokenizer = load_model("mixture"), tokenizer_of("mixture")
    texts = {"prose": PROSE, "old drama": VERSE}
    found = expert_sources(model, {name: tokenizer.encode(text, add_special=False) for name, text in texts.items()})
    shares = [layer.information.found for layer in found.layers]
    yield Statement(
        "experts-specialise", None, "Experts specialise by domain.",
        f"In the built-in `mixture`, for prose and old drama: the chosen expert gives {percent(min(shares))} to "
        f"{percent(max(shares))} of the information about which text a token is from, depending on the layer.",
        "A router sees the state of one token, not a topic: two texts in one language use much the same experts.",
        {"least": min(shares), "most": max(shares)},
    )  # fmt: skip


def images(ledger: CostCalculator) -> Iterator[Statement]:
    """Yield the textbook statements 12 and 13 on guidance and latents, and one on image tokens."""
    guided, few = ledger.image_plan("z-image", steps=50), ledger.image_plan("z-image-turbo", steps=8)
    yield Statement(
        "guidance", 12, "50 steps with guidance take 100 passes; 8 or fewer steps save 80 to 90 %.",
        f"{guided.job.passes} passes of Z-Image; 8 steps instead of 50 save {1 - 8 / 50:.0%}, 4 save {1 - 4 / 50:.0%}; "
        f"Turbo takes {few.job.passes} passes in total.",
        "Each step runs the denoiser once with the prompt and once without. Models distilled to few steps need no "
        "guidance, which halves the passes again.",
        {"passes": guided.job.passes, "eight": 1 - 8 / 50, "four": 1 - 4 / 50, "turbo": few.job.passes},
    )  # fmt: skip
    tokens = guided.geometry.tokens
    yield Statement(
        "latent", 13, "An image of 1024 x 1024 has a latent of 128 x 128, in patches of 2 x 2 or 4 x 4.",
        f"{tokens:,} tokens in patches of two (Z-Image); {tokens // 4:,} in patches of four. The latent has "
        f"{1024**2 // 128**2} times fewer positions than the image.",
        "A patch of twice the width leaves a quarter of the tokens and a sixteenth of their pairs.",
        {"tokens": tokens, "wide": tokens // 4, "fewer": 1024**2 // 128**2},
    )  # fmt: skip
    vision = read_config("digits-ar").values["vision_config"]
    passes = (vision["image_size"] // vision["patch_size"]) ** 2
    yield Statement(
        "single-pass-pictures", None, "Models that generate images as tokens make them in a single forward pass.",
        f"One pass per token, as for text: the built-in digits-ar takes {passes} passes for a digit.",
        "Each token depends on those before it. Only a denoiser that was distilled to few steps takes few passes.",
        {"passes": passes},
    )  # fmt: skip


def words_and_images(ledger: CostCalculator) -> Iterator[Statement]:
    """Yield all textbook statements of this file: on calculations by hand, words, experts and images."""
    for group in (by_hand, words, experts, images):
        yield from group(ledger)
