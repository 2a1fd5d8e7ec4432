"""`ridgeline run`: the main job. A model, a prompt, the text as it comes, and what it took."""

import dataclasses
import json
import sys
from typing import Annotated, Any

import typer

from ridgeline.cli.loading import err, loading_bar
from ridgeline.cli.sizes import parse_bytes
from ridgeline.cli.threads import set_threads
from ridgeline.engine import LLM, EngineSettings, SamplingParams
from ridgeline.engine.account import Account, Phase
from ridgeline.engine.result import Choice, Completion
from ridgeline.engine.scheduler import Limits

_SAMPLING, _ENGINE = "Sampling", "Engine"


def run(
    model: Annotated[str, typer.Argument(help="A checkpoint folder in the Hugging Face layout, a built-in model "
                                              "(tales), or with --dummy-weights any config.json.")],
    prompt: Annotated[str, typer.Argument(help="The text to continue, or the message to answer where the model has a "
                                               "chat template. - reads it from standard input.")],
    max_tokens: Annotated[int, typer.Option(help="Most tokens to generate.", rich_help_panel=_SAMPLING)] = 256,
    temperature: Annotated[float | None, typer.Option(help="Divides the logits: 0 always takes the likeliest token, "
                                                           "1 samples as the model says.", rich_help_panel=_SAMPLING)] = None,
    top_k: Annotated[int | None, typer.Option(help="Keep the k likeliest tokens; 0 keeps all.", rich_help_panel=_SAMPLING)] = None,
    top_p: Annotated[float | None, typer.Option(help="Keep the fewest tokens that reach this probability together.", rich_help_panel=_SAMPLING)] = None,
    min_p: Annotated[float | None, typer.Option(help="Drop tokens less likely than this share of the likeliest.", rich_help_panel=_SAMPLING)] = None,
    repetition_penalty: Annotated[float | None, typer.Option(help="Above 1: what prompt or text have is less likely.", rich_help_panel=_SAMPLING)] = None,
    frequency_penalty: Annotated[float | None, typer.Option(help="Taken from a logit for each time its token came.", rich_help_panel=_SAMPLING)] = None,
    presence_penalty: Annotated[float | None, typer.Option(help="Taken from a logit once its token came.", rich_help_panel=_SAMPLING)] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same text.", rich_help_panel=_SAMPLING)] = None,
    n: Annotated[int, typer.Option("-n", "--n", help="How many completions of the prompt.", rich_help_panel=_SAMPLING)] = 1,
    stop: Annotated[list[str] | None, typer.Option(help="A string that ends the text; may be repeated.", rich_help_panel=_SAMPLING)] = None,
    min_tokens: Annotated[int, typer.Option(help="No end before so many tokens.", rich_help_panel=_SAMPLING)] = 0,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after the model's end token.", rich_help_panel=_SAMPLING)] = False,
    logprobs: Annotated[int | None, typer.Option(help="With --json: log-probabilities of each token and of so many "
                                                      "alternatives, raw and after processing.", rich_help_panel=_SAMPLING)] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the prompt as it is, without the chat template.")] = False,
    system: Annotated[str | None, typer.Option(help="A system message, for models with a chat template.")] = None,
    dummy_weights: Annotated[bool, typer.Option("--dummy-weights", help="Random weights: for speed, not sense.")] = False,
    kv_memory: Annotated[str | None, typer.Option(help="Memory for keys and values, like 512MiB; by default half of what "
                                                       "is available, at most 4GiB.", rich_help_panel=_ENGINE)] = None,
    max_batch_tokens: Annotated[int, typer.Option(help="Positions a step may run.", rich_help_panel=_ENGINE)] = 2048,
    chunk: Annotated[int | None, typer.Option(help="Prompt positions of one request a step may run.", rich_help_panel=_ENGINE)] = None,
    page_size: Annotated[int, typer.Option(help="Positions a KV page holds.", rich_help_panel=_ENGINE)] = 16,
    prefix_cache: Annotated[bool, typer.Option(help="Keep and share the KV pages of equal prefixes.", rich_help_panel=_ENGINE)] = True,
    threads: Annotated[int | None, typer.Option(help="Threads to compute with; by default all cores, one for a small model.", rich_help_panel=_ENGINE)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
) -> None:  # fmt: skip
    """Generate text: streams to stdout, then says on stderr what prefill and decode took.

    Sampling is what the model's generation_config.json says unless flags say otherwise.
    """
    text = sys.stdin.read() if prompt == "-" else prompt
    settings = EngineSettings(
        kv_bytes=None if kv_memory is None else parse_bytes(kv_memory),
        limits=Limits(tokens=max_batch_tokens, chunk=chunk),
        page_size=page_size,
        prefix_cache=prefix_cache,
    )
    with loading_bar(model) as progress:
        llm = LLM(model, settings, dummy_weights=dummy_weights, progress=progress)
    flags = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "frequency_penalty": frequency_penalty,
        "presence_penalty": presence_penalty,
    }
    params = dataclasses.replace(
        llm.loaded.defaults,
        **{name: value for name, value in flags.items() if value is not None},
        max_tokens=max_tokens,
        seed=seed,
        n=n,
        stop=tuple(stop or ()),
        min_tokens=min_tokens,
        ignore_eos=ignore_eos or dummy_weights,
        logprobs=logprobs,
    )
    ids = _prompt_ids(llm, text, system, raw)
    threads = set_threads(threads, llm.loaded.weight_bytes)
    account = Account(llm.loaded.model)
    llm.engine.on_step = account.add
    completion = _generate(llm, ids, params, quiet=as_json or dummy_weights)
    if as_json:
        print(json.dumps(_as_json(completion, account, params)))
    else:
        _say(llm, completion, account, threads, dummy_weights)
    if all(choice.error is not None for choice in completion.choices):
        raise ValueError(f"the request failed: {completion.choices[0].error}")


def _prompt_ids(llm: LLM, text: str, system: str | None, raw: bool) -> list[int]:
    if raw or llm.loaded.templates is None:
        if system is not None:
            raise ValueError("--system needs a chat template; this model has none, or --raw is given")
        return llm.encode(text)
    messages = [{"role": "system", "content": system}] if system is not None else []
    return llm.encode_chat([*messages, {"role": "user", "content": text}])


def _generate(llm: LLM, ids: list[int], params: SamplingParams, *, quiet: bool) -> Completion:
    """Run the request; the first choice streams, further ones are printed when they are done."""
    completion = Completion.empty(ids, params.n)
    for event in llm.stream(ids, params):
        completion.take([event])
        if not quiet and event.choice == 0:
            if event.reasoning:
                err.print(event.reasoning, end="", style="dim", markup=False, soft_wrap=True)
            print(event.text, end="", flush=True)
    if not quiet:
        print()
        for choice in completion.choices[1:]:
            print(f"\n--- {choice.index + 1} of {params.n} ---\n{choice.text}")
    return completion


def _say(llm: LLM, completion: Completion, account: Account, threads: int, dummy: bool) -> None:
    if dummy:
        err.print(f"random weights: {len(completion.choices[0].tokens)} tokens of no sense were generated")
    err.print()
    err.print(_account_line("prefill", account.prefill), markup=False)
    err.print(_account_line("decode", account.decode), markup=False)
    loaded = llm.loaded
    err.print(f"{loaded.layout.describe(loaded.model.context)}; {threads} thread{'s'[: threads > 1]}", style="dim")


def _account_line(name: str, phase: Phase) -> str:
    return (
        f"{name:8s}{phase.tokens:6d} tokens {phase.seconds:8.3f} s {phase.tokens_per_second:9.1f} tok/s "
        f"{phase.bytes_per_second / 1e9:7.2f} GB/s {phase.flops / max(phase.seconds, 1e-9) / 1e9:8.1f} GFLOP/s"
    )


def _as_json(completion: Completion, account: Account, params: SamplingParams) -> dict[str, Any]:
    first, *others = (_choice_json(choice, params) for choice in completion.choices)
    phases = {"prefill": account.prefill, "decode": account.decode}
    timing = {
        name: {
            "tokens": phase.tokens,
            "seconds": phase.seconds,
            "tokens_per_second": phase.tokens_per_second,
            "bytes_per_second": phase.bytes_per_second,
        }
        for name, phase in phases.items()
    }
    result = {**first, "prompt_tokens": len(completion.prompt_ids), "timing": timing}
    return {**result, "choices": [first, *others]} if others else result


def _choice_json(choice: Choice, params: SamplingParams) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "text": choice.text,
        "token_ids": choice.token_ids,
        "finish_reason": choice.finish,
    }
    if choice.reasoning:
        fields |= {"reasoning": choice.reasoning, "reasoning_tokens": choice.reasoning_tokens}
    if choice.error is not None:
        fields["error"] = choice.error
    if params.logprobs is not None:
        fields["logprobs"] = [dataclasses.asdict(sampled) for sampled in choice.tokens]
    return fields
