"""`ridgeline translate` translates texts with an encoder-decoder model, one translation per line."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from ridgeline.cli import options
from ridgeline.cli.console import clean, one_line, print_json, read_text, say
from ridgeline.cli.flags import with_flags
from ridgeline.cli.options import report_model_choice
from ridgeline.cli.text_request import SPEECH_MODEL_ERROR, SamplingFlags, check_room, load, report_ignored_config
from ridgeline.core.checkpoint import open_source
from ridgeline.core.models import SPEECH, family_of
from ridgeline.engine import Completion, EngineSettings, SamplingParams
from ridgeline.util.json_data import json_select

BUILTIN = "translate"
_TEXTS = "The texts to translate, each on its own; - reads standard input, one text per line."
_MODEL = (
    "An encoder-decoder model: a checkpoint folder (T5, BART, Marian), an id in the Hugging Face "
    "cache, or the built-in `translate`, English to French. A model for several tasks reads the task"
    ' in the text: FLAN-T5 expects "translate English to German: ...".'
)


@with_flags
def translate(
    texts: Annotated[list[str], typer.Argument(help=_TEXTS, metavar="TEXT...", show_default=False)],
    model: Annotated[str, typer.Option("--model", "-m", help=_MODEL, callback=report_model_choice)] = BUILTIN,
    *,
    sampling: SamplingFlags,
    dummy_weights: options.DummyWeights = False,
    weights: options.RunWeights = None,
    kv: options.RunKV = None,
    threads: options.Threads = None,
    device: options.RunDevice = "cpu",
    as_json: options.Json = False,
) -> None:
    """Translate texts with an encoder-decoder model, one line on stdout for each.

    All texts run together in one continuous batch. Decoding follows the model's generation_config.json unless options
    say otherwise; the built-in model decodes greedily. Beam search is not supported: a note says so if a model's config
    requests it.
    """
    sources = _lines(texts)
    _check_translates(model)
    llm = load(
        model, EngineSettings(weights=weights, kv=kv, device=device), dummy_weights=dummy_weights, threads=threads
    )
    report_ignored_config(llm)
    params = sampling.params(llm.loaded.defaults)
    if sampling.max_tokens is not None:
        check_room(llm, (), params)
    full = [text for text in sources if text]
    completions = iter(llm.generate(full, params) if full else ())
    answers = [(text, next(completions) if text else None) for text in sources]
    if as_json:
        print_json({"model": model, "translations": [_json(*answer) for answer in answers]})
        return
    for text, completion in answers:
        print(clean("" if completion is None else _format_translation(text, completion, params)))


def _check_translates(model: str) -> None:
    """Raise ValueError for a decoder-only or a speech model. The engine itself refuses an encoder-only model."""
    family = family_of(open_source(model).config)
    if family in SPEECH:
        raise ValueError(SPEECH_MODEL_ERROR)
    if family.generates and not family.is_encoder_decoder:
        raise ValueError(f"{model} has no encoder; use ridgeline run, or give an encoder-decoder model")


def _lines(texts: Sequence[str]) -> list[str]:
    """Return the texts, those of standard input line by line; empty lines are preserved.

    Raises:
        ValueError: If there is no text.
    """
    lines = [line for text in texts for line in (read_text(text).splitlines() if text == "-" else [text])]
    lines = [line.strip() for line in lines]
    if not any(lines):
        raise ValueError("there is nothing to translate; give a text of at least one character")
    return lines


def _format_translation(text: str, completion: Completion, params: SamplingParams) -> str:
    """Return the translation of a text on one line.

    Raises:
        ValueError: If the request failed.
    """
    choice = completion.choices[0]
    if choice.error is not None:
        raise ValueError(f"{text!r} failed: {choice.error}")
    if choice.finish == "length":
        more = "give --max-tokens" if len(choice.tokens) == params.max_tokens else "the context is full"
        say(f"cut off after {len(choice.tokens)} tokens: {one_line(text)!r}; {more}")
    return " ".join(choice.text.split())


def _json(text: str, completion: Completion | None) -> dict[str, Any]:
    if completion is None:
        return {"text": text, "translation": "", "token_ids": [], "finish_reason": "stop", "prompt_tokens": 0}
    choice = completion.choices[0]
    fields = json_select(choice, "translation=text", "token_ids", "finish_reason=finish")
    return {"text": text, **fields, "prompt_tokens": len(completion.prompt_ids), **json_select(choice, "?error")}
