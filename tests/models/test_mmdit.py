"""FLUX.1 and FLUX.2 against diffusers, fp32, small random weights: velocities, names, cost, every parameter; and the
price of the releases against diffusers' classes run on meta."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import Flux2Transformer2DModel, FluxTransformer2DModel
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from models.comparing import MATTERS, TOLERANCE, changes_of_parameters, off
from models.denoiser_configs import RELEASES, Config, Facts
from ridgeline.backends.model_loader import load_denoiser, load_model
from ridgeline.core.models import Fields, ModelRefused
from ridgeline.core.models.building import build_denoiser
from ridgeline.core.models.common.denoiser import CONDITIONS, JOINT, LATENTS, TEXT
from ridgeline.core.models.common.mmdit import MMDiT
from ridgeline.core.models.common.priced_module import CallListener, call_hooks
from ridgeline.core.models.registry import denoiser_of
from ridgeline.core.ops.attention import Attention
from ridgeline.price.devices import load_device
from ridgeline.price.price import Price, traced_calls
from support.audit import Run, audited, check_attention, check_bytes, check_products
from support.checkpoints import redraw

FIRST = {
    "patch_size": 1, "in_channels": 12, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16,
    "num_attention_heads": 2, "joint_attention_dim": 20, "pooled_projection_dim": 9, "guidance_embeds": False,
    "axes_dims_rope": [4, 4, 8],
}  # fmt: skip
SECOND = {
    "patch_size": 1, "in_channels": 5, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16,
    "num_attention_heads": 2, "joint_attention_dim": 20, "timestep_guidance_channels": 24, "mlp_ratio": 3.0,
    "axes_dims_rope": [4, 4, 4, 4], "rope_theta": 2000, "eps": 1e-6, "guidance_embeds": False,
}  # fmt: skip
CONFIGS: dict[str, Config] = {
    "schnell": FIRST,
    "dev": FIRST | {
        "guidance_embeds": True, "num_layers": 2, "num_single_layers": 3, "num_attention_heads": 3,
        "attention_head_dim": 22, "axes_dims_rope": [2, 8, 12], "in_channels": 8,
    },
    "klein": SECOND | {"mlp_ratio": 2.3, "num_single_layers": 2},
    "second dev": SECOND | {
        "guidance_embeds": True, "num_layers": 3, "num_attention_heads": 3, "attention_head_dim": 18,
        "axes_dims_rope": [2, 4, 8, 4], "rope_theta": 77, "eps": 0.02,
    },
}  # fmt: skip
FLUX = [name for name in RELEASES if name.startswith("FLUX")]


@dataclass(frozen=True)
class Batch:
    """Pictures of one size, each with its noise level and its text's length."""

    size: tuple[int, int]
    levels: tuple[float, ...]
    texts: tuple[int, ...]

    def given(self, model: MMDiT, seed: int = 0) -> dict[str, Any]:
        """What the model is given of it. A scale of guidance for each picture, where the model takes one."""
        generator = torch.Generator().manual_seed(seed)
        pictures, sizes = len(self.texts), model.sizes
        given: dict[str, Any] = {
            "latents_PCHW": torch.randn(pictures, model.channels, *self.size, generator=generator),
            "t": self.levels,
            "texts": [torch.randn(tokens, model.text_width, generator=generator) for tokens in self.texts],
        }
        if sizes.pooled is not None:
            given["pooled"] = torch.randn(pictures, sizes.pooled, generator=generator)
        if sizes.guided:
            given["guidance"] = [3.5 + picture for picture in range(pictures)]
        return given


BATCHES = (
    Batch((8, 8), (0.3,), (7,)),
    Batch((4, 18), (1.0,), (1,)),
    Batch((2, 6), (0.0,), (33,)),
    Batch((10, 6), (0.71, 0.71), (19, 19)),
    Batch((6, 8), (0.9, 0.15), (5, 24)),
)


@dataclass(frozen=True)
class Subject:
    """Diffusers' model and ours from the folder that it wrote."""

    folder: Path
    theirs: nn.Module
    ours: MMDiT

    def reference(self, given: dict[str, Any]) -> Tensor:
        """Diffusers' velocities: of a batch where its texts are of one length, which it does not mask, else one by
        one. What pipelines do around its class is done here."""
        latents, texts = given["latents_PCHW"], given["texts"]
        if len({len(text) for text in texts}) > 1:
            return torch.cat([self.reference(one_of(given, picture)) for picture in range(len(texts))])
        side, axes = self.ours.patch, len(self.ours.sizes.axes)
        pictures, channels, height, width = latents.shape
        rows, columns = height // side, width // side
        cut = latents.view(pictures, channels, rows, side, columns, side).permute(0, 2, 4, 1, 3, 5)
        of_picture, of_text = torch.zeros(rows, columns, axes), torch.zeros(len(texts[0]), axes)
        of_picture[..., 1] += torch.arange(rows)[:, None]
        of_picture[..., 2] += torch.arange(columns)
        if axes == 4:
            of_text[:, 3] = torch.arange(len(texts[0]))
        inputs = {
            "hidden_states": cut.reshape(pictures, rows * columns, -1),
            "encoder_hidden_states": torch.stack(texts),
            "timestep": torch.tensor(given["t"]),
            "img_ids": of_picture.flatten(0, 1),
            "txt_ids": of_text,
        }
        if "pooled" in given:
            inputs["pooled_projections"] = given["pooled"]
        if "guidance" in given:
            inputs["guidance"] = torch.tensor(given["guidance"])
        with torch.inference_mode():
            out = self.theirs(**inputs, return_dict=False)[0]
        out = out.view(pictures, rows, columns, channels, side, side).permute(0, 3, 1, 4, 2, 5)
        return out.reshape(latents.shape)


def one_of(given: dict[str, Any], picture: int) -> dict[str, Any]:
    """What one picture of a batch is given."""
    return {name: values[picture : picture + 1] for name, values in given.items()}


def their_class(config: Config) -> type[nn.Module]:
    """The class of diffusers that a config is of."""
    return FluxTransformer2DModel if "pooled_projection_dim" in config else Flux2Transformer2DModel


def subject_of(config: Config, folder: Path, **saving: Any) -> Subject:
    """Both models of a config. saving: how diffusers is to save it."""
    theirs = their_class(config)(**config).eval()
    redraw(theirs, seed=7)
    theirs.save_pretrained(folder, **saving)
    ours = load_denoiser(str(folder))
    assert isinstance(ours, MMDiT)
    return Subject(folder, theirs, ours)


@pytest.fixture(scope="module", params=CONFIGS)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """Both models of each config."""
    return subject_of(CONFIGS[request.param], tmp_path_factory.mktemp("denoiser"))


@pytest.fixture(scope="module", params=["dev", "klein"])
def either(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """Both models of a config of FLUX.1 and of FLUX.2."""
    return subject_of(CONFIGS[request.param], tmp_path_factory.mktemp("either"))


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_velocities(subject: Subject, batch: Batch) -> None:
    """Pictures that are not square, alone and beside one with another text, level and scale."""
    given = batch.given(subject.ours)
    with torch.inference_mode():
        ours = subject.ours(**given)
    assert ours.shape == given["latents_PCHW"].shape
    assert off(ours, subject.reference(given)) <= TOLERANCE


def test_far_positions(either: Subject) -> None:
    """Of a wide picture and a long text: angles are those of float64."""
    given = Batch((2, 400), (0.5,), (300,)).given(either.ours)
    with torch.inference_mode():
        assert off(either.ours(**given), either.reference(given)) <= TOLERANCE


def test_a_picture_is_the_same_whoever_is_beside_it(either: Subject) -> None:
    """A pair of guidance is two pictures that know nothing of each other, however long their texts are."""
    given = BATCHES[4].given(either.ours)
    with torch.inference_mode():
        together = either.ours(**given)
        for picture in range(2):
            assert off(together[picture], either.ours(**one_of(given, picture))[0]) <= 1e-6


def test_a_number_for_all_is_one_for_each(either: Subject) -> None:
    """Of noise levels and of scales."""
    given = BATCHES[3].given(either.ours)
    alike = given | {"t": 0.71} | ({"guidance": 2.0} if "guidance" in given else {})
    each = given | ({"guidance": [2.0, 2.0]} if "guidance" in given else {})
    with torch.inference_mode():
        assert torch.equal(either.ours(**alike), either.ours(**each))


def test_every_parameter_matters(either: Subject) -> None:
    """Parity would prove nothing about a gate that the result does not depend on. A bias of keys moves little:
    what it adds to all scores of a query alike, softmax takes out."""
    given = Batch((6, 10), (0.4,), (21,)).given(either.ours)

    def ours() -> Tensor:
        with torch.inference_mode():
            out: Tensor = either.ours(**given)
        return out

    changes = dict(changes_of_parameters(either.ours, ours))
    assert len(changes) == len(either.theirs.state_dict())
    needed = {name: MATTERS / 5 if name.endswith("to_k.bias") else MATTERS for name in changes}
    assert not {name: change for name, change in changes.items() if change <= needed[name]}


# -- inputs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "changes", "problem"),
    [
        ("dev", {"pooled": None}, r"needs a pooled vector of each text; give \[1, 9\]"),
        ("dev", {"guidance": None}, "takes the guidance scale as an input; give a guidance scale"),
        ("dev", {"pooled": torch.zeros(2, 9)}, r"pooled vectors have shape \[2, 9\]; give one per image, \[1, 9\]"),
        ("schnell", {"guidance": 3.5}, "takes no guidance scale as an input; run guidance in two passes, or leave it"),
        ("klein", {"pooled": torch.zeros(1, 9)}, "takes no pooled text vector; leave it out"),
        ("dev", {"texts": [torch.zeros(0, 20)]}, "a text has no tokens"),
        ("dev", {"latents_PCHW": torch.zeros(1, 2, 8, 7)}, "latents of 8 x 7 do not divide into patches of 2 x 2"),
        ("klein", {"latents_PCHW": torch.zeros(1, 5, 0, 7)}, "latents of 0 x 7 do not divide"),
    ],
)
def test_what_a_pass_is_not_given_or_would_not_read(
    tmp_path: Path, name: str, changes: dict[str, Any], problem: str
) -> None:
    """One line each."""
    ours = subject_of(CONFIGS[name], tmp_path).ours
    with pytest.raises(ValueError, match=problem):
        ours(**BATCHES[0].given(ours) | changes)


# -- checkpoints ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FLUX)
def test_tensors_of_the_release(name: str) -> None:
    """By name and shape those of diffusers' class."""
    config = RELEASES[name].config
    theirs = on_meta(config).state_dict()
    fields = Fields(config, "config.json")
    places, family = build_denoiser(fields).tensors(), denoiser_of(fields)
    shapes = {name: getattr(module, own).shape for name, (module, own) in places.items()}
    assert shapes == {family.model_name(name): tensor.shape for name, tensor in theirs.items()}
    assert {family.checkpoint_name(name) for name in shapes} == theirs.keys()


def on_meta(config: Config) -> nn.Module:
    """Diffusers' model of a release, without weights."""
    with torch.device("meta"):
        return their_class(config)(**{k: v for k, v in config.items() if not k.startswith("_")}).eval()


@pytest.mark.skipif("RIDGELINE_DATA" not in os.environ, reason="needs released configs")
def test_the_released_config_and_index() -> None:
    """FLUX.1-schnell's, whose index names each tensor and the bytes of all."""
    folder = Path(os.environ["RIDGELINE_DATA"]) / "configs" / "black-forest-labs__FLUX.1-schnell" / "transformer"
    fields = Fields.read(folder / "config.json")
    assert fields.values == RELEASES["FLUX.1-schnell"].config
    index = json.loads((folder / "diffusion_pytorch_model.safetensors.index.json").read_text(encoding="utf-8"))
    ours, family = build_denoiser(fields, torch.bfloat16), denoiser_of(fields)
    assert {family.checkpoint_name(name) for name in ours.tensors()} == index["weight_map"].keys()
    assert Price(ours).weight_bytes == index["metadata"]["total_size"]


@pytest.mark.parametrize("name", ["dev", "klein"])
def test_shards_and_number_formats(tmp_path: Path, name: str) -> None:
    """A release in several files under diffusers' index, in bf16."""
    whole = subject_of(CONFIGS[name], tmp_path / "whole")
    whole.theirs.to(torch.bfloat16).save_pretrained(tmp_path / "shards", max_shard_size="40KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    ours = load_denoiser(str(tmp_path / "shards"))
    assert {p.dtype for p in ours.parameters()} == {torch.bfloat16}
    given = BATCHES[0].given(whole.ours)
    with torch.inference_mode():
        out, exact = ours(**given), whole.ours(**given)
    assert out.dtype == torch.float32
    assert 1e-5 < off(out, exact) < 0.1


@pytest.mark.parametrize(
    ("config", "changes", "problem"),
    [
        (FIRST, {"patch_size": 2}, "patch_size = 2 is not supported; 1 is"),
        (FIRST, {"out_channels": 4}, "out_channels = 4 is not supported; 12 is"),
        (FIRST, {"in_channels": 6}, "in_channels is 6; it must be a multiple of 4, because a patch is 2 x 2 latents"),
        (FIRST, {"axes_dims_rope": [4, 4]}, r"axes_dims_rope is \[4, 4\]; it must be 3 positive even numbers"),
        (FIRST, {"axes_dims_rope": [3, 5, 8]}, r"axes_dims_rope is \[3, 5, 8\]; it must be 3 positive even numbers"),
        (FIRST, {"attention_head_dim": 18}, "attention_head_dim is 18; it must be 16, the sum of axes_dims_rope"),
        (FIRST, {"num_layers": 0}, "num_layers is 0; it must be an integer from 1"),
        (SECOND, {"axes_dims_rope": [8, 4, 4]}, r"axes_dims_rope is \[8, 4, 4\]; it must be 4 positive even numbers"),
        (SECOND, {"out_channels": 7}, "out_channels = 7 is not supported; 5 is"),
        (SECOND, {"timestep_guidance_channels": 25}, "timestep_guidance_channels is 25; it must be even"),
        (SECOND, {"mlp_ratio": -1}, "mlp_ratio is -1; it must be a finite number above 0"),
        (SECOND, {"residual_scale": 0.5}, "residual_scale = 0.5 is not supported, and its name says that it changes"),
    ],
)
def test_what_is_not_built_is_refused(config: Config, changes: Config, problem: str) -> None:
    """By name, before weights are read."""
    values = {"_class_name": their_class(config).__name__, **config, **changes}
    with pytest.raises(ModelRefused, match=problem):
        build_denoiser(Fields(values, "config.json"))


def test_it_is_no_language_model(either: Subject) -> None:
    """Commands say what it is."""
    with pytest.raises(ModelRefused, match=r"Flux2?Transformer2DModel is a denoiser, "):
        load_model(str(either.folder))


@pytest.mark.parametrize("theirs", [FluxTransformer2DModel, Flux2Transformer2DModel])
def test_defaults_are_those_of_the_class(theirs: type[nn.Module]) -> None:
    """A config that says nothing is diffusers' class without arguments."""
    with torch.device("meta"):
        model: Any = theirs()
    ours = build_denoiser(Fields({"_class_name": theirs.__name__}, "config.json"))
    assert isinstance(ours, MMDiT)
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in model.parameters())
    assert (ours.sizes.axes, ours.rotary.theta) == (tuple(model.config.axes_dims_rope), float(model.pos_embed.theta))
    assert ours.last_norm.eps == model.norm_out.norm.eps
    assert ours.takes_guidance == model.config.guidance_embeds


# -- price ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("torch_only")  # aten sees nothing of our kernels
@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_what_is_stated_is_what_was_computed(either: Subject, batch: Batch) -> None:
    """Products, pairs and weights of a pass; nothing is computed between ops."""
    ours = either.ours
    with audited(ours) as audit, torch.inference_mode():
        ours(**batch.given(ours))
    work = ours.work(batch.size, batch.texts)
    run = Run(ours, audit, work, [], {}, ours.grid(batch.size).lengths(batch.texts))
    assert {path for path, _ in ours.ops()} == set(audit.calls) - {""}
    check_products(run)
    check_attention(run)
    check_bytes(run)


def test_the_outline_is_the_pass(either: Subject) -> None:
    """On meta the same calls in the same order, over the rows of the spaces that the work counts."""
    ours, batch, seen = either.ours, BATCHES[4], list[tuple[str, int]]()
    work = ours.work(batch.size, batch.texts)
    told: CallListener = lambda path, _, inputs, __: seen.append((path, len(inputs[0])))  # noqa: E731
    with call_hooks(ours.ops(), told), torch.inference_mode():
        ours(**batch.given(ours))
    assert seen == [(path, work.rows[space]) for path, _, space in traced_calls(ours)]
    latents = 2 * 48 // ours.patch**2
    assert work.rows == {LATENTS: latents, TEXT: 29, JOINT: latents + 29, CONDITIONS: 2}
    assert work.sequences == 2


def counted(config: Config, text: int, pixels: int) -> int:
    """FLOPs of a pass of diffusers' class over a picture of so many pixels a side, on meta."""
    theirs = on_meta(config)
    tokens, axes = (pixels // 16) ** 2, 3 if "pooled_projection_dim" in config else 4
    with FlopCounterMode(display=False) as counter, torch.device("meta"), torch.inference_mode():
        given = {
            "hidden_states": torch.empty(1, tokens, config["in_channels"]),
            "encoder_hidden_states": torch.empty(1, text, config["joint_attention_dim"]),
            "timestep": torch.empty(1),
            "img_ids": torch.empty(tokens, axes),
            "txt_ids": torch.empty(text, axes),
        }
        if axes == 3:
            given["pooled_projections"] = torch.empty(1, config["pooled_projection_dim"])
        if config["guidance_embeds"]:
            given["guidance"] = torch.empty(1)
        theirs(**given, return_dict=False)
    return int(counter.get_total_flops())


def flops_of(facts: Facts, pixels: int) -> int:
    """Of a pass of the whole model: layers of a kind are alike, so that one and two of them say what all take."""
    layers = {"num_layers": 1, "num_single_layers": 1}
    total = one = counted(facts.config | layers, facts.text, pixels)
    for name in layers:
        two = counted(facts.config | layers | {name: 2}, facts.text, pixels)
        total += (facts.config[name] - 1) * (two - one)
    return total


@pytest.mark.parametrize("name", FLUX)
def test_the_price_of_the_release(name: str) -> None:
    """Parameters, FLOPs of products to the digit what diffusers' class takes on meta, and within a hundredth what is
    published beside it; attention's share at a megapixel."""
    facts = RELEASES[name]
    ours = build_denoiser(Fields(facts.config, "config.json"), torch.bfloat16)
    price = Price(ours)
    assert price.weight_bytes / 2 == facts.parameters == sum(p.numel() for p in on_meta(facts.config).parameters())
    for pixels, stated in facts.tflop.items():
        work = ours.work((pixels // facts.pixels,) * 2, [facts.text])
        assert work.rows[LATENTS] == (pixels // 16) ** 2
        cost = price.step(work)
        assert cost.flops["bf16"] == flops_of(facts, pixels)
        assert cost.total_flops / 1e12 == pytest.approx(stated, rel=0.01)
        if pixels == 1024:
            attention = sum(r.cost(work).flops["bf16"] * r.count for r in price.ops if isinstance(r.op, Attention))
            assert attention / cost.total_flops == pytest.approx(facts.attention, abs=0.005)


def test_a_pass_on_a_card() -> None:
    """Bound by arithmetic; twice the pictures take twice as long."""
    ours = build_denoiser(Fields(RELEASES["FLUX.2-klein-4B"].config, "config.json"), torch.bfloat16)
    card, price = load_device("h100-sxm"), Price(ours)
    one, two = (price.price_step(card, ours.work((64, 64), texts)) for texts in ([512], [512, 512]))
    assert one.floor == pytest.approx(one.cost.flops["bf16"] / card.peak("bf16"))
    assert one.floor < one.bound < one.expected < 2 * one.bound
    assert two.expected == pytest.approx(2 * one.expected, rel=0.1)


def test_a_pair_costs_twice(either: Subject) -> None:
    """But for the weights, which are read once."""
    price, size = Price(either.ours), (16, 16)
    one, two = price.step(either.ours.work(size, [20])), price.step(either.ours.work(size, [20, 20]))
    assert two.total_flops == 2 * one.total_flops
    assert two.activation_bytes == 2 * one.activation_bytes
    assert two.weight_bytes == one.weight_bytes > 0


def test_texts_that_differ_in_length(subject: Subject) -> None:
    """Rows of a batch are those of its pictures, whatever their order."""
    lengths: Sequence[int] = (3, 1, 17)
    work = subject.ours.work((4, 4), lengths)
    count = subject.ours.grid((4, 4)).count
    assert work.rows[JOINT] == sum(length + count for length in lengths)
