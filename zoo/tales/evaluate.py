"""Measure a finished `tales` folder and write its model card: bits per byte, distinct 4-grams, unpicked samples.

The folder is loaded through transformers, not through the training code, so that what is measured is what a user gets.
"""

from __future__ import annotations

import argparse
import json
import math
import string
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from zoo.tales.corpus import read_held_out
from zoo.tales.quality import Kept, distinct_ratio, kept

SEEDS = range(20)
# Beginnings that introduce a hero and a thing. Of the second half no name occurs in the story grammar, and no thing but
# the cookie.
BEGINNINGS = tuple(
    (f"Once upon a time, there was a little {kind} named {name}. {'He' if kind == 'boy' else 'She'} had a {thing}.",
     name, thing.split()[-1])
    for kind, name, thing in (
        ("girl", "Mia", "red kite"), ("boy", "Ben", "blue ball"), ("girl", "Anna", "little drum"),
        ("boy", "Sam", "big umbrella"), ("girl", "Lucy", "pretty doll"), ("boy", "Max", "fast sled"),
        ("girl", "Sara", "warm scarf"), ("boy", "Tim", "shiny whistle"), ("girl", "Nora", "golden crown"),
        ("boy", "Leo", "old book"), ("girl", "Zara", "soft blanket"), ("boy", "Omar", "green hat"),
        ("girl", "Sofia", "yellow tricycle"), ("boy", "Mateo", "long rope"), ("girl", "Hana", "brown backpack"),
        ("boy", "Kofi", "bright lantern"), ("girl", "Anika", "new pencil"), ("boy", "Aidan", "small shovel"),
        ("girl", "Ingrid", "red wagon"), ("boy", "Tariq", "tall candle"), ("girl", "Celia", "white glove"),
        ("boy", "Rowan", "silver trumpet"), ("girl", "Mina", "purple crayon"), ("boy", "Dexter", "round cookie"),
    )
)  # fmt: skip


@dataclass(frozen=True)
class Story:
    """One sample: its seed, its text without special tokens, and whether the model ended it by itself."""

    seed: int
    text: str
    ended: bool


class Reader:
    """A checkpoint folder opened with transformers."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.model.train(False)
        self.context: int = self.model.config.max_position_embeddings

    @torch.inference_mode()
    def bits(self, text: str) -> tuple[float, int]:
        """Bits the model needs for `text` after `<s>`, cut to the context, and the UTF-8 bytes that they cover."""
        ids = [self.model.config.bos_token_id, *self.tokenizer.encode(text, add_special_tokens=False)][: self.context]
        tokens = torch.tensor([ids])
        scores = self.model(tokens).logits[0, :-1].log_softmax(dim=-1)
        nats = -scores.gather(1, tokens[0, 1:, None]).sum().item()
        return nats / math.log(2), len(self.tokenizer.decode(ids[1:]).encode())

    @torch.inference_mode()
    def tell(self, seed: int, prompt: str = "", **sampling: float) -> Story:
        """One story with the folder's own sampling settings, or with others."""
        torch.manual_seed(seed)
        ids = torch.tensor([[self.model.config.bos_token_id, *self.tokenizer.encode(prompt, add_special_tokens=False)]])
        eos = self.model.config.eos_token_id
        out = self.model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=eos, **sampling)
        text = self.tokenizer.decode(out[0], skip_special_tokens=True).strip()
        return Story(seed, text, out[0, -1].item() == eos)

    @torch.inference_mode()
    def tell_greedily(self, prompt: str) -> str:
        """The most probable continuation, token by token."""
        ids = torch.tensor([[self.model.config.bos_token_id, *self.tokenizer.encode(prompt, add_special_tokens=False)]])
        out = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            pad_token_id=self.model.config.eos_token_id,
            do_sample=False,
            temperature=None,
            top_p=None,
        )
        return str(self.tokenizer.decode(out[0], skip_special_tokens=True)).strip()


def bits_per_byte(reader: Reader, stories: list[str]) -> tuple[float, list[float]]:
    """Over all bytes of `stories`, each scored alone, and of each story."""
    scored = [reader.bits(story) for story in stories]
    return sum(b for b, _ in scored) / sum(n for _, n in scored), [b / n for b, n in scored]


def coherence(reader: Reader, seeds: range = range(3)) -> dict[str, float]:
    """Shares of stories that keep their hero, thing and end, and all three: every beginning with every seed."""
    found: list[Kept] = []
    for prompt, hero, thing in BEGINNINGS:
        for seed in seeds:
            story = reader.tell(seed, prompt, temperature=0.7, top_p=0.9)
            found.append(kept(story.text.removeprefix(prompt), hero, thing, story.ended))
    all_kept = sum(k.hero and k.thing and k.end for k in found)
    counts = {
        "hero": sum(k.hero for k in found),
        "thing": sum(k.thing for k in found),
        "end": sum(k.end for k in found),
    }
    return {name: count / len(found) for name, count in {**counts, "all_kept": all_kept}.items()}


def weight_megabytes(folder: Path) -> float:
    """Size of everything in `folder` but the card, in 10^6 bytes."""
    return sum(path.stat().st_size for path in folder.iterdir() if path.name != "README.md") / 1e6


def fill_card(reader: Reader, before: Reader, folder: Path, stories: list[str], run: Path, template: str) -> str:
    """The model card: measured figures, facts of the run from its checkpoint, and every sample.

    `before` holds the weights that the run started from.
    """
    total, each = bits_per_byte(reader, stories)
    told = [reader.tell(seed) for seed in SEEDS]
    progress = torch.load(run / "checkpoint.pt", weights_only=True)["progress"]
    facts = json.loads((run / "corpus.json").read_text())
    generation = json.loads((folder / "generation_config.json").read_text())
    return string.Template(template).substitute(
        {name: f"{value:,}" if isinstance(value, int) else value for name, value in facts.items()},
        parameters=f"{sum(p.numel() for p in reader.model.parameters()):,}",
        megabytes=f"{weight_megabytes(folder):.1f}",
        **{f"{name}_before": f"{share:.0%}" for name, share in coherence(before).items()},
        **{name: f"{share:.0%}" for name, share in coherence(reader).items()},
        bits_before=f"{bits_per_byte(before, stories)[0]:.3f}",
        bits_per_byte=f"{total:.3f}",
        bits_each=", ".join(f"{value:.3f}" for value in each),
        distinct=f"{distinct_ratio([story.text for story in told], 4):.3f}",
        distinct_each=f"{sum(distinct_ratio([story.text], 4) for story in told) / len(told):.3f}",
        ended=sum(story.ended for story in told),
        words=round(sum(len(story.text.split()) for story in told) / len(told)),
        temperature=generation["temperature"],
        top_p=generation["top_p"],
        steps=f"{progress['step']:,}",
        tokens_seen=f"{progress['tokens'] / 1e6:.1f}",
        minutes=round(progress["seconds"] / 60),
        tokens_per_s=f"{progress['tokens'] / progress['seconds']:,.0f}",
        greedy=quoted(reader.tell_greedily("Once upon a time")),
        samples="\n\n".join(f"### Seed {story.seed}\n\n{quoted(story.text)}" for story in told),
    )


def quoted(text: str) -> str:
    """`text` as a Markdown quotation that keeps its line breaks."""
    return "\n>\n".join(f"> {line}" for line in text.split("\n") if line.strip())


def main() -> None:
    """Print the figures, and write the card where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--held-out", type=Path, required=True, help="stories the model was not trained on")
    parser.add_argument("--run", type=Path, help="folder of the training run; with it the card is written")
    parser.add_argument("--before", type=Path, help="weights the run started from, to compare with on the card")
    args = parser.parse_args()
    torch.set_num_threads(1)
    reader, stories = Reader(args.model), read_held_out(args.held_out)
    if args.run and args.before:
        template = Path(__file__).with_name("card.md").read_text()
        (args.model / "README.md").write_text(
            fill_card(reader, Reader(args.before), args.model, stories, args.run, template)
        )
        return
    total, each = bits_per_byte(reader, stories)
    print(f"{total:.3f} bits per byte; each {', '.join(f'{value:.3f}' for value in each)}")
    print(", ".join(f"{name} {share:.0%}" for name, share in coherence(reader).items()))
    print(f"{weight_megabytes(args.model):.2f} MB\n\n{reader.tell_greedily('Once upon a time')}")
    for seed in range(4):
        print(f"\n[{seed}] {reader.tell(seed).text}")


if __name__ == "__main__":
    main()
