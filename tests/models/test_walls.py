"""Models that use what no shipped family does, against a few lines of plain torch: whole sequences, price, audit."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.parameter_breakdown import parameter_breakdown
from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.kv_context import Uncached
from ridgeline.core.ops.work import ENCODER, LOGITS, TOKENS, StepSegment, Work
from ridgeline.price.price import Price
from support.audit import Run, audited, check_attention, check_bytes, check_products
from support.wall_models import (
    DECODERS,
    HIDDEN,
    MODELS,
    VOCABULARY,
    WIDTH,
    Decoder,
    Encoder,
    EncoderDecoder,
    filled,
    reference,
    wall_model,
)

TOLERANCE = 1e-5  # of the largest


@dataclass(frozen=True, slots=True)
class Asked:
    """A sequence and what its encoder is given."""

    ids: tuple[int, ...]
    encoder: tuple[int, ...] = ()


def tokens(length: int, seed: int) -> tuple[int, ...]:
    """Random ids."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(VOCABULARY, (length,), generator=generator).tolist())


def asked_of(model: Model) -> list[Asked]:
    """Sequences of several lengths, with encoder inputs longer and shorter than they are."""
    lengths = ((17, 4), (1, 9), (6, 1), (2, 23))
    return [Asked(tokens(n, n), tokens(e, 50 + e) if model.has_cross_attention else ()) for n, e in lengths]


def whole(model: Model, all_asked: Sequence[Asked]) -> tuple[Tensor, list[StepSegment]]:
    """What the model gives for every position of several sequences at once, without a cache."""
    segments = [StepSegment(len(a.ids), len(a.ids), len(a.encoder), runs_encoder=bool(a.encoder)) for a in all_asked]
    kv = Uncached(segments)

    def rows(sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        positions = torch.cat([torch.arange(len(s)) for s in sequences])
        return torch.tensor([token for s in sequences for token in s]), positions

    with torch.inference_mode():
        encoded_ED = model.encode(*rows([a.encoder for a in all_asked]), kv) if model.has_cross_attention else None
        ids_T, positions_T = rows([a.ids for a in all_asked])
        x_TD = model.hidden(ids_T, positions_T, kv, torch.arange(len(ids_T)), encoded_ED)
        return model.head(x_TD) if model.has_head else x_TD, segments


def close(ours: Tensor, reference: Tensor) -> bool:
    return bool((ours.double() - reference).abs().max() <= TOLERANCE * reference.abs().max())


@pytest.mark.parametrize("name", MODELS)
def test_whole_sequences(name: str) -> None:
    """Several sequences in one forward that keeps nothing."""
    model = wall_model(name)
    all_asked = asked_of(model)
    ours, _ = whole(model, all_asked)
    for part, asked in zip(torch.split(ours, [len(a.ids) for a in all_asked]), all_asked, strict=True):
        assert close(part, reference(name, model, asked.ids, asked.encoder)), asked


# -- audit ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("torch_only")  # aten sees nothing of our kernels
@pytest.mark.parametrize("name", MODELS)
def test_what_is_stated_is_what_was_computed(name: str) -> None:
    """Products, pairs and weights of a forward over whole sequences; nothing is computed between ops."""
    model = wall_model(name)
    with audited(model) as audit:
        ours, segments = whole(model, asked_of(model))
    run = Run(model, audit, Work.of(segments, model.attention_patterns, len(ours)), segments, {})
    assert set(audit.calls) - {""} == {path for path, _ in model.ops()}
    check_products(run)
    check_attention(run)
    check_bytes(run)


# -- price, by hand ---------------------------------------------------------------------------------------------------


def products(rows: int, *shapes: tuple[int, int]) -> Cost:
    """Matrices of these shapes, in fp32."""
    numbers = sum(inputs * outputs for inputs, outputs in shapes)
    return Cost({"fp32": 2 * rows * numbers}, weight_bytes=4 * numbers) if rows else Cost()


def norms(rows: int, count: int, *, flops: int = 5, numbers: int = 1) -> Cost:
    """flops: of an entry, 5 with an addition. numbers: stored, of an entry."""
    return Cost({"fp32": rows * HIDDEN * flops}, weight_bytes=4 * numbers * HIDDEN) * count if rows else Cost()


def mlp(rows: int) -> Cost:
    return products(rows, (HIDDEN, WIDTH), (WIDTH, HIDDEN)) + Cost({"fp32": 5 * rows * WIDTH})


def by_hand(
    *, tokens: int, encoder: int, logits: int, own: tuple[int, int], cross: tuple[int, int, int], pairs: int
) -> Cost:
    """A step of the encoder-decoder without its activations. own: pairs and positions read of its self-attention;
    cross: those and what is written of its cross-attention; pairs: of the encoder's."""
    d, biases = HIDDEN, Cost(weight_bytes=3 * 13 * 4)
    encoder_layer = norms(encoder, 2) + products(encoder, *[(d, 18)] * 3, (18, d)) + mlp(encoder)
    encoder_layer += (biases if encoder else Cost()) + Cost({"fp32": 2 * 3 * (6 + 6) * pairs})
    decoder_layer = products(tokens, (d, 30), (d, 10), (d, 10), (30, d)) + biases + mlp(tokens)
    decoder_layer += Cost({"fp32": 2 * 3 * (10 + 10) * own[0]}, 0, own[1] * 20 * 4, tokens * 20 * 4)
    decoder_layer += products(tokens, (d, 24), (24, d)) + products(encoder, (d, 12), (d, 12))
    decoder_layer += Cost({"fp32": 2 * 4 * (6 + 6) * cross[0]}, 0, cross[1] * 24 * 4, cross[2] * 24 * 4)
    decoder_layer += norms(tokens, 3)
    rows = Cost(weight_bytes=2 * (tokens + encoder) * d * 4)  # tokens and positions, in both spaces
    ends = norms(encoder, 1) + norms(logits, 1) + products(logits, (d, VOCABULARY))
    return (encoder_layer + decoder_layer) * 2 + rows + ends


def without_activations(cost: Cost) -> tuple[float, ...]:
    return cost.total_flops, cost.weight_bytes, cost.kv_read_bytes, cost.kv_write_bytes


def test_an_encoder_is_paid_in_the_step_that_runs_it() -> None:
    """A step with an encoder beside a sequence that has had its own, and decode steps that only look at what was
    kept."""
    model = EncoderDecoder()
    price = Price(model)
    work = Work.of([StepSegment(3, 3, 5, runs_encoder=True), StepSegment(1, 4, 7)], model.attention_patterns)
    cost = by_hand(tokens=4, encoder=5, logits=2, own=(6 + 4, 3 + 4), cross=(3 * 5 + 7, 5 + 7, 5), pairs=25)
    assert without_activations(price.step(work)) == without_activations(cost)
    work = Work.decode([4, 9], model.attention_patterns, [7, 5])
    cost = by_hand(tokens=2, encoder=0, logits=2, own=(13, 13), cross=(12, 12, 0), pairs=0)
    assert without_activations(price.step(work)) == without_activations(cost)
    assert [(op.space, op.count) for op in price.ops if op.path == "shared"] == [(ENCODER, 1), (TOKENS, 1)]
    assert (
        parameter_breakdown(model).total
        == sum(p.numel() for p in model.parameters())
        == parameter_breakdown(filled(model)).total
    )


# Bytes that a position takes, and positions read, of each layer, in a decode step of 9 and 3 positions.
READ = {
    "latent": [(14 * 4, 9 + 3)] * 2,
    "widths": [(2 * (12 + 5) * 4, 9 + 3), (3 * (5 + 12) * 4, 6 + 3)],
    "mixed reaches": [(96, 9 + 3), (80, 5 + 3), (128, 1 + 3), (96, 9 + 3), (80, 5 + 3)],
    "everything": [(14 * 4, 5 + 3), (2 * (12 + 5) * 4, 2 + 3), (16 * 4, 9 + 3), (13 * 4, 9 + 3)],
}


@pytest.mark.parametrize("name", DECODERS)
def test_keys_and_values_that_a_decode_step_reads(name: str) -> None:
    """A latent once a position, windows and chunks as far as they reach, each layer by its own width."""
    model = Decoder(DECODERS[name])
    cost = Price(model).step(Work.decode([9, 3], model.attention_patterns))
    assert cost.kv_read_bytes == sum(nbytes * positions for nbytes, positions in READ[name])
    assert cost.kv_write_bytes == sum(2 * nbytes for nbytes, _ in READ[name])
    assert sum(spec.bytes_per_token for spec in model.kv_specs) == sum(nbytes for nbytes, _ in READ[name])
    sinks = sum(4 * layer.heads for layer in DECODERS[name] if layer.sinks)
    attention = [op for op in Price(model).ops if op.op.kind == "attention"]
    biases = sum(4 * layer.heads * 13 for layer in DECODERS[name] if layer.biased)
    assert (
        sum(op.cost(Work.decode([9], model.attention_patterns)).weight_bytes * op.count for op in attention)
        == sinks + biases
    )


def test_a_model_without_a_head_is_charged_for_none() -> None:
    """Two whole sequences: nothing kept, no head, and the last norm over the rows that are wanted."""
    model, d = Encoder(), HIDDEN
    work = Work.of([StepSegment(4, 4), StepSegment(2, 2)], model.attention_patterns, logit_rows=3)
    layer = norms(6, 2, flops=8, numbers=2) + mlp(6) + Cost({"fp32": 2 * 3 * (10 + 10) * (16 + 4)})
    layer += products(6, *[(d, 30)] * 3, (30, d)) + Cost(weight_bytes=(30 * 3 + d) * 4)  # with their own biases
    cost = layer * 2 + Cost(weight_bytes=2 * 6 * d * 4) + norms(3, 1, flops=8, numbers=2)
    assert without_activations(Price(model).step(work)) == without_activations(cost)
    assert [op.op.kind for op in Price(model).ops if op.space == LOGITS] == ["norm"]
    assert not model.kv_specs
    assert parameter_breakdown(model).parameters["head"] == 0


@pytest.mark.parametrize("name", MODELS)
def test_a_checkpoint_has_a_tensor_for_every_parameter(name: str) -> None:
    """One name each, none for what is tied."""
    model = wall_model(name)
    tensors = model.tensors()
    taken = [getattr(module, attribute) for module, attribute in tensors.values()]
    assert {id(tensor) for tensor in taken} == {id(parameter) for parameter in model.parameters()}
    assert len(taken) == len(list(model.parameters()))
    assert ("lm_head.weight" in tensors) == (name in DECODERS)
    assert parameter_breakdown(model).nbytes == sum(parameter.nbytes for parameter in model.parameters())
