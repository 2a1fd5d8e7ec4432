"""States after a layer that is not the last, as pipelines that draw read their prompts, against transformers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from models.comparing import TOLERANCE, off
from ridgeline.backends import priced_backend
from ridgeline.core.checkpoint import open_source
from ridgeline.core.checkpoint.weight_loader import load_weights
from ridgeline.core.models import build_to_run
from ridgeline.core.models.common.decoder import Decoder
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.kv_context import Uncached
from ridgeline.core.ops.linear import LMHead
from ridgeline.core.ops.padded_text import PaddedText, padded_work
from ridgeline.core.ops.work import CAUSAL, TOKENS, StepSegment, Work
from ridgeline.engine.engine import Engine
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.scheduler import Limits
from ridgeline.price.price import Price
from support.checkpoints import random_model
from support.engines import token_engine

CPU = priced_backend("cpu")

_LAYERS = 4
_QWEN3: dict[str, Any] = {
    "vocab_size": 83, "hidden_size": 36, "intermediate_size": 44, "num_hidden_layers": _LAYERS,
    "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10, "max_position_embeddings": 90,
    "tie_word_embeddings": True,
}  # fmt: skip
TEXTS = ([5, 8, 2], list(range(3, 40)), [7])


@dataclass(frozen=True)
class Subject:
    """Transformers' model and the folder that it wrote."""

    folder: Path
    theirs: PreTrainedModel

    def ours(self, *layers: int) -> Decoder:
        """The same model, whose states are taken after so many layers."""
        source = open_source(str(self.folder))
        model = build_to_run(source.config)
        assert isinstance(model, Decoder)
        model.stop_after(*layers)
        load_weights(model, source)
        return model

    def reference(self, ids: list[int], layers: int) -> torch.Tensor:
        """Transformers' states there [positions, hidden]."""
        with torch.inference_mode():
            every = self.theirs(torch.tensor([ids]), output_hidden_states=True).hidden_states
        states: torch.Tensor = every[layers][0]
        return states


@pytest.fixture(scope="module", params=["tied", "with a head", "bare"])
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """A Qwen3 in each layout: its head tied, of its own, and left out with the trunk's name, as text encoders are."""
    folder = tmp_path_factory.mktemp("encoder")
    theirs = random_model("qwen3", _QWEN3 | {"tie_word_embeddings": request.param != "with a head"}, seed=3)
    (theirs.model if request.param == "bare" else theirs).save_pretrained(folder)
    if request.param == "bare":
        theirs.config.architectures = ["Qwen3ForCausalLM"]
        theirs.config.save_pretrained(folder)
    return Subject(folder, theirs)


@pytest.mark.parametrize("layers", range(1, _LAYERS))
def test_states_after_a_layer(subject: Subject, layers: int) -> None:
    """Whole texts together, nothing kept; not normed: the second to last are those after all layers but one."""
    ours, ids_T = subject.ours(layers), torch.tensor([token for text in TEXTS for token in text])
    positions_T = torch.cat([torch.arange(len(text)) for text in TEXTS])
    kv = Uncached([StepSegment(len(text), len(text)) for text in TEXTS])
    with torch.inference_mode():
        states = ours.hidden(ids_T, positions_T, kv, torch.arange(len(ids_T)))
    for text, own in zip(TEXTS, torch.split(states, [len(text) for text in TEXTS]), strict=True):
        assert off(own, subject.reference(text, layers)) <= TOLERANCE
    if layers == _LAYERS - 1:
        assert torch.equal(subject.reference(TEXTS[1], layers), subject.reference(TEXTS[1], -2))


@pytest.mark.parametrize("layers", [(1, 2, 3), (1, 3), (2, 3)])
def test_states_after_several_layers(subject: Subject, layers: tuple[int, ...]) -> None:
    """Side by side; those of a text's last rows alone too."""
    ours, text = subject.ours(*layers), TEXTS[1]
    expected = torch.cat([subject.reference(text, layer) for layer in layers], dim=-1)
    every, kv = torch.arange(len(text)), Uncached([StepSegment(len(text), len(text))])
    with torch.inference_mode():
        states, last = (ours.hidden(torch.tensor(text), every, kv, rows) for rows in (every, every[-3:]))
    assert off(states, expected) <= TOLERANCE
    assert off(last, expected[-3:]) <= TOLERANCE
    work = Work.of([StepSegment(len(text), len(text))], ours.attention_patterns, len(text))
    one, several = (Price(model).step(work).total_flops for model in (subject.ours(layers[-1]), ours))
    assert several - one == (len(layers) - 1) * len(text) * _QWEN3["hidden_size"]  # the sums that are taken


@pytest.mark.parametrize("text", TEXTS, ids=len)
def test_states_of_padding(subject: Subject, text: list[int]) -> None:
    """Those that transformers has where padding on the right is masked; and no padding is a text alone."""
    ours, rows = subject.ours(1, 3), 41
    ids_T, every = torch.tensor([text + [9] * (rows - len(text))]), torch.arange(rows)
    mask = (every < len(text)).long()[None]
    with torch.inference_mode():
        theirs = subject.theirs(ids_T, attention_mask=mask, output_hidden_states=True).hidden_states
        states = ours.hidden(ids_T[0], every, PaddedText(len(text), rows), every)
        alone = ours.hidden(
            torch.tensor(text), every[: len(text)], PaddedText(len(text), len(text)), every[: len(text)]
        )
    assert off(states, torch.cat([theirs[1][0], theirs[3][0]], dim=-1)) <= TOLERANCE
    assert off(alone, states[: len(text)]) <= 1e-6


def test_states_through_the_engine(subject: Subject) -> None:
    """In chunks over pages, several texts at once."""
    engine: Engine = token_engine(subject.ours(_LAYERS - 1), limits=Limits(tokens=9, chunk=5))
    asked = {engine.add(GenerationRequest(text)): text for text in TEXTS}
    told = 0
    while engine.has_work:
        for event in engine.step():
            assert event.hidden is not None
            reference = subject.reference(asked[event.request], _LAYERS - 1)
            assert off(torch.from_numpy(event.hidden), reference) <= TOLERANCE
            told += 1
    assert told == len(TEXTS)


@pytest.mark.parametrize("text", [1, 7, 40, 41])
def test_the_price_of_a_text_that_nothing_is_kept_of(subject: Subject, text: int) -> None:
    """Torch's attention, not the kernel over pages: keys and values are read as they come, and written nowhere. Pairs
    are those that are not masked."""
    paged, ours, rows = subject.ours(_LAYERS - 1), subject.ours(_LAYERS - 1), 41
    ours.disable_kv_cache()
    work = padded_work(ours.attention_patterns, text, rows)
    own, cached = ([row for row in Price(each).ops if isinstance(row.op, Attention)] for each in (ours, paged))
    assert [kernel.name for kernel in CPU.launches(cached[0].op, work, TOKENS)][-1].startswith("attention.paged")
    assert all("paged" not in kernel.name for row in own for kernel in CPU.launches(row.op, work, TOKENS))
    assert CPU.launches(own[0].op, work, TOKENS) == own[0].op.launches(work)
    cost = own[0].cost(work)
    assert (cost.kv_read_bytes, cost.kv_write_bytes, ours.kv_specs) == (0, 0, ())
    pairs = sum(key <= query or query >= text for query in range(rows) for key in range(text))
    head, heads = _QWEN3["head_dim"], _QWEN3["num_attention_heads"]
    attended = sum(kernel.cost.total_flops for kernel in own[0].op.launches(work) if "attention" in kernel.name)
    assert attended == 2 * heads * 2 * head * pairs
    assert work.attention[CAUSAL].total.queries == work.attention[CAUSAL].total.written == work.tokens == rows


def test_what_is_left_out_is_not_priced(subject: Subject) -> None:
    """Neither the last layer, nor the last norm, nor the head; and nothing of them is kept."""
    ours = subject.ours(_LAYERS - 1)
    price, work = Price(ours), Work.of([StepSegment(9, 9)], ours.attention_patterns, 9)
    assert sum(row.count for row in price.ops if isinstance(row.op, Attention)) == _LAYERS - 1 == len(ours.kv_specs)
    assert not any(isinstance(row.op, LMHead) for row in price.ops)
    whole = Price(build_to_run(open_source(str(subject.folder)).config))
    assert price.step(work).weight_bytes < whole.step(work).weight_bytes
    assert sum(p.nbytes for p in ours.parameters()) == price.weight_bytes


@pytest.mark.parametrize("layers", [0, _LAYERS, -1])
def test_layers_that_there_are_not(subject: Subject, layers: int) -> None:
    """After the last one states are normed, which is what a model without a head gives anyway."""
    model = build_to_run(open_source(str(subject.folder)).config)
    assert isinstance(model, Decoder)
    with pytest.raises(ValueError, match=f"the model has {_LAYERS} layers; give depths from 1 to {_LAYERS - 1}"):
        model.stop_after(layers)
