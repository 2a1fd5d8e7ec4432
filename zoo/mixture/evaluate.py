"""Measure an exported `mixture` on documents that it never saw, in the engine, and write its model card: loss by
source, whose experts they are, and samples."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from pathlib import Path
from string import Template

import torch
from tokenizers import Tokenizer

from ridgeline.core.models.common.parameter_breakdown import parameter_breakdown
from ridgeline.engine import LLM, SamplingParams
from ridgeline.insight.trace.expert_sources import ExpertSources, expert_sources
from ridgeline.insight.trace.views.expert_sources_view import sources_view
from ridgeline.util.document.elements import Document
from ridgeline.util.document.terminal_renderer import plain
from zoo.mixture.text import Source, read_sources
from zoo.tales.corpus import documents

CARD = Path(__file__).parent / "card.md"
SCORED = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, prompt_logprobs=0)
BEGINNINGS = {"stories": "Once upon a time", "French": "Je ne", "Shakespeare": "KING"}
SEEDS = range(2)
WORDS = 120  # tokens a sample


def losses(llm: LLM, source: Source, tokenizer: Tokenizer) -> tuple[float, float]:
    """Nats a token and bits a byte of the documents held back, cut to the context between paragraphs, ends included."""
    pieces = documents(source.held_back, tokenizer, llm.loaded.model.context - 2)
    scored = [score for one in llm.generate(pieces, SCORED) for score in one.prompt_logprobs or () if score is not None]
    nats = -sum(score.logprob for score in scored)
    size = sum(len(text.encode()) for text in source.held_back)
    return nats / len(scored), nats / math.log(2) / size


def whose(llm: LLM, sources: tuple[Source, ...]) -> ExpertSources:
    """How the experts are shared by the documents held back of each source."""
    texts = {source.name: [i for text in source.held_back for i in llm.tokenizer.encode(text)] for source in sources}
    return expert_sources(llm.loaded.model, texts)


def samples(llm: LLM) -> str:
    """What the model goes on with, by source, each quoted; with the folder's own sampling, seed by seed."""
    params = [dataclasses.replace(llm.loaded.defaults, seed=seed, max_tokens=WORDS) for seed in SEEDS]
    parts = []
    for name, prompt in BEGINNINGS.items():
        told = llm.generate([prompt] * len(params), params)
        quoted = ("\n".join(f"> {line}".rstrip() for line in f"{prompt}{one.text}".split("\n")) for one in told)
        parts.append(f"### {name}\n\n" + "\n\n---\n\n".join(quoted))
    return "\n\n".join(parts)


def figures(llm: LLM, sources: tuple[Source, ...], run: Path) -> dict[str, str]:
    """All that the card says, by the names of its template."""
    tokenizer = Tokenizer.from_file(str(run / "tokenizer.json"))
    corpus = json.loads((run / "corpus.json").read_text())
    rows = []
    for source in sources:
        nats, bits = losses(llm, source, tokenizer)
        facts = corpus[source.name]
        held = sum(len(text) for text in source.held_back) / 1e3
        rows.append(
            f"| {source.name} | {facts['documents']:,} | {facts['mb']:.1f} | {held:.0f} | {nats:.3f} | {bits:.3f} |"
        )
    found, counted = whose(llm, sources), parameter_breakdown(llm.loaded.model)
    state = torch.load(run / "checkpoint.pt", weights_only=True)["progress"]
    apart, told = [layer.apart for layer in found.layers], [layer.information for layer in found.layers]
    return {
        "rows": "\n".join(rows),
        "experts": plain(Document("$ ridgeline trace mixture ... --experts --source ...", sources_view(found)), 100),
        "apart": ", ".join(f"{one.found:.2f}" for one in apart),
        "chance": ", ".join(f"{one.shuffled:.2f}" for one in apart),
        "most": f"{max(one.most for one in apart):.2f}",
        "told": ", ".join(f"{one.found:.0%}" for one in told),
        "samples": samples(llm),
        "parameters": f"{counted.total:,}",
        "active": f"{counted.active:,}",
        "steps": f"{state['step']:,}",
        "tokens": f"{state['tokens'] / 1e6:.1f}",
        "minutes": f"{state['seconds'] / 60:.0f}",
        "speed": f"{state['tokens'] / state['seconds']:,.0f}",
    }


def main() -> None:
    """Parse the command line, measure, write README.md into the model's folder."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with tinystories-4MB.txt, tinyshakespeare.txt")
    parser.add_argument("--french", type=Path, required=True, help="Tatoeba's fra-eng.zip")
    parser.add_argument("--held-out", type=Path, required=True, help="stories never to train on")
    parser.add_argument("--model", type=Path, required=True, help="the exported folder")
    parser.add_argument("--run", type=Path, required=True, help="folder of the training run")
    args = parser.parse_args()
    sources = read_sources(args.data, args.french, args.held_out)
    said = figures(LLM(str(args.model)), sources, args.run)
    weights = args.model / "model.safetensors"
    card = Template(CARD.read_text()).substitute(said, megabytes=f"{weights.stat().st_size / 1e6:.1f}")
    (args.model / "README.md").write_text(card)
    print(said["rows"], said["experts"], sep="\n\n")


if __name__ == "__main__":
    main()
