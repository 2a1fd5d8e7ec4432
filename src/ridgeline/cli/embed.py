"""`ridgeline embed` turns texts into vectors and compares them, or scores texts for a query with a reranker."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ridgeline.cli import options
from ridgeline.cli.console import loading_bar, print_json, read_text, say, say_definition, say_warnings
from ridgeline.cli.options import parse_tokens
from ridgeline.engine.embedding_llm import EmbeddingLLM, Vector, similarity
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.scheduler import Limits
from ridgeline.util.document.printable import printable

_TEXTS = "The texts; - reads them from standard input, one per line."
_MODEL = "A folder with an embedding model or a reranker, or an id in the Hugging Face cache."
_FILE = "A file with more texts, one per line."
_QUERY = (
    "Treat the first text as the query and the others as documents, each with the prompt that the model has for it."
)
_PROMPT = "The name of one of the model's own prompts, to put before every text."
_CUT = "Shorten each vector to its first N numbers, for models trained for that (Matryoshka)."
_SHOWN = 72  # characters of a text
_NUMBERS = 4  # of a vector


def embed(
    texts: Annotated[list[str] | None, typer.Argument(help=_TEXTS, show_default=False)] = None,
    *,
    model: Annotated[
        str, typer.Option("--model", help=_MODEL, callback=options.report_model_choice, show_default=False)
    ],
    input_file: Annotated[Path | None, typer.Option("--input-file", help=_FILE)] = None,
    search: Annotated[bool, typer.Option("--search", help=_QUERY)] = False,
    prompt: Annotated[str | None, typer.Option("--prompt", help=_PROMPT)] = None,
    dimensions: Annotated[int | None, typer.Option(help=_CUT)] = None,
    dummy_weights: options.DummyWeights = False,
    weights: options.RunWeights = None,
    kv: options.RunKV = None,
    max_batch_tokens: options.MaxBatchTokens = "2k",
    threads: options.Threads = None,
    device: options.RunDevice = "cpu",
    as_json: options.Json = False,
) -> None:
    """Compute embeddings of texts, or rank texts with a reranker.

    With several texts, the first is compared with the others: 1 is the same direction, 0 is nothing in common. A
    reranker reads two texts together: the first is the query, and the others get its scores. --json prints the vectors
    themselves.
    """
    if search and prompt is not None:
        raise ValueError("--search already puts the model's own prompts before the texts; leave out --prompt")
    every = _read(texts or [], input_file)
    limits = Limits(tokens=parse_tokens(max_batch_tokens, "--max-batch-tokens"))
    settings = EngineSettings(limits=limits, weights=weights, kv=kv, device=device)
    with loading_bar(model) as progress:
        embedder = EmbeddingLLM(model, settings, dummy_weights=dummy_weights, threads=threads, progress=progress)
    say_definition(embedder.loaded.definition)
    say_warnings(embedder.loaded.warnings)
    started = time.perf_counter()
    if embedder.info.labels:
        _check_scored(every, search=search, prompt=prompt, dimensions=dimensions)
        scores = embedder.score(every[0], every[1:])
        _show_scores(every, scores, as_json=as_json)
    else:
        if embedder.texts.embedding is None and embedder.info.pooling == "mean":
            say("the folder does not state a pooling mode; using mean pooling")
        vectors = _vectors(embedder, every, search=search, prompt=prompt, dimensions=dimensions)
        _show_vectors(every, vectors, as_json=as_json)
    _say_speed(embedder, len(every), time.perf_counter() - started)
    if dummy_weights:
        say("the weights are random, so the similarities are meaningless")


def _read(texts: list[str], file: Path | None) -> list[str]:
    """Return all texts in order, without the empty lines of standard input and of the file.

    Raises:
        ValueError: If there are none, a text given as an argument is empty, or the input is not UTF-8.
    """
    every: list[str] = []
    for text in texts:
        if not text.strip():
            raise ValueError("one of the texts is empty; give at least one character for each")
        every += read_text("-").splitlines() if text == "-" else [text]
    if file is not None:
        try:
            every += file.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise ValueError(f"{file} is not text in UTF-8: {error}; convert it to UTF-8 first") from None
    every = [text for text in every if text.strip()]
    if not every:
        raise ValueError("no text was given; give one, - for standard input, or --input-file")
    return every


def _vectors(
    embedder: EmbeddingLLM, texts: list[str], *, search: bool, prompt: str | None, dimensions: int | None
) -> list[Vector]:
    if not search:
        return embedder.embed(texts, prompt, dimensions=dimensions)
    query = embedder.embed(texts[:1], "query", dimensions=dimensions, what="query")
    return [*query, *embedder.embed(texts[1:], "document", dimensions=dimensions, what="document")]


def _check_scored(texts: list[str], *, search: bool, prompt: str | None, dimensions: int | None) -> None:
    if search or prompt is not None or dimensions is not None:
        raise ValueError(
            "a reranker scores the texts without prompts or vectors; leave out --search, --prompt and --dimensions"
        )
    if len(texts) < 2:
        raise ValueError("a reranker scores documents for a query; give the query first, then at least one document")


def _show_vectors(texts: list[str], vectors: list[Vector], *, as_json: bool) -> None:
    alike = [similarity(vectors[0].values, vector.values) for vector in vectors]
    if as_json:
        rows: list[dict[str, Any]] = [
            {"text": text, "tokens": vector.tokens, "similarity": cosine, "embedding": vector.values.tolist()}
            for text, vector, cosine in zip(texts, vectors, alike, strict=True)
        ]
        print_json({"dimensions": len(vectors[0].values), "texts": rows})
        return
    if len(texts) == 1:
        first = ", ".join(f"{number:.4f}" for number in vectors[0].values[:_NUMBERS])
        print(f"{len(vectors[0].values)} dimensions of {vectors[0].tokens} tokens: {first}, ...")
        return
    print(f"        {_shown(texts[0])}")
    for text, cosine in sorted(zip(texts[1:], alike[1:], strict=True), key=lambda pair: -pair[1]):
        print(f"{cosine:7.4f} {_shown(text)}")


def _show_scores(texts: list[str], scores: list[float], *, as_json: bool) -> None:
    ranked = sorted(zip(texts[1:], scores, strict=True), key=lambda pair: -pair[1])
    if as_json:
        rows = [{"text": text, "score": score} for text, score in zip(texts[1:], scores, strict=True)]
        print_json({"query": texts[0], "documents": rows})
        return
    print(f"        {_shown(texts[0])}")
    for text, score in ranked:
        print(f"{score:7.4f} {_shown(text)}")


def _shown(text: str) -> str:
    line = " ".join(printable(text).split())
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 3]}..."


def _say_speed(embedder: EmbeddingLLM, texts: int, seconds: float) -> None:
    """Report the number of texts, tokens and steps, and the speed without loading."""
    stats = embedder.engine.stats
    say(
        f"{texts:,} text{'s' * (texts > 1)}, {stats.computed_tokens:,} tokens in {stats.steps:,} "
        f"step{'s' * (stats.steps > 1)}: {seconds:.3f} s, {texts / seconds:,.1f} texts/s, "
        f"{stats.computed_tokens / seconds:,.0f} tok/s, {embedder.threads} thread{'s' * (embedder.threads > 1)}"
    )
