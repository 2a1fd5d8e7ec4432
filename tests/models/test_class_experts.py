"""The experts of transformers' classes as our Experts op: the same logits, costs and released names.

The reference is each class's own loop over its experts (`eager`), in fp32.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

from models.comparing import TOLERANCE, off
from ridgeline.backends import backend_of
from ridgeline.backends.cpu.cpu_backend import CpuBackend
from ridgeline.core.checkpoint.weight_loader import fill_dummy
from ridgeline.core.models import Fields, build
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.from_transformers.class_construction import class_module
from ridgeline.core.models.from_transformers.class_decoder import ClassDecoder
from ridgeline.core.models.from_transformers.class_experts import ClassExperts
from ridgeline.core.models.from_transformers.expert_names import single_expert_names
from ridgeline.core.models.from_transformers.routed_experts import RoutedExperts, routed_experts
from ridgeline.core.models.from_transformers.small_config import small_config
from ridgeline.core.models.from_transformers.small_weights import copy_weights
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.experts import Experts, ExpertSizes
from ridgeline.core.ops.nonlinearity import ClampedGate
from ridgeline.core.ops.stored_module import StoredModule
from ridgeline.engine.scheduler import Limits
from support.checkpoints import fill_random
from support.engines import complete, token_engine, uncached_logits

# Types whose mixtures differ: the layout and names of experts, the routing, shared experts, layers without experts.
DECODERS = (
    "afmoe", "aria_text", "beam", "cohere2_moe", "deepseek_v2", "deepseek_v3", "dots1", "ernie4_5_moe", "exaone_moe",
    "flex_olmo", "glm4_moe", "gpt_oss", "granitemoe", "granitemoeshared", "hy_v3", "laguna", "mimo_v2_flash",
    "minimax_m2", "minimax_m3_vl_text", "mixtral", "olmoe", "phimoe", "qwen2_moe", "qwen3_moe", "solar_open",
)  # fmt: skip
# Types that the engine does not run, for reasons other than their experts.
OTHERS = (
    "bailing_hybrid", "jamba", "kimi_linear", "lfm2_moe", "minimax", "nemotron_h", "qwen3_5_moe_text", "qwen3_next",
    "zaya",
)  # fmt: skip
NATIVE = ("deepseek_v2", "deepseek_v3", "gpt_oss", "minimax_m2", "mixtral", "qwen2_moe", "qwen3_moe")
SWISH = ("w1", "w3", "w2")
LENGTHS = (1, 23)  # a decode step of one row, and many rows


def small(model_type: str) -> Any:
    return small_config(CONFIG_MAPPING[model_type]())


@cache
def reference(model_type: str) -> PreTrainedModel:
    """Return a small random model of a type, in fp32, of which each part runs the class's own code."""
    config = small(model_type)
    config._attn_implementation = config._experts_implementation = "eager"
    model = cast(PreTrainedModel, AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval())
    fill_random(model, 0)
    return model


def fill(module: StoredModule, named: Mapping[str, Tensor]) -> None:
    """Give a module on meta its tensors, by their names in it."""
    assert set(module.tensors()) <= named.keys()
    for name in module.tensors():
        for path, tensor in module.load_tensor(name, named[name]).items():
            owner, _, attribute = path.rpartition(".")
            setattr(module.get_submodule(owner), attribute, nn.Parameter(tensor, requires_grad=False))


def match(op: Experts, named: Mapping[str, Tensor]) -> None:
    """Create the parameters of an op, in the layout of these tensors, by their names in the op."""
    with torch.device("meta"):
        op.create_parameters()
    op.match_checkpoint(dict.fromkeys(named, "F32").get)


@cache
def decoder(model_type: str, *, native: bool = False) -> ClassDecoder:
    """Return our model of a class, with the weights of the reference."""
    theirs = reference(model_type)
    with torch.device("meta"):
        ours = ClassDecoder(
            class_module(type(theirs), small(model_type), torch.float32), StorageConfig(torch.float32), 64
        )
    copy_weights(ours, theirs)
    if native:
        backend_of(torch.device("cpu")).prepare(ours)
    return ours


def modules_of_experts(model: nn.Module) -> dict[str, Any]:
    return {path: module for path, module in model.named_modules() if path.endswith(".experts")}


def alone(model_type: str) -> tuple[Any, RoutedExperts]:
    """Return a module of experts of the reference, and our op with its weights."""
    with torch.device("meta"):
        held = AutoModelForCausalLM.from_config(small(model_type), dtype=torch.float32)
    path = next(iter(modules_of_experts(held)))
    op = routed_experts(held.get_submodule(path), single_expert_names(held).get(path))
    assert op is not None
    module = reference(model_type).get_submodule(path)
    match(op, dict(module.named_parameters()))
    fill(op, dict(module.named_parameters()))
    return module, op


def routing(count: int, hidden: int, rows: int, active: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Return hidden states, and the ids and weights of the experts of each row."""
    generator = torch.Generator().manual_seed(rows)
    scores_TE = torch.rand(rows, count, generator=generator)
    weights_TK, picked_TK = scores_TE.topk(active, dim=-1)
    return torch.randn(rows, hidden, generator=generator), picked_TK, weights_TK


# -- what they compute -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("native", [False, True], ids=["reference", "native"])
@pytest.mark.parametrize("model_type", [*DECODERS, "dbrx"])
def test_logits_are_those_of_the_class(model_type: str, native: bool) -> None:
    """Compare the logits of one row and of many, in PyTorch and with the kernels for the CPU."""
    ours, theirs = decoder(model_type, native=native), reference(model_type)
    ops = [op for _, op in ours.ops() if op.kind == "experts"]
    assert ops
    assert {type(op) for op in ops} == {RoutedExperts}
    assert len(ops) == len(modules_of_experts(theirs))
    if native:
        assert all(isinstance(op.backend, CpuBackend) and op.backend.covers(op) for op in ops)
    for length in LENGTHS:
        ids = torch.randint(3, 90, (length,), generator=torch.Generator().manual_seed(length))
        (logits_TV,) = uncached_logits(ours, [ids.tolist()])
        with torch.inference_mode():
            assert off(logits_TV, theirs(ids[None], use_cache=False).logits[0]) < TOLERANCE


@pytest.mark.parametrize("model_type", [*DECODERS, *OTHERS])
def test_experts_alone_are_those_of_the_class(model_type: str) -> None:
    """Compare modules by themselves, because the engine does not run the rest of some classes."""
    module, op = alone(model_type)
    for rows in LENGTHS:
        given = routing(op.count, op.hidden, rows, min(2, op.count))
        with torch.inference_mode():
            assert off(op(*given), module(*given)) < TOLERANCE
            assert torch.equal(op(given[0][None], *given[1:]), op(*given)[None])


@pytest.mark.parametrize("model_type", ["dbrx", "hy_v3", "longcat_flash", "olmoe", "phimoe"])
def test_the_engine_generates_what_transformers_does(model_type: str) -> None:
    """Run two requests in one batch, in chunks of a prompt, with the kernels for the CPU."""
    generator = torch.Generator().manual_seed(3)
    prompts = [torch.randint(3, 90, (length,), generator=generator).tolist() for length in (19, 4)]
    engine = token_engine(decoder(model_type, native=True), limits=Limits(tokens=7), prefix_cache=True)
    wanted = [
        reference(model_type)
        .generate(  # type: ignore[operator]
            torch.tensor([prompt]), max_new_tokens=16, do_sample=False, eos_token_id=None, pad_token_id=0
        )[0, len(prompt) :]
        .tolist()
        for prompt in prompts
    ]
    assert complete(engine, prompts) == wanted
    assert complete(engine, prompts) == wanted  # from the prefix cache


def test_zero_experts_run_the_class_s_code() -> None:
    """Compare the logits of LongCat-Flash, some of whose experts return their input, and what these cost."""
    ours, theirs = decoder("longcat_flash"), reference("longcat_flash")
    (op, *_) = (op for _, op in ours.ops() if op.kind == "experts")
    assert isinstance(op, ClassExperts)
    assert op.experts is not None
    ids = torch.arange(3, 26)
    with torch.inference_mode():
        assert off(uncached_logits(ours, [ids.tolist()])[0], theirs(ids[None], use_cache=False).logits[0]) < TOLERANCE
    config, rows = theirs.config, 5
    of_one = 3 * config.hidden_size * config.expert_ffn_hidden_size
    total = config.n_routed_experts + config.zero_expert_num
    assert (op.experts.count, op.experts.active) == (total, config.num_experts_per_tok)
    share, cost = config.n_routed_experts / total, op.cost_of(rows)
    assert cost.flops == {"fp32": pytest.approx(2 * rows * config.num_experts_per_tok * share * of_one)}
    assert cost.weight_bytes == pytest.approx(op.experts.expected_hits(rows) * share * of_one * 4)


@pytest.mark.parametrize(
    ("model_type", "activation"),
    [("gpt_oss", ClampedGate(1.702, 7.0)), ("minimax_m3_vl_text", ClampedGate(1.702, 7.0)), ("nemotron_h", "relu2"),
     ("mixtral", "silu"), ("beam", "silu")],
)  # fmt: skip
def test_the_activation_is_found(model_type: str, activation: object) -> None:
    assert alone(model_type)[1].activation == activation


def other_gate(module: Any) -> None:
    module._apply_gate = lambda joined: joined.chunk(2, dim=-1)[0].sigmoid() * joined.chunk(2, dim=-1)[1]


def post_norm(module: Any) -> None:
    module.has_post_expert_norm = True


def no_description(module: Any) -> None:
    del module.has_post_expert_norm


def trained_activation(module: Any) -> None:
    module.act_fn = nn.PReLU()


@pytest.mark.parametrize("change", [other_gate, post_norm, no_description, trained_activation])
def test_experts_that_compute_something_else_stay_the_class_s(change: Any) -> None:
    with torch.device("meta"):
        held = AutoModelForCausalLM.from_config(small("mixtral"), dtype=torch.float32)
    (module, *_) = modules_of_experts(held).values()
    assert routed_experts(module, None) is not None
    change(module)
    assert routed_experts(module, None) is None


# -- dtypes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model_type", [*DECODERS, "flint", "hunyuan_v1_moe"])
def test_parameters_kept_in_fp32_stay_in_fp32(model_type: str, tmp_path: Path) -> None:
    """Compare the dtypes of a bf16 model's parameters, such as corrections of routers, with `from_pretrained`."""
    AutoModelForCausalLM.from_config(small(model_type), dtype=torch.bfloat16).save_pretrained(tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    with torch.device("meta"):
        module = class_module(type(theirs), small(model_type), torch.bfloat16)
        ours = ClassDecoder(module, StorageConfig(torch.bfloat16), 64)
    wanted = {name: held.dtype for name, held in theirs.state_dict().items()}
    given = {name: module.dtype_of(own) for name, (module, own) in ours.tensors().items()}
    assert {name: dtype for name, dtype in wanted.items() if name in given} == {
        name: dtype for name, dtype in given.items() if name in wanted
    }
    assert {name for name, dtype in wanted.items() if dtype == torch.float32} <= given.keys()


def test_sinks_have_the_dtype_that_kernels_read() -> None:
    """Cast sinks that a class keeps in fp32, because kernels read them in the dtype of keys and values."""
    with torch.device("meta"):
        cls = AutoModelForCausalLM._model_mapping[type(small("flint"))]
        ours = ClassDecoder(class_module(cls, small("flint"), torch.bfloat16), StorageConfig(torch.bfloat16), 64)
    fill_dummy(ours)
    assert any(parameter.dtype == torch.float32 for name, parameter in ours.named_parameters() if "sinks" in name)
    uncached_logits(ours, [[3, 4, 5]])
    sinks = [op.sinks_H for _, op in ours.ops_of(Attention)]
    assert {None if own is None else own.dtype for own in sinks} == {torch.bfloat16}


# -- what they cost ----------------------------------------------------------------------------------------------------


def both(model_type: str) -> tuple[Sequence[Experts], Sequence[Experts]]:
    """Return the experts of our family, and those of the class, for the class's default config."""
    config = CONFIG_MAPPING[model_type](num_experts_per_tok=4)  # the default of deepseek_v2 has none
    values = {name: value for name, value in config.to_dict().items() if value is not None}
    cls = AutoModelForCausalLM._model_mapping[type(config)]
    fields = Fields({**values, "architectures": [cls.__name__]}, "config.json")
    with torch.device("meta"):
        ours = build(fields, torch.bfloat16)
        traced = ClassDecoder(class_module(cls, config, torch.bfloat16), StorageConfig(torch.bfloat16), 64)
    assert not isinstance(ours, ClassDecoder)
    return tuple([op for _, op in model.ops_of(Experts)] for model in (ours, traced))


@pytest.mark.parametrize("model_type", NATIVE)
def test_costs_are_those_of_our_family(model_type: str) -> None:
    """Compare FLOPs and bytes of weights of every layer's experts for any number of rows, and all parameters."""
    ours, traced = both(model_type)
    assert len(ours) == len(traced) > 0
    for op, other in zip(ours, traced, strict=True):
        for rows in (1, 7, 512):
            cost, wanted = other.cost_of(rows), op.cost_of(rows)
            assert (cost.flops, cost.weight_bytes) == (wanted.flops, wanted.weight_bytes)
        assert (other.parameter_count(), other.idle_parameters) == (op.parameter_count(), op.idle_parameters)


# -- how they are stored -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model_type", "names"),
    [
        ("afmoe", ("gate_proj", "up_proj", "down_proj")),
        ("jamba", ("gate_proj", "up_proj", "down_proj")),
        ("kimi_linear", SWISH),
        ("lfm2_moe", SWISH),
        ("minimax_m2", SWISH),
        ("mixtral", SWISH),
        ("nemotron_h", ("up_proj", "down_proj")),
        ("phimoe", SWISH),
        ("gpt_oss", None),
        ("granitemoe", None),
        ("minimax_m3_vl_text", None),
    ],
)
def test_names_are_those_of_released_checkpoints(model_type: str, names: tuple[str, ...] | None) -> None:
    """Find the names of single experts, which some classes do not have: their experts are released in one tensor."""
    with torch.device("meta"):
        held = AutoModelForCausalLM.from_config(small(model_type), dtype=torch.float32)
    found = single_expert_names(held)
    assert set(found) == (set() if names is None else set(modules_of_experts(held)))
    assert set(found.values()) <= {names}
    assert tuple(alone(model_type)[1].specs) == (names or ("gate_proj", "up_proj", "down_proj"))


@pytest.mark.parametrize("model_type", ["mixtral", "qwen2_moe", "nemotron_h"])
def test_experts_load_one_by_one(model_type: str) -> None:
    """Load tensors of single experts, as released, which give the parameters that the class's own tensors give."""
    module, whole = alone(model_type)
    single = RoutedExperts(
        ExpertSizes(whole.count, 1, whole.width),
        whole.hidden,
        whole.activation,
        torch.float32,
        names=tuple(whole.specs),
    )
    match(single, {})
    *entering, leaving = whole.specs
    first = module.gate_up_proj if module.has_gate else module.up_proj
    for number in range(whole.count):
        parts = (*first[number].chunk(len(entering)), module.down_proj[number])
        for name, part in zip((*entering, leaving), parts, strict=True):
            fill(getattr(single[number], name), {"weight": part})
    assert not single.tensors()
    held = dict(single.named_parameters())
    assert held.keys() == dict(whole.named_parameters()).keys()
    assert all(torch.equal(held[name], parameter) for name, parameter in whole.named_parameters())
