"""Speculation: guesses change how many steps a text takes, and not a token of it, whatever else a request asks for."""

import json
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import ridgeline
from engine.small_models import LLAMA, assert_nothing_held, small_model
from ridgeline.backends import backend_of
from ridgeline.backends.cpu.cpu_graphs import CpuGraphs
from ridgeline.backends.cpu.library import library
from ridgeline.core.models import ModelRefused
from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.engine import LLM, Completion, EngineSettings, SamplingParams, StructuredOutputs
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.request import Request
from ridgeline.engine.runner import Runner
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.speculation.acceptance import Acceptance, SpeculationGate, expected_tokens
from ridgeline.engine.speculation.config import Speculation, from_vllm_json, named
from ridgeline.engine.speculation.draft_model import ModelDrafter
from ridgeline.engine.speculation.ngram import prompt_lookup
from ridgeline.engine.speculation.speculator import Speculator
from ridgeline.price.device import Device, Efficiency
from ridgeline.price.price import Price
from support.adapters import own_widths, write_adapter
from support.drafters import ReplayDrafter
from support.engines import EagerRunner, complete, token_engine

PROMPTS = (
    "Tom had a dog. The dog liked Tom. Tom and the dog ran. Tom had a",
    "One day a girl named Ann saw a big red ball. She said",
    "The cat sat. The cat sat. The cat sat. The cat",
)
SMALL = EngineSettings(kv_bytes=2**24, seed=1)
GREEDY = SamplingParams(temperature=0.0, max_tokens=40)
SAMPLED = SamplingParams(temperature=0.9, top_p=0.95, max_tokens=40, seed=7)


# -- the same text ----------------------------------------------------------------------------------------------------

ASKED: dict[str, SamplingParams] = {
    "greedy": GREEDY,
    "sampled": SAMPLED,
    "log-probabilities": replace(SAMPLED, logprobs=3),
    "penalties": replace(SAMPLED, repetition_penalty=1.3, frequency_penalty=0.5, presence_penalty=0.2),
    "stop strings": replace(GREEDY, stop=(" the", "dog."), max_tokens=60),
    "a stop string in the text": replace(GREEDY, stop=("and",), include_stop=True),
    "no end before": replace(SAMPLED, min_tokens=30),
    "one token": replace(GREEDY, max_tokens=1),
    "two tokens": replace(GREEDY, max_tokens=2),
    "several choices": replace(SAMPLED, n=3),
    "a prompt that is scored": replace(GREEDY, prompt_logprobs=2),
    "bias": replace(SAMPLED, logit_bias={5: 3.0, 9: -50.0}),
    "a form": replace(
        SAMPLED, max_tokens=90, structured_outputs=StructuredOutputs(regex=r"((the cat|a dog) (sat|ran)\. ){8}")
    ),
    "JSON": replace(
        GREEDY,
        max_tokens=90,
        structured_outputs=StructuredOutputs(
            json={"type": "array", "items": {"enum": ["Tom", "Ann"]}, "minItems": 9, "maxItems": 9}
        ),
    ),
}  # fmt: skip
SETTINGS = {
    "": SMALL,
    "chunks": replace(SMALL, limits=Limits(tokens=9, chunk=4)),
    "crowded": replace(SMALL, kv_bytes=float(72 * 3072), page_size=4, limits=Limits(requests=8)),
    "eager, no prefixes": replace(SMALL, eager=True, prefix_cache=False),
}
WHO = ("ngram", "draft model")


def told(completions: Sequence[Completion]) -> list[Any]:
    """All that is told of answers."""
    return [(c.prompt_logprobs, [(o.text, o.tokens, o.finish, o.error) for o in c.choices]) for c in completions]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Speculation]:
    """Who guesses: prompt lookup, or the model with noise in its weights."""
    folder = tmp_path_factory.mktemp("draft") / "near"
    shutil.copytree(Path(ridgeline.__file__).parent / "data" / "builtin" / "tales", folder)
    weights, generator = load_file(folder / "model.safetensors"), torch.Generator().manual_seed(1)
    for name, tensor in weights.items():
        noise = torch.randn(tensor.shape, generator=generator) * tensor.float().std().nan_to_num(0.0)
        weights[name] = (tensor.float() + 0.1 * noise).to(tensor.dtype)
    save_file(weights, folder / "model.safetensors")
    return {
        "ngram": Speculation("ngram", 4, shortest=1),
        "draft model": Speculation("draft_model", 3, model=str(folder)),
    }


@pytest.fixture(scope="module")
def plain() -> dict[str, list[Any]]:
    llm = LLM("tales", SMALL, threads=1)
    return {name: told(llm.generate(PROMPTS, params)) for name, params in ASKED.items()}


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("setting", SETTINGS)
def test_guesses_change_nothing_of_an_answer(
    who: str, setting: str, asked: dict[str, Speculation], plain: dict[str, list[Any]]
) -> None:
    """Texts, tokens, log-probabilities and ends, to the last bit: rows are the same in any batch."""
    if library() is None:
        pytest.skip("torch rounds otherwise with other rows")
    settings = replace(SETTINGS[setting], speculation=asked[who])
    if who == "draft model":  # which keeps its keys and values in the same memory
        settings = replace(settings, kv_bytes=2 * (settings.kv_bytes or 0))
    llm = LLM("tales", settings, threads=1)
    assert llm.engine.speculator is not None
    for name, params in ASKED.items():
        before = llm.engine.stats
        assert told(llm.generate(PROMPTS, params)) == plain[name], name
        if params.max_tokens not in (1, 2):  # the last token of a request is not guessed at
            assert llm.engine.stats.drafts > before.drafts, f"nothing was guessed of {name}"
    assert sum(llm.engine.stats.accepted_at) == llm.engine.stats.accepted_tokens > 0
    assert_nothing_held(llm.engine)
    drafter = llm.engine.speculator.drafter
    if isinstance(drafter, ModelDrafter):
        drafter._ledger.check()
        assert not drafter._ledger.tables


@pytest.mark.parametrize("who", WHO)
def test_adapters_are_asked_of_every_row(who: str, asked: dict[str, Speculation], tmp_path: Path) -> None:
    """Beside the model as it is, in one step."""
    folder = write_adapter(tmp_path / "a", own_widths("tales"), ("q_proj", "v_proj", "up_proj"), std=0.2)
    settings = replace(SMALL, adapters={"a": str(folder)}, prefix_cache=False)
    names = ["a", "", "a"]
    expected = LLM("tales", settings, threads=1).generate(PROMPTS, SAMPLED, adapter=names)
    llm = LLM("tales", replace(settings, speculation=asked[who]), threads=1)
    found = llm.generate(PROMPTS, SAMPLED, adapter=names)
    assert [c.choices[0].token_ids for c in found] == [c.choices[0].token_ids for c in expected]
    assert llm.engine.stats.drafts > 0


def test_an_abort_lets_go_of_what_was_guessed(asked: dict[str, Speculation]) -> None:
    """Between two steps, with a draft model that has read the prompt."""
    llm = LLM("tales", replace(SMALL, speculation=asked["draft model"]), threads=1)
    stream = llm.stream(PROMPTS[0], GREEDY)
    for _ in range(9):
        next(stream)
    stream.close()
    assert_nothing_held(llm.engine)
    assert llm.engine.speculator is not None
    assert isinstance(llm.engine.speculator.drafter, ModelDrafter)
    assert not llm.engine.speculator.drafter._ledger.tables
    (again,) = llm.generate(PROMPTS[:1], GREEDY)
    assert again.text == LLM("tales", SMALL, threads=1).generate(PROMPTS[:1], GREEDY)[0].text


def test_a_draft_model_without_memory_guesses_nothing() -> None:
    """Its pages are for one of the requests, and answers are what they are."""
    model = small_model(LLAMA)
    drafter = drafter_of(model, positions=16)
    engine = token_engine(model, speculator=Speculator(drafter, 3, model.vocabulary))
    expected = complete(token_engine(model), [[1, 2, 3], list(range(30)), [7]])
    assert complete(engine, [[1, 2, 3], list(range(30)), [7]]) == expected
    assert 0 < engine.stats.drafts < sum(map(len, expected))
    drafter._ledger.check()


def drafter_of(model: Model, positions: int = 512, step_tokens: int = 64) -> ModelDrafter:
    from ridgeline.engine.kv.page_count import kv_layout

    return ModelDrafter(model, kv_layout(model, 1e12, 4, most_tokens=positions), step_tokens, model.context)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_model_guesses_itself_right(params: SamplingParams) -> None:
    """It draws with the numbers that the tokens will be drawn with: every guess is right, sampled or not."""
    model, prompts = small_model(LLAMA), [[1, 2, 3], [9] * 20]
    params = replace(params, max_tokens=21, ignore_eos=True)
    engine = token_engine(model, speculator=Speculator(drafter_of(model), 3, model.vocabulary))
    expected = complete(token_engine(model), prompts, params)
    assert complete(engine, prompts, params) == expected
    stats = engine.stats
    assert stats.accepted_tokens == stats.draft_tokens == 30
    assert stats.drafts == 10  # of four tokens each, after the first


def test_a_drafter_reads_long_prompts_in_parts() -> None:
    """It guesses when it has read all."""
    model, prompt = small_model(LLAMA), [token % 41 for token in range(90)]
    drafter = drafter_of(model, step_tokens=40)
    engine = token_engine(model, speculator=Speculator(drafter, 3, model.vocabulary))
    params = replace(GREEDY, max_tokens=9, ignore_eos=True)
    assert complete(engine, [prompt], params) == complete(token_engine(model), [prompt], params)
    assert engine.stats.drafts == 2  # the first two tokens after the prompt's went without guesses


# -- prompt lookup ----------------------------------------------------------------------------------------------------


def brute_force(ids: list[int], most: int, longest: int, shortest: int) -> list[int]:
    """By comparing lists."""
    for size in range(min(longest, len(ids) - 1), shortest - 1, -1):
        piece = ids[-size:]
        places = [end for end in range(size, len(ids)) if ids[end - size : end] == piece]
        if places:
            whole = [end for end in places if end + most <= len(ids)]
            first = whole[-1] if whole else places[0]
            return ids[first : first + most]
    return []


def test_prompt_lookup_finds_what_comparing_lists_finds() -> None:
    draw, found = random.Random(3), 0
    for _ in range(3000):
        ids = draw.choices(range(draw.choice((1, 2, 4, 9))), k=draw.randint(1, 30))
        shortest = draw.randint(1, 4)
        longest, most = draw.randint(shortest, 6), draw.randint(1, 6)
        guesses = prompt_lookup(np.array(ids), most, longest, shortest).tolist()
        assert guesses == brute_force(ids, most, longest, shortest), (ids, most, longest, shortest)
        found += bool(guesses)
    assert 1000 < found < 2900


# -- counts, price ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("acceptance", [0.3, 0.6, 0.9])
def test_tokens_a_step_are_those_of_the_formula(acceptance: float) -> None:
    """Of a drafter that is right so often: a geometric series (Leviathan et al., equation 1), within four standard
    errors of 100 to 300 steps."""
    model = small_model(LLAMA)
    params = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)
    answers = dict(zip([(1,), (2, 3)], complete(token_engine(model), [[1], [2, 3]], params), strict=True))

    def answer(request: Request) -> list[int]:
        return answers[tuple(request.tokens.prompt)]

    speculator = Speculator(ReplayDrafter(answer, acceptance, 41), 4, model.vocabulary)
    engine = token_engine(model, speculator=speculator)
    assert complete(engine, [[1], [2, 3]], params) == list(answers.values())
    stats = engine.stats
    assert stats.drafts == speculator.drafts > 80
    each = 1 + stats.accepted_tokens / stats.drafts
    assert abs(each - expected_tokens(acceptance, 4)) < 4 * 1.7 / stats.drafts**0.5
    assert list(stats.accepted_at) == sorted(stats.accepted_at, reverse=True)
    assert stats.output_tokens == 400


def test_a_drafter_that_fails_is_asked_no_more(caplog: pytest.LogCaptureFixture) -> None:
    """Requests that it was to help, and those after them, get the tokens that they would have without it."""
    model = small_model(LLAMA)
    params = replace(SAMPLED, max_tokens=20, ignore_eos=True)
    wanted = complete(token_engine(model), [[1], [2, 3]], params)

    class Failing(ReplayDrafter):
        calls = 0

        def draft(self, asks: Sequence[Any]) -> Sequence[Sequence[int]]:
            self.calls += 1
            if self.calls > 3:
                raise IndexError("of its own")
            return super().draft(asks)

        def forget(self, request: int) -> None:
            assert self.calls <= 3, "what it keeps may be in any state"

    drafter = Failing(lambda _: None, 0.5, 41, seed=4)
    engine = token_engine(model, speculator=Speculator(drafter, 4, model.vocabulary))
    assert complete(engine, [[1], [2, 3]], params) == wanted
    assert drafter.calls == 4
    assert [record.message for record in caplog.records] == [
        "the drafter failed, so speculative decoding is off until the engine restarts: IndexError: of its own"
    ]
    drafts = engine.stats.drafts
    assert drafts
    assert complete(engine, [[4, 5]], params) == complete(token_engine(model), [[4, 5]], params)
    assert (drafter.calls, engine.stats.drafts) == (4, drafts)
    assert_nothing_held(engine)


def test_auto_says_that_it_knows_no_price(caplog: pytest.LogCaptureFixture) -> None:
    llm = LLM("tales", EngineSettings(kv_bytes=2**24, speculation=Speculation("auto")), threads=1)
    for _ in range(2):
        llm.generate(PROMPTS[2], replace(GREEDY, max_tokens=4))
    said = [record.message for record in caplog.records]
    assert len(said) == 1
    assert "price_on(price, device), or use the method ngram" in said[0]


def test_acceptance_follows_what_is_seen() -> None:
    acceptance, draw = Acceptance(), random.Random(1)
    assert acceptance.of(1) == 0.5
    for _ in range(400):
        right = draw.random() < 0.8
        acceptance.count(1, int(right), wrong=not right)
    assert abs(acceptance.of(1) - 0.8) < 0.25
    assert abs(acceptance.of(2) - acceptance.of(1)) < 0.1, "a new request is judged by those before it"
    for _ in range(60):
        acceptance.count(1, 0, wrong=True)
    assert acceptance.of(1) < 0.1


def card(flops: float, bandwidth: float) -> Device:
    perfect = {"default": Efficiency(0.0, compute=1.0, memory=1.0)}
    return Device("c", "C", "gpu", {"fp32": flops}, bandwidth, 1e12, efficiency=perfect)


def gated(flops: float, bandwidth: float, acceptance: float) -> int:
    """Guesses of one request with three at hand, on a card with these roofs."""
    model = small_model(LLAMA)
    engine = token_engine(model)
    engine.add(GenerationRequest([1, 2, 3], GREEDY))
    engine.step()
    (request,) = engine.requests.values()
    seen = Acceptance()
    for _ in range(200):
        seen.count(request.id, 20 if acceptance == 1 else 0, wrong=acceptance < 1)
    return SpeculationGate(Price(model), card(flops, bandwidth)).most(engine.scheduler, {request: [1, 2, 3]}, seen)


def test_guesses_are_verified_where_that_is_predicted_to_pay() -> None:
    """Where weights are what a step waits for, all of them; where arithmetic is, none that may be wrong; and none where
    none are right."""
    assert gated(1e15, 1e9, 1.0) == 3
    assert gated(1e6, 1e15, 0.5) == 0
    assert gated(1e15, 1e9, 0.0) == 0


def test_a_gate_takes_the_count_with_the_most_tokens_a_second() -> None:
    """By the price of each step, beside one that decodes without guesses."""
    model, device, price = small_model(LLAMA), card(2e9, 1e9), Price(small_model(LLAMA))
    engine = token_engine(model)
    for prompt in ([1, 2, 3], [4] * 11):
        engine.add(GenerationRequest(prompt, GREEDY))
    engine.step()
    first, second = engine.requests.values()
    chosen = set()
    for right in range(1, 40):
        acceptance = Acceptance()
        for _ in range(300):
            acceptance.count(first.id, right, wrong=True)
        guesses = {first: [1] * 6}
        rates = []
        for count in range(7):
            segments = [StepSegment(1 + count, first.known + count), StepSegment(1, second.known)]
            seconds = price.price_step(device, Work.of(segments, price.reaches, 2 + count)).expected
            rates.append((1 + expected_tokens(acceptance.of(first.id), count)) / seconds)
        best = max(range(7), key=rates.__getitem__)
        most = SpeculationGate(price, device).most(engine.scheduler, guesses, acceptance)
        assert most == (best if rates[best] > 1.02 * rates[0] else 0)
        chosen.add(most)
    assert len(chosen) > 2


def test_auto_guesses_nothing_that_does_not_pay() -> None:
    """On a card where a row costs as much as a step, the engine decodes; where rows are free it guesses."""
    counts = []
    for flops, bandwidth in ((1e6, 1e15), (1e15, 1e9)):
        llm = LLM("tales", replace(SMALL, speculation=Speculation("auto", shortest=1)), threads=1)
        assert llm.engine.speculator is not None
        llm.engine.speculator.price_on(
            llm.loaded.price, replace(card(flops, bandwidth), peaks={"bf16": flops, "fp32": flops})
        )
        llm.generate(PROMPTS, GREEDY)
        counts.append(llm.engine.stats.drafts)
    assert counts[0] == 0 < counts[1]


@pytest.mark.skipif(library() is None, reason="no kernels of our own here")
def test_steps_with_guesses_are_recorded_by_their_rows() -> None:
    """Bit for bit what a forward gives, with one recording for all steps of as many rows, and priced as such."""
    from engine.test_decoding import kept

    model = small_model(LLAMA)
    backend_of(torch.device("cpu")).bind(model)
    seen: dict[type[Runner], list[Any]] = {}
    for runner in (EagerRunner, Runner):
        records: list[Any] = []
        drafter = ReplayDrafter(lambda _: None, 0.5, 41, seed=4)
        engine = token_engine(model, runner=kept(runner), speculator=Speculator(drafter, 3, 41), on_step=records.append)
        for prompt in ([1, 2, 3], [5] * 9):
            engine.add(GenerationRequest(prompt, replace(SAMPLED, max_tokens=12, ignore_eos=True)))
        while engine.has_work:
            engine.step()
        seen[runner] = engine.executor.__dict__["seen"]
    assert len(seen[EagerRunner]) == len(seen[Runner])
    assert all((one == other).all() for one, other in zip(seen[EagerRunner], seen[Runner], strict=True))
    assert isinstance(engine.executor, Runner)
    assert isinstance(engine.executor.graphs, CpuGraphs)
    native = replace(card(1e12, 1e10), kind="cpu", native=True)
    price, guessed = Price(model), [record for record in records if record.decodes_only and record.work.tokens > 2]
    assert len(guessed) > 5
    for record in guessed:
        assert record.work.tokens in engine.executor.graphs._recordings
        assert price.recorded(native, record.work)


# -- what is asked for -------------------------------------------------------------------------------------------------


def test_options_say_what_vllms_say() -> None:
    assert named("ngram", 3) == Speculation("ngram", 3)
    assert named("auto") == Speculation("auto")
    assert named("tales") == Speculation("draft_model", model="tales")
    given: dict[str, Any] = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}
    assert from_vllm_json(json.dumps(given)) == Speculation("ngram", 5, longest=4, shortest=4)
    given |= {"prompt_lookup_min": 2}
    assert from_vllm_json(json.dumps(given)) == Speculation("ngram", 5, longest=4, shortest=2)
    assert from_vllm_json('{"model": "[ngram]", "num_speculative_tokens": 1}') == Speculation("ngram", 1, shortest=5)
    assert from_vllm_json('{"model": "m", "num_speculative_tokens": 2}') == Speculation("draft_model", 2, model="m")


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (lambda: named("ngram", 0), "from 1 to 32"),
        (lambda: named("ngram", 33), "from 1 to 32"),
        (lambda: named(""), "is empty"),
        (lambda: from_vllm_json("[]"), "not a JSON object"),
        (lambda: from_vllm_json("{"), "not a JSON object"),
        (lambda: from_vllm_json("[" * 100_000), "not a JSON object"),
        (lambda: from_vllm_json('{"method": "ngram"}'), "no num_speculative_tokens"),
        (lambda: from_vllm_json('{"method": "ngram", "num_speculative_tokens": "4"}'), "give an integer"),
        (lambda: from_vllm_json('{"method": "ngram", "num_speculative_tokens": true}'), "give an integer"),
        (
            lambda: from_vllm_json('{"method": "eagle", "num_speculative_tokens": 4}'),
            "ngram and draft_model are supported",
        ),
        (lambda: from_vllm_json('{"model": 4, "num_speculative_tokens": 4}'), "give the name of a draft model"),
        (lambda: from_vllm_json('{"num_speculative_tokens": 4}'), "needs a draft model"),
        (lambda: from_vllm_json('{"method": "ngram", "model": "m", "tree": 1}'), "'tree', which is not supported"),
        (
            lambda: from_vllm_json('{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 99}'),
            "from 1 to 64",
        ),
        (
            lambda: from_vllm_json(
                '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 2, "prompt_lookup_min": 3}'
            ),
            "longer than the longest",
        ),
        (
            lambda: from_vllm_json('{"model": "m", "num_speculative_tokens": 4, "prompt_lookup_max": 2}'),
            "work only with the method ngram",
        ),
    ],
)
def test_what_is_not_built_is_refused(asked: Callable[[], object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as error:
        asked()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("model", "draft", "reason"),
    [
        ("tales", "digits", "generates images"),
        ("tales", "translate", "cannot continue text"),
        ("translate", "tales", "use prompt lookup"),
        ("tales", "mixture", "same tokenizer"),
        ("tales", "nowhere", "nowhere"),
    ],
)
def test_models_that_cannot_guess_are_refused(model: str, draft: str, reason: str) -> None:
    with pytest.raises(ModelRefused, match=reason) as error:
        LLM(model, replace(SMALL, speculation=Speculation("draft_model", model=draft)))
    assert "\n" not in str(error.value)
