"""`ridgeline run`: the main job. A model, a prompt, the text as it comes, and what it took."""

import json
import sys
from typing import Annotated

import typer

from ridgeline.cli import engine_options, options
from ridgeline.cli.amounts import parse_tokens
from ridgeline.cli.device import device_named
from ridgeline.cli.prompt import check_room, prompt_ids, read_prompt, say_if_bytes
from ridgeline.cli.report import account_lines, completion_json
from ridgeline.cli.terminal import loading_bar, say
from ridgeline.document.terminal import printable
from ridgeline.engine import LLM, Completion, SamplingParams
from ridgeline.trace.account import Account
from ridgeline.trace.verdict import verdict


def run(
    model: options.Model,
    prompt: options.Prompt,
    max_tokens: engine_options.MaxTokens256 = None,
    temperature: engine_options.Temperature = None,
    top_k: engine_options.TopK = None,
    top_p: engine_options.TopP = None,
    min_p: engine_options.MinP = None,
    repetition_penalty: engine_options.RepetitionPenalty = None,
    frequency_penalty: engine_options.FrequencyPenalty = None,
    presence_penalty: engine_options.PresencePenalty = None,
    seed: engine_options.Seed = None,
    n: Annotated[int, typer.Option("-n", "--n", help="How many completions of the prompt.")] = 1,
    stop: engine_options.Stop = None,
    min_tokens: engine_options.MinTokens = 0,
    ignore_eos: engine_options.IgnoreEos = False,
    logprobs: Annotated[
        int | None,
        typer.Option(help="With --json: log-probabilities of each token and so many others, raw and processed."),
    ] = None,
    raw: options.Raw = False,
    system: options.System = None,
    dummy_weights: options.DummyWeights = False,
    kv_memory: engine_options.KVMemory = None,
    max_batch_tokens: engine_options.MaxBatchTokens = "2k",
    chunk: engine_options.Chunk = None,
    page_size: engine_options.PageSize = 16,
    prefix_cache: engine_options.PrefixCache = True,
    threads: options.Threads = None,
    as_json: options.Json = False,
) -> None:
    """Generate text: streams to stdout, then says on stderr what prefill and decode took.

    Sampling is what the model's generation_config.json says unless flags say otherwise.
    """
    text = read_prompt(prompt)
    if logprobs is not None and not as_json:
        raise ValueError("--logprobs is shown with --json; give both")
    settings = engine_options.engine_settings(kv_memory, max_batch_tokens, chunk, page_size, prefix_cache)
    with loading_bar(model) as progress:
        llm = LLM(model, settings, dummy_weights=dummy_weights, threads=threads, progress=progress)
    say_if_bytes(llm)
    params = engine_options.sampling_params(
        llm.loaded.defaults,
        max_tokens=parse_tokens("256" if max_tokens is None else max_tokens, "--max-tokens"),
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        frequency_penalty=frequency_penalty,
        presence_penalty=presence_penalty,
        seed=seed,
        n=n,
        stop=None if stop is None else tuple(stop),
        min_tokens=min_tokens,
        ignore_eos=ignore_eos or dummy_weights,
        logprobs=logprobs,
    )
    ids = prompt_ids(llm, text, system, raw)
    if max_tokens is not None:
        check_room(llm, len(ids), params, more_memory="--kv-memory")
    for key in llm.loaded.unread:
        say(f"the model's config.json has {key!r}, which nothing reads")
    for key in llm.loaded.unfollowed:
        say(f"the model's generation_config.json asks for {key}, which this version does not do")
    account = Account(llm.loaded.model)
    llm.engine.on_step = account.add
    completion = _generate(llm, ids, params, quiet=as_json or dummy_weights)
    failed = [choice.error for choice in completion.choices if choice.error is not None]
    if len(failed) == len(completion.choices):
        raise ValueError(f"the request failed: {failed[0]}")
    if as_json:
        print(json.dumps(completion_json(completion, account, logprobs=logprobs is not None)))
        return
    if dummy_weights:
        count = sum(len(choice.tokens) for choice in completion.choices)
        say(f"random weights: {count} meaningless tokens were generated")
    device = device_named("this", llm.threads)
    for line in (*account_lines(account), *verdict(account, account.price, device)):
        say(line)
    layout = llm.loaded.layout.describe(llm.loaded.model.context)
    say(f"{layout}; {llm.threads} thread{'s' if llm.threads > 1 else ''}", style="dim")


def _generate(llm: LLM, ids: list[int], params: SamplingParams, *, quiet: bool) -> Completion:
    """Run the request; the first choice streams, further ones are printed when they are done.

    A file gets the text as it is; on a terminal it steers nothing.
    """
    shown = printable if sys.stdout.isatty() else str
    completion = Completion.empty(ids, params.n)
    for event in llm.stream(ids, params):
        completion.take([event])
        if not quiet and event.choice == 0:
            if event.reasoning:
                say(event.reasoning, end="", style="dim")
            print(shown(event.text), end="", flush=True)
    if not quiet:
        print(flush=True)
        for choice in completion.choices[1:]:
            print(f"\n--- {choice.index + 1} of {params.n} ---\n{shown(choice.text)}")
    return completion
