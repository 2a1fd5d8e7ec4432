"""GGUF files as models: against transformers' models of the weights that blocks stand for, as the package has it."""

import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from torch import nn
from transformers import PreTrainedModel

from models.comparing import MATTERS, off
from ridgeline import LLM, SamplingParams
from ridgeline.backends import priced_backend
from ridgeline.backends.cpu.library import Library
from ridgeline.backends.model_loader import load_model
from ridgeline.core.checkpoint import open_source
from ridgeline.core.checkpoint.gguf_config import tensor_names
from ridgeline.core.checkpoint.gguf_header import read_gguf_header
from ridgeline.core.checkpoint.weight_loader import weight_bytes
from ridgeline.core.models import ModelRefused, build
from ridgeline.core.models.common.parameter_breakdown import parameter_breakdown
from ridgeline.core.ops.backend import REFERENCE
from ridgeline.core.ops.linear import MatrixOp
from ridgeline.core.ops.matrix import MatrixSpec, QuantisedMatrix, matrix_of
from ridgeline.core.ops.matrix.gguf_matrix import BLOCKS
from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.price.device import Device, Efficiency
from ridgeline.price.price import Price
from support.checkpoints import random_model
from support.engines import uncached_logits
from support.gguf_files import Choice, blocks_of, numbers_of
from support.gguf_models import CONFIGS, letters, made, mixed
from support.kernels import BF16_SETS, SETS, back_to_the_best
from support.quantised import take_weight

TOLERANCE = 1e-5  # of the largest logit, against our own of a folder
FROM_OTHERS = 3e-5  # against transformers', whose sums over rows of 256 and more are in another order
PROMPT = [5, 91, 17, 44, 3, 3, 68, 20, 75, 96, 1, 30, 52]
# Matrices that are multiplied at once are stored otherwise than each other.
SMALL_BLOCKS = {
    "attn_q": Type.Q8_0,
    "attn_k": Type.Q4_0,
    "ffn_up": Type.Q8_0,
    "ffn_gate": Type.Q4_0,
    "token_embd": Type.Q4_0,
}
LARGE_BLOCKS = {"attn_v": Type.Q6_K, "attn_output": Type.Q5_K, "ffn_down": Type.Q6_K, "output": Type.Q6_K}
# Bits a number, as docs/formats.md says.
IN_MEMORY = {
    "Q8_0": 8.5, "Q4_0": 4.5, "Q4_1": 5.5, "Q5_0": 8.5, "Q5_1": 9.5, "Q2_K": 8, "Q3_K": 6, "Q4_K": 6, "Q5_K": 10,
    "Q6_K": 10,
}  # fmt: skip


def logits_of(path: Path) -> torch.Tensor:
    """Ours, of the prompt."""
    return uncached_logits(load_model(str(path)), [PROMPT])[0]


def reference(theirs: PreTrainedModel) -> torch.Tensor:
    """Transformers', of the prompt."""
    with torch.no_grad():
        logits: torch.Tensor = theirs(torch.tensor([PROMPT])).logits[0]
    return logits


@pytest.mark.parametrize(
    "choose",
    [mixed({"attn_v": Type.F32}, Type.F16), mixed(SMALL_BLOCKS, Type.F16), mixed(LARGE_BLOCKS, Type.Q4_K)],
    ids=["wide", "blocks of 32", "blocks of 256"],
)
@pytest.mark.parametrize("model_type", CONFIGS)
def test_logits_are_those_of_the_dequantised_weights(
    tmp_path: Path, model_type: str, choose: Choice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With rows as they are: none are rounded, as for products of bytes."""
    monkeypatch.setattr(Library, "interleaves", False)
    theirs = made(tmp_path / "model.gguf", model_type, choose)
    theirs.save_pretrained(tmp_path / "plain")
    ours = logits_of(tmp_path / "model.gguf")
    assert off(ours, logits_of(tmp_path / "plain")) <= TOLERANCE
    assert off(ours, reference(theirs)) <= FROM_OTHERS


@pytest.mark.parametrize("kind", [Type.Q8_0, Type.Q4_0])
def test_products_of_bytes_change_logits_little(tmp_path: Path, kind: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are rounded to 8 bits in blocks of 32, as ggml has them, where the processor multiplies bytes: of a random
    model, which damps no error, that is some hundredths of the logits; elsewhere they are the same to the bit."""
    made(tmp_path / "model.gguf", "llama", lambda _: kind)
    found = logits_of(tmp_path / "model.gguf")
    monkeypatch.setattr(Library, "interleaves", False)
    exact = logits_of(tmp_path / "model.gguf")
    assert torch.equal(found, exact) == (SETS[-1] not in BF16_SETS)
    assert float((found - exact).norm() / exact.norm()) <= 0.05


def test_bf16_is_the_folder_in_bf16(tmp_path: Path) -> None:
    theirs = made(tmp_path / "model.gguf", "gemma2", lambda _: Type.BF16)
    theirs.bfloat16().save_pretrained(tmp_path / "plain")
    assert torch.equal(logits_of(tmp_path / "model.gguf"), logits_of(tmp_path / "plain"))


def test_biases_of_llama_are_in_the_order_of_its_rows(tmp_path: Path) -> None:
    theirs = made(tmp_path / "model.gguf", "llama", lambda _: Type.F32, config={"attention_bias": True})
    assert off(logits_of(tmp_path / "model.gguf"), reference(theirs)) <= FROM_OTHERS


@pytest.mark.parametrize("kind", ["linear", "yarn", "llama3"])
def test_scaled_ropes(tmp_path: Path, kind: str) -> None:
    """Of Llama 3.1 the converter writes what each frequency is divided by."""
    scaling: dict[str, Any] = {"rope_type": kind, "factor": 8.0}
    if kind != "linear":
        scaling["original_max_position_embeddings"] = 32
    if kind == "llama3":
        scaling |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}

    def metadata(writer: gguf.GGUFWriter) -> None:
        if kind != "llama3":
            writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
            writer.add_rope_scaling_factor(8.0)
            writer.add_rope_scaling_orig_ctx_len(32)

    config = {"rope_scaling": {**scaling, "rope_theta": 7_000.0}}
    plain = random_model("llama", CONFIGS["llama"], seed=7)
    scaled = random_model("llama", CONFIGS["llama"] | config, seed=7)
    factors = (plain.model.rotary_emb.inv_freq / scaled.model.rotary_emb.inv_freq).tolist() if kind == "llama3" else ()
    path = tmp_path / "model.gguf"
    theirs = made(path, "llama", lambda _: Type.F32, config=config, metadata=metadata, factors=factors)
    ours = logits_of(path)
    assert off(ours, reference(theirs)) <= FROM_OTHERS
    assert off(ours, reference(plain)) > MATTERS


@pytest.mark.parametrize("kind", BLOCKS)
def test_blocks_stand_for_what_the_package_says(kind: str) -> None:
    outputs, inputs, bits = 37, 768, IN_MEMORY[kind]
    rows = np.random.default_rng(3).standard_normal((outputs, inputs)).astype(np.float32)
    blocks = blocks_of(rows, Type[kind])
    matrix = matrix_of(MatrixSpec(inputs, outputs, torch.float32), BLOCKS[kind])
    take_weight(matrix, torch.from_numpy(blocks))
    expected = numbers_of(blocks, Type[kind])
    assert np.array_equal(matrix.dequantised().numpy(), expected)
    assert sum(p.nbytes for p in matrix.parameters()) == outputs * inputs * bits / 8
    assert matrix.stored_bytes() == blocks.nbytes
    x = torch.randn(11, inputs, generator=torch.Generator().manual_seed(1))
    wanted = x.double().numpy() @ expected.astype(np.float64).T
    operands = matrix.operands
    assert operands is not None
    try:
        for name in SETS:
            kernels = Library(name=name)
            for count in (1, 3, 11):
                found = kernels.products(x[:count], (operands,))[0].numpy()
                assert np.abs(found - wanted[:count]).max() <= 1e-5 * np.abs(wanted).max(), (name, count)
    finally:
        back_to_the_best()


def test_a_file_is_billed_as_it_is_stored(tmp_path: Path) -> None:
    """But for the embedding and F16, which are widened to fp32; what is held beyond that is counted before loading."""
    path = tmp_path / "model.gguf"
    made(path, "llama", mixed({"token_embd": Type.F16}, Type.Q4_K))
    source = open_source(str(path))
    assert source.gguf is not None
    built = build(source.config)
    stored = sum(tensor.end - tensor.begin for tensor in source.gguf.tensors.values())
    assert parameter_breakdown(built).nbytes == stored + 97 * 256 * 2
    loaded = load_model(source)
    assert weight_bytes(built) == sum(parameter.nbytes for parameter in loaded.parameters())


@pytest.mark.parametrize("kind", BLOCKS)
def test_random_codes_are_around_zero(kind: str) -> None:
    """Whatever the code of zero is, and of types in which none is."""
    matrix = matrix_of(MatrixSpec(512, 64, torch.float32), BLOCKS[kind])
    assert isinstance(matrix, QuantisedMatrix)
    block = torch.randn(1 << 15, generator=torch.Generator().manual_seed(2)) * 0.02
    for name, tensor in matrix.random_parameters(block).items():
        setattr(matrix, name, nn.Parameter(tensor, requires_grad=False))
    drawn, largest = matrix.dequantised().flatten(), float(block.abs().max())
    bits = BLOCKS[kind].bits
    assert drawn.abs().max() <= 1.001 * largest
    assert float((drawn - block).abs().max()) <= 0.6 * largest / (2 ** (bits - 1) - 1)


def test_what_runs_here_is_priced_as_it_is_held_and_cards_as_it_is_stored(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    made(path, "llama", lambda name: Type.Q4_K if name.startswith("blk") else Type.F32)
    price = Price(load_model(open_source(str(path))))
    card = Device("card", "card", "gpu", {"fp32": 1e15}, 1e9, 1e9, efficiency={"default": Efficiency(0.0, 1.0, 1.0)})
    here = replace(card, kind="cpu", native=True)
    work = Work.of([StepSegment(1, 8)])
    products = [priced for priced in price.ops if isinstance(priced.op, MatrixOp) and priced.op.kind == "linear"]
    held = sum(p.nbytes * each.count for each in products for p in each.op.parameters())
    stored = sum(each.op.stored_bytes() * each.count for each in products)
    assert held / stored == 6 / 4.5

    def read(*, natively: bool) -> float:
        kernels = (
            (k, each.count)
            for each in products
            for k in each.launches(work, priced_backend("cpu") if natively else REFERENCE)
        )
        return sum(kernel.cost.weight_bytes * count for kernel, count in kernels)

    assert (read(natively=True), read(natively=False)) == (held, stored)
    assert price.weights_on(here) - price.weights_on(card) == held - stored
    assert price.price_step(here, work).floor == price.price_step(card, work).floor


def test_a_model_writes_and_answers(tmp_path: Path) -> None:
    """Tokenizer, template, beginnings and ends come from the same file."""
    path = tmp_path / "model.gguf"
    theirs = made(path, "llama", lambda _: Type.Q8_0, metadata=letters)
    llm = LLM(str(path))
    assert llm.tokenizer.encode("ab") == [1, 5, 6, 7]
    prompt = llm.loaded.text_processor.encode_chat([{"role": "user", "content": "<|end|>"}], 128)
    assert (prompt[0], prompt[-1]) == (3, 4)
    assert prompt.count(4) == 1, "a typed end is text"
    (answer,) = llm.generate(["ab"], SamplingParams(temperature=0.0, max_tokens=6))
    ids = torch.tensor([[1, 5, 6, 7]])
    for sampled in answer.choices[0].tokens:
        assert sampled.token == int(theirs(ids).logits[0, -1].argmax())
        ids = torch.cat([ids, torch.tensor([[sampled.token]])], dim=1)
    assert set(open_source(str(path)).generation["eos_token_id"]) == {2, 4}


# -- what is refused, in one line ------------------------------------------------------------------------------------


def refusal(path: Path) -> str:
    """The one line in which a file is refused."""
    with pytest.raises(ModelRefused) as refused:
        load_model(str(path))
    assert "\n" not in str(refused.value)
    assert str(path) in str(refused.value)
    return str(refused.value)


def bare(path: Path, **keys: int) -> Path:
    """A file of one matrix."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    for key, value in keys.items():
        writer.add_uint32(key.replace("__", "."), value)
    writer.add_tensor("token_embd.weight", np.zeros((40, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_unknown_tensors_keep_their_names(tmp_path: Path) -> None:
    """Check a name with a dot and one without."""
    path, extra = tmp_path / "model.gguf", np.zeros(32, dtype=np.float32)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    for name in ("token_embd.weight", "alone", "of.ours.weight"):
        writer.add_tensor(name, extra)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert tensor_names(read_gguf_header(path)) == {
        "token_embd.weight": "model.embed_tokens.weight", "alone": "alone", "of.ours.weight": "of.ours.weight",
    }  # fmt: skip


def test_the_package_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = bare(tmp_path / "model.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert "pip install 'ridgeline[gguf]'" in refusal(path)


def test_types_and_architectures_that_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    made(path, "llama", mixed({"attn_k": Type.TQ2_0}, Type.F16))
    assert "blk.0.attn_k.weight is stored in TQ2_0" in refusal(path)
    writer = gguf.GGUFWriter(path, "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert "'mamba' is not supported in GGUF files" in refusal(path)
    assert "expert_count" in refusal(bare(path, llama__expert_count=8))
    assert "one of 3 parts" in refusal(bare(path, split__count=3))
    assert "value_length" in refusal(bare(path, llama__attention__value_length=8))


def test_headers_that_lie(tmp_path: Path) -> None:
    """Counts and offsets beyond the file, at the places that the format gives them."""
    path = bare(tmp_path / "model.gguf")
    whole = path.read_bytes()
    name = whole.index(b"token_embd.weight")
    behind = name + len(b"token_embd.weight")  # dimensions, two sizes, type, offset
    huge = (1 << 61).to_bytes(8, "little")
    lies = {
        "claims": [(8, huge), (16, huge), (name - 8, huge)],
        "dimensions": [(behind, (200).to_bytes(4, "little"))],
        "cannot be stored in": [(behind + 4, huge), (behind + 4, bytes(8)), (behind + 24, (7).to_bytes(8, "little"))],
        "ends at byte": [(at, (1 << 30).to_bytes(8, "little")) for at in (behind + 12, behind + 24)],
        "unknown type": [(behind + 20, (99).to_bytes(4, "little"))],
        "version": [(4, (9).to_bytes(4, "little"))],
        "not a GGUF": [(0, b"GGML")],
    }
    for says, places in lies.items():
        for at, bytes_there in places:
            path.write_bytes(whole[:at] + bytes_there + whole[at + len(bytes_there) :])
            assert says in refusal(path), (says, at)


def test_cut_and_damaged_files(tmp_path: Path) -> None:
    """Cut anywhere, a file is refused in a line; with another byte, it is that or is read; nothing else is raised."""
    path = bare(tmp_path / "model.gguf")
    whole = path.read_bytes()
    header = whole.index(b"token_embd.weight") + 60
    for length in (*range(0, header, 3), header, len(whole) - 1):
        path.write_bytes(whole[:length])
        refusal(path)
    generator = np.random.default_rng(0)
    for at in generator.integers(0, header, 120):
        path.write_bytes(whole[:at] + bytes([generator.integers(256)]) + whole[at + 1 :])
        with suppress(ModelRefused):
            open_source(str(path))


def test_scales_that_are_no_numbers(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    made(path, "llama", lambda _: Type.Q8_0)
    source = open_source(str(path))
    assert source.gguf is not None
    at = source.gguf.tensors["blk.1.ffn_up.weight"].begin
    whole = path.read_bytes()
    path.write_bytes(whole[:at] + b"\x00\x7e" + whole[at + 2 :])  # NaN
    with pytest.raises(ModelRefused, match=r"up_proj\.weight has scales that are NaN"):
        load_model(str(path))
