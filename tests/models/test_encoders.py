"""Encoders against transformers, fp32, small random checkpoints: states, scores of labels, cost, every parameter."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
)

from models import comparing
from models.comparing import MATTERS, TOLERANCE, changes_of_parameters, off
from models.conftest import MadeOnce
from models.covered import check_covered
from models.encoder_cases import ENCODER_CASES, EncoderCase
from models.test_config import built_or_refusal
from ridgeline.backends.model_loader import load_model
from ridgeline.core.models import ENCODERS, Fields, ModelRefused, build, family_of
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.parameter_breakdown import parameter_breakdown
from ridgeline.core.ops.activation import ActivatedProjections
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.kv_context import Uncached
from ridgeline.core.ops.norm import Norm
from ridgeline.core.ops.rotary import RotaryTable
from ridgeline.core.ops.work import AttentionPattern, StepSegment, Work
from ridgeline.engine.engine import Engine
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.scheduler import Limits
from ridgeline.price.price import Price
from support.audit import Run, audited, check_attention, check_bytes, check_products
from support.checkpoints import edit_config, random_model
from support.engines import token_engine

LENGTHS = (23, 9, 1, 40, 6)
OWN_WEIGHTS = [case for case in ENCODER_CASES if not case.layout and not case.without]


@dataclass(frozen=True)
class Subject(comparing.Subject):
    """One case, and texts longer than any window."""

    case: EncoderCase
    texts: list[list[int]]

    def reference(self, ids: list[int]) -> Tensor:
        """Transformers' hidden states [length, hidden], or scores [1, labels]; ids beyond the vocabulary are of the
        second of two texts."""
        vocabulary = text_config(self.case)["vocab_size"]
        types: dict[str, Any] = {}
        if max(ids) >= vocabulary:
            types["token_type_ids"] = torch.tensor([[token // vocabulary for token in ids]])
        with torch.no_grad():
            ids_1T = torch.tensor([[token % vocabulary for token in ids]])
            if self.case.model_type == "clip":
                projected: Tensor = self.theirs.get_text_features(ids_1T).pooler_output
                return projected
            out = self.theirs(ids_1T, **types)
        if self.case.projects:
            return out.text_embeds
        return out.logits if self.case.labels else out.last_hidden_state[0]

    def answers(self) -> list[Tensor]:
        """Those to each of its texts."""
        return [self.reference(text) for text in self.texts]


def apart(ours: Tensor, theirs: Tensor, answers: list[Tensor]) -> float:
    """The largest difference, of the largest of all answers: that to one text may be a single score near 0."""
    return float((ours - theirs).abs().max() / max(answer.abs().max() for answer in answers))


def text_config(case: EncoderCase) -> Mapping[str, Any]:
    """The config of what reads texts."""
    section: Mapping[str, Any] = case.config.get("text_config", case.config)
    return section


def texts_of(case: EncoderCase) -> list[list[int]]:
    """Texts without padding tokens; where two are told apart, some are pairs."""
    generator = torch.Generator().manual_seed(case.seed)
    config = text_config(case)
    vocabulary, padding = config["vocab_size"], config["pad_token_id"]
    texts = []
    for index, length in enumerate(LENGTHS):
        ids = torch.randint(padding + 1, vocabulary - case.ends, (length,), generator=generator).tolist()
        if case.ends:
            ids[-1] = vocabulary - 1
        if case.config.get("type_vocab_size", 1) > 1 and index % 2 == 0:
            ids = [token + vocabulary * (place >= 4) for place, token in enumerate(ids)]
        texts.append(ids)
    return texts


@pytest.fixture(scope="module", params=ENCODER_CASES, ids=lambda case: case.id)
def subject(request: pytest.FixtureRequest, once: MadeOnce) -> Subject:
    """The case's model, written by transformers and loaded by us."""
    out: Subject = once(request.param, made)
    return out


def made(case: EncoderCase, folder: Path) -> Subject:
    """Both models of a case, and its texts."""
    auto: Any = AutoModelForSequenceClassification if case.labels else AutoModel
    if case.architecture:
        auto = SimpleNamespace(from_config=getattr(transformers, case.architecture)._from_config)
    labels = {"num_labels": case.labels} if case.labels else {}
    theirs = random_model(case.model_type, case.config | labels, case.seed, auto)
    write(case, theirs, folder)
    return Subject(case, folder, theirs, load_model(str(folder)), texts_of(case))


def write(case: EncoderCase, theirs: PreTrainedModel, folder: Path) -> None:
    """Save transformers' model in the layout of the case."""
    saved = theirs
    if "masked LM" in case.layout:
        saved = random_model(case.model_type, case.config, case.seed + 1, AutoModelForMaskedLM)
        saved.base_model.load_state_dict(theirs.state_dict(), strict=False)
    saved.save_pretrained(folder)
    file = folder / "model.safetensors"
    if "old names" in case.layout:
        tensors = load_file(file)
        renamed = {n.replace("LayerNorm.weight", "LayerNorm.gamma"): t for n, t in tensors.items()}
        renamed = {n.replace("LayerNorm.bias", "LayerNorm.beta"): t for n, t in renamed.items()}
        save_file(renamed | {"bert.embeddings.position_ids": torch.arange(70)[None]}, file)
    if "no architectures" in case.layout:
        edit_config(folder, architectures=None)
    if "no projection" in case.layout:
        edit_config(folder, feed_forward_proj=None)
    if "no layer types" in case.layout:
        edit_config(folder, layer_types=None, global_attn_every_n_layers=3)


def given(model: Model, texts: list[list[int]]) -> list[Tensor]:
    """What the model gives for texts in one forward that keeps nothing: of every position, or of each text."""
    ids_T = torch.tensor([token for text in texts for token in text])
    lengths = [len(text) for text in texts]
    ends_R = torch.tensor(lengths).cumsum(0) - 1
    rows_R = ends_R if model.pooled else torch.arange(len(ids_T))
    kv = Uncached([StepSegment(n, n) for n in lengths])
    with torch.inference_mode():
        x_RD = model.hidden(ids_T, torch.cat([torch.arange(n) for n in lengths]), kv, rows_R)
    return list(torch.split(x_RD, [1] * len(texts) if model.pooled else lengths))


def test_the_list_covers_every_encoder() -> None:
    """A family without a case would be a family without a proof."""
    cases = (case.model_type for case in ENCODER_CASES)
    check_covered(cases, ENCODERS, "ENCODER_CASES in tests/models/encoder_cases.py")
    assert len({case.id for case in ENCODER_CASES}) == len(ENCODER_CASES)


def test_texts_together(subject: Subject) -> None:
    """One forward of all texts, nothing kept."""
    answers = subject.answers()
    for text, ours, theirs in zip(subject.texts, given(subject.ours, subject.texts), answers, strict=True):
        assert apart(ours, theirs, answers) <= TOLERANCE, f"{subject.case.id}: {len(text)} tokens"


def test_texts_through_the_engine(subject: Subject) -> None:
    """In steps of at most 48 positions, as many whole texts as fit, whatever a chunk is."""
    assert 4 <= steps_of_requests(subject.ours, subject.texts * 2, subject.answers() * 2) < 10


def steps_of_requests(model: Model, texts: list[list[int]], answers: list[Tensor]) -> int:
    """Return the number of steps of at most 48 positions in which an engine answers texts, each as it should."""
    engine: Engine = token_engine(model, limits=Limits(tokens=48, chunk=5))
    asked = {engine.add(GenerationRequest(text)): theirs for text, theirs in zip(texts, answers, strict=True)}
    told = 0
    while engine.has_work:
        for event in engine.step():
            assert event.hidden is not None
            assert apart(torch.from_numpy(event.hidden), asked[event.request], answers) <= TOLERANCE
            told += 1
    assert told == len(asked) == len(texts)
    return engine.stats.steps


@pytest.mark.parametrize("subject", OWN_WEIGHTS, indirect=True, ids=lambda case: case.id)
def test_every_parameter_matters(subject: Subject) -> None:
    """Parity would prove nothing about a norm or bias that the answer does not depend on."""
    vocabulary, pairs = subject.ours.vocabulary, subject.ours.token_types
    generator = torch.Generator().manual_seed(0)
    texts = [[*torch.randint(4, vocabulary * pairs, (60,), generator=generator).tolist()]]
    count = 0
    for name, change in changes_of_parameters(subject.ours, lambda: given(subject.ours, texts)[0]):
        if name.endswith(
            ("key.bias", "k_proj.bias")
        ):  # adds the same to all scores of a query: softmax takes it out again
            assert change < MATTERS
        else:
            least = MATTERS / 10 if subject.case.labels == 1 else MATTERS  # a single number hides more
            assert change > least, f"another {name} changes nothing"
        count += 1
    assert count >= 20


@pytest.mark.parametrize("subject", [c for c in ENCODER_CASES if c.without], indirect=True, ids=lambda case: case.id)
def test_the_setting_matters(subject: Subject) -> None:
    """Without the setting that a case is about, the same weights give something else."""
    texts = subject.texts[3:4]
    (ours,), (without,) = given(subject.ours, texts), given(subject.without(), texts)
    assert off(without, ours) > MATTERS


@pytest.mark.usefixtures("torch_only")  # aten sees nothing of our kernels
@pytest.mark.parametrize("subject", OWN_WEIGHTS, indirect=True, ids=lambda case: case.id)
def test_what_is_stated_is_what_was_computed(subject: Subject) -> None:
    """Products, pairs and weights of a forward over whole texts; nothing is computed between ops."""
    with audited(subject.ours) as audit:
        given(subject.ours, subject.texts)
    segments = [StepSegment(len(text), len(text)) for text in subject.texts]
    rows = len(segments) if subject.ours.pooled else sum(LENGTHS)
    run = Run(subject.ours, audit, Work.of(segments, subject.ours.attention_patterns, rows), segments, {})
    assert set(audit.calls) - {""} == {path for path, _ in subject.ours.ops()}
    check_products(run)
    check_attention(run)
    check_bytes(run)


@pytest.mark.parametrize("subject", OWN_WEIGHTS, indirect=True, ids=lambda case: case.id)
def test_parameters_and_price(subject: Subject) -> None:
    """As many as transformers counts, but for a pooler that nothing reads; a price of every op, on meta."""
    named = subject.theirs.named_parameters()
    unread = [pattern for pattern in ("pooler", "vision", "visual", "logit_scale") if not subject.case.labels]
    theirs = sum(p.numel() for name, p in named if not any(pattern in name for pattern in unread))
    counted = parameter_breakdown(subject.ours)
    assert counted.total == theirs == sum(p.numel() for p in subject.ours.parameters())
    assert (counted.parameters["head"] > 0) == (subject.case.labels > 0 or subject.case.projects)
    values = json.loads((subject.folder / "config.json").read_text(encoding="utf-8"))
    built = build(Fields(values, "config.json"))
    work = Work.of([StepSegment(9, 9), StepSegment(4, 4)], built.attention_patterns)
    assert Price(built).step(work) == Price(subject.ours).step(work)
    assert not built.kv_specs


def test_a_neighbourhood_is_counted_pair_by_pair() -> None:
    """`StepSegment.pairs` of a local reach against brute force, texts shorter and longer than it is."""
    for size in (1, 2, 5, 9):
        for length in range(1, 25):
            pairs = sum(abs(query - key) <= size for query in range(length) for key in range(length))
            assert StepSegment(length, length).pairs(AttentionPattern("local", size)) == pairs


ALONE = ("bert", "roberta", "xlm-roberta", "modernbert", "clip_text_model")  # T5's are an encoder-decoder's too
FIRST = {kind: next(case.config for case in ENCODER_CASES if case.model_type == kind) for kind in ALONE}
BEYOND = ("modernbert", "token_id")  # left out, its tokens are beyond so small a vocabulary
LEFT_OUT = [(kind, field) for kind, config in FIRST.items() for field in config if (kind, field[-8:]) != BEYOND]


@pytest.mark.parametrize(("kind", "field"), LEFT_OUT)
def test_a_field_left_out_means_what_transformers_takes_it_for(kind: str, field: str) -> None:
    """Or it is refused: never another default than the reference's."""
    values = {name: value for name, value in FIRST[kind].items() if name != field}
    ours = built_or_refusal({"model_type": kind, **values})
    if isinstance(ours, str):
        assert field.removeprefix("num_attention_") in ours
        return
    settings, family = AutoConfig.for_model(kind, **values), family_of(Fields({"model_type": kind}, "config.json"))
    with torch.device("meta"):
        theirs = AutoModel.from_config(settings)
    named = {
        name.removeprefix(family.backbone_prefix): p.shape
        for name, p in theirs.named_parameters()
        if "pooler" not in name
    }
    own = {family.checkpoint_name(name): getattr(*place).shape for name, place in ours.tensors().items()}
    assert {name.removeprefix(family.backbone_prefix): shape for name, shape in own.items()} == named
    ops = [op for _, op in ours.ops()]
    padding = settings.pad_token_id + 1 if "roberta" in kind else 0
    assert ours.context == settings.max_position_embeddings - padding
    assert {op.heads for op in ops if isinstance(op, Attention)} == {settings.num_attention_heads}
    modern = kind == "modernbert"
    assert {op.eps for op in ops if isinstance(op, Norm)} == {settings.norm_eps if modern else settings.layer_norm_eps}
    activations = {op.activation for op in ops if isinstance(op, ActivatedProjections)}
    assert activations == {settings.hidden_activation if modern else settings.hidden_act}
    if modern:
        sizes = {op.attention_pattern.size for op in ops if isinstance(op, Attention)}
        assert sizes == {0, settings.local_attention // 2}
        thetas = {own["rope_theta"] for own in settings.rope_parameters.values()}
        assert {op.rope.theta for op in ops if isinstance(op, RotaryTable)} == thetas


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"is_decoder": True}, "is_decoder = True is not supported"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key' is not supported"),
        ({"num_attention_heads": 5}, "hidden_size 36 does not divide into 5 heads"),
        ({"architectures": ["BertForTokenClassification"]}, "architecture BertForTokenClassification is not supported"),
        (
            {"architectures": ["RobertaModel"], "max_position_embeddings": 4, "pad_token_id": 3},
            "first 4 are not used",
        ),
        ({"architectures": ["ModernBertModel"], "local_attention": 1}, "local_attention is 1; it must be at least 2"),
        ({"architectures": ["ModernBertModel"], "rope_scaling": {"type": "yarn"}}, "rope_scaling = .* not supported"),
        (
            {"architectures": ["ModernBertModel"], "rope_parameters": {"factor": 2.0}},
            "rope_parameters: factor = 2.0 is",
        ),
        (
            {"architectures": ["ModernBertForSequenceClassification"], "classifier_pooling": "max"},
            "classifier_pooling 'max' is not supported; cls and mean are",
        ),
    ],
)
def test_what_is_not_built_is_refused(changes: dict[str, Any], problem: str) -> None:
    """By name, before weights are read."""
    base = next(case for case in ENCODER_CASES if case.id == "bert-plain").config
    with pytest.raises(ModelRefused, match=problem):
        build(Fields({"architectures": ["BertModel"], **base, **changes}, "config.json"))
