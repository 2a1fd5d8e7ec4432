"""The reference functions for the exercises: the engine's own ops and rules, called with plain lists."""

import io
import tempfile
from bisect import bisect_left
from collections import deque
from pathlib import Path

import numpy as np
import safetensors.numpy
import torch
from tokenizers.models import BPE
from torch import Tensor

from ridgeline.backends.model_loader import load_model
from ridgeline.core.checkpoint import read_config
from ridgeline.core.checkpoint.safetensors_header import data_offset, read_header
from ridgeline.core.models import Fields, build
from ridgeline.core.models.common.parameter_breakdown import parameter_breakdown
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.cost_features import ExpectedExperts
from ridgeline.core.ops.kv_layout import KVSpec, group_layers
from ridgeline.core.ops.nonlinearity import ACTIVATIONS
from ridgeline.core.ops.norm import RMSNorm
from ridgeline.core.ops.number_formats import WeightFormat
from ridgeline.core.ops.rotary import Rope, RotaryTable, rotate
from ridgeline.core.ops.torch_attention import attend_segment
from ridgeline.core.ops.work import AttentionPattern, Work
from ridgeline.engine.engine_builder import build_engine
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.kv.page_count import kv_layout
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.sampling.candidates import Candidates, weigh
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.speculation.acceptance import expected_tokens
from ridgeline.insight.simulate.priced_executor import END_ID, PricedExecutor
from ridgeline.insight.simulate.simulated_clock import SimulatedClock
from ridgeline.insight.traffic.arrivals import SECOND
from ridgeline.insight.traffic.slo import SLO
from ridgeline.media.diffusion.guidance import Guidance, apply_guidance
from ridgeline.price.crossovers import balance
from ridgeline.price.device import Device
from ridgeline.price.price import Price

Vector = list[float]

_SIZES = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size",
)  # fmt: skip


def sizes(name: str) -> dict[str, int]:
    """Return the sizes in the config of a catalogue model."""
    values = read_config(name).values
    return {key: values[key] for key in _SIZES} | {"head_dim": values["hidden_size"] // values["num_attention_heads"]}


def attention(query: Vector, keys: list[Vector], values: list[Vector]) -> Vector:
    """Return the engine's attention output for one query at the last position, from given keys and values."""
    return causal([query], keys, values)[0]


def causal(queries: list[Vector], keys: list[Vector], values: list[Vector]) -> list[Vector]:
    """Return the attention op's outputs for queries at the last positions; each sees itself and earlier positions."""
    spec = KVSpec(1, len(queries[0]), len(values[0]), AttentionPattern("causal"), torch.float32)
    q_QHD = torch.tensor(queries)[:, None]
    out_QHW = attend_segment(Attention(0, 1, spec), q_QHD, torch.tensor([keys]), torch.tensor([values]))
    return [[float(x) for x in row] for row in out_QHW[:, 0]]


def gated(gate: Vector, up: Vector) -> Vector:
    """Return SiLU(gate) * up, with the activation that Llama uses."""
    return [float(x) for x in ACTIVATIONS["silu"](torch.tensor(gate)) * torch.tensor(up)]


def nearest(rows: list[Vector], vector: Vector, without: list[int]) -> int:
    """Return the index of the row with the largest cosine to a vector, except the rows in `without`."""
    cosines = torch.cosine_similarity(torch.tensor(rows), torch.tensor([vector]), dim=1)
    cosines[without] = -2.0
    return int(cosines.argmax())


def normalised(x: Vector, weight: Vector, eps: float) -> Vector:
    """Return the output of the engine's RMSNorm op for a vector and its weights."""
    norm = RMSNorm(len(x), eps, torch.float32)
    norm.weight = torch.nn.Parameter(torch.tensor(weight), requires_grad=False)
    return [float(value) for value in norm(torch.tensor([x]))[0]]


def rotated(x: Vector, position: int, theta: float) -> Vector:
    """Return a query or key vector rotated by the engine's rotary op for a position."""
    angles = RotaryTable(Rope(len(x), theta))(torch.tensor([position]))
    return [float(value) for value in rotate(torch.tensor([[x]]), angles)[0, 0]]


def drawn(logits: Vector, temperature: float, u: float) -> int:
    """Return the token that the engine's sampler draws from logits for a uniform random number u."""
    logits_V = np.array(logits, dtype=np.float32)
    if temperature == 0:
        return int(logits_V.argmax())
    weights_V = weigh(logits_V, logits_V.max(), temperature, np.empty_like(logits_V))
    candidates = Candidates.of(None, logits_V, weights_V)
    return candidates.token(candidates.draw(u))


def cached(query: Vector, key: Vector, value: Vector, keys: list[Vector], values: list[Vector]) -> Vector:
    """Return the engine's attention output for one query over cached keys and values plus those of the new token."""
    return attention(query, [*keys, key], [*values, value])


def users(left: float, model: str, context: int, page: int) -> int:
    """Return the number of requests whose pages of keys and values fit into `left` bytes."""
    layout = kv_layout(build(read_config(model)), left, page)
    return layout.max_sequences(context, context)


def paged(length: int, page: int) -> tuple[int, int]:
    """Return the pages that the engine's KV layout allocates for a request, and the unused positions in them."""
    layout = group_layers([KVSpec(1, 4, 4, AttentionPattern("causal"), torch.float32)], page, 1 << 20)
    pages = layout.kept(length, 1)
    return pages, pages * page - length


def chunks(prompt: int, budget: int, users: int) -> list[int]:
    """Return the prompt positions that the engine's scheduler puts into each step while `users` other requests decode.

    The engine runs the built-in model.
    """
    model, works = load_model("tales"), list[Work]()
    layout = kv_layout(model, 1e12, most_tokens=4096)
    limits = Limits(tokens=budget)
    engine = build_engine(model, layout, limits, prefix_cache=False, on_step=lambda record: works.append(record.work))
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=100)
    for user in range(users):
        engine.add(GenerationRequest([user + 1], params))
    engine.step()  # from now on each user decodes one token per step
    works.clear()
    long = engine.add(GenerationRequest([position + 1 for position in range(prompt)], params))
    while not any(event.request == long for event in engine.step()):
        pass
    return [work.tokens - users for work in works]


def touched(experts: int, each: int, batch: int) -> float:
    """Return the expected number of experts that a batch uses, as the experts op counts its weights."""
    return ExpectedExperts(experts, each).expected_hits(batch)


def parameters(config: dict[str, int]) -> int:
    """Return the parameter count of a Llama model with given sizes, whose head is not tied to its embedding."""
    return parameter_breakdown(build(_llama(config, 8192))).total


def stored_bytes(outputs: int, inputs: int, bits: int, group: int, scale_bits: int) -> float:
    """Return the bytes of a matrix in a quantised weight format."""
    return WeightFormat("made", bits, (1, group), scale_bits).nbytes(outputs, inputs)


def velocity(positive: Vector, negative: Vector, scale: float) -> Vector:
    """Return the velocity that the pipeline's guidance computes from two given predictions."""

    def denoiser(_: Tensor, __: float, text: Tensor) -> Tensor:
        return text

    acts = scale > 1  # otherwise one pass is enough
    given = torch.tensor(positive), torch.tensor(negative) if acts else None
    followed = apply_guidance(denoiser, Guidance(scale, "" if acts else None), *given)(torch.zeros(len(positive)), 0.5)
    return [float(value) for value in followed]


def users_at_the_ridge(weights: float, flops: float, kv: float, peak: float, bandwidth: float) -> int | None:
    """Return the smallest compute-bound decode batch, by the engine's balance of compute and memory time."""
    gpu = Device("made", "made", "gpu", {"bf16": peak}, bandwidth, 80e9)

    def holds(batch: int) -> bool:
        step = Cost({"bf16": batch * flops}, weight_bytes=weights, kv_read_bytes=batch * kv)
        return balance([step], gpu) >= 1

    if not holds(1 << 40):
        return None
    return 1 + bisect_left(range(1, 1 << 40), True, key=holds)


def merged(word: str, merges: list[tuple[str, str]]) -> list[str]:
    """Return the tokens of a word by the byte-pair encoding of the `tokenizers` package."""
    joined = ["".join(pair) for pair in merges]
    vocabulary = {part: number for number, part in enumerate(dict.fromkeys([*word, *"".join(joined), *joined]))}
    return [token.value for token in BPE(vocabulary, merges).tokenize(word)]


_STACKS = ("num_decoder_layers", "num_heads", "d_kv")


def stacks(name: str) -> dict[str, int]:
    """Return the sizes in the config of an encoder-decoder of the catalogue."""
    values = read_config(name).values
    return {key: values[key] for key in _STACKS}


def kept(config: dict[str, int], source: int, written: int) -> int:
    """Return the bytes of keys and values of an encoder-decoder with given sizes, cross-attention included."""
    specs = build(Fields({**read_config("flan-t5-small").values, **config}, "these sizes")).kv_specs
    counts = {"cross": source, "causal": written}
    return round(sum(spec.slot_bytes * counts[spec.reach.kind] for spec in specs))


def file_of(tensors: dict[str, Vector]) -> bytes:
    """Return the contents of a safetensors file with the given tensors in fp32."""
    return safetensors.numpy.save({name: np.array(values, dtype=np.float32) for name, values in tensors.items()})


def read_tensor(file: bytes, name: str) -> Vector:
    """Return the values of an fp32 tensor in a safetensors file, located by the engine's own header reader."""
    with tempfile.NamedTemporaryFile() as stored:
        stored.write(file)
        stored.flush()
        entry = read_header(Path(stored.name))[name]
        start = data_offset(io.BytesIO(file))
    return [float(value) for value in np.frombuffer(file[start + entry.begin : start + entry.end], dtype="<f4")]


def in_time(requests: list[tuple[float, float, float, int]], ttft: float, tpot: float) -> int:
    """Return the number of requests that meet the given latency targets, as the server counts them."""
    targets = SLO(ttft=round(ttft * SECOND), tpot=round(tpot * SECOND))
    waits = (
        (round((first - came) * SECOND), (last - first) * SECOND / (tokens - 1) if tokens > 1 else None, tokens)
        for came, first, last, tokens in requests
    )
    return sum(targets.met(first, None if tokens < 2 else each, None) is not False for first, each, tokens in waits)


def finished(came: list[int], lengths: list[int], alone: int, each: int) -> list[int]:
    """Return the end time of each request in the engine, with a simulated executor and clock."""
    model, clock, ends = build(read_config("tales")), SimulatedClock(), [0] * len(came)
    executor = PricedExecutor(lambda plan: alone + each * len(plan.items))
    layout = kv_layout(model, 1e9, most_tokens=4096)
    engine = build_engine(
        model, layout, Limits(), executor=executor, prefix_cache=False, eos_ids=(END_ID,), clock=clock
    )  # fmt: skip
    params, upcoming, numbers = (
        SamplingParams(temperature=0.0, max_tokens=None),
        deque(enumerate(came)),
        dict[int, int](),
    )
    while upcoming or engine.requests:
        while upcoming and upcoming[0][1] <= clock.now:
            place, _ = upcoming.popleft()
            number = engine.add(GenerationRequest([place + 2], params))
            executor.expect(number, 1, lengths[place])
            numbers[number] = place
        plan = engine.plan()
        if plan is None:
            clock.to(upcoming[0][1])
            continue
        outcomes = engine.execute(plan)
        clock.to(clock.now + executor.took)
        for event in engine.accept(plan, outcomes):
            if event.finish is not None:
                ends[numbers[event.request]] = clock.now
    return ends


def best_guesses(right: float, seconds: list[float]) -> int:
    """Return the number of guesses with the most expected tokens per second, by the engine's acceptance formula."""
    rates = [expected_tokens(right, count) / took for count, took in enumerate(seconds)]
    return rates.index(max(rates))


def decode_bytes(config: dict[str, int], context: int) -> int:
    """Return the bytes of a decode step, from the price of a model with given sizes."""
    price = Price(build(_llama(config, context)))
    return round(price.step(Work.decode([context])).memory_bytes)


def _llama(config: dict[str, int], context: int) -> Fields:
    kind = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16"}
    values = {**kind, "max_position_embeddings": context, "rms_norm_eps": 1e-5, "rope_theta": 1e4, **config}
    return Fields(values, "these sizes")
