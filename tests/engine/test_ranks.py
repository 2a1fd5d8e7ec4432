"""A model over two processes: the tokens of one, its all-reduces priced and measured; a process that dies ends the
engine."""

import pickle
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.folders import write_model
from engine.small_models import LLAMA, SLIDING, assert_nothing_held
from ridgeline.core.models import ModelRefused
from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.engine import LLM, EngineSettings, SamplingParams
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.ranks.leader import SIZES, FollowerRanks, link_of
from ridgeline.engine.ranks.rank_processes import READY, RankStart
from ridgeline.engine.runner import Runner
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.speculation.ngram import NgramDrafter
from ridgeline.engine.speculation.speculator import Speculator
from ridgeline.insight.trace.request_trace import TraceOptions, TraceSubject, trace
from ridgeline.price.device import Device, Efficiency

SETTINGS = EngineSettings(kv_bytes=2**22, page_size=4, limits=Limits(tokens=40, requests=6, chunk=11), seed=1)
EXPERTS = LLAMA | {
    "architectures": ["Qwen3MoeForCausalLM"], "head_dim": 8, "num_experts": 6, "num_experts_per_tok": 2,
    "moe_intermediate_size": 18, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip
OF_A_CLASS = LLAMA | {
    "architectures": ["AfmoeForCausalLM"], "model_type": "afmoe", "head_dim": 8, "num_experts": 6,
    "num_experts_per_tok": 2, "moe_intermediate_size": 18, "num_shared_experts": 1, "num_dense_layers": 1,
    "sliding_window": 21, "global_attn_every_n_layers": 2,
}  # fmt: skip
FOLDERS: dict[str, dict[str, Any]] = {"llama": LLAMA, "sliding": SLIDING, "experts": EXPERTS, "class": OF_A_CLASS}
ASKED = (
    SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True),
    SamplingParams(temperature=0.9, max_tokens=9, seed=3, n=2, ignore_eos=True, repetition_penalty=1.2),
    SamplingParams(temperature=0.7, top_p=0.9, max_tokens=30, seed=5, ignore_eos=True),
)


@dataclass(frozen=True)
class Pair:
    """A folder, the model of it on one process and on two."""

    folder: str
    one: LLM
    two: LLM


@pytest.fixture(scope="module", params=FOLDERS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    threads = torch.get_num_threads()
    folder = str(write_model(tmp_path_factory.mktemp("ranks") / request.param, config=FOLDERS[request.param]))
    one = LLM(folder, SETTINGS, threads=1)
    two = LLM(folder, replace(SETTINGS, ranks=2), threads=1)
    yield Pair(folder, one, two)
    assert isinstance(two.engine.executor, Runner)
    assert isinstance(two.engine.executor.others, FollowerRanks)
    two.engine.executor.others.close()
    torch.set_num_threads(threads)


def prompts(vocabulary: int) -> list[list[int]]:
    """With a shared prefix, longer than a chunk, and short."""
    draw = random.Random(2)
    stem = [draw.randrange(vocabulary) for _ in range(26)]
    return [stem, [*stem[:20], 3, 1], [7], [*stem, *stem[5:]]]


def answers(llm: LLM, asked: Sequence[SamplingParams] = ASKED) -> list[list[list[int]]]:
    return [
        [choice.token_ids for completion in llm.generate(prompts(250), params) for choice in completion.choices]
        for params in asked
    ]


def test_two_ranks_say_what_one_says(pair: Pair) -> None:
    """In chunks, with prefixes found, in choices, greedy and sampled; twice, as the second finds what the first
    left."""
    expected = answers(pair.one)
    assert answers(pair.two) == expected
    assert answers(pair.two) == expected
    assert pair.two.engine.stats.reused_tokens > 0
    assert_nothing_held(pair.two.engine)


def test_prompts_are_scored_over_ranks(pair: Pair) -> None:
    """Log-probabilities of prompts and answers to 1e-4: sums over inputs are added up in another order."""
    params = replace(ASKED[0], logprobs=2, prompt_logprobs=1)
    for one, two in zip(*(llm.generate(prompts(250), params) for llm in (pair.one, pair.two)), strict=True):
        assert one.choices[0].token_ids == two.choices[0].token_ids
        assert one.prompt_logprobs is not None
        assert two.prompt_logprobs is not None
        assert len(one.prompt_logprobs) == len(two.prompt_logprobs)
        for own, other in list(zip(one.prompt_logprobs, two.prompt_logprobs, strict=True))[1:]:
            assert own is not None
            assert other is not None
            assert abs(own.logprob - other.logprob) < 1e-4


def test_an_abort_and_a_preemption_reach_every_rank(pair: Pair) -> None:
    """What is asked after them finds pages as they should be."""
    engine = pair.two.engine
    expected = answers(pair.one, ASKED[:1])
    aborted = engine.add(GenerationRequest(prompts(250)[0], SamplingParams(n=2, ignore_eos=True, seed=1)))
    engine.add(GenerationRequest(prompts(250)[3], SamplingParams(max_tokens=12, ignore_eos=True, seed=2)))
    for step in range(40):
        if not engine.has_work:
            break
        engine.step()
        if step == 3:
            engine.abort(aborted)
        if step == 5 and engine.scheduler.running:
            engine.scheduler.preempt(engine.scheduler.running[-1])
    assert answers(pair.two, ASKED[:1]) == expected
    assert_nothing_held(engine)


def test_guesses_are_verified_over_ranks(pair: Pair) -> None:
    engine = pair.two.engine
    engine.speculator = Speculator(NgramDrafter(5, 1), 3, engine.traits.vocabulary)
    assert answers(pair.two) == answers(pair.one)
    assert engine.stats.drafts > 0
    engine.speculator = None


def test_a_process_is_a_rank_of_one_model(pair: Pair) -> None:
    with pytest.raises(ValueError, match="already a rank of another model") as error:
        LLM(pair.folder, replace(SETTINGS, ranks=2), threads=1)
    assert "\n" not in str(error.value)


def test_an_engine_says_the_bytes_of_all_ranks(pair: Pair) -> None:
    """Norms and what else is not divided every rank has, matrices once in all; keys and values as they were asked."""
    one, two = pair.one.loaded.info(), pair.two.loaded.info()
    assert one.weight_bytes <= two.weight_bytes < 1.1 * one.weight_bytes
    assert abs(two.kv_bytes - one.kv_bytes) <= 0.05 * one.kv_bytes


def test_what_joins_ranks_is_measured_and_priced(pair: Pair) -> None:
    """Two all-reduces a layer, and one for the table of tokens, of the step's rows; the ledger has each with its
    measured seconds. A class has two sums in a layer with shared experts: theirs, and that of the routed ones."""
    loaded = pair.two.loaded
    assert loaded.interconnect is not None
    curve = loaded.interconnect.all_reduce["gloo"][2]
    assert curve.nbytes == tuple(map(float, SIZES))
    assert 0 < curve.seconds[0] <= curve.seconds[-1]
    work = Work.of([StepSegment(5, 5)], loaded.price.reaches)
    sums, width = (6 if Path(pair.folder).name == "class" else 5), 32
    assert loaded.price.step(work).communication["all_reduce"] == sums * 5 * width * 4
    card = loaded.with_interconnect(
        Device(
            "c", "C", "cpu", {"fp32": 1e10}, 1e9, 1e12, efficiency={"default": Efficiency(0.0, compute=1.0, memory=1.0)}
        )
    )
    subject = TraceSubject("m", "abcd", lambda: [1, 2, 3, 4, 5])
    ledger = trace(pair.two, subject, ASKED[0], card, TraceOptions(repeats=3))
    reduced = [row for row in ledger.rows if row.kind == "communication"]
    assert len(reduced) >= sums
    for row in reduced:
        assert all(entry.measured > 0 and entry.expected > 0 for entry in row.entries.values())


def test_a_link_has_the_best_bandwidth_that_was_seen() -> None:
    """Of an all-reduce over four, each byte travels 2 x 3/4 times; seconds never fall with the size."""
    link = link_of(4, (1000, 2000, 4000), [1e-3, 0.5e-3, 2e-3])
    assert link.bandwidth == pytest.approx(1.5 * 4000 / 2e-3)
    assert link.all_reduce["gloo"][4].seconds == (1e-3, 1e-3, 2e-3)


@pytest.mark.parametrize(
    ("model", "settings", "reason"),
    [
        ("tales", {}, "3 KV heads do not divide over 2 devices; give --tensor-parallel 1"),
        ("tales", {"ranks": 0}, "give 1 to 64"),
        ("tales", {"ranks": 65}, "give 1 to 64"),
        ("LLAMA", {"device": "cuda"}, "card|CUDA"),
        ("LLAMA", {"adapters": {"a": "b"}}, "LoRA adapters do not work with tensor parallelism"),
    ],
)
def test_what_ranks_do_not_run_is_refused(model: str, settings: dict[str, Any], reason: str, tmp_path: Path) -> None:
    name = str(write_model(tmp_path / "m")) if model == "LLAMA" else model
    with pytest.raises((ValueError, ModelRefused), match=reason) as error:
        LLM(name, replace(SETTINGS, **{"ranks": 2, **settings}), threads=1)
    assert "\n" not in str(error.value)


def test_a_rank_ends_with_the_first_also_where_it_waits_to_meet_others(tmp_path: Path) -> None:
    """As where the first is killed while another still loads."""
    settings = replace(SETTINGS, ranks=2)
    start = RankStart(str(write_model(tmp_path / "m")), settings, False, 1, 8, 1, str(tmp_path / "rendezvous"))
    command = [sys.executable, "-m", "ridgeline.engine.ranks.rank_child"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        pickle.dump(start, child.stdin)
        child.stdin.flush()
        assert child.stdout.readline().decode().strip() == READY
        child.stdin.close()
        try:
            child.wait(20)
        finally:
            child.kill()
