"""Measure an exported `translate` on the pairs that it never saw, in the engine, and write its model card.

sacreBLEU (Post, 2018) over the 2,000 held-out pairs, one reference each, greedy; a full stop more or less counts.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from string import Template

import sacrebleu
import torch

from ridgeline.engine import LLM, SamplingParams
from zoo.translate.model import Shape
from zoo.translate.pairs import HELD_OUT, Pair, divide, read_pairs

CARD = Path(__file__).parent / "card.md"
SHOWN = 20  # pairs in the card, the first of the held-out ones
GREEDY = SamplingParams(temperature=0.0, max_tokens=96)


def answers(llm: LLM, texts: Sequence[str]) -> list[str]:
    """The model's translations."""
    return [completion.choices[0].text for completion in llm.generate(list(texts), GREEDY)]


def score(told: Sequence[str], pairs: Sequence[Pair]) -> dict[str, object]:
    """sacreBLEU and chrF with their signatures, and how many are word for word the reference."""
    references = [[pair.french for pair in pairs]]
    bleu = sacrebleu.BLEU()
    corpus = bleu.corpus_score(list(told), references)
    return {
        "bleu": round(corpus.score, 1),
        "signature": str(bleu.get_signature()),
        "chrf": round(sacrebleu.corpus_chrf(list(told), references).score, 1),
        "exact": sum(answer == pair.french for answer, pair in zip(told, pairs, strict=True)),
        "pairs": len(pairs),
    }


def card(folder: Path, run: Path, facts: dict[str, object], samples: Sequence[tuple[str, str, str]]) -> str:
    """The model card."""
    state = torch.load(run / "checkpoint.pt", weights_only=True)
    weights = folder / "model.safetensors"
    rows = "\n".join(f"| {english} | {answer} | {french} |" for english, answer, french in samples)
    held_out = HELD_OUT.removesuffix(".")
    return Template(CARD.read_text()).substitute(
        facts,
        steps=f"{state['progress']['step']:,}",
        minutes=f"{state['progress']['seconds'] / 60:.0f}",
        megabytes=f"{weights.stat().st_size / 1e6:.1f}",
        parameters=f"{sum(p.numel() for p in state['average'].values()) / 1e6:.2f}",
        vocabulary=f"{Shape().vocab_size:,}",
        held_out=held_out,
        rows=rows,
    )


def main() -> None:
    """Parse the command line, measure, write README.md into the model's folder."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--data", type=Path, required=True, help="fra-eng.zip")
    parser.add_argument("--model", type=Path, required=True, help="the exported folder")
    parser.add_argument("--run", type=Path, required=True, help="folder of the training run")
    args = parser.parse_args()
    pairs = divide(read_pairs(args.data)).test
    llm = LLM(str(args.model))
    told = answers(llm, [pair.english for pair in pairs])
    facts = score(told, pairs)
    (without,) = answers(llm, [HELD_OUT.removesuffix(".")])
    facts["held_out_answer"] = without
    print(json.dumps(facts))
    shown = [(pair.english, answer, pair.french) for pair, answer in zip(pairs, told, strict=True)][:SHOWN]
    (args.model / "README.md").write_text(card(args.model, args.run, facts, shown))


if __name__ == "__main__":
    main()
