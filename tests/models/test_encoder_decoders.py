"""Encoder-decoders against transformers, fp32, small random checkpoints: logits, greedy tokens, every parameter; in the
engine alone and together, in chunks, preempted, from a prefix cache."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSeq2SeqLM, PreTrainedModel

from models import comparing
from models.comparing import MATTERS, SHARE_WITH_GAP, TOLERANCE, changes_of_parameters, near_ties, off
from models.configs import ENCODER_DECODERS
from models.conftest import MadeOnce
from models.covered import check_covered
from models.encoder_decoder_cases import CASES
from models.parity_cases import ParityCase
from models.test_config import built_or_refusal
from ridgeline.backends.model_loader import load_model
from ridgeline.core.models import Fields, ModelRefused, build, family_of
from ridgeline.core.models import registry as families
from ridgeline.core.models.building import stored_dtype
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.parameter_breakdown import layers_of, parameter_breakdown
from ridgeline.core.models.common.sizes import sizes_of
from ridgeline.core.ops.kv_context import Uncached
from ridgeline.core.ops.work import StepSegment
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.step_plan import StepPlan
from support.checkpoints import WEIGHT_STD, edit_config, random_ours
from support.engines import RecordingRunner, complete, token_engine

NEW_TOKENS = 12
GREEDY = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
INPUTS, PROMPTS = (23, 9, 1, 14, 31), (1, 5, 17, 1, 2)  # lengths
RUNS: tuple[tuple[int | None, int], ...] = ((7, 4), (None, 16), (1, 1))  # chunk and page size

# Cases about a layout or a setting have the parameters of others.
OWN_WEIGHTS = [case for case in CASES if not case.layout and not case.without]
ENGINE_CASES = [case for case in CASES if not case.layout]


@dataclass(frozen=True)
class Subject(comparing.Subject):
    """One case, what encoders read, and what is continued."""

    inputs: list[list[int]]
    prompts: list[list[int]]

    def reference(self, encoder: list[int], ids: list[int]) -> Tensor:
        """Transformers' logits of every position: fp32 [length, vocabulary]."""
        with torch.no_grad():
            return self.theirs(input_ids=torch.tensor([encoder]), decoder_input_ids=torch.tensor([ids])).logits[0]

    def check(self, logits_TV: Tensor, encoder: list[int], ids: list[int], how: str) -> None:
        """Assert that logits are transformers'."""
        worst = off(logits_TV, self.reference(encoder, ids))
        assert worst <= TOLERANCE, f"{self.case.id}, {how}: logits are off by {worst:.1e} of the largest"


def random_theirs(case: ParityCase, seed: int) -> PreTrainedModel:
    """Transformers' model with random weights; a head of its own where the config says so."""
    settings = AutoConfig.for_model(case.model_type, **case.config)
    settings._attn_implementation = "eager"
    model = AutoModelForSeq2SeqLM.from_config(settings, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.requires_grad or "bias" in name:
            noise = torch.randn(tensor.shape, generator=generator) * WEIGHT_STD
            scale = tensor.dim() == 1 and not name.endswith("bias")
            tensor.data = 1 + noise if scale else noise
    if case.config.get("tie_word_embeddings", True):
        model.tie_weights()
    else:  # transformers 5 ties all the same, and scales UMT5's states as if it were tied
        model.lm_head.weight = nn.Parameter(torch.randn(model.lm_head.weight.shape, generator=generator) * WEIGHT_STD)
        model.config.tie_word_embeddings = False
    return model.requires_grad_(False)


def write(case: ParityCase, theirs: PreTrainedModel, folder: Path) -> None:
    """Save transformers' model in the layout of the case, with the config as releases have it."""
    theirs.save_pretrained(folder, max_shard_size="20KB" if "sharded" in case.layout else "1GB")
    assert ("sharded" in case.layout) == (len(list(folder.glob("*.safetensors"))) > 2)
    config, file = folder / "config.json", folder / "model.safetensors"
    values = json.loads(config.read_text(encoding="utf-8"))
    values.pop("scale_decoder_outputs", None)
    values["tie_word_embeddings"] = case.config.get("tie_word_embeddings", True)
    if "head repeated" in case.layout:
        save_file(load_file(file) | {"lm_head.weight": theirs.lm_head.weight.clone()}, file)
    if "no architectures" in case.layout:
        del values["architectures"]
    config.write_text(json.dumps(values), encoding="utf-8")


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.id)
def subject(request: pytest.FixtureRequest, once: MadeOnce) -> Subject:
    """The case's model, written by transformers and loaded by us."""
    out: Subject = once(request.param, made)
    return out


def made(case: ParityCase, folder: Path) -> Subject:
    """Both models of a case, and what they are asked."""
    theirs = random_theirs(case, case.seed)
    write(case, theirs, folder)
    generator = torch.Generator().manual_seed(case.seed)
    inputs, prompts = (
        [torch.randint(case.config["vocab_size"], (length,), generator=generator).tolist() for length in lengths]
        for lengths in (INPUTS, PROMPTS)
    )
    return Subject(case, folder, theirs, load_model(str(folder)), inputs, prompts)


def uncached(model: Model, encoder: list[int], ids: list[int]) -> Tensor:
    """Logits of every position, from one forward that keeps nothing."""
    kv = Uncached([StepSegment(len(ids), len(ids), len(encoder), runs_encoder=True)])
    with torch.inference_mode():
        encoded_ED = model.encode(torch.tensor(encoder), torch.arange(len(encoder)), kv)
        every_T = torch.arange(len(ids))
        return model.head(model.hidden(torch.tensor(ids), every_T, kv, every_T, encoded_ED))


def test_the_list_covers_every_family() -> None:
    """A family without a case would be a family without a proof."""
    cases = (case.model_type for case in CASES)
    check_covered(cases, families.ENCODER_DECODERS, "CASES in tests/models/encoder_decoder_cases.py")
    check_covered(ENCODER_DECODERS, families.ENCODER_DECODERS, "ENCODER_DECODERS in tests/models/configs.py")
    assert len({case.id for case in CASES}) == len(CASES)


def test_logits_without_a_cache(subject: Subject) -> None:
    """Whole sequences, one at a time."""
    for encoder, ids in zip(subject.inputs, reversed(subject.prompts), strict=True):
        subject.check(uncached(subject.ours, encoder, ids), encoder, ids, "without a cache")


@pytest.mark.usefixtures("torch_only")
@pytest.mark.parametrize("subject", ENGINE_CASES, indirect=True, ids=lambda case: case.id)
def test_logits_and_greedy_tokens_through_the_engine(subject: Subject) -> None:
    """Chunked prefill and decode over pages, requests side by side: every position's logits, and the tokens.

    With torch's sums: T5 does not scale its scores, so the other rounding of our kernels' sums becomes up to 1.5e-5 of
    the largest logit in two cases.
    """
    for chunk, page_size in RUNS if subject.case in (CASES[0], CASES[1]) else RUNS[:1]:
        limits = Limits(tokens=40, chunk=chunk)
        engine = token_engine(subject.ours, runner=RecordingRunner, page_size=page_size, limits=limits)
        outputs = complete(engine, subject.prompts, GREEDY, encoders=subject.inputs)
        runner = engine.executor
        assert isinstance(runner, RecordingRunner)
        near = 0
        both = zip(subject.inputs, subject.prompts, outputs, strict=True)
        for request, (encoder, prompt, output) in enumerate(both, start=1):
            ids = (prompt + output)[:-1]
            logits_TV = torch.stack([runner.logits[request, position] for position in range(len(ids))])
            subject.check(logits_TV, encoder, ids, f"chunks of {chunk}, pages of {page_size}")
            near += near_ties(subject.reference(encoder, ids)[len(prompt) - 1 :], output, subject.case.id)
        assert near <= (1 - SHARE_WITH_GAP) * NEW_TOKENS * len(outputs), "near ties: the tokens say little"


@pytest.mark.parametrize("subject", OWN_WEIGHTS, indirect=True, ids=lambda case: case.id)
def test_tokens_alone_together_in_chunks_and_preempted(subject: Subject) -> None:
    """The same tokens whoever is beside a request, however it is cut, whatever is found, and after its encoder ran
    again."""
    alone = [
        complete(token_engine(subject.ours), [prompt], GREEDY, encoders=[encoder])[0]
        for prompt, encoder in zip(subject.prompts, subject.inputs, strict=True)
    ]
    cramped = token_engine(subject.ours, limits=Limits(tokens=40, chunk=3), page_size=4, positions=44)
    assert complete(cramped, subject.prompts, GREEDY, encoders=subject.inputs) == alone
    assert cramped.stats.preemptions > 0
    plans: list[StepPlan] = []
    small = Limits(tokens=10, chunk=3)  # three inputs are longer: each of these has a step of its own
    indivisible = token_engine(subject.ours, limits=small, on_step=lambda record: plans.append(record.plan))
    assert complete(indivisible, subject.prompts, GREEDY, encoders=subject.inputs) == alone
    encoding = [lengths for plan in plans if any(lengths := [len(item.encoder) for item in plan.items])]
    assert sorted(length for lengths in encoding for length in lengths if length) == sorted(INPUTS)
    assert [lengths for lengths in encoding if max(lengths) >= small.tokens] == [[23], [14], [31]]
    cached = token_engine(subject.ours, page_size=4, prefix_cache=True)
    for _ in range(2):
        assert complete(cached, subject.prompts, GREEDY, encoders=subject.inputs) == alone
    assert cached.stats.reused_tokens > 0


# -- what is built ----------------------------------------------------------------------------------------------------

READ = {"architectures", "model_type", "torch_dtype", "is_encoder_decoder", "decoder_start_token_id"}
LEFT_OUT = [(kind, name) for kind, values in ENCODER_DECODERS.items() for name in values if name not in READ]


@pytest.mark.parametrize(("kind", "field"), LEFT_OUT)
def test_a_field_left_out_means_what_transformers_takes_it_for(kind: str, field: str, tmp_path: Path) -> None:
    """Or it is refused: never another default than the reference's."""
    values = {name: value for name, value in ENCODER_DECODERS[kind].items() if name != field}
    ours = built_or_refusal(values)
    if isinstance(ours, str):
        assert field in ours
        return
    theirs = AutoConfig.for_model(kind, **{name: value for name, value in values.items() if name not in READ})
    if kind in ("bart", "marian"):
        check_bart(ours, theirs)
        return
    activated = ours.get_submodule("encoder.block.0.layer.1.DenseReluDense.fc")
    assert (activated.activation, activated.gated) == (theirs.dense_act_fn, theirs.is_gated_act)
    depths = [len(ours.get_submodule(stack).block) for stack in ("encoder", "decoder")]
    assert depths == [theirs.num_layers, theirs.num_decoder_layers]
    bias = ours.get_submodule("decoder.block.0.layer.0.SelfAttention.attend.bias")
    assert len(bias.weight) == theirs.relative_attention_num_buckets
    assert bias.farthest == theirs.relative_attention_max_distance
    assert ours.get_submodule("encoder.final_layer_norm").eps == theirs.layer_norm_epsilon
    if field == "tie_word_embeddings":
        assert ours.tied


def check_bart(ours: Model, theirs: Any) -> None:
    """Assert that sizes of both stacks, positions, activation and scale are those of transformers' reading."""
    trunk = ours.get_submodule("model")
    for stack in ("encoder", "decoder"):
        layers = trunk.get_submodule(stack).layers
        assert len(layers) == getattr(theirs, f"{stack}_layers")
        assert layers[0].mlp.fc.width == getattr(theirs, f"{stack}_ffn_dim")
        assert layers[0].self_attn.attend.heads == getattr(theirs, f"{stack}_attention_heads")
        assert layers[0].mlp.fc.activation == theirs.activation_function
    assert (ours.context, ours.encoder_context) == (theirs.max_position_embeddings,) * 2
    assert (trunk.shared.scale is not None) == theirs.scale_embedding
    assert ours.tied == theirs.tie_word_embeddings


@pytest.mark.parametrize("kind", ENCODER_DECODERS)
def test_transformers_counts_the_same_parameters(kind: str) -> None:
    """One name each, as it is called there, none for what is tied or shared."""
    values = ENCODER_DECODERS[kind]
    ours, family = build(Fields(values, "config.json")), family_of(Fields(values, "config.json"))
    with torch.device("meta"):
        theirs = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model(**values, pad_token_id=1))
    named = {name: p for name, p in theirs.named_parameters() if kind != "marian" or "embed_positions" not in name}
    numbers = sum(parameter.numel() for parameter in named.values())
    if ours.tied:  # the bias of a tied head is a buffer there, and goes with the embedding here
        own = {*named, "final_logits_bias"}
    else:  # transformers 5 ties it all the same
        own, numbers = {*named, "lm_head.weight"}, numbers + theirs.lm_head.weight.numel()
    assert {family.checkpoint_name(name) for name in ours.tensors()} == own
    assert parameter_breakdown(ours).total == numbers
    assert parameter_breakdown(ours).nbytes == 4 * parameter_breakdown(ours).total


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"feed_forward_proj": "gated-softsign"}, "feed_forward_proj 'gated-softsign' is not supported"),
        ({"relative_attention_num_buckets": 2}, "relative_attention_num_buckets"),
        ({"relative_attention_max_distance": 3}, "relative_attention_max_distance is 3"),
        ({"num_heads": 10_000, "d_kv": 10_000}, "num_heads 10000 x d_kv 10000"),
        ({"scale_decoder_outputs": "yes"}, "scale_decoder_outputs is 'yes'"),
    ],
)
def test_a_t5_that_cannot_be_built_is_refused_in_one_line(changes: dict[str, object], named: str) -> None:
    refused_in_one_line({**ENCODER_DECODERS["t5"], **changes}, named)


@pytest.mark.parametrize(
    ("kind", "changes", "named"),
    [
        ("bart", {"normalize_before": True}, "normalize_before = True is not supported"),
        ("bart", {"add_final_layer_norm": True}, "add_final_layer_norm = True is not supported"),
        ("bart", {"static_position_embeddings": True}, "static_position_embeddings = True is not supported"),
        ("bart", {"normalize_embedding": False}, "normalize_embedding = false is not supported"),
        ("bart", {"tie_word_embeddings": False}, "tie_word_embeddings = false is not supported"),
        ("bart", {"encoder_attention_heads": 5}, "d_model 36 does not divide into 5 heads"),
        ("marian", {"share_encoder_decoder_embeddings": False}, "share_encoder_decoder_embeddings = false"),
        ("marian", {"static_position_embeddings": False}, "static_position_embeddings = false"),
        ("marian", {"decoder_vocab_size": 98}, "decoder_vocab_size"),
        ("marian", {"normalize_embedding": True}, "normalize_embedding = True is not supported"),
    ],
)
def test_a_bart_that_cannot_be_built_is_refused_in_one_line(kind: str, changes: dict[str, object], named: str) -> None:
    refused_in_one_line({**ENCODER_DECODERS[kind], **changes}, named)


def test_layers_and_what_a_token_keeps_are_counted_by_stack() -> None:
    """Two layers of the encoder, which keep nothing of a token that is written, and three of the decoder."""
    model = build(Fields(ENCODER_DECODERS["t5"], "config.json"))
    assert layers_of(model) == (2, 3)
    (own, one) = sizes_of(model).sharing
    assert (own.form, own.bytes_per_token, one.bytes_per_token) == ("MHA", 3 * 2 * 60 * 4, 3 * 2 * 10 * 4)
    assert (
        parameter_breakdown(model).layer["attention"] == 2 * 4 * 48 * 60
    )  # of a decoder's layer, the commonest, which has no table


def refused_in_one_line(values: dict[str, object], named: str) -> None:
    """Assert that such a config is refused, and how."""
    with pytest.raises(ModelRefused) as refused:
        build(Fields(values, "config.json"))
    assert named in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_an_input_longer_than_the_encoder_takes_is_refused() -> None:
    """In one line, and nothing is queued."""
    engine = token_engine(random_ours(ENCODER_DECODERS["t5"]))
    with pytest.raises(
        ValueError, match="the encoder input has 65 tokens, but the encoder reads at most 64: shorten it"
    ):
        engine.add(GenerationRequest((0,), GREEDY, encoder=[1] * 65))
    assert not engine.has_work
    assert len(complete(engine, [(0,)], GREEDY, encoders=[[1] * 64])[0]) == NEW_TOKENS


# -- parameters and settings that matter ------------------------------------------------------------------------------


@pytest.mark.parametrize("subject", OWN_WEIGHTS, indirect=True, ids=lambda case: case.id)
def test_every_parameter_matters(subject: Subject) -> None:
    """Parity would prove nothing about a norm or a bias that the logits do not depend on."""
    generator = torch.Generator().manual_seed(0)
    encoder, ids = (torch.randint(80, (length,), generator=generator).tolist() for length in (40, 50))
    # It adds the same to every score of a query, which a softmax takes out again.
    skipped = {name for name, _ in subject.ours.named_parameters() if name.endswith("k_proj.bias")}
    looked_at = 0
    for name, change in changes_of_parameters(subject.ours, lambda: uncached(subject.ours, encoder, ids), skipped):
        assert change > MATTERS, f"{subject.case.id}: another {name} changes the logits by {change:.1e} only"
        looked_at += 1
    assert looked_at >= 20


@pytest.mark.parametrize("subject", [c for c in CASES if c.without], indirect=True, ids=lambda case: case.id)
def test_the_setting_matters(subject: Subject) -> None:
    """Without the setting that a case is about, the same weights give other logits."""
    models = (subject.ours, subject.without())
    with_TV, without_TV = (uncached(model, subject.inputs[0], subject.prompts[2]) for model in models)
    change = off(without_TV, with_TV)
    assert change > MATTERS, f"the setting changes the logits by {change:.1e} only"


@pytest.mark.parametrize("model_type", ["t5", "umt5"])
def test_fp16_runs_in_fp32_where_hidden_states_go_beyond_its_range(model_type: str, tmp_path: Path) -> None:
    """Expect the logits of transformers, which keeps `wo` and with it the hidden states in fp32."""
    case = next(case for case in OWN_WEIGHTS if case.model_type == model_type)
    theirs = random_theirs(case, case.seed)
    for name, parameter in theirs.named_parameters():
        if name.endswith(".wo.weight"):
            parameter.data *= 60_000 / parameter.abs().max()
    write(case, theirs.half(), tmp_path)
    edit_config(tmp_path, dtype="float16")
    encoder, ids = [5, 7, 11, 3, 2], [0, 4, 9]
    reference = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype=torch.float32)
    if not case.config.get("tie_word_embeddings", True):
        reference.lm_head.weight = nn.Parameter(theirs.lm_head.weight.float())
    with torch.no_grad():
        logits_TV = reference(input_ids=torch.tensor([encoder]), decoder_input_ids=torch.tensor([ids])).logits[0]
    ours = load_model(str(tmp_path))
    assert off(uncached(ours, encoder, ids), logits_TV) <= TOLERANCE
    assert stored_dtype(Fields.read(tmp_path / "config.json")) == ours.storage.dtype == torch.float32
