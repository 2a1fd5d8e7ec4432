"""Train `mixture`: 8 experts, 2 a token, on stories, French and Shakespeare. Time, checkpoints and SIGTERM as of
tales."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tokenizers import Tokenizer

from zoo.mixture.model import Mixtral, Shape
from zoo.mixture.text import Source, read_sources
from zoo.tales.corpus import Mixture, Stream, documents, pack
from zoo.tales.export import export
from zoo.tales.tokenizer import train_tokenizer
from zoo.tales.train import Trainer, begin, loop

SHARES = (0.42, 0.38, 0.20)  # of rows: stories, French, Shakespeare
TOKENIZER_BYTES = 1_000_000  # of each source, so that none has the vocabulary to itself


def tokenizer_of(run: Path, sources: tuple[Source, ...], vocab_size: int) -> Tokenizer:
    """The run's tokenizer, trained on first use on as much of each source."""
    path = run / "tokenizer.json"
    if not path.exists():
        texts = []
        for source in sources:
            taken = 0
            for text in source.training:
                if taken > TOKENIZER_BYTES:
                    break
                texts.append(text)
                taken += len(text.encode())
        train_tokenizer(texts, vocab_size).save(str(path))
    return Tokenizer.from_file(str(path))


def train(args: argparse.Namespace) -> None:
    """Read, make ready, train, export."""
    sources, shape = read_sources(args.data, args.french, args.held_out), Shape()
    context = shape.max_position_embeddings
    tokenizer = tokenizer_of(args.run, sources, shape.vocab_size)
    facts = {s.name: {"documents": len(s.training), "mb": sum(map(len, s.training)) / 1e6} for s in sources}
    (args.run / "corpus.json").write_text(json.dumps(facts, indent=2) + "\n")
    # Half of it are experts, whose rows differ in number from step to step: there is little to compile.
    trainer = Trainer(Mixtral(shape, args.dropout), args, compiled=False)
    trainer.load()
    first = trainer.progress.step
    streams = [
        Stream(lambda source=source: source.training, tokenizer, context, first + index)  # type: ignore[misc]
        for index, source in enumerate(sources)
    ]
    validation = {s.name: list(pack(documents(s.held_back, tokenizer, context), context)) for s in sources}
    loop(trainer, Mixture(streams, first), validation, lambda done: SHARES, args)
    export(trainer.average.state_dict(), shape, tokenizer, args.run / "final")


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with tinystories-4MB.txt, tinyshakespeare.txt")
    parser.add_argument("--french", type=Path, required=True, help="Tatoeba's fra-eng.zip")
    parser.add_argument("--held-out", type=Path, required=True, help="stories never to train on")
    begin(parser, train)


if __name__ == "__main__":
    main()
