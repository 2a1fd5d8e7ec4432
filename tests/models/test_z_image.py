"""Z-Image against diffusers, fp32, small random weights: velocities, names, cost, every parameter; and the price of the
release against diffusers' class run on meta."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import ZImageTransformer2DModel
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from models.comparing import MATTERS, TOLERANCE, changes_of_parameters, off
from models.denoiser_configs import RELEASES
from models.denoiser_configs import Z_IMAGE_TURBO as RELEASE
from ridgeline.backends.model_loader import load_denoiser, load_model
from ridgeline.core.models import Fields, ModelRefused, build
from ridgeline.core.models.building import build_denoiser
from ridgeline.core.models.common.denoiser import CONDITIONS, JOINT, LATENTS, TEXT, Denoiser
from ridgeline.core.models.common.priced_module import CallListener, call_hooks
from ridgeline.core.models.families.z_image import ZImage
from ridgeline.core.models.registry import denoiser_of
from ridgeline.core.ops.attention import Attention
from ridgeline.price.devices import load_device
from ridgeline.price.price import Price, traced_calls
from support.audit import Run, audited, check_attention, check_bytes, check_products
from support.checkpoints import redraw

_TINY: dict[str, Any] = {
    "all_patch_size": [2], "all_f_patch_size": [1], "in_channels": 4, "dim": 32, "n_layers": 2, "n_refiner_layers": 1,
    "n_heads": 2, "n_kv_heads": 2, "norm_eps": 1e-5, "qk_norm": True, "cap_feat_dim": 16, "rope_theta": 256.0,
    "t_scale": 1000.0, "axes_dims": [8, 4, 4], "axes_lens": [256, 64, 64],
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "tiny": _TINY,
    "refined": _TINY | {"n_refiner_layers": 2, "t_scale": 700.0, "rope_theta": 37.0},
    "odd": _TINY | {
        "dim": 42, "n_heads": 3, "n_kv_heads": 3, "axes_dims": [6, 4, 4], "in_channels": 3, "cap_feat_dim": 11,
        "norm_eps": 0.02, "n_layers": 3,
    },
    "single latents": _TINY | {"all_patch_size": [1], "in_channels": 5},
    "wider than its condition": _TINY | {
        "dim": 272, "n_layers": 1, "axes_dims": [56, 40, 40],
    },
}  # fmt: skip

TFLOP = RELEASES["Z-Image-Turbo"].tflop
"""Of a pass over a square picture of so many pixels a side, with a text of 96 tokens."""


@dataclass(frozen=True)
class Batch:
    """Pictures of one size, each with its noise level and its text's length."""

    size: tuple[int, int]
    levels: tuple[float, ...]
    texts: tuple[int, ...]

    def given(self, model: Denoiser, seed: int = 0) -> tuple[Tensor, list[Tensor]]:
        """Latents and texts of it."""
        generator = torch.Generator().manual_seed(seed)
        latents = torch.randn(len(self.texts), model.channels, *self.size, generator=generator)
        return latents, [torch.randn(n, model.text_width, generator=generator) for n in self.texts]


BATCHES = (
    Batch((8, 8), (0.3,), (7,)),
    Batch((16, 16), (1.0,), (32,)),
    Batch((4, 18), (0.0,), (33,)),
    Batch((10, 6), (0.71, 0.71), (40, 5)),
    Batch((8, 16), (0.9, 0.15), (1, 64)),
)


@dataclass(frozen=True)
class Subject:
    """Diffusers' model and ours from the folder that it wrote."""

    folder: Path
    theirs: ZImageTransformer2DModel
    ours: Denoiser

    def reference(self, latents: Tensor, levels: Sequence[float], texts: list[Tensor]) -> Tensor:
        """Diffusers' velocities in our convention: it counts time the other way, which its pipelines turn about in fp32
        steps of training, and gives them negated."""
        times = (1000 - torch.tensor([1000 * level for level in levels])) / 1000
        with torch.inference_mode():
            frames = [picture[:, None] for picture in latents]
            side = self.ours.patch
            given = self.theirs(frames, times, texts, return_dict=False, patch_size=side)[0]
        return -torch.stack([picture[:, 0] for picture in given])


def subject_of(config: dict[str, Any], folder: Path, **saving: Any) -> Subject:
    """Both models of a config. saving: how diffusers is to save it."""
    theirs = ZImageTransformer2DModel(**config).eval()
    redraw(theirs, seed=7)
    theirs.save_pretrained(folder, **saving)
    return Subject(folder, theirs, load_denoiser(str(folder)))


@pytest.fixture(scope="module", params=CONFIGS)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """Both models of each config."""
    return subject_of(CONFIGS[request.param], tmp_path_factory.mktemp("denoiser"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """Both models of one config."""
    return subject_of(CONFIGS["odd"], tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_velocities(subject: Subject, batch: Batch) -> None:
    """Pictures that are not square, that do not fill their last 32 rows, alone and beside one with another text."""
    latents, texts = batch.given(subject.ours)
    with torch.inference_mode():
        ours = subject.ours(latents, batch.levels, texts)
    assert ours.shape == latents.shape
    assert off(ours, subject.reference(latents, batch.levels, texts)) <= TOLERANCE


def test_a_level_for_all_is_one_for_each(tiny: Subject) -> None:
    """A number stands for as many as there are pictures."""
    latents, texts = BATCHES[3].given(tiny.ours)
    with torch.inference_mode():
        assert torch.equal(tiny.ours(latents, 0.71, texts), tiny.ours(latents, (0.71, 0.71), texts))


def test_a_picture_is_the_same_whoever_is_beside_it(tiny: Subject) -> None:
    """A pair of guidance is two pictures that know nothing of each other, however long their texts are."""
    latents, texts = BATCHES[4].given(tiny.ours)
    with torch.inference_mode():
        together = tiny.ours(latents, (0.9, 0.15), texts)
        for index, level in enumerate((0.9, 0.15)):
            alone = tiny.ours(latents[index : index + 1], level, texts[index : index + 1])
            assert off(together[index], alone[0]) <= 1e-6


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_what_is_prepared_changes_no_bit(subject: Subject, batch: Batch) -> None:
    """Refined texts, computed once and read by passes at several levels, which leave them as they are."""
    latents, texts = batch.given(subject.ours)
    with torch.inference_mode():
        prepared = subject.ours.prepare(texts)
        for level in (0.7, 0.1, 0.7):
            assert torch.equal(subject.ours(latents, level, prepared), subject.ours(latents, level, texts))


def test_every_parameter_matters(tiny: Subject) -> None:
    """Parity would prove nothing about a gate that the result does not depend on; both padding rows among them."""
    latents, texts = Batch((6, 10), (0.4,), (21,)).given(tiny.ours)

    def given() -> Tensor:
        with torch.inference_mode():
            out: Tensor = tiny.ours(latents, 0.4, texts)
        return out

    changes = dict(changes_of_parameters(tiny.ours, given))
    assert len(changes) == len(tiny.theirs.state_dict())
    assert {"latent_padding.weight", "text_padding.weight"} <= changes.keys()
    assert all(change > MATTERS for change in changes.values()), min(changes, key=lambda name: changes[name])


def test_inputs_that_it_does_not_read_are_refused(tiny: Subject) -> None:
    """Those of denoisers that have them: nothing is taken and ignored."""
    latents, texts = BATCHES[3].given(tiny.ours)
    with pytest.raises(ValueError, match="takes no pooled text vector; leave it out"):
        tiny.ours(latents, 0.5, texts, pooled=torch.zeros(2, 8))
    with pytest.raises(ValueError, match="takes no guidance scale as an input; run guidance in two passes"):
        tiny.ours(latents, 0.5, texts, guidance=3.5)


# -- checkpoints ------------------------------------------------------------------------------------------------------


def test_tensors_of_the_release() -> None:
    """By name and shape those of diffusers' class, 521 of them."""
    with torch.device("meta"):
        theirs = ZImageTransformer2DModel(**{k: v for k, v in RELEASE.items() if k != "_class_name"}).state_dict()
    fields = Fields(RELEASE, "config.json")
    places, family = build_denoiser(fields).tensors(), denoiser_of(fields)
    shapes = {name: getattr(module, own).shape for name, (module, own) in places.items()}
    assert shapes == {family.model_name(name): tensor.shape for name, tensor in theirs.items()}
    assert {family.checkpoint_name(name) for name in shapes} == theirs.keys()
    assert len(shapes) == 521


def test_shards_and_number_formats(tmp_path: Path) -> None:
    """A release in several files under diffusers' index, in bf16, beside a second copy in another format."""
    whole = subject_of(CONFIGS["tiny"], tmp_path / "whole")
    bf16 = whole.theirs.to(torch.bfloat16)
    bf16.save_pretrained(tmp_path / "shards", max_shard_size="40KB")
    shards = sorted((tmp_path / "shards").glob("*.safetensors"))
    assert len(shards) > 2
    bf16.save_pretrained(tmp_path / "shards", variant="fp16")
    ours = load_denoiser(str(tmp_path / "shards"))
    assert {p.dtype for p in ours.parameters()} == {torch.bfloat16}
    latents, texts = BATCHES[0].given(ours)
    with torch.inference_mode():
        given, exact = ours(latents, 0.3, texts), whole.ours(latents, 0.3, texts)
    assert given.dtype == torch.float32
    assert 1e-5 < off(given, exact) < 0.05
    shards[1].unlink()
    with pytest.raises(ModelRefused, match=f"lacks the shard {shards[1].name}; fetch it again"):
        load_denoiser(str(tmp_path / "shards"))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"_class_name": "SD3Transformer2DModel"}, "denoiser architecture SD3Transformer2DModel is not supported"),
        ({"all_patch_size": [2, 4]}, r"all_patch_size \[2, 4\] is not supported; one size from 1 to 64 is"),
        ({"all_patch_size": [10**9]}, "is not supported; one size from 1 to 64 is"),
        ({"all_f_patch_size": [2]}, r"all_f_patch_size = \[2\] is not supported; \[1\] is"),
        ({"n_kv_heads": 1}, "n_kv_heads = 1 is not supported; 2 is"),
        ({"qk_norm": False}, "qk_norm = False is not supported; True is"),
        ({"siglip_feat_dim": 12}, "siglip_feat_dim = 12 is not supported"),
        ({"dim": 40}, "dim is 40; it must be n_heads 2 x 16, the sum of axes_dims"),
        ({"axes_dims": [9, 4, 3]}, r"axes_dims is \[9, 4, 3\]; its numbers must be even"),
        ({"axes_dims": [8, 8]}, r"axes_dims is \[8, 8\]; it must be 3 positive numbers"),
        ({"n_layers": 0}, "n_layers is 0; it must be an integer from 1"),
        ({"residual_scale": 0.5}, "residual_scale = 0.5 is not supported, and its name says that it changes"),
    ],
)
def test_what_is_not_built_is_refused(changes: dict[str, Any], problem: str) -> None:
    """By name, before weights are read."""
    values = {"_class_name": "ZImageTransformer2DModel", **_TINY, **changes}
    with pytest.raises(ModelRefused, match=problem):
        build_denoiser(Fields(values, "config.json"))


def test_it_is_no_language_model(tiny: Subject) -> None:
    """Commands say what it is, and a language model is no denoiser."""
    for attempt in (lambda: load_model(str(tiny.folder)), lambda: build(Fields(RELEASE, "config.json"))):
        with pytest.raises(ModelRefused, match=r"ZImageTransformer2DModel is a denoiser, .* folder to ridgeline image"):
            attempt()
    with pytest.raises(ModelRefused, match="denoiser architecture Qwen3ForCausalLM is not supported"):
        load_denoiser("qwen3-4b")


def test_weights_in_two_formats_are_cast_to_that_of_most(tmp_path: Path) -> None:
    """Expect the dtype of most bytes, since no config states one, and a refusal of weights without plain floats."""
    theirs = ZImageTransformer2DModel(**CONFIGS["tiny"])
    theirs.x_pad_token.data = theirs.x_pad_token.data.half()
    theirs.save_pretrained(tmp_path)
    assert {parameter.dtype for parameter in load_denoiser(str(tmp_path)).parameters()} == {torch.float32}
    path = tmp_path / "diffusion_pytorch_model.safetensors"
    save_file({name: tensor.to(torch.float8_e4m3fn) for name, tensor in load_file(path).items()}, path)
    with pytest.raises(ModelRefused, match="holds tensors in F8_E4M3, but none in F32, F16, BF16; fetch weights"):
        load_denoiser(str(tmp_path))


def test_defaults_are_those_of_the_class(tmp_path: Path) -> None:
    """A config that says nothing is diffusers' class without arguments."""
    with torch.device("meta"):
        theirs = ZImageTransformer2DModel()
    values = {"_class_name": "ZImageTransformer2DModel"}
    ours = build_denoiser(Fields(values, "config.json"))
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())
    assert isinstance(ours, ZImage)
    config, sizes = theirs.config, ours.sizes
    assert (sizes.axes, sizes.places) == (tuple(config.axes_dims), tuple(config.axes_lens))
    assert (sizes.theta, sizes.scale, sizes.patch) == (config.rope_theta, config.t_scale, 2)


# -- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "texts", "problem"),
    [
        (
            (7, 8),
            (5,),
            "latents of 7 x 8 do not divide into patches of 2 x 2; give a height and a width that are multiples of 2",
        ),
        ((0, 8), (5,), "latents of 0 x 8 do not divide"),
        ((8, 130), (5,), "latents of 8 x 130 exceed the model's positions; give at most 128 x 128"),
        ((8, 8), (5, 0), "a text has no tokens"),
        ((8, 8), (), "a text has no tokens"),
        ((8, 8), (225,), "a text has 225 tokens, but the model has positions for 224; shorten it"),
    ],
)
def test_sizes_that_do_not_fit(tiny: Subject, size: tuple[int, int], texts: tuple[int, ...], problem: str) -> None:
    """One line each, of a pass and of its price; the largest that fit are taken, as they are by diffusers."""
    with pytest.raises(ValueError, match=problem):
        tiny.ours.work(size, texts)
    if texts:
        latents = torch.zeros(len(texts), 3, *size)
        with pytest.raises(ValueError, match=problem):
            tiny.ours(latents, 0.5, [torch.zeros(n, 11) for n in texts])


def test_the_largest_sizes(tiny: Subject) -> None:
    """The last place of each coordinate is used."""
    batch = Batch((4, 128), (0.5,), (224,))
    latents, texts = batch.given(tiny.ours)
    with torch.inference_mode():
        ours = tiny.ours(latents, 0.5, texts)
    assert off(ours, tiny.reference(latents, batch.levels, texts)) <= TOLERANCE


# -- price ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("torch_only")  # aten sees nothing of our kernels
@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_what_is_stated_is_what_was_computed(tiny: Subject, batch: Batch) -> None:
    """Products, pairs and weights of a pass; nothing is computed between ops."""
    latents, texts = batch.given(tiny.ours)
    with audited(tiny.ours) as audit, torch.inference_mode():
        tiny.ours(latents, batch.levels, texts)
    work = tiny.ours.work(batch.size, batch.texts)
    assert isinstance(tiny.ours, ZImage)
    run = Run(tiny.ours, audit, work, [], {}, tiny.ours.grid(batch.size).lengths(batch.texts))
    assert {path for path, _ in tiny.ours.ops()} - set(audit.calls) <= {"latent_padding", "text_padding"}
    check_products(run)
    check_attention(run)
    check_bytes(run)


def test_the_outline_is_the_pass(tiny: Subject) -> None:
    """On meta the same calls in the same order, over the rows of the spaces that the work counts."""
    batch = BATCHES[3]
    work, seen = tiny.ours.work(batch.size, batch.texts), list[tuple[str, int]]()
    latents, texts = batch.given(tiny.ours)
    told: CallListener = lambda path, _, inputs, __: seen.append((path, len(inputs[0])))  # noqa: E731
    with call_hooks(tiny.ours.ops(), told), torch.inference_mode():
        tiny.ours(latents, 0.71, texts)
    assert seen == [(path, work.rows[space]) for path, _, space in traced_calls(tiny.ours)]
    assert work.rows == {LATENTS: 64, TEXT: 96, JOINT: 160, CONDITIONS: 2}
    assert work.sequences == 2


def test_a_request_is_one_preparation_and_its_passes(tiny: Subject) -> None:
    """Calls over rows of texts are those of the preparation, the others those of every pass; a pass that is given texts
    costs what both cost, in each number."""
    batch, calls = BATCHES[3], list[tuple[str, int]]()
    latents, texts = batch.given(tiny.ours)
    works = tiny.ours.prepare_work(batch.texts), tiny.ours.pass_work(batch.size, batch.texts)
    told: CallListener = lambda path, _, inputs, __: calls.append((path, len(inputs[0])))  # noqa: E731
    for work, run in zip(works, (tiny.ours.prepare, lambda texts: tiny.ours(latents, 0.71, texts)), strict=True):
        calls.clear()
        with call_hooks(tiny.ours.ops(), told), torch.inference_mode():
            texts = run(texts)
        assert calls == [(p, work.rows[space]) for p, _, space in traced_calls(tiny.ours) if space in work.rows]
    assert works[0].rows == {TEXT: 96}
    price = Price(tiny.ours)
    assert price.step(works[0]) + price.step(works[1]) == price.step(tiny.ours.work(batch.size, batch.texts))


def test_the_price_of_the_release() -> None:
    """6.155 billion parameters; FLOPs within a thousandth of what diffusers' class takes on meta, and as research has
    them; attention takes 15 % at a megapixel."""
    with torch.device("meta"):
        theirs = ZImageTransformer2DModel(**{k: v for k, v in RELEASE.items() if k != "_class_name"}).eval()
    ours = build_denoiser(Fields(RELEASE, "config.json"), torch.bfloat16)
    price = Price(ours)
    assert price.weight_bytes / 2 == sum(p.numel() for p in theirs.parameters()) == 6_154_908_736
    for pixels, stated in TFLOP.items():
        work = ours.work((pixels // 8, pixels // 8), [96])
        with FlopCounterMode(display=False) as counter, torch.device("meta"), torch.inference_mode():
            theirs([torch.empty(16, 1, pixels // 8, pixels // 8)], torch.empty(1), [torch.empty(96, 2560)])
        flops = price.step(work).total_flops
        assert flops == pytest.approx(counter.get_total_flops(), rel=1e-3)
        assert flops / 1e12 == pytest.approx(stated, rel=0.01)
        attention = sum(row.cost(work).flops["bf16"] * row.count for row in price.ops if isinstance(row.op, Attention))
        assert work.rows[LATENTS] == (pixels // 16) ** 2
        if pixels == 1024:
            assert attention / flops == pytest.approx(0.15, abs=0.005)


def test_a_pass_on_a_card() -> None:
    """Bound by arithmetic from 512 x 512 on; twice the pictures take twice as long."""
    ours, card = build_denoiser(Fields(RELEASE, "config.json"), torch.bfloat16), load_device("h100-sxm")
    price = Price(ours)
    for side in (64, 128):
        one, two = (price.price_step(card, ours.work((side, side), texts)) for texts in ([96], [96, 70]))
        assert one.floor == pytest.approx(one.cost.flops["bf16"] / card.peak("bf16"))
        assert one.floor < one.bound < one.expected < 2 * one.bound
        assert two.expected == pytest.approx(2 * one.expected, rel=0.1)


def test_a_pair_costs_twice(tiny: Subject) -> None:
    """But for the weights, which are read once."""
    price, size = Price(tiny.ours), (16, 16)
    one, two = price.step(tiny.ours.work(size, [20])), price.step(tiny.ours.work(size, [20, 20]))
    assert two.total_flops == 2 * one.total_flops
    assert two.activation_bytes == 2 * one.activation_bytes
    assert two.weight_bytes == one.weight_bytes == price.weight_bytes
