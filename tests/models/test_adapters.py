"""LoRA against transformers with the adapter merged in, fp32: several adapters in one batch, every way to run them."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel

from models.configs import CONFIGS
from models.parity_cases import CASES
from ridgeline.backends.cpu.cpu_graphs import CpuGraphs
from ridgeline.backends.cpu.library import library
from ridgeline.backends.model_loader import load_model
from ridgeline.core.checkpoint.adapter import Adapter
from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.work import CAUSAL, StepSegment, Work
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.runner import Runner
from ridgeline.engine.scheduler import Limits
from ridgeline.price.price import Price
from support.adapters import adapted, merged, own_widths, write_adapter
from support.checkpoints import random_model, random_tensors, write_folder
from support.engines import EagerRunner, RecordingRunner, complete, token_engine, uncached_logits

TOLERANCE = 1e-5  # of the largest |logit|
MATTERS = 1e-2  # of the largest |logit|: what an adapter changes at least
GREEDY = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)


@dataclass(frozen=True)
class Case:
    """A model of parity_cases, and its adapters: how each is written. alphas: what alpha_pattern says."""

    model: str
    adapters: Mapping[str, Mapping[str, Any]]
    alphas: Mapping[str, float] = field(default_factory=dict)


_ATTENTION, _MLP = ["q_proj", "k_proj", "v_proj", "o_proj"], ["gate_proj", "up_proj", "down_proj"]
ADAPTER_CASES = (
    Case("llama-gqa3", {
        "all": {"targets": _ATTENTION + _MLP, "rank": 5},
        "queries": {"targets": ["q_proj", "v_proj"], "rank": 3, "alpha": 11, "use_rslora": True},
        "gate": {"targets": ["gate_proj"], "rank": 1, "target_modules": r".*\.gate_proj"},
    }),
    Case("qwen3-plain", {
        "patterns": {"targets": _MLP, "ranks": {"up_proj": 7}, "alpha_pattern": {"layers.1.mlp.down_proj": 3}},
        "layer": {"targets": ["layers.1.self_attn.o_proj"], "target_modules": ["o_proj"], "layers_to_transform": [1]},
    }, alphas={"layers.1.mlp.down_proj": 3}),
    Case("phi3-plain", {"fused": {"targets": ["qkv_proj", "gate_up_proj"], "target_modules": "all-linear"}}),
    Case("gpt2-plain", {"transposed": {"targets": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True}}),
    Case("gemma2-plain", {"all": {"targets": _ATTENTION + _MLP, "rank": 6}}),
)  # fmt: skip


@dataclass(frozen=True)
class Subject:
    """Our model with adapters beside it, and transformers' by the name of the adapter that is merged in. recorded:
    whether our kernels compute all of it, so that decode steps are recorded."""

    ours: Model
    adapters: Sequence[Adapter]
    theirs: Mapping[str, PreTrainedModel]
    recorded: bool

    @property
    def digests(self) -> dict[str, bytes]:
        return {adapter.name: adapter.digest for adapter in self.adapters}


def make_subject(case: Case, folder: Path) -> Subject:
    own = next(c for c in CASES if c.id == case.model)
    model = random_model(own.model_type, own.config, seed=3)
    model.save_pretrained(folder / "model")
    paths = {
        name: write_adapter(folder / name, model, seed=seed, **how)
        for seed, (name, how) in enumerate(case.adapters.items())
    }
    theirs = {"": model} | {name: merged(model, path, alphas=case.alphas) for name, path in paths.items()}
    ours, adapters = adapted(folder / "model", paths)
    return Subject(ours, adapters, theirs, case.model.startswith(("llama", "qwen3")))


@pytest.fixture(scope="module", params=ADAPTER_CASES, ids=lambda case: case.model)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return make_subject(request.param, tmp_path_factory.mktemp("adapted"))


@dataclass(frozen=True)
class Way:
    """chunk: positions of one request a step. page: positions a page. tight: KV memory holds so little that requests
    are preempted, if all positions are kept."""

    chunk: int | None = None
    page: int = 4
    tight: bool = False
    prefix_cache: bool = True


WAYS = (Way(), Way(7, 16), Way(1, 4, prefix_cache=False), Way(64, 4, tight=True))


def prompts_of(subject: Subject) -> tuple[list[list[int]], list[str]]:
    """Equal prompts and shared prefixes by different adapters: who found another's pages would say so."""
    text = random.Random(5).choices(range(subject.ours.vocabulary), k=60)
    prompts, names = list[list[int]](), list[str]()
    for name in subject.theirs:
        prompts += [text[:19], text[:19], text[:8] + text[30:39]]
        names += [name] * 3
    order = random.Random(2).sample(range(len(prompts)), len(prompts))
    return [prompts[i] for i in order], [names[i] for i in order]


@pytest.mark.parametrize("way", WAYS)
def test_several_adapters_in_one_batch(subject: Subject, way: Way) -> None:
    """Logits of every position, with the adapter of each request; by chunks, in few pages, with and without a cache."""
    prompts, names = prompts_of(subject)
    engine = token_engine(
        subject.ours,
        runner=RecordingRunner,
        page_size=way.page,
        limits=Limits(chunk=way.chunk),
        positions=7 * len(prompts) if way.tight else 1024,
        prefix_cache=way.prefix_cache,
        adapters=subject.digests,
    )
    outputs = complete(engine, prompts, GREEDY, adapters=names)
    runner = engine.executor
    assert isinstance(runner, RecordingRunner)
    assert (engine.stats.preemptions > 0) == (way.tight and subject.ours.attention_patterns == {CAUSAL})
    assert complete(engine, prompts, GREEDY, adapters=names) == outputs  # with what is cached now
    for request, (prompt, name, output) in enumerate(zip(prompts, names, outputs, strict=True), 1):
        ids = [*prompt, *output[:-1]]
        with torch.no_grad():
            reference_TV = subject.theirs[name](torch.tensor([ids])).logits[0]
        ran = [position for position in range(len(ids)) if (request, position) in runner.logits]
        assert len(ran) >= len(output)
        ours_TV = torch.stack([runner.logits[request, position] for position in ran])
        worst = float((ours_TV - reference_TV[ran]).abs().max() / reference_TV.abs().max())
        assert worst <= TOLERANCE, f"{name!r}: off by {worst:.1e} of the largest logit"


def test_an_adapter_matters(subject: Subject) -> None:
    """Or the comparison would say nothing."""
    ids = torch.tensor([prompts_of(subject)[0][0]])
    with torch.no_grad():
        base, *others = (model(ids).logits for model in subject.theirs.values())
    for other in others:
        assert float((other - base).abs().max()) > MATTERS * float(base.abs().max())


def test_choices_of_one_request(subject: Subject) -> None:
    """They start from its pages and go on with its adapter."""
    name = subject.adapters[0].name
    prompt = prompts_of(subject)[0][0]
    engine = token_engine(subject.ours, adapters=subject.digests, prefix_cache=True)
    params = SamplingParams(temperature=1.0, seed=4, n=3, max_tokens=9, ignore_eos=True)
    together: dict[int, list[int]] = {0: [], 1: [], 2: []}
    engine.add(GenerationRequest(prompt, params, adapter=name))
    engine.add(GenerationRequest(prompt, GREEDY))
    while engine.has_work:
        for event in engine.step():
            if event.request == 1 and event.token is not None:
                together[event.choice].append(event.token.token)
    with torch.no_grad():
        for choice, tokens in together.items():
            logits_TV = subject.theirs[name](torch.tensor([[*prompt, *tokens[:-1]]])).logits[0, len(prompt) - 1 :]
            likely = torch.softmax(logits_TV, -1)[range(len(tokens)), tokens]
            assert len(tokens) == 9, choice
            assert float(likely.min()) > 0


def test_prefixes_of_adapters_are_apart(subject: Subject) -> None:
    """The pages of a prompt are found again under the same adapter alone; no salt spells one."""
    prompt, digests = list(range(19)), subject.digests
    engine = token_engine(subject.ours, adapters=digests, prefix_cache=True)
    first = subject.adapters[0].name

    def reused(adapter: str, root: bytes = b"") -> int:
        before = engine.stats.reused_tokens
        engine.add(GenerationRequest(prompt, GREEDY, adapter=adapter, cache_salt=root))
        while engine.has_work:
            engine.step()
        return engine.stats.reused_tokens - before

    assert (reused(""), reused("")) == (0, 16)
    assert (reused(first), reused(first)) == (0, 16)
    assert (reused("", digests[first]), reused(first, b"salt")) == (0, 0)


def test_an_adapter_that_is_not_loaded(subject: Subject) -> None:
    engine = token_engine(subject.ours, adapters=subject.digests)
    with pytest.raises(ValueError, match=r"no adapter 'other' is loaded \(loaded: \w+"):
        engine.add(GenerationRequest([1, 2], GREEDY, adapter="other"))
    assert not engine.has_work


@pytest.mark.parametrize("kind", ["qwen2_moe", "deepseek_v2"])
def test_an_adapter_of_a_router(kind: str, tmp_path: Path) -> None:
    """Whose logits are of the model's dtype or of fp32: those of the merged matrix, for the rows that ask for it."""
    values = CONFIGS[kind]
    for name in ("base", "merged"):
        (tmp_path / name).mkdir()
    tensors = random_tensors(values)
    base = write_folder(tmp_path / "base", values, tensors)
    adapter = write_adapter(tmp_path / "adapter", own_widths(str(base)), ["mlp.gate"])
    model, (read,) = adapted(base, {"a": adapter})
    added = load_file(adapter / "adapter_model.safetensors")
    for module, half in read.matrices.items():
        first, second = (added[f"base_model.model.{module}.lora_{each}.weight"] for each in "AB")
        tensors[f"{module}.weight"] = tensors[f"{module}.weight"] + half.scale * second @ first
    others = [load_model(str(write_folder(tmp_path / "merged", values, tensors))), load_model(str(base))]
    ids = [list(range(9)), list(range(3, 17))]
    assert model.adapters is not None
    model.adapters.set_step([1, 0], [9, 14], torch.device("cpu"))
    for place, (ours_TV, other) in enumerate(zip(uncached_logits(model, ids), others, strict=True)):
        theirs_TV = uncached_logits(other, ids)[place]
        assert float((ours_TV - theirs_TV).abs().max()) <= TOLERANCE * float(theirs_TV.abs().max())
    changed, unchanged = (uncached_logits(other, ids)[0] for other in others)
    assert float((changed - unchanged).abs().max()) > 100 * TOLERANCE * float(unchanged.abs().max())


# -- beside our kernels -----------------------------------------------------------------------------------------------


@pytest.mark.skipif(library() is None, reason="no kernels of our own here")
def test_who_runs_beside_a_row(subject: Subject) -> None:
    """Alone, recorded, in a batch with others' adapters: bit for bit where our kernels compute all of it, which is
    without an adapter, else to rounding. Steps without adapters are recorded, those with one are not."""
    prompts, names = prompts_of(subject)

    def logits(runner: type[Runner], indices: Sequence[int]) -> tuple[dict[int, list[torch.Tensor]], Runner]:
        seen: dict[int, list[torch.Tensor]] = {index: [] for index in indices}

        class Keeping(runner):  # type: ignore[misc, valid-type]
            def step_logits(self, plan: Any) -> torch.Tensor:
                logits_RV: torch.Tensor = super().step_logits(plan)
                owners = [indices[item.request - 1] for item in plan.items if item.logits]
                for owner, row in zip(owners, logits_RV, strict=True):
                    seen[owner].append(row.clone())
                return logits_RV

        engine = token_engine(subject.ours, runner=Keeping, adapters=subject.digests)
        complete(engine, [prompts[i] for i in indices], GREEDY, adapters=[names[i] for i in indices])
        assert isinstance(engine.executor, Runner)
        return seen, engine.executor

    together, _ = logits(EagerRunner, range(len(prompts)))
    for index in range(len(prompts)):
        alone, runner = logits(Runner, [index])
        assert isinstance(runner.graphs, CpuGraphs)
        pairs = list(zip(alone[index], together[index], strict=True))
        if subject.recorded and not names[index]:
            assert all(torch.equal(one, other) for one, other in pairs), index
            assert runner.graphs._recordings
        else:
            assert all((one - other).abs().max() <= TOLERANCE * other.abs().max() for one, other in pairs), index
        if names[index]:
            assert not runner.graphs._recordings


# -- price ------------------------------------------------------------------------------------------------------------


def test_the_price_of_a_step(subject: Subject) -> None:
    """Each adapter that a step touches is read once, and its products are those of its own rows."""
    model, price = subject.ours, Price(subject.ours)
    segments = [StepSegment(3, 3), StepSegment(1, 9), StepSegment(1, 4)]
    plain = Work.of(segments, model.attention_patterns)
    base = price.step(plain)
    first = subject.adapters[0]
    for rows in (1, 5):
        work = Work({**plain.rows, "adapter 1": rows}, plain.sequences, plain.attention)
        cost = price.step(work)
        assert cost.weight_bytes - base.weight_bytes == 4 * first.parameters
        assert cost.total_flops - base.total_flops == 2 * rows * first.parameters
        assert cost.kv_read_bytes == base.kv_read_bytes
    assert price.weight_bytes == sum(parameter.nbytes for parameter in model.parameters())
    assert model.adapter_bytes == 4 * sum(adapter.parameters for adapter in subject.adapters)
