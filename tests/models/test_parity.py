"""Every family against transformers, fp32, small random checkpoints: logits, greedy tokens, every parameter."""

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from models import comparing
from models.comparing import MATTERS, SHARE_WITH_GAP, TOLERANCE, changes_of_parameters, near_ties, off
from models.conftest import MadeOnce
from models.covered import check_covered
from models.parity_cases import CASES, ParityCase
from models.released import as_released
from ridgeline.backends.model_loader import load_model
from ridgeline.core.models import FAMILIES
from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.experts import Experts
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.scheduler import Limits
from support.checkpoints import edit_config, random_model
from support.differences import first_difference
from support.engines import RecordingRunner, complete, token_engine, uncached_logits

PROMPT_LENGTHS = (23, 9, 1, 14, 6)
NEW_TOKENS = 8
GREEDY = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
RUNS: tuple[tuple[int | None, int], ...] = ((7, 4), (None, 16), (1, 1))  # chunk and page size

# Cases about a layout or a setting have the parameters of others.
OWN_WEIGHTS = [case for case in CASES if not case.layout and not case.without]
# How a folder is laid out is over once it is loaded: without a cache every logit is compared.
ENGINE_CASES = [case for case in CASES if not case.layout or case.without]


@dataclass(frozen=True)
class Subject(comparing.Subject):
    """One case, and prompts longer than any window."""

    prompts: list[list[int]]
    _references: dict[tuple[int, ...], Tensor] = field(default_factory=dict)

    def reference(self, ids: list[int]) -> Tensor:
        """Transformers' logits of every position, found once for the engines of a case: fp32 [length, vocabulary]."""
        if tuple(ids) not in self._references:
            with torch.no_grad():
                self._references[tuple(ids)] = self.theirs(torch.tensor([ids])).logits[0]
        return self._references[tuple(ids)]

    def runs(self) -> list[tuple[int | None, int]]:
        """Chunk and page size of the engines to compare: one in turn, all where windows or a family are new."""
        first = next(case for case in CASES if case.model_type == self.case.model_type)
        if self.case is first or "window" in self.case.id:
            return list(RUNS)
        return [RUNS[self.case.seed % len(RUNS)]]

    def check(self, logits_TV: Tensor, ids: list[int], how: str) -> None:
        """Assert that logits of `ids` are transformers', else say which module is the first that differs."""
        worst = off(logits_TV, self.reference(ids))
        assert worst <= TOLERANCE, (
            f"{self.case.id}, {how}: logits are off by {worst:.1e} of the largest; "
            f"{first_difference(self.ours, self.theirs, ids)}"
        )


@pytest.fixture(scope="module")
def ran(request: pytest.FixtureRequest) -> Iterator[set[str]]:
    """The ids of cases that went through the engine; at the end each that was asked for is there, and at least one."""
    ids: set[str] = set()
    yield ids
    counted = test_logits_and_greedy_tokens_through_the_engine
    items = [item for item in request.session.items if getattr(item, "function", None) is counted]
    asked = {item.callspec.params["subject"].id for item in items}
    partial = request.session.shouldstop or request.session.shouldfail or "PYTEST_XDIST_WORKER" in os.environ
    assert partial or ids == asked, f"cases that did not run: {sorted(asked - ids)}"
    assert partial or ids or not items, "no case ran"


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.id)
def subject(request: pytest.FixtureRequest, once: MadeOnce) -> Subject:
    """The case's model, written by transformers and loaded by us."""
    out: Subject = once(request.param, made)
    return out


def made(case: ParityCase, folder: Path) -> Subject:
    """Both models of a case, and its prompts."""
    theirs = random_model(case.model_type, case.config, case.seed)
    write(case, theirs, folder)
    generator = torch.Generator().manual_seed(case.seed)
    prompts = [
        torch.randint(case.config["vocab_size"], (length,), generator=generator).tolist() for length in PROMPT_LENGTHS
    ]
    return Subject(case, folder, theirs, load_model(str(folder)), prompts)


def write(case: ParityCase, theirs: PreTrainedModel, folder: Path) -> None:
    """Save transformers' model as its family is released, and in the layout of the case."""
    layout = case.layout
    saved = theirs.base_model if "bare" in layout else theirs
    saved.save_pretrained(folder, max_shard_size="20KB" if "sharded" in layout else "1GB")
    assert ("sharded" in layout) == (len(list(folder.glob("*.safetensors"))) > 2)
    config, file = folder / "config.json", folder / "model.safetensors"
    values = json.loads(config.read_text(encoding="utf-8"))
    values["architectures"] = [type(theirs).__name__]  # a bare model names its own class there
    if "old buffers" in layout:
        prefix = "" if "bare" in layout else f"{theirs.base_model_prefix}."
        save_file(load_file(file) | old_buffers(theirs, prefix), file)
    if "head repeated" in layout:
        save_file(load_file(file) | {"lm_head.weight": theirs.get_output_embeddings().weight.clone()}, file)
    if "old spelling" in layout:
        rope = values.pop("rope_parameters")
        if "full_attention" in rope:  # a scaling is that one's
            if case.model_type == "gemma3_text":
                values["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
            rope = rope["full_attention"]
        values["rope_theta"] = rope.pop("rope_theta")
        values["rope_scaling"] = rope | {"type": rope.pop("rope_type")}
    if "experts stacked" in layout:
        save_file(stacked(load_file(file)), file)
    if "no layer types" in layout:  # releases say `max_window_layers` alone
        del values["layer_types"]
    values = as_released(values)
    if "no architectures" in layout:
        del values["architectures"]
    config.write_text(json.dumps(values), encoding="utf-8")


def stacked(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The experts of a layer in two tensors, as newer tools store them, instead of three an expert."""
    names = {"w1": "gate", "gate_proj": "gate", "w3": "up", "up_proj": "up", "w2": "down", "down_proj": "down"}
    each: dict[str, dict[str, dict[int, Tensor]]] = defaultdict(lambda: defaultdict(dict))
    others = {}
    for name, tensor in tensors.items():
        layer, _, rest = name.partition(".experts.")
        if not rest:
            others[name] = tensor
            continue
        number, matrix, _ = rest.split(".")
        each[layer][names[matrix]][int(number)] = tensor
    assert each, "a checkpoint without experts"
    for layer, matrices in each.items():
        *gate, up, down = (
            torch.stack([own for _, own in sorted(matrices[name].items())])
            for name in ("gate", "up", "down")
            if name in matrices
        )
        others[f"{layer}.experts.{'gate_up_proj' if gate else 'up_proj'}"] = torch.cat([*gate, up], dim=1)
        others[f"{layer}.experts.down_proj"] = down
    return others


def old_buffers(theirs: PreTrainedModel, prefix: str) -> dict[str, Tensor]:
    """What transformers once saved beside the weights: masks (GPT-2), rotary frequencies (the others)."""
    layers = range(theirs.config.num_hidden_layers)
    if theirs.config.model_type != "gpt2":
        return {f"{prefix}layers.{i}.self_attn.rotary_emb.inv_freq": torch.ones(5) for i in layers}
    masks = {f"{prefix}h.{i}.attn.bias": torch.ones(1, 1, 96, 96).tril() for i in layers}
    return masks | {f"{prefix}h.{i}.attn.masked_bias": torch.tensor(-1e4) for i in layers}


def test_the_list_covers_every_family() -> None:
    """A family without a case would be a family without a proof."""
    check_covered((case.model_type for case in CASES), FAMILIES, "CASES in tests/models/parity_cases.py")
    plain = (case.model_type for case in CASES if not case.layout and not case.without)
    check_covered(plain, FAMILIES, "CASES in tests/models/parity_cases.py without `layout` and `without`")
    assert len({case.id for case in CASES}) == len(CASES)


def test_logits_without_a_cache(subject: Subject) -> None:
    """One forward of all prompts together, nothing kept."""
    for ids, logits_TV in zip(subject.prompts, uncached_logits(subject.ours, subject.prompts), strict=True):
        subject.check(logits_TV, ids, "without a cache")


@pytest.mark.parametrize("subject", ENGINE_CASES, indirect=True, ids=lambda case: case.id)
def test_logits_and_greedy_tokens_through_the_engine(subject: Subject, ran: set[str]) -> None:
    """Chunked prefill and decode over pages: every position's logits, and the tokens that the engine chose."""
    ran.add(subject.case.id)
    for chunk, page_size in subject.runs():
        limits = Limits(tokens=16, chunk=chunk)
        engine = token_engine(subject.ours, runner=RecordingRunner, page_size=page_size, limits=limits)
        outputs = complete(engine, subject.prompts, GREEDY)
        runner = engine.executor
        assert isinstance(runner, RecordingRunner)
        near = 0
        for request, (prompt, output) in enumerate(zip(subject.prompts, outputs, strict=True), start=1):
            assert len(output) == NEW_TOKENS
            ids = (prompt + output)[:-1]
            logits_TV = torch.stack([runner.logits[request, position] for position in range(len(ids))])
            subject.check(logits_TV, ids, f"chunks of {chunk}, pages of {page_size}")
            near += near_ties(subject.reference(ids)[len(prompt) - 1 :], output, subject.case.id)
        assert near <= (1 - SHARE_WITH_GAP) * NEW_TOKENS * len(outputs), "near ties: the tokens say little"
    # The engine itself, which asks for the logits of the last positions only, chooses the same.
    plain = token_engine(subject.ours, page_size=page_size, limits=limits)
    assert complete(plain, subject.prompts, GREEDY) == outputs


@pytest.mark.parametrize("subject", OWN_WEIGHTS, indirect=True, ids=lambda case: case.id)
def test_every_parameter_matters(subject: Subject) -> None:
    """Parity would prove nothing about a gate, norm or bias that the logits do not depend on."""
    generator = torch.Generator().manual_seed(0)
    ids = [torch.randint(subject.case.config["vocab_size"], (60,), generator=generator).tolist()]
    with picked_experts(subject.ours) as picked:
        uncached_logits(subject.ours, ids)
    looked_at = 0
    for name, change in changes_of_parameters(
        subject.ours, lambda: uncached_logits(subject.ours, ids)[0], of_others(subject.ours, picked)
    ):
        assert change > MATTERS, f"{subject.case.id}: another {name} changes the logits by {change:.1e} only"
        looked_at += 1
    assert looked_at >= 10
    assert all(len(experts) >= 3 for experts in picked.values())


def of_others(model: Model, picked: dict[str, set[int]]) -> set[str]:
    """The parameters of the experts that no token picks."""
    names = set()
    for name, _ in model.named_parameters():
        path, _, rest = name.partition(".experts.")
        if rest and int(rest.split(".")[0]) not in picked[f"{path}.experts"]:
            names.add(name)
    return names


@contextmanager
def picked_experts(model: Model) -> Iterator[dict[str, set[int]]]:
    """Which experts of each mixture the tokens of the forwards inside pick."""
    picked: dict[str, set[int]] = defaultdict(set)
    handles = []
    for path, op in model.ops():
        if isinstance(op, Experts):

            def note(module: Experts, args: tuple[Tensor, ...], path: str = path) -> None:
                picked[path].update(args[2].flatten().tolist())

            handles.append(op.register_forward_pre_hook(note))
    yield picked
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize("subject", [c for c in CASES if c.without], indirect=True, ids=lambda case: case.id)
def test_the_setting_matters(subject: Subject) -> None:
    """Without the setting that a case is about, the same weights give other logits."""
    ids = subject.prompts[:1]
    (with_TV,), (without_TV,) = uncached_logits(subject.ours, ids), uncached_logits(subject.without(), ids)
    change = off(without_TV, with_TV)
    assert change > MATTERS, f"the setting changes the logits by {change:.1e} only"


@pytest.mark.parametrize(
    ("model_type", "broken", "named"),
    [
        ("llama", "model.layers.1.self_attn.k_proj.weight", "output of model.layers.1.self_attn.k_proj"),
        ("qwen3", "model.layers.2.self_attn.q_norm.weight", "output of model.layers.2.self_attn.q_norm"),
        ("mixtral", "model.layers.0.mlp.gate.weight", "output of model.layers.0.mlp.gate"),
        ("gpt2", "transformer.h.1.mlp.c_fc.bias", "between them ran transformer.h.1.mlp.fc"),
        ("phi3", "model.norm.weight", "output of model.norm"),
        ("qwen2_moe", "model.layers.1.mlp.shared_expert_gate.weight", "output of model.layers.1.mlp"),
        ("qwen3_next", "model.layers.0.linear_attn.A_log", "input of model.layers.0.linear_attn.norm"),
        ("deepseek_v3", "model.layers.1.self_attn.kv_a_layernorm.weight", "model.layers.1.self_attn.kv_a_layernorm"),
        ("gpt_oss", "model.layers.1.self_attn.attend.sinks_H", "input of model.layers.1.self_attn.o_proj"),
        ("gemma2", "model.layers.1.post_attention_layernorm.weight", "model.layers.1.post_attention_layernorm"),
        ("gemma3_text", "model.layers.1.self_attn.k_norm.weight", "output of model.layers.1.self_attn.k_norm"),
        ("olmo2", "model.layers.1.post_feedforward_layernorm.weight", "model.layers.1.post_feedforward_layernorm"),
        ("cohere", "model.layers.2.mlp.up_proj.weight", "model.layers.2.mlp"),
    ],
)
def test_a_failure_names_the_first_difference(model_type: str, broken: str, named: str, tmp_path: Path) -> None:
    """The finder itself: one parameter is changed, and its module is the one that is named."""
    case = next(case for case in CASES if case.model_type == model_type)
    theirs = random_model(model_type, case.config, 0)
    theirs.save_pretrained(tmp_path)
    ours = load_model(str(tmp_path))
    assert first_difference(ours, theirs, range(20)) == "no module differs"
    (path,) = [path for path, _ in ours.named_parameters() if ours.checkpoint_name(path) == broken]
    parameter = ours.get_parameter(path)
    parameter.data = parameter.data * 1.1
    assert named in first_difference(ours, theirs, range(20))


def test_a_failure_names_the_ops_that_have_no_counterpart(tmp_path: Path) -> None:
    """Attention scaled wrongly shows at the input of o_proj, and the ops that ran since q, k and v are listed."""
    case = CASES[0]
    theirs = random_model(case.model_type, case.config, 0)
    theirs.save_pretrained(tmp_path)
    edit_config(tmp_path, rope_parameters={"rope_type": "default", "rope_theta": 10_001.0})
    assert "output of model.rotary" in first_difference(load_model(str(tmp_path)), theirs, range(20))
    edit_config(tmp_path, rope_parameters=None, architectures=["MistralForCausalLM"], sliding_window=3)
    message = first_difference(load_model(str(tmp_path)), theirs, range(20))
    assert "input of model.layers.0.self_attn.o_proj" in message
    assert "model.layers.0.self_attn.attend" in message
