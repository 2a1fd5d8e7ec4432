"""A model that our kernels compute says the same, bit for bit, in every way that the metamorphic suite runs its trace:
whoever runs beside a request, in whatever chunks, from whatever pages, computed anew or found, on one thread or two."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from engine.small_models import LLAMA, MIXED, SLIDING, small_model
from engine.test_metamorphic import AXES, Asked, Way, make_trace, pairwise, run_way
from ridgeline.backends import backend_of
from ridgeline.backends.cpu.library import library
from ridgeline.backends.cpu.recorded_steps import records
from ridgeline.core.models.common.model import Model

pytestmark = pytest.mark.skipif(library() is None, reason="no kernels of our own here")

# Products of more inputs than a block has and of more outputs than an item, none a whole number of registers.
WIDE = {"hidden_size": 72, "intermediate_size": 1100, "vocab_size": 1003, "torch_dtype": "bfloat16"}
NORMED = {"architectures": ["Qwen3ForCausalLM"], "head_dim": 24}
THREADED = [(Way(*way), threads) for *way, threads in pairwise((*AXES, (1, 2)), seed=33)]  # type: ignore[arg-type]
MODELS = {"wide": LLAMA | NORMED | WIDE, "mixed": MIXED, "sliding": SLIDING | {"torch_dtype": "bfloat16"}}


@dataclass(frozen=True)
class Subject:
    """A model and a trace, with what each request of it says where all run together."""

    model: Model
    trace: tuple[Asked, ...]
    tokens: dict[Asked, list[int]]
    logits: dict[Asked, dict[int, Tensor]]


@pytest.fixture(scope="module", params=MODELS)
def subject(request: pytest.FixtureRequest) -> Subject:
    model = small_model(MODELS[request.param])
    for parameter in model.parameters():
        parameter.data = parameter.to(model.storage.dtype)
    backend_of(torch.device("cpu")).bind(model)
    assert records(model)
    trace = make_trace(random.Random(1).choices(range(model.vocabulary), k=120))
    with pytest.MonkeyPatch.context() as patch:
        ran = run_way(model, trace, Way("many", None, prefix_cache=False, page_size=16, aborts=False), patch)
    tokens = {asked: ran.done[own].output for own, asked in ran.asked.items()}
    logits: dict[Asked, dict[int, Tensor]] = {}
    for (own, position), logits_V in ran.logits.items():
        if own in ran.asked:
            logits.setdefault(ran.asked[own], {})[position] = logits_V
    return Subject(model, trace, tokens, logits)


@pytest.fixture
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads_as_before")
@pytest.mark.parametrize(("way", "threads"), THREADED, ids=str)
def test_every_bit_is_the_same(subject: Subject, way: Way, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every two choices of the way and the threads meet in a run of each model, whose first had one thread."""
    torch.set_num_threads(threads)
    ran = run_way(subject.model, subject.trace, way, monkeypatch)
    compared = 0
    for first, asked in ran.asked.items():
        for own in range(first, first + asked.n):
            assert ran.done[own].output == subject.tokens[asked], asked
            for position, logits_V in subject.logits[asked].items():
                if (own, position) in ran.logits:
                    compared += 1
                    assert torch.equal(ran.logits[own, position], logits_V), f"{asked}, position {position}"
    assert compared > 100
