"""Wan and PixArt against diffusers, fp32, small random weights: predictions, names, cost, every parameter, what is
prepared of texts; and the price of the releases against diffusers' classes run on meta."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import PixArtTransformer2DModel, WanTransformer3DModel
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from models.comparing import MATTERS, TOLERANCE, changes_of_parameters, off
from models.denoiser_configs import CLIP_RELEASES, PIXART_ALPHA, RELEASES
from ridgeline.backends.model_loader import load_denoiser
from ridgeline.core.models import Fields, ModelRefused
from ridgeline.core.models.building import build_denoiser
from ridgeline.core.models.common.cross_denoiser import CrossDenoiser
from ridgeline.core.models.common.denoiser import CONDITIONS, LATENTS, TEXT
from ridgeline.core.models.common.priced_module import CallListener, call_hooks
from ridgeline.core.models.registry import denoiser_of
from ridgeline.core.ops.attention import Attention
from ridgeline.price.devices import load_device
from ridgeline.price.price import Price, traced_calls
from support.audit import Run, audited, check_bytes, check_products
from support.checkpoints import redraw

_WAN: dict[str, Any] = {
    "_class_name": "WanTransformer3DModel", "added_kv_proj_dim": None, "attention_head_dim": 12,
    "cross_attn_norm": True, "eps": 1e-6, "ffn_dim": 40, "freq_dim": 16, "image_dim": None, "in_channels": 4,
    "num_attention_heads": 2, "num_layers": 2, "out_channels": 4, "patch_size": [1, 2, 2],
    "qk_norm": "rms_norm_across_heads", "rope_max_seq_len": 32, "text_dim": 10,
}  # fmt: skip
_PIXART: dict[str, Any] = {
    "_class_name": "PixArtTransformer2DModel", "activation_fn": "gelu-approximate", "attention_bias": True,
    "attention_head_dim": 8, "attention_type": "default", "caption_channels": 10, "cross_attention_dim": 24,
    "dropout": 0.0, "in_channels": 4, "interpolation_scale": 2, "norm_elementwise_affine": False, "norm_eps": 1e-6,
    "norm_num_groups": 2, "norm_type": "ada_norm_single", "num_attention_heads": 3, "num_embeds_ada_norm": 1000,
    "num_layers": 2, "out_channels": 8, "patch_size": 2, "sample_size": 16, "upcast_attention": False,
    "use_additional_conditions": False,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "wan": _WAN,
    "wan, odd": _WAN | {
        "attention_head_dim": 14, "num_attention_heads": 3, "in_channels": 5, "out_channels": 5, "ffn_dim": 33,
        "eps": 0.02, "num_layers": 3, "text_dim": 7, "freq_dim": 10,
    },
    "wan, plain": _WAN | {"cross_attn_norm": False, "patch_size": [1, 1, 1]},
    "pixart-sigma": _PIXART,
    "pixart-alpha": _PIXART | {
        "_class_name": "Transformer2DModel", "use_additional_conditions": None, "sample_size": 128,
        "interpolation_scale": None, "attention_bias": False, "norm_eps": 0.01,
    },
    "pixart, no variance": _PIXART | {"out_channels": 4, "patch_size": 1, "sample_size": 7, "num_layers": 3},
}  # fmt: skip
CLASSES: dict[str, type[nn.Module]] = {
    "WanTransformer3DModel": WanTransformer3DModel,
    "PixArtTransformer2DModel": PixArtTransformer2DModel,
    "Transformer2DModel": PixArtTransformer2DModel,
}
_PADDED = 512


def theirs_of(config: dict[str, Any]) -> Any:
    """Diffusers' class of a config, unfilled."""
    values = {name: value for name, value in config.items() if name != "_class_name"}
    old = ("double_self_attention", "only_cross_attention", "num_vector_embeds", "use_linear_projection")
    return CLASSES[config["_class_name"]](**{k: v for k, v in values.items() if k not in old}).eval()


@dataclass(frozen=True)
class Batch:
    """Clips of one size, each with its noise level and its text's length; of pictures the frames are left out."""

    size: tuple[int, int, int]
    levels: tuple[float, ...]
    texts: tuple[int, ...]

    def of(self, model: CrossDenoiser) -> tuple[int, ...]:
        """The size, as the model has it."""
        return self.size if model.generates_video else self.size[1:]

    def given(self, model: CrossDenoiser, seed: int = 0) -> tuple[Tensor, list[Tensor]]:
        """Latents and texts of it."""
        generator = torch.Generator().manual_seed(seed)
        latents = torch.randn(len(self.texts), model.channels, *self.of(model), generator=generator)
        return latents, [torch.randn(n, model.text_width, generator=generator) for n in self.texts]


BATCHES = (
    Batch((1, 8, 8), (0.999,), (7,)),
    Batch((3, 4, 10), (0.25,), (1,)),
    Batch((5, 6, 2), (0.813, 0.02), (40, 5)),
    Batch((2, 16, 16), (0.5, 0.5), (3, 3)),
)


@dataclass(frozen=True)
class Subject:
    """Diffusers' model and ours from the folder that it wrote."""

    folder: Path
    theirs: Any
    ours: CrossDenoiser

    def reference(self, latents: Tensor, levels: Any, texts: list[Tensor]) -> Tensor:
        """What diffusers' model predicts, its texts padded or masked as its pipelines do, its variance left out."""
        times = torch.as_tensor(levels, dtype=torch.float64).mul(1000).float()
        rows = _PADDED if self.ours.generates_video else max(map(len, texts)) + 3
        padded = torch.stack([torch.cat([text, torch.zeros(rows - len(text), text.shape[1])]) for text in texts])
        with torch.inference_mode():
            if self.ours.generates_video:
                given: Tensor = self.theirs(latents, times, padded, return_dict=False)[0]
                return given
            padded += torch.randn(padded.shape) * (padded == 0)  # whatever is there, no token sees it
            mask = torch.tensor([[1.0] * len(text) + [0.0] * (rows - len(text)) for text in texts])
            height, width = (8.0 * side for side in latents.shape[2:])
            sizes = torch.tensor([[height, width]] * len(texts)), torch.tensor([[height / width]] * len(texts))
            told = dict(zip(("resolution", "aspect_ratio"), sizes, strict=True))
            given = self.theirs(
                latents, padded, times, added_cond_kwargs=told, encoder_attention_mask=mask, return_dict=False
            )[0]
        return given[:, : self.ours.channels]


def subject_of(config: dict[str, Any], folder: Path) -> Subject:
    """Both models of a config."""
    theirs = theirs_of(config)
    redraw(theirs, seed=7)
    theirs.save_pretrained(folder)
    ours = load_denoiser(str(folder))
    assert isinstance(ours, CrossDenoiser)
    return Subject(folder, theirs, ours)


@pytest.fixture(scope="module", params=CONFIGS)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """Both models of each config."""
    return subject_of(CONFIGS[request.param], tmp_path_factory.mktemp("denoiser"))


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_predictions(subject: Subject, batch: Batch) -> None:
    """One frame and several, sizes that are not square, texts of any length, alone and beside another."""
    latents, texts = batch.given(subject.ours)
    with torch.inference_mode():
        ours = subject.ours(latents, batch.levels, texts)
    assert ours.shape == latents.shape
    assert off(ours, subject.reference(latents, batch.levels, texts)) <= TOLERANCE


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_what_is_prepared_changes_no_bit(subject: Subject, batch: Batch) -> None:
    """Keys and values of texts, computed once and read by passes at several levels, which leave them as they are."""
    latents, texts = batch.given(subject.ours)
    with torch.inference_mode():
        prepared = subject.ours.prepare(texts)
        for level in (0.7, 0.1, 0.7):
            assert torch.equal(subject.ours(latents, level, prepared), subject.ours(latents, level, texts))


@pytest.mark.parametrize("name", ["wan", "wan, odd"])
def test_a_level_of_each_token(tmp_path: Path, name: str) -> None:
    """As Wan 2.2's 5B has it: whole frames that are less noisy, and any token at its own level."""
    subject = subject_of(CONFIGS[name], tmp_path)
    batch = BATCHES[2]
    latents, texts = batch.given(subject.ours)
    tokens = subject.ours.grid(batch.size).count
    scattered = torch.rand(2, tokens, generator=torch.Generator().manual_seed(3))
    first = torch.full((2, tokens), 0.6)
    first[0, : tokens // 5] = 0
    for levels in (scattered, first, torch.full((2, tokens), 0.6)):
        with torch.inference_mode():
            ours = subject.ours(latents, levels, texts)
        assert off(ours, subject.reference(latents, levels, texts)) <= TOLERANCE
    with torch.inference_mode():
        assert torch.equal(ours, subject.ours(latents, 0.6, texts))
    with pytest.raises(ValueError, match=rf"noise levels have shape \[2, 4\]; give one per token, \[2, {tokens}\]"):
        subject.ours(latents, torch.rand(2, 4), texts)


def test_every_parameter_matters(subject: Subject) -> None:
    """Parity would prove nothing about a gate that the result does not depend on."""
    # A text that fills its place: what attention makes of many rows alike says little of their keys.
    latents, texts = Batch((3, 6, 10), (0.4,), (_PADDED if subject.ours.generates_video else 6,)).given(subject.ours)
    texts = [3 * text for text in texts]
    # What the softmax over keys does not see: the same number for all of them.
    unseen = {name for name, _ in subject.ours.named_parameters() if name.endswith("to_k.bias")}
    unseen = set() if subject.ours.generates_video else unseen

    def given() -> Tensor:
        with torch.inference_mode():
            out: Tensor = subject.ours(latents, 0.4, texts)
        return out

    changes = dict(changes_of_parameters(subject.ours, given, unseen))
    assert len(changes) + len(unseen) == len(subject.theirs.state_dict())
    assert all(change > MATTERS for change in changes.values()), min(changes, key=lambda name: changes[name])


def test_what_they_predict(subject: Subject) -> None:
    """For samplers to match with their schedules."""
    assert subject.ours.predicts == ("velocity" if subject.ours.generates_video else "noise")


# -- checkpoints ------------------------------------------------------------------------------------------------------

_RELEASES = {name: facts for name, facts in {**CLIP_RELEASES, **RELEASES}.items() if name[:3] in ("Wan", "Pix")}


@pytest.mark.parametrize("name", _RELEASES)
def test_tensors_of_the_releases(name: str) -> None:
    """By name and shape those of diffusers' class."""
    facts = _RELEASES[name]
    config = facts.config
    with torch.device("meta"):
        theirs = theirs_of(config).state_dict()
    fields = Fields(config, "config.json")
    denoiser, family = build_denoiser(fields), denoiser_of(fields)
    places = denoiser.tensors()
    assert places.keys() == {family.model_name(tensor_name) for tensor_name in theirs}
    assert {family.checkpoint_name(place) for place in places} == theirs.keys()
    for tensor_name, tensor in theirs.items():
        module, own = places[family.model_name(tensor_name)]
        (taken,) = module.load_tensor(own, tensor).values()
        assert taken.shape == getattr(module, own).shape, tensor_name
    assert sum(p.numel() for p in denoiser.parameters()) == facts.parameters


@pytest.mark.parametrize("name", ["wan", "pixart-alpha"])
def test_bf16(tmp_path: Path, name: str) -> None:
    """As most releases are stored."""
    whole = subject_of(CONFIGS[name], tmp_path / "whole")
    whole.theirs.to(torch.bfloat16).save_pretrained(tmp_path / "narrow")
    ours = load_denoiser(str(tmp_path / "narrow"))
    assert {p.dtype for p in ours.parameters()} == {torch.bfloat16}
    latents, texts = BATCHES[1].given(whole.ours)
    with torch.inference_mode():
        given, exact = ours(latents, 0.3, texts), whole.ours(latents, 0.3, texts)
    assert given.dtype == torch.float32
    assert 1e-5 < off(given, exact) < 0.05


@pytest.mark.parametrize(
    ("config", "changes", "problem"),
    [
        (_WAN, {"image_dim": 1280}, "image_dim is set, but Wan's image-to-video models are not supported"),
        (_WAN, {"added_kv_proj_dim": 24}, "added_kv_proj_dim is set, but Wan's image-to-video models"),
        (_WAN, {"in_channels": 36}, "in_channels 36 differs from out_channels 4, but Wan's image-to-video models"),
        (_WAN, {"patch_size": [2, 2, 2]}, r"patch_size \[2, 2, 2\] is not supported; \[1, n, n\] is"),
        (_WAN, {"patch_size": [1, 2, 4]}, r"patch_size \[1, 2, 4\] is not supported"),
        (_WAN, {"qk_norm": "rms_norm"}, "qk_norm = 'rms_norm' is not supported; rms_norm_across_heads is"),
        (_WAN, {"attention_head_dim": 9}, "attention_head_dim is 9; it must be even and at least 6"),
        (_WAN, {"freq_dim": 9}, "freq_dim is 9; it must be even"),
        (_WAN, {"ffn_dim": 0}, "ffn_dim is 0; it must be an integer from 1"),
        (_PIXART, {"norm_type": "ada_norm_zero"}, "norm_type = 'ada_norm_zero' is not supported; ada_norm_single is"),
        (_PIXART, {"cross_attention_dim": 32}, "cross_attention_dim = 32 is not supported; 24 is"),
        (_PIXART, {"cross_attention_dim": None}, "cross_attention_dim = None is not supported; 24 is"),
        (_PIXART, {"activation_fn": "geglu"}, "activation_fn = 'geglu' is not supported; gelu-approximate is"),
        (_PIXART, {"caption_channels": None}, "caption_channels is missing"),
        (_PIXART, {"norm_elementwise_affine": True}, "norm_elementwise_affine = True is not supported"),
        (_PIXART, {"out_channels": 12}, "out_channels is 12; it must be in_channels 4, or twice that"),
        (
            _PIXART,
            {"use_additional_conditions": True, "num_attention_heads": 4, "cross_attention_dim": 32},
            "the hidden size 32 must be a multiple of 4, and of 3",
        ),
    ],
)
def test_what_is_not_built_is_refused(config: dict[str, Any], changes: dict[str, Any], problem: str) -> None:
    """By name, before weights are read."""
    with pytest.raises(ModelRefused, match=problem):
        build_denoiser(Fields(config | changes, "config.json"))


def test_defaults_are_those_of_the_classes() -> None:
    """A config that says nothing is diffusers' class without arguments, but for PixArt's texts."""
    for name, stated in (("WanTransformer3DModel", {}), ("PixArtTransformer2DModel", {"caption_channels": 64})):
        with torch.device("meta"):
            theirs = CLASSES[name](**stated)
        ours = build_denoiser(Fields({"_class_name": name} | stated, "config.json"))
        assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())


# -- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "size", "texts", "problem"),
    [
        ("wan", (3, 7, 8), (5,), "latents of 7 x 8 do not divide into patches of 2 x 2"),
        ("wan", (0, 8, 8), (5,), "latents of 0 x 8 x 8 have no frames"),
        ("wan", (33, 8, 8), (5,), "33 x 8 x 8 exceed the model's positions; give at most 32 x 64 x 64"),
        ("wan", (3, 8, 66), (5,), "exceed the model's positions; give at most 32 x 64 x 64"),
        ("wan", (8, 8), (5,), "latents have the size 8 x 8; this denoiser needs frames, height and width"),
        ("wan", (3, 8, 8), (513,), "a text has 513 tokens, but the model reads at most 512; shorten it"),
        ("wan", (3, 8, 8), (5, 0), "a text has no tokens"),
        ("pixart-sigma", (8, 7), (5,), "latents of 8 x 7 do not divide"),
        ("pixart-sigma", (1, 8, 8), (5,), "latents have the size 1 x 8 x 8; this denoiser needs height and width"),
        ("pixart-sigma", (8, 8), (), "a text has no tokens"),
    ],
)  # fmt: skip
def test_sizes_that_do_not_fit(name: str, size: tuple[int, ...], texts: tuple[int, ...], problem: str) -> None:
    """One line each, of a pass and of its price."""
    model = build_denoiser(Fields(CONFIGS[name], "config.json"))
    assert isinstance(model, CrossDenoiser)
    with pytest.raises(ValueError, match=problem):
        model.work(size, texts)
    if texts:
        with pytest.raises(ValueError, match=problem), torch.device("meta"):
            model(torch.zeros(len(texts), 4, *size), 0.5, [torch.zeros(n, 10) for n in texts])


# -- price ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("torch_only")  # aten sees nothing of our kernels
@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_what_is_stated_is_what_was_computed(subject: Subject, batch: Batch) -> None:
    """Products, pairs and weights of a pass that prepares its texts; nothing is computed between ops."""
    ours = subject.ours
    latents, texts = batch.given(ours)
    with audited(ours) as audit, torch.inference_mode():
        ours(latents, batch.levels, texts)
    work = ours.work(batch.of(ours), batch.texts)
    run = Run(ours, audit, work, [], {}, {})
    assert {path for path, _ in ours.ops()} == set(audit.calls) - {""}
    check_products(run)
    check_bytes(run)
    tokens = ours.grid(batch.of(ours)).count
    for path, op in ours.ops():
        if isinstance(op, Attention):
            texts_read = [_PADDED] * len(texts) if ours.generates_video else batch.texts
            pairs = sum(tokens * (n if op.attention_pattern.kind == "cross" else tokens) for n in texts_read)
            assert op.cost(work).flops["fp32"] >= 4 * op.heads * op.spec.k_dim * pairs, path
            attend = [kernel for kernel in op.launches(work) if kernel.method == "attend"]
            assert sum(kernel.cost.total_flops for kernel in attend) == 4 * op.heads * op.spec.k_dim * pairs, path


def calls(ours: CrossDenoiser, *given: Any) -> list[tuple[str, int]]:
    """The ops that a call of `forward` or of what stands first runs, and over how many rows."""
    seen = list[tuple[str, int]]()
    told: CallListener = lambda path, _, inputs, __: seen.append((path, len(inputs[0])))  # noqa: E731
    run, *inputs = given
    with call_hooks(ours.ops(), told), torch.inference_mode():
        run(*inputs)
    return seen


def test_the_outline_is_a_preparation_and_a_pass(subject: Subject) -> None:
    """On meta the same calls in the same order, over the rows of the spaces that the works count: those of texts while
    they are prepared, the others in every pass."""
    ours, batch = subject.ours, BATCHES[2]
    latents, texts = batch.given(ours)
    works = ours.prepare_work(batch.texts), ours.pass_work(batch.of(ours), batch.texts)
    prepared = ours.prepare(texts)
    traced = traced_calls(ours)
    for work, seen in zip(
        works, (calls(ours, ours.prepare, texts), calls(ours, ours, latents, 0.7, prepared)), strict=True
    ):
        assert seen == [(path, work.rows[space]) for path, _, space in traced if space in work.rows]
    assert calls(ours, ours, latents, 0.7, texts) == [
        (path, {**works[0].rows, **works[1].rows}[space]) for path, _, space in traced
    ]
    assert works[1].rows == {LATENTS: 2 * ours.grid(batch.of(ours)).count, CONDITIONS: 2}
    assert works[0].rows == {TEXT: 1024 if ours.generates_video else 45}


def test_a_request_is_one_preparation_and_its_passes(subject: Subject) -> None:
    """A pass that is given texts costs what both parts cost, in each number."""
    ours, batch = subject.ours, BATCHES[2]
    price, size = Price(ours), batch.of(ours)
    parts = price.step(ours.prepare_work(batch.texts)) + price.step(ours.pass_work(size, batch.texts))
    assert parts == price.step(ours.work(size, batch.texts))
    twice = price.step(ours.pass_work(size, batch.texts, levels=2))
    assert twice.total_flops > price.step(ours.pass_work(size, batch.texts)).total_flops
    assert price.step(ours.prepare_work(batch.texts)).weight_bytes > 0


def flops_of(config: dict[str, Any], *given: Tensor, **named: Any) -> int:
    """What diffusers' model takes on meta, by torch's counter: layers are alike, so that one and two of them say what
    all take."""
    counted = []
    for layers in (1, 2):
        with torch.device("meta"):
            theirs = theirs_of(config | {"num_layers": layers})
        with FlopCounterMode(display=False) as counter, torch.inference_mode():
            theirs(*given, **named)
        counted.append(int(counter.get_total_flops()))
    one, two = counted
    return one + (config["num_layers"] - 1) * (two - one)


def test_the_price_of_the_releases() -> None:
    """Parameters; FLOPs to the digit those of diffusers' class on meta, and as research has them; attention's share."""
    for facts in CLIP_RELEASES.values():
        ours = build_denoiser(Fields(facts.config, "config.json"), torch.bfloat16)
        price = Price(ours)
        assert price.weight_bytes / 2 == facts.parameters
        for (frames, width, height), stated in facts.tflop.items():
            size = (1 + (frames - 1) // facts.frames, height // facts.pixels, width // facts.pixels)
            with torch.device("meta"):
                given = torch.empty(1, ours.channels, *size), torch.empty(1), torch.empty(1, facts.text, 4096)
            assert isinstance(ours, CrossDenoiser)
            check_release(
                price, ours, size, flops_of(facts.config, *given), stated, facts.attention[frames, width, height]
            )


@pytest.mark.parametrize("name", ["PixArt-Sigma", "PixArt-LCM"])
def test_the_price_of_pixart(name: str) -> None:
    """The same, with a text of 300 tokens."""
    facts = RELEASES[name]
    ours = build_denoiser(Fields(facts.config, "config.json"), torch.bfloat16)
    price = Price(ours)
    assert isinstance(ours, CrossDenoiser)
    assert price.weight_bytes / 2 == facts.parameters
    for pixels, stated in facts.tflop.items():
        size = (pixels // 8, pixels // 8)
        with torch.device("meta"):
            given = torch.empty(1, 4, *size), torch.empty(1, facts.text, 4096), torch.empty(1)
            sizes = {"resolution": torch.empty(1, 2), "aspect_ratio": torch.empty(1, 1)}
        attention = facts.attention if pixels == 1024 else None
        check_release(
            price, ours, size, flops_of(facts.config, *given, added_cond_kwargs=sizes), stated, attention, facts.text
        )


def check_release(
    price: Price,
    ours: CrossDenoiser,
    size: tuple[int, ...],
    counted: int,
    stated: float,
    attention: float | None,
    text: int = 20,
) -> None:
    """Assert the FLOPs of a pass of one picture or clip, and attention's share."""
    work = ours.work(size, [text])
    cost = price.step(work)
    assert cost.flops["bf16"] == counted
    assert counted / 1e12 == pytest.approx(stated, rel=0.01)
    own = sum(row.cost(work).flops["bf16"] * row.count for row in price.ops if isinstance(row.op, Attention))
    if attention is not None:
        assert own / counted == pytest.approx(attention, abs=0.01)


def test_a_pass_on_a_card() -> None:
    """480p of Wan 2.1's 1.3B is bound by arithmetic, and what is prepared is a small part of it."""
    facts = CLIP_RELEASES["Wan2.1-T2V-1.3B"]
    ours = build_denoiser(Fields(facts.config, "config.json"), torch.bfloat16)
    assert isinstance(ours, CrossDenoiser)
    price, card, size = Price(ours), load_device("h100-sxm"), (21, 60, 104)
    one = price.price_step(card, ours.pass_work(size, [80]))
    assert one.floor == pytest.approx(one.cost.flops["bf16"] / card.peak("bf16"))
    assert one.floor < one.bound < one.expected < 2 * one.bound
    assert price.price_step(card, ours.prepare_work([80])).expected < one.expected / 100


def test_old_configs_of_pixart() -> None:
    """From before diffusers had a class for it; another one of that name is refused."""
    assert build_denoiser(Fields(PIXART_ALPHA, "config.json")).predicts == "noise"
    with pytest.raises(ModelRefused, match="norm_type = 'ada_norm_zero' is not supported"):
        build_denoiser(Fields(PIXART_ALPHA | {"norm_type": "ada_norm_zero"}, "config.json"))
