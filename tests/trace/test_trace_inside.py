"""What a look inside shows, against transformers and against sums done by hand."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from trace_models import FAMILIES, Maker, Tiny

from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.latent_attention import LatentAttention
from ridgeline.insight.trace.attention_weights import attention_at
from ridgeline.insight.trace.capture import capture
from ridgeline.insight.trace.request_trace import TraceOptions
from support.engines import uncached_logits

ALL = TraceOptions(attention=True, lens=True, memory=True, repeats=1)


def sequence(subject: Tiny) -> list[int]:
    """Prompt and answer, as the views read them."""
    ledger = subject.trace()
    return [token.id for token in (*ledger.prompt, *ledger.written)]


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_is_that_of_transformers(tiny: Maker, family: str) -> None:
    subject = tiny(family)
    ids = sequence(subject)
    with torch.no_grad():
        theirs = subject.theirs(torch.tensor([ids]), output_attentions=True).attentions
    captured = capture(subject.llm.loaded.model, ids, len(ids) - 1)
    assert len(captured.attention) == len(theirs) == {"qwen3-next": 2, "nemotron-3": 1}.get(family, 3)
    for call, their_1HQL in zip(captured.attention, theirs, strict=True):
        assert isinstance(call.op, Attention)
        rows = [torch.tensor(attention_at([call], query).weights[0]) for query in range(len(ids))]
        ours_HQL = torch.stack([functional.pad(row_HL, (0, len(ids) - row_HL.shape[1])) for row_HL in rows], dim=1)
        torch.testing.assert_close(ours_HQL, their_1HQL[0], atol=2e-6, rtol=1e-4)
        if isinstance(call.op, LatentAttention):
            continue  # its values are made of latents, inside of it
        # The weights are those that the op itself used.
        v_HLD = call.inputs[2].transpose(0, 1).repeat_interleave(call.op.heads // call.op.spec.heads, 0)
        out_TI = (ours_HQL @ v_HLD).transpose(0, 1).flatten(1)
        torch.testing.assert_close(out_TI, call.output, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", ["llama", "mistral-window", "gpt2"])
def test_looks_at_any_position(tiny: Maker, family: str) -> None:
    subject = tiny(family)
    ids = sequence(subject)
    with torch.no_grad():
        theirs = subject.theirs(torch.tensor([ids]), output_attentions=True).attentions
    for position in (0, 1, 9):
        ledger = subject.trace(TraceOptions(attention=True, position=position, repeats=1))
        assert ledger.attention is not None
        ours = torch.tensor(ledger.attention.weights)
        assert ours.shape == (3, 4 if family == "gpt2" else 6, position + 1)
        torch.testing.assert_close(ours.sum(-1), torch.ones(ours.shape[:2]))
        torch.testing.assert_close(
            ours, torch.stack([layer[0, :, position, : position + 1] for layer in theirs]), atol=2e-6, rtol=1e-4
        )
        best = ledger.attention.top(1, 2, 1)[0]
        assert best[1] == max(ledger.attention.weights[1][2])
        mean = torch.tensor(ledger.attention.mean(2))
        torch.testing.assert_close(mean, ours[2].mean(0))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_last_saying_is_the_models_own(tiny: Maker, family: str) -> None:
    subject = tiny(family)
    position = 6
    ledger = subject.trace(TraceOptions(lens=True, position=position, repeats=1))
    assert ledger.lens is not None
    with torch.no_grad():
        logits_V = subject.theirs(torch.tensor([subject.ids])).logits[0, position]
    shares_V = logits_V.softmax(-1)
    last = ledger.lens.rows[-1]
    assert ledger.lens.word.id == int(logits_V.argmax()) == last.top[0][0].id
    assert last.rank == 1
    assert last.share == pytest.approx(float(shares_V.max()), rel=1e-4)
    for token, share in last.top:
        assert share == pytest.approx(float(shares_V[token.id]), rel=1e-4)
    assert [row.after for row in ledger.lens.rows] == ["embedding", "0", "1", "2"]


@pytest.mark.parametrize("family", ["llama", "qwen3-moe", "gpt2"])
def test_earlier_sayings_are_hidden_states_through_norm_and_head(tiny: Maker, family: str) -> None:
    subject = tiny(family)
    ledger = subject.trace(TraceOptions(lens=True, repeats=1))
    assert ledger.lens is not None
    position = len(subject.ids) - 1
    with torch.no_grad():
        hidden = subject.theirs(torch.tensor([subject.ids]), output_hidden_states=True).hidden_states
        trunk = subject.theirs.transformer if family == "gpt2" else subject.theirs.model
        norm = trunk.ln_f if family == "gpt2" else trunk.norm
        shares = [subject.theirs.lm_head(norm(h[0, position])).softmax(-1) for h in hidden[:-1]]
    for row, shares_V in zip(ledger.lens.rows[:-1], shares, strict=True):
        word = ledger.lens.word.id
        assert row.share == pytest.approx(float(shares_V[word]), rel=1e-3, abs=1e-9)
        assert row.rank == 1 + int((shares_V > shares_V[word]).sum())
        assert row.top[0][0].id == int(shares_V.argmax())


def _mlp_input(subject: Tiny, layer: int, position: int) -> Tensor:
    """What goes into the feed-forward part of a layer of transformers' model, at one position."""
    trunk = subject.theirs.transformer.h if hasattr(subject.theirs, "transformer") else subject.theirs.model.layers
    seen: list[Tensor] = []
    handle = trunk[layer].mlp.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        subject.theirs(torch.tensor([sequence(subject)]))
    handle.remove()
    return seen[0].reshape(-1, seen[0].shape[-1])[position]


@pytest.mark.parametrize("family", ["llama", "llama-tied", "phi3", "gpt2"])
def test_neurons_are_those_of_a_by_hand_computation(tiny: Maker, family: str) -> None:
    subject = tiny(family)
    ledger = subject.trace(ALL)
    assert ledger.memory is not None
    position = len(subject.ids) - 1
    for layer, neurons in enumerate(ledger.memory.layers):
        x_D = _mlp_input(subject, layer, position)
        if family == "gpt2":
            mlp = subject.theirs.transformer.h[layer].mlp
            activation_F = functional.gelu(mlp.c_fc(x_D), approximate="tanh")
            rows_FD = mlp.c_proj.weight
            scale_D = subject.theirs.transformer.ln_f.weight
        else:
            mlp = subject.theirs.model.layers[layer].mlp
            both = mlp.gate_up_proj(x_D).chunk(2) if family == "phi3" else (mlp.gate_proj(x_D), mlp.up_proj(x_D))
            activation_F = functional.silu(both[0]) * both[1]
            rows_FD = mlp.down_proj.weight.t()
            scale_D = subject.theirs.model.norm.weight
        order = activation_F.abs().argsort(descending=True)[:3].tolist()
        assert [neuron.index for neuron in neurons] == order
        for neuron in neurons:
            assert neuron.layer == layer
            assert neuron.expert is None
            assert neuron.activation == pytest.approx(float(activation_F[neuron.index]), rel=1e-4)
            added_D = activation_F[neuron.index] * rows_FD[neuron.index] * scale_D
            raised_V = subject.theirs.lm_head.weight @ added_D
            assert [t.id for t, _ in neuron.promotes] == raised_V.argsort(descending=True)[:5].tolist()
            assert neuron.promotes[0][1] == pytest.approx(float(raised_V.max()), rel=1e-4)


@pytest.mark.parametrize("family", ["mixtral", "qwen3-moe"])
def test_neurons_of_experts_and_the_way_to_them(tiny: Maker, family: str) -> None:
    """Against our own weights, expert by expert; the router's choice against transformers' gate."""
    subject = tiny(family)
    ledger = subject.trace(TraceOptions(memory=True, experts=True, repeats=1))
    assert ledger.memory is not None
    assert ledger.experts is not None
    position = len(subject.ids) - 1
    mixtures = {routed.layer: routed for routed in ledger.experts.layers}
    assert sorted(mixtures) == ([0, 1, 2] if family == "mixtral" else [0, 2])
    for layer, routed in mixtures.items():
        x_D = _mlp_input(subject, layer, position)
        mixture = subject.llm.loaded.model.model.layers[layer].mlp
        shares_E = (mixture.gate.matrix.weight @ x_D).softmax(-1)
        weights_K, picked_K = shares_E.topk(2 if family == "mixtral" else 3)
        weights_K = weights_K / weights_K.sum()
        assert list(routed.picked[position]) == picked_K.tolist()
        assert list(routed.weights[position]) == pytest.approx(weights_K.tolist(), rel=1e-4)
        assert len(routed.picked) == len(ledger.prompt) + len(ledger.written)
        assert sum(routed.load) == len(routed.picked) * len(picked_K)
        assert routed.hit == len({expert for picked in routed.picked for expert in picked})
        assert sum(routed.load[e] for e in picked_K.tolist()) >= len(picked_K)
        assert routed.imbalance == pytest.approx(max(routed.load) / (sum(routed.load) / len(routed.load)))
        fired = []
        for weight, expert in zip(weights_K.tolist(), picked_K.tolist(), strict=True):
            gate, up, _ = mixture.experts[expert].parameters()
            for index, value in enumerate((functional.silu(gate @ x_D) * (up @ x_D)).tolist()):
                fired.append((abs(value * weight), expert, index, value * weight))
        best = sorted(fired, reverse=True)[:3]
        neurons = ledger.memory.layers[layer]
        assert [(n.expert, n.index) for n in neurons] == [(expert, index) for _, expert, index, _ in best]
        assert [n.activation for n in neurons] == pytest.approx([value for *_, value in best], rel=1e-4)


def test_neurons_of_experts_without_gates(tiny: Maker) -> None:
    """Those picked, by their weights, and the one that all tokens share: against transformers' weights."""
    subject = tiny("nemotron-3")
    ledger = subject.trace(TraceOptions(memory=True, experts=True, repeats=1))
    assert ledger.memory is not None
    assert ledger.experts is not None
    position, mixer = len(subject.ids) - 1, subject.theirs.model.layers[2].mixer
    seen: list[Tensor] = []
    handle = mixer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        subject.theirs(torch.tensor([sequence(subject)]))
        handle.remove()
        x_D = seen[0][0, position]
        _, weights, picked = mixer.gate(x_D[None])
    (routed,) = ledger.experts.layers
    by_expert = dict(zip(picked[0].tolist(), weights[0].tolist(), strict=True))
    assert dict(zip(routed.picked[position], routed.weights[position], strict=True)) == pytest.approx(by_expert)
    fired = [(None, index, float(value)) for index, value in enumerate(squared(mixer.shared_experts.up_proj(x_D)))]
    for expert, weight in by_expert.items():
        values_F = squared(mixer.experts.up_proj[expert] @ x_D) * weight
        fired += [(expert, index, float(value)) for index, value in enumerate(values_F)]
    best = sorted(fired, key=lambda one: -one[2])[:3]
    (neurons,) = ledger.memory.layers
    assert [(n.expert, n.index) for n in neurons] == [(expert, index) for expert, index, _ in best]
    assert [n.activation for n in neurons] == pytest.approx([value for *_, value in best], rel=1e-4)


def squared(x_F: Tensor) -> Tensor:
    """What is above 0, squared."""
    return x_F.clamp(min=0) ** 2


@pytest.mark.parametrize("family", FAMILIES)
def test_looking_computes_what_the_model_computes(tiny: Maker, family: str) -> None:
    """The pass gives the model's own logits, and one stream for each depth."""
    subject = tiny(family, torch.bfloat16)
    model = subject.llm.loaded.model
    ids = subject.ids
    captured = capture(model, ids, 4)
    assert len(captured.residual) == 1 + 3
    assert torch.equal(captured.logits_V, uncached_logits(model, [ids])[0][4]) or math.isclose(
        float((captured.logits_V - uncached_logits(model, [ids])[0][4]).abs().max()), 0.0, abs_tol=0.05
    )


def test_what_is_not_there_is_refused(tiny: Maker) -> None:
    subject = tiny("llama")
    with pytest.raises(ValueError, match="dense and has no experts: leave out --experts"):
        subject.trace(TraceOptions(experts=True))
    for position in (-1, len(subject.ids)):
        with pytest.raises(ValueError, match=f"position is {position}; the prompt has positions 0 to "):
            subject.trace(TraceOptions(lens=True, position=position))
    with pytest.raises(ValueError, match="repeats is 0"):
        subject.trace(TraceOptions(repeats=0))
