"""Whisper against transformers, fp32, random weights: encoder, logits, greedy tokens through the engine; its costs."""

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import WhisperConfig, WhisperForConditionalGeneration

from engine.collecting import finish_all
from engine.small_models import assert_nothing_held, poison_free_pages
from models.comparing import MATTERS, SHARE_WITH_GAP, TOLERANCE, changes_of_parameters, near_ties, off
from ridgeline.core.checkpoint import read_config
from ridgeline.core.models import Fields, ModelRefused, build
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.parameter_breakdown import parameter_breakdown
from ridgeline.core.ops.convolution import Convolution
from ridgeline.core.ops.kv_context import Uncached
from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.engine.encoder_features import EncoderFeatures
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.scheduler import Limits
from ridgeline.price.price import Price
from support.audit import Run, audited, check_attention, check_bytes, check_products, routed
from support.engines import RecordingRunner, token_engine
from support.whispers import SIZES, as_input, heard, random_whisper, rows_of, saved

CASES: dict[str, dict[str, Any]] = {
    "odd": {},
    "large-v3's bins": {"num_mel_bins": 128, "max_source_positions": 13},
    "relu": {"activation_function": "relu"},
    "one layer": {"encoder_layers": 1, "decoder_layers": 1, "decoder_attention_heads": 1},
    "deeper decoder": {"encoder_layers": 1, "decoder_layers": 4, "encoder_attention_heads": 12},
}
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
PROMPTS = [[3, 50, 51, 52], [3], [3, 7, 9, 11, 13, 15, 17], [3, 50], [3, 50, 51, 52]]


@dataclass(frozen=True)
class Subject:
    """Transformers' model, ours, and what each of the prompts is beside."""

    theirs: WhisperForConditionalGeneration
    ours: Model
    features_BMF: Tensor

    def reference(self, window: int, ids: list[int]) -> Tensor:
        """Transformers' logits of every position [length, vocabulary]."""
        out = self.theirs(input_features=self.features_BMF[window : window + 1], decoder_input_ids=torch.tensor([ids]))
        return out.logits[0]

    def check(self, logits_TV: Tensor, window: int, ids: list[int]) -> None:
        """Assert that logits are transformers'."""
        assert off(logits_TV, self.reference(window, ids)) <= TOLERANCE


@pytest.fixture(scope="module", params=CASES)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """One of CASES."""
    theirs = random_whisper(zlib.crc32(request.param.encode()), **CASES[request.param])
    ours = saved(theirs, tmp_path_factory.mktemp("whisper"))
    return Subject(theirs, ours, heard(theirs, len(PROMPTS)))


def forward(model: Model, rows_EF: Tensor, prompts: list[list[int]]) -> tuple[Tensor, Tensor]:
    """What encoder and decoder give for all windows together, nothing kept."""
    count, positions = model.encoder_context, len(prompts)
    kv = Uncached([StepSegment(len(ids), len(ids), count, runs_encoder=True) for ids in prompts])
    ids_T = torch.tensor([token for ids in prompts for token in ids])
    positions_T = torch.cat([torch.arange(len(ids)) for ids in prompts])
    with torch.inference_mode():
        encoded_ED = model.encode(rows_EF, torch.arange(count).repeat(positions), kv)
        hidden_TD = model.hidden(ids_T, positions_T, kv, torch.arange(len(ids_T)), encoded_ED)
        return encoded_ED, model.head(hidden_TD)


def test_encoder_and_logits(subject: Subject) -> None:
    """All windows in one forward."""
    encoded_ED, logits_TV = forward(subject.ours, rows_of(subject.features_BMF), PROMPTS)
    theirs_ED = subject.theirs.model.encoder(subject.features_BMF).last_hidden_state.flatten(0, 1)
    assert off(encoded_ED, theirs_ED) <= TOLERANCE
    for window, logits in enumerate(torch.split(logits_TV, [len(ids) for ids in PROMPTS])):
        subject.check(logits, window, PROMPTS[window])


@pytest.mark.parametrize(("chunk", "page_size", "positions"), [(None, 16, 1024), (3, 4, 1024), (None, 4, 48)])
def test_through_the_engine(subject: Subject, chunk: int | None, page_size: int, positions: int) -> None:
    """Windows side by side over pages, the last time in a pool so small that requests are preempted and encode again:
    the logits of every position are transformers', and the tokens its likeliest."""
    tokens = subject.ours.encoder_context * 2 + 12  # two windows a step
    engine = token_engine(
        subject.ours, runner=RecordingRunner, page_size=page_size, limits=Limits(tokens=tokens, chunk=chunk),
        positions=positions, prefix_cache=True,
    )  # fmt: skip
    asked = [
        engine.add(GenerationRequest(ids, GREEDY, encoder=as_input(subject.features_BMF[window])))
        for window, ids in enumerate(PROMPTS)
    ]
    choices = finish_all(engine, before_step=lambda _: poison_free_pages(engine))
    assert_nothing_held(engine)
    assert (engine.stats.preemptions > 0) == (positions == 48)
    assert isinstance(engine.executor, RecordingRunner)
    near = 0
    for window, (request, prompt) in enumerate(zip(asked, PROMPTS, strict=True)):
        output = [sampled.token for sampled in choices[request, 0].tokens]
        assert len(output) == GREEDY.max_tokens
        ids = (prompt + output)[:-1]
        logits_TV = torch.stack([engine.executor.logits[request, place] for place in range(len(ids))])
        subject.check(logits_TV, window, ids)
        near += near_ties(subject.reference(window, ids)[len(prompt) - 1 :], output, f"window {window}")
    assert near <= (1 - SHARE_WITH_GAP) * len(PROMPTS) * 24


def test_every_parameter_matters(subject: Subject) -> None:
    """Parity says nothing of a weight that the logits do not depend on."""
    rows_EF, ids = rows_of(subject.features_BMF[:1]), [list(range(3, 40))]
    for name, change in changes_of_parameters(subject.ours, lambda: forward(subject.ours, rows_EF, ids)[1]):
        assert change > MATTERS, f"another {name} changes the logits by {change:.1e} only"


@pytest.mark.usefixtures("torch_only")
def test_costs(subject: Subject) -> None:
    """FLOPs declared are aten's, convolutions included; attention's are its pairs; weights are read once."""
    model, ids = subject.ours, [[3, 4, 5, 6, 7], [3]]
    segments = [StepSegment(len(own), len(own), model.encoder_context, runs_encoder=True) for own in ids]
    with routed(model) as routers, audited(model) as audit:
        forward(model, rows_of(subject.features_BMF[:2]), ids)
    run = Run(model, audit, Work.of(segments, model.attention_patterns, 6), segments, routers)
    assert sum(audit.flops[path] for path, op in model.ops() if isinstance(op, Convolution)) > 0
    check_products(run)
    check_attention(run)
    check_bytes(run)


def test_one_window_is_read_by_one_encoder(subject: Subject) -> None:
    """Three choices of a window look at the same pages; the same window asked for again encodes again."""
    steps: list[int] = []
    engine = token_engine(
        subject.ours, on_step=lambda record: steps.append(record.work.rows.get("encoder", 0)), prefix_cache=True
    )
    for _ in range(2):
        params = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True, n=3)
        engine.add(GenerationRequest(PROMPTS[0], params, encoder=as_input(subject.features_BMF[0])))
        choices = finish_all(engine)
        assert len({tuple(sampled.token for sampled in choice.tokens) for choice in choices.values()}) == 1
    assert sum(steps) == 2 * subject.ours.encoder_context


def test_input_that_the_encoder_does_not_read(tmp_path: Path) -> None:
    """Named with what it reads, and nothing queued; a model that reads ids takes no features."""
    engine = token_engine(saved(random_whisper(), tmp_path))
    window = as_input(heard(random_whisper(), 1)[0])
    for wrong, reason in (
        ((5, 6, 7), "not token ids: give features"),
        (
            EncoderFeatures(window.data[: -4 * 22], 22),
            "20 positions of 22 features, but the encoder reads 21 positions of 22 features",
        ),
        (EncoderFeatures(window.data, 11), "42 positions of 11 features"),
        ((), "give the encoder input"),
    ):
        with pytest.raises(ValueError, match=reason):
            engine.add(GenerationRequest([3], GREEDY, encoder=wrong))
    assert not engine.has_work
    with pytest.raises(ValueError, match="not a whole number of positions of 22"):
        EncoderFeatures(window.data[:-1], 22)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"scale_embedding": True}, "scale_embedding = True is not supported"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings = false is not supported"),
        ({"encoder_attention_heads": 5}, "d_model 36 does not divide into 5 heads"),
        ({"activation_function": "mish"}, "activation_function 'mish' is not supported"),
        ({"decoder_layers": None}, "decoder_layers is missing"),
        ({"encoder_rope": 1}, "encoder_rope = 1 is not supported"),
    ],
)
def test_configs_that_are_refused(change: dict[str, Any], reason: str) -> None:
    """One line each."""
    values = WhisperConfig(**SIZES).to_dict() | {"architectures": ["WhisperForConditionalGeneration"]} | change
    with pytest.raises(ModelRefused, match=reason):
        build(Fields(values, "config.json"))


@pytest.mark.parametrize(
    ("name", "parameters"), [("whisper-base", 72_593_920), ("whisper-large-v3-turbo", 808_878_080)]
)
def test_releases(name: str, parameters: int, data_dir: Path) -> None:
    """As transformers counts them on meta; nothing of their configs is unread. A window's encoder: what its matrices
    and attention come to by hand, within a percent."""
    fields = read_config(str(data_dir / "configs" / f"openai__{name}"))
    model = build(fields)
    with torch.device("meta"):
        theirs = WhisperForConditionalGeneration(WhisperConfig(**fields.values))
    assert parameter_breakdown(model).total == parameters == sum(p.numel() for p in theirs.parameters())
    assert fields.unread() == []
    price = Price(model)
    with_it = price.step(Work.of([StepSegment(1, 1, 1500, runs_encoder=True)], model.attention_patterns)).total_flops
    without = price.step(Work.of([StepSegment(1, 1, 1500)], model.attention_patterns)).total_flops
    d, layers = fields.values["d_model"], fields.values["encoder_layers"]
    decoders = fields.values["decoder_layers"]
    blocks = 1500 * layers * (2 * 12 * d * d + 4 * 1500 * d)
    front = 2 * 3 * d * (3000 * fields.values["num_mel_bins"] + 1500 * d)
    cross = 1500 * decoders * 4 * d * d
    assert with_it - without == pytest.approx(blocks + front + cross, rel=0.01)
