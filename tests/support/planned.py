"""What the tests of the plan share: cards with round figures, and configs as facts."""

from dataclasses import replace
from typing import Any

from ridgeline.core.models import Fields
from ridgeline.price.device import Device, Efficiency
from ridgeline.price.interconnect import Interconnect, latency_bandwidth_curve
from ridgeline.price.plan.request_phases import PhasePrice, decode_phase, prefill_phase, price_phase
from ridgeline.price.plan.scenario import Deployment, ModelCache, PlanWorkload, Scenario
from ridgeline.price.price import StepPrice

GIB = 2**30

LLAMA_3_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
LLAMA_3_70B = LLAMA_3_8B | {
    "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
}  # fmt: skip
QWEN_2_5_32B: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"], "hidden_size": 5120, "intermediate_size": 27648, "num_hidden_layers": 64,
    "num_attention_heads": 40, "num_key_value_heads": 8, "vocab_size": 152064, "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
TINY: dict[str, Any] = LLAMA_3_8B | {
    "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 4, "vocab_size": 1000,
}  # fmt: skip
TINY_SLIDING: dict[str, Any] = TINY | {
    "architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": 4, "use_sliding_window": True, "sliding_window": 100,
    "max_window_layers": 2,
}  # fmt: skip
TINY_MIXTURE: dict[str, Any] = TINY | {
    "architectures": ["MixtralForCausalLM"], "num_local_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip

# Perfect kernels that take no time to launch: expected is then the root of the squares of the two roofs.
IDEAL = {"default": Efficiency(0.0, 1.0, 1.0)}
REDUCED = {
    2: latency_bandwidth_curve(5e-6, 100e9),
    4: latency_bandwidth_curve(6e-6, 90e9),
    8: latency_bandwidth_curve(7e-6, 80e9),
}


def card(**changes: Any) -> Device:
    """An A100 of the texts: 312 TFLOP/s, 2.039 TB/s, 80 GB as sold."""
    facts: dict[str, Any] = {
        "name": "text-a100",
        "title": "A100 of the texts",
        "kind": "gpu",
        "peaks": {"fp32": 19.5e12, "bf16": 312e12, "int8": 624e12},
        "bandwidth": 2.039e12,
        "memory": 80e9,
        "link": Interconnect("NVLink", 300e9, {"custom": REDUCED}),
        "efficiency": IDEAL,
    }
    return Device(**(facts | changes))


H100 = card(name="text-h100", peaks={"fp32": 67e12, "bf16": 989e12, "fp8": 1979e12}, bandwidth=3.35e12)


def fields(config: dict[str, Any], **changes: Any) -> Fields:
    """A config with some fields changed."""
    return Fields(config | changes, "test")


def case(config: dict[str, Any], device: Device | None = None, **setup: Any) -> Scenario:
    """A model on a card, the A100 of the texts by default."""
    return ModelCache(fields(config)).scenario(Deployment(device or card(), **setup))


def prefill_of(planned: Scenario, workload: PlanWorkload) -> PhasePrice:
    """The prefill of the workload's batch, priced."""
    return price_phase(planned.price, planned.device, prefill_phase(planned, workload))


def decode_of(planned: Scenario, batch: int, context: int) -> PhasePrice:
    """A decode step, priced."""
    return price_phase(planned.price, planned.device, decode_phase(planned, batch, context))


def prefill_steps(planned: Scenario, workload: PlanWorkload, prompts: int) -> list[StepPrice]:
    """The steps that run so many of the workload's prompts."""
    works = prefill_phase(planned, replace(workload, batch=prompts)).works
    return [planned.price.price_step(planned.device, work) for work in works]
