"""AutoencoderKL beside diffusers' with the same random weights, its costs beside what aten computes, its memory beside
what a run holds, and decoding tile by tile."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKL as Theirs
from safetensors.torch import load_file, save_file
from torch.utils.flop_counter import FlopCounterMode

from models.comparing import apart
from ridgeline.backends.model_loader import load_autoencoder, load_model
from ridgeline.core.models import Fields, ModelRefused
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.common.tiling import Tiling, tiled
from ridgeline.core.models.families.autoencoder_kl import AutoencoderKL, build
from ridgeline.core.ops.convolution2d import Convolution2d
from ridgeline.core.ops.group_norm import GroupNorm
from ridgeline.core.ops.pixel_grid import PixelGrid
from ridgeline.price.price import Price
from support.autoencoders import check_memory, check_ops, config, their_autoencoder

TOLERANCE = 1e-5  # of the largest
FILE = "diffusion_pytorch_model.safetensors"
CONVOLVED = {"use_quant_conv": True, "use_post_quant_conv": True}
PLAIN = {"use_quant_conv": False, "use_post_quant_conv": False}
CASES = {
    "wide": config(
        [32, 64], latent_channels=16, norm_num_groups=32, shift_factor=0.1159, scaling_factor=0.3611, **PLAIN
    ),
    "one": config([4], latent_channels=1, **CONVOLVED),
    "deep": config([4, 6, 8], layers_per_block=2, shift_factor=-0.25, scaling_factor=1.5305, **CONVOLVED),
    "without attention": config([4, 8, 8, 4], mid_block_add_attention=False, in_channels=2, out_channels=5, **PLAIN),
    "encoder's alone": config([8, 4], use_quant_conv=True, use_post_quant_conv=False),
}
SIZES = [(1, 5, 7), (2, 3, 2), (1, 1, 9)]  # images, lines and columns of latents

# Of Z-Image and FLUX.1, whose releases have the same but for bookkeeping.
FLUX = config(
    [128, 256, 512, 512],
    layers_per_block=2,
    latent_channels=16,
    norm_num_groups=32,
    scaling_factor=0.3611,
    shift_factor=0.1159,
    **PLAIN,
)


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Theirs, AutoencoderKL]:
    """Theirs, and ours from the folder that it wrote."""
    theirs = their_autoencoder(CASES[request.param], tmp_path)
    return theirs, load_autoencoder(str(tmp_path))


def normalised(theirs: Theirs) -> tuple[float, float]:
    """The scale and shift of a config."""
    return theirs.config.scaling_factor, theirs.config.shift_factor or 0.0


# -- parity ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_decode(case: tuple[Theirs, AutoencoderKL], size: tuple[int, int, int]) -> None:
    """Latents as pipelines give them to theirs; awkward sizes, several images."""
    theirs, ours = case
    scale, shift = normalised(theirs)
    latents = torch.randn(size[0], ours.shape.latents, *size[1:])
    with torch.no_grad():
        expected = theirs.decode(latents / scale + shift).sample
        assert apart(ours.decode(latents), expected) < TOLERANCE
        assert apart(ours.decode(latents.to(memory_format=torch.channels_last)), expected) < TOLERANCE


@pytest.mark.parametrize("size", SIZES)
def test_encode(case: tuple[Theirs, AutoencoderKL], size: tuple[int, int, int]) -> None:
    """Mean and variance of the latents of a denoiser, and what is drawn of them with the same noise."""
    theirs, ours = case
    scale, shift = normalised(theirs)
    images, height, width = size
    pixels = torch.rand(images, ours.shape.inputs, ours.factor * height, ours.factor * width) * 2 - 1
    with torch.no_grad():
        expected, found = theirs.encode(pixels).latent_dist, ours.encode(pixels)
        assert apart(found.mean, (expected.mean - shift) * scale) < TOLERANCE
        assert apart((0.5 * found.logvar).exp(), expected.std * scale) < TOLERANCE
        drawn = found.sample(torch.Generator().manual_seed(3))
        theirs_drawn = expected.sample(torch.Generator().manual_seed(3))
        assert apart(drawn, (theirs_drawn - shift) * scale) < TOLERANCE
        assert apart(drawn, found.mean) > 0.01


def test_a_variance_without_bounds_is_brought_within_them(tmp_path: Path) -> None:
    """The encoder's logarithm is cut at -30 and 20 before it is scaled."""
    values = CASES["wide"]
    their_autoencoder(values, tmp_path)
    tensors = load_file(tmp_path / FILE)
    tensors["encoder.conv_out.bias"][16:24] = 300.0
    tensors["encoder.conv_out.bias"][24:] = -300.0
    save_file(tensors, tmp_path / FILE)
    theirs, ours = Theirs.from_pretrained(tmp_path), load_autoencoder(str(tmp_path))
    pixels = torch.rand(1, 3, 4, 4)
    with torch.no_grad():
        expected = theirs.encode(pixels).latent_dist.logvar
        assert set(expected.unique().tolist()) == {-30.0, 20.0}
        scale = 2 * torch.tensor(values["scaling_factor"]).log()
        assert apart(ours.encode(pixels).logvar, expected + scale) < TOLERANCE


def test_every_parameter_matters(tmp_path: Path) -> None:
    """A tensor that is read and not used would pass every comparison with weights that hide it."""
    their_autoencoder(CASES["deep"], tmp_path)
    ours = load_autoencoder(str(tmp_path))
    latents, pixels = torch.randn(1, 4, 3, 2), torch.rand(1, 3, 12, 8)

    def results() -> tuple[torch.Tensor, ...]:
        posterior = ours.encode(pixels)
        return ours.decode(latents), posterior.mean, posterior.logvar

    with torch.no_grad():
        before = results()
        for name, (module, own) in ours.tensors().items():
            if name.endswith(("to_k.bias",)):
                continue  # adds the same to all scores of a query
            held = module.get_parameter(own)
            module.register_parameter(own, torch.nn.Parameter(held * 1.3 + 0.1, requires_grad=False))
            assert max(map(apart, results(), before)) > 1e-3, name
            module.register_parameter(own, held)
    assert max(map(apart, results(), before)) == 0


def test_bf16_is_as_near_as_theirs(tmp_path: Path) -> None:
    """In bf16, converted when loaded, the distance from fp32 is that of diffusers in bf16, within a fifth."""
    theirs = their_autoencoder(CASES["deep"], tmp_path)
    ours = load_autoencoder(str(tmp_path), torch.bfloat16)
    scale, shift = normalised(theirs)
    latents = torch.randn(1, 4, 9, 8)
    with torch.no_grad():
        exact = theirs.decode(latents / scale + shift).sample
        rounded = theirs.to(torch.bfloat16).decode((latents / scale + shift).to(torch.bfloat16)).sample
        found = ours.decode(latents)
    assert found.dtype == torch.bfloat16

    def error(x: torch.Tensor) -> float:
        return float((x.float() - exact).norm() / exact.norm())

    assert error(found) < 1.2 * error(rounded)


# -- folders -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "asked", "run"),
    [
        (torch.bfloat16, None, torch.bfloat16),
        (torch.float16, None, torch.float32),
        (torch.bfloat16, torch.float32, torch.float32),
    ],
)
def test_number_formats(stored: torch.dtype, asked: torch.dtype | None, run: torch.dtype, tmp_path: Path) -> None:
    """As it is stored, or as it is asked; fp16 is widened."""
    their_autoencoder(CASES["one"], tmp_path)
    tensors = {name: tensor.to(stored) for name, tensor in load_file(tmp_path / FILE).items()}
    save_file(tensors, tmp_path / FILE)
    ours = load_autoencoder(str(tmp_path), asked)
    assert ours.storage.dtype == run
    assert all(torch.equal(p, tensors[ours.checkpoint_name(n)].to(run)) for n, p in ours.named_parameters())


def test_old_names_of_attention(tmp_path: Path) -> None:
    """Checkpoints of Stable Diffusion 1 call its matrices otherwise."""
    their_autoencoder(CASES["wide"], tmp_path)
    latents = torch.randn(1, 16, 3, 4)
    with torch.no_grad():
        expected = load_autoencoder(str(tmp_path)).decode(latents)
    old = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}
    tensors = load_file(tmp_path / FILE)
    for new, name in old.items():
        tensors = {key.replace(f".0.{new}.", f".0.{name}."): tensor for key, tensor in tensors.items()}
    assert "decoder.mid_block.attentions.0.proj_attn.bias" in tensors
    save_file(tensors, tmp_path / FILE)
    with torch.no_grad():
        assert torch.equal(load_autoencoder(str(tmp_path)).decode(latents), expected)


def test_broken_folders(tmp_path: Path) -> None:
    """A tensor too few, one too many, one of another shape."""
    their_autoencoder(CASES["wide"], tmp_path)
    whole = load_file(tmp_path / FILE)
    some = "decoder.conv_in.weight"
    for tensors, why in (
        ({name: tensor for name, tensor in whole.items() if name != some}, f"lacks tensors of the model: {some}"),
        (whole | {"loss.weight": torch.ones(2)}, "has tensors that the model lacks: loss.weight"),
        (whole | {some: torch.ones(2, 2)}, f"tensor {some} has shape [2, 2], but the config requires [64, 16, 3, 3]"),
    ):
        save_file(tensors, tmp_path / FILE)
        with pytest.raises(ModelRefused, match=why.replace("[", r"\[")):
            load_autoencoder(str(tmp_path))
    with pytest.raises(ValueError, match=r"cannot run in torch.float16; give torch.float32 or torch.bfloat16"):
        load_autoencoder(str(tmp_path), torch.float16)
    with pytest.raises(ModelRefused, match="part of a pipeline that generates images"):
        load_model(str(tmp_path))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"_class_name": "AutoencoderKLWan"}, "autoencoder architecture AutoencoderKLWan is not supported"),
        ({"_class_name": None}, r"autoencoder architecture \(none\) is not supported"),
        ({"act_fn": "mish"}, "act_fn = mish is not supported; silu is"),
        (
            {"down_block_types": ["AttnDownEncoderBlock2D"] * 2},
            "down_block_types is .*; it must be 2 times DownEncoderBlock2D",
        ),
        ({"up_block_types": ["UpDecoderBlock2D"]}, "up_block_types is .*; it must be 2 times UpDecoderBlock2D"),
        ({"up_block_types": None}, "up_block_types is .*; it must be 2 times UpDecoderBlock2D"),
        ({"block_out_channels": [32] * 9}, "block_out_channels is .*; it must be 1 to 8 integers"),
        ({"block_out_channels": [32, 0]}, "block_out_channels is .*; it must be 1 to 8 integers"),
        ({"norm_num_groups": 3}, "32 of block_out_channels does not divide into 3 groups"),
        ({"latents_mean": [0.0] * 16}, "latents_mean = .* is not supported"),
        ({"shift_factor": float("nan")}, "shift_factor is nan; it must be a finite number"),
        ({"shift_factor": "0.1"}, "shift_factor is '0.1'; it must be a finite number"),
        ({"scaling_factor": 0}, "scaling_factor is 0; it must be a finite number above 0"),
        ({"layers_per_block": 10**9}, "layers_per_block is 1000000000"),
        ({"batch_norm_eps": 1e-4}, "batch_norm_eps = 0.0001 is not supported"),
        ({"decoder_block_out_channels": [32, 64]}, "decoder_block_out_channels = .* is not supported"),
    ],
)
def test_refused_configs(change: dict[str, Any], why: str) -> None:
    """What would change the result is refused by its name."""
    values = {"_class_name": "AutoencoderKL", **CASES["wide"]}
    ignored = {"sample_size": 1024, "force_upcast": True, "latents_std": None}
    build(Fields(values | ignored, "c"), StorageConfig(torch.float32))
    with pytest.raises(ModelRefused, match=why):
        build(Fields(values | change, "c"), StorageConfig(torch.float32))


def test_wrong_tensors(tmp_path: Path) -> None:
    """Shapes that are none of its."""
    their_autoencoder(CASES["wide"], tmp_path)
    ours = load_autoencoder(str(tmp_path))
    for shape in ((1, 4, 8, 8), (16, 8, 8), (0, 16, 8, 8), (1, 16, 0, 8)):
        with pytest.raises(ValueError, match=r"latents have shape \[.*\]; they must be \[images, 16, height, width\]"):
            ours.decode(torch.zeros(shape))
    with pytest.raises(ValueError, match=r"an image has 6 x 5 pixels, .* multiples of 2; crop or scale it"):
        ours.encode(torch.zeros(1, 3, 5, 6))


# -- cost --------------------------------------------------------------------------------------------------------------


def flux(dtype: torch.dtype = torch.bfloat16, **other: Any) -> AutoencoderKL:
    """The autoencoder of FLUX.1 and Z-Image on meta."""
    return build(Fields({"_class_name": "AutoencoderKL", **FLUX, **other}, "c"), StorageConfig(dtype))


def test_the_released_configs_are_these_facts() -> None:
    """FLUX.1's is what the figures below are of, and Stable Diffusion 3's differs in how latents are normalised."""
    data = os.environ.get("RIDGELINE_DATA")
    if data is None:
        pytest.skip("RIDGELINE_DATA is not set")
    for folder, other in (
        ("black-forest-labs__FLUX.1-schnell", {}),
        ("stabilityai__stable-diffusion-3-medium-diffusers", {"scaling_factor": 1.5305, "shift_factor": 0.0609}),
    ):
        values = json.loads((Path(data) / "configs" / folder / "vae" / "config.json").read_text(encoding="utf-8"))
        assert {key: values[key] for key in FLUX} == FLUX | other
        released = build(Fields(values, "c"), StorageConfig(torch.bfloat16))
        assert str(released) == str(flux(**other))


def test_a_picture_of_a_megapixel() -> None:
    """83.8 million parameters, 49.5 of the decoder; 10.5 TFLOP to decode 1024 x 1024, a tenth of them attention."""
    ours = flux()
    price, latents = Price(ours), PixelGrid(1, 128, 128)
    assert sum(p.numel() for p in ours.parameters()) == pytest.approx(83.8e6, rel=1e-3)
    assert sum(p.numel() for p in ours.decoder.parameters()) == pytest.approx(49.5e6, rel=1e-3)
    assert price.step(ours.decode_work(latents)).total_flops == pytest.approx(10.5e12, rel=0.01)
    assert price.step(ours.decode_work(latents)).weight_bytes == 2 * sum(p.numel() for p in ours.decoder.parameters())
    assert price.weight_bytes == 2 * sum(p.numel() for p in ours.parameters())
    attention = 4 * 512 * (128 * 128) ** 2
    assert 0.05 < attention / price.step(ours.decode_work(latents)).flops["bf16"] < 0.06


@pytest.mark.parametrize("size", [(1, 128, 128), (1, 64, 80), (3, 17, 9)])
def test_products_are_those_that_aten_counts_of_theirs(size: tuple[int, int, int]) -> None:
    """Exactly the FLOPs of diffusers' model on meta, of both halves."""
    ours, latents = flux(), PixelGrid(*size)
    price = Price(ours)
    with torch.device("meta"):
        theirs = Theirs(**FLUX)
        z, pixels = torch.empty(size[0], 16, *size[1:]), torch.empty(size[0], 3, 8 * size[1], 8 * size[2])
    with FlopCounterMode(display=False) as decoded, torch.no_grad():
        theirs.decode(z)
    with FlopCounterMode(display=False) as encoded, torch.no_grad():
        theirs.encode(pixels)
    assert price.step(ours.decode_work(latents)).flops["bf16"] == decoded.get_total_flops()
    assert price.step(ours.encode_work(latents)).flops["bf16"] == encoded.get_total_flops()


@pytest.mark.usefixtures("torch_only")
def test_every_op_computes_what_it_states(case: tuple[Theirs, AutoencoderKL]) -> None:
    """Op by op, decoding and encoding: products, weights read, nothing computed between ops."""
    _, ours = case
    latents = torch.randn(2, ours.shape.latents, 5, 3).to(memory_format=torch.channels_last)
    check_ops(ours, PixelGrid(2, 5, 3), latents)


def test_a_half_costs_nothing_of_the_other() -> None:
    """Rows are of one half; both together are a step of both."""
    ours = flux()
    price, latents = Price(ours), PixelGrid(1, 8, 8)
    decoded, encoded = ours.decode_work(latents), ours.encode_work(latents)
    assert not set(decoded.rows) & set(encoded.rows)
    both = price.step(decoded + encoded)
    assert both.total_flops == price.step(decoded).total_flops + price.step(encoded).total_flops
    assert both.weight_bytes == price.step(decoded).weight_bytes + price.step(encoded).weight_bytes
    assert both.weight_bytes == price.weight_bytes


# -- memory ------------------------------------------------------------------------------------------------------------


def test_memory_of_a_megapixel() -> None:
    """Widest where 256 channels become 128 at full size: the block's input, its norm and the first product, 640
    numbers a pixel, beside the latents as they came and as they are decoded."""
    ours, pixels, latents = flux(), 1024 * 1024, PixelGrid(1, 128, 128)
    both = 2 * 4 * 16 * latents.rows
    assert ours.decode_bytes(latents) == 2 * 640 * pixels + both
    assert flux(torch.float32).decode_bytes(latents) == 4 * 640 * pixels + both
    assert ours.encode_bytes(latents) == 2 * 3 * 128 * pixels + 4 * 3 * pixels
    tiling, tile = Tiling(64, 16), PixelGrid(1, 64, 64)
    assert ours.decode_bytes(latents, tiling) == 2 * 640 * pixels / 4 + both * 5 / 8 + 4 * 3 * pixels
    assert ours.decode_bytes(tile, tiling) == ours.decode_bytes(tile)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_is_what_a_run_holds(case: tuple[Theirs, AutoencoderKL], dtype: torch.dtype, tmp_path: Path) -> None:
    """Most bytes alive of all tensors that aten made, within 1 %."""
    ours = load_autoencoder(str(tmp_path), dtype)
    latents = torch.randn(1, ours.shape.latents, 22, 18)
    pixels = torch.rand(1, ours.shape.inputs, 22 * ours.factor, 18 * ours.factor)
    tiling = Tiling(12, 4)
    check_memory(
        ours,
        (
            (ours.decode_bytes(PixelGrid(1, 22, 18)), lambda: ours.decode(latents)),
            (ours.encode_bytes(PixelGrid(1, 22, 18)), lambda: ours.encode(pixels)),
            (ours.decode_bytes(PixelGrid(1, 22, 18), tiling), lambda: ours.decode(latents, tiling)),
        ),
    )


# -- tiles -------------------------------------------------------------------------------------------------------------


def test_one_tile_is_the_whole(case: tuple[Theirs, AutoencoderKL]) -> None:
    """Bit for bit."""
    _, ours = case
    latents = torch.randn(1, ours.shape.latents, 7, 12)
    with torch.no_grad():
        assert torch.equal(ours.decode(latents, Tiling(12, 6)), ours.decode(latents))


@pytest.mark.parametrize("size", [(1, 9, 23), (2, 8, 8), (1, 3, 40), (1, 16, 17)])
@pytest.mark.parametrize("tiling", [Tiling(8, 3), Tiling(8, 4), Tiling(7, 0), Tiling(1, 0)])
def test_what_looks_at_no_neighbours_is_the_same_in_tiles(tiling: Tiling, size: tuple[int, int, int]) -> None:
    """Of a decoder that only makes four pixels of one, tiles are the whole everywhere: every pixel counts for 1."""

    def decode(part: torch.Tensor) -> torch.Tensor:
        assert max(part.shape[2:]) <= tiling.size
        return torch.nn.functional.interpolate(part, scale_factor=2.0, mode="nearest")

    latents = torch.randn(size[0], 3, *size[1:])
    assert apart(tiled(decode, latents, tiling, 2, 3), decode_whole(latents)) < 1e-6


def decode_whole(latents: torch.Tensor) -> torch.Tensor:
    """Four pixels of each."""
    return latents.repeat_interleave(2, 2).repeat_interleave(2, 3)


def test_away_from_cuts_tiles_are_the_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where no product of a tile has seen its cut: within 1e-5 without what looks at all pixels, attention and the
    statistics of norms."""
    their_autoencoder(config([4], mid_block_add_attention=False, **PLAIN), tmp_path)
    ours, tiling, length = load_autoencoder(str(tmp_path)), Tiling(48, 24), 72
    latents = torch.randn(1, 4, length, length)
    monkeypatch.setattr(GroupNorm, "normalise", lambda norm, x_PC, _: x_PC * norm.weight + norm.bias)
    reach = sum(op.kernel_size // 2 for path, op in ours.decoder.named_modules() if isinstance(op, Convolution2d))
    assert reach == 10
    far = torch.ones(length, dtype=torch.bool)
    for cut in (24, 48):  # where the second tile begins, and the first ends
        far[cut - reach * (cut == 48) : cut + reach * (cut == 24)] = False
    assert far.nonzero().flatten().tolist() == [*range(24), *range(34, 38), *range(48, 72)]
    with torch.no_grad():
        whole, tiles = ours.decode(latents), ours.decode(latents, tiling)
    assert apart(tiles[..., far[:, None] & far], whole[..., far[:, None] & far]) < TOLERANCE
    assert apart(tiles, whole) > 1e-3


def test_tiles_are_those_of_theirs(case: tuple[Theirs, AutoencoderKL]) -> None:
    """Each tile is what diffusers decodes of it, faded into its neighbours; the whole differs by a quarter of the
    picture's variation at most, on noise."""
    theirs, ours = case
    tiling, latents, factor = Tiling(16, 8), torch.randn(1, ours.shape.latents, 16, 28), ours.factor
    scale, shift = normalised(theirs)
    ramp = (torch.arange(8 * factor) + 0.5) / (8 * factor)
    with torch.no_grad():
        first, second, third = (
            theirs.decode(latents[..., start : start + 16] / scale + shift).sample for start in (0, 8, 12)
        )
        found, whole = ours.decode(latents, tiling), ours.decode(latents)
    assert apart(found[..., : 8 * factor], first[..., : 8 * factor]) < TOLERANCE
    assert apart(found[..., 24 * factor :], third[..., 12 * factor :]) < TOLERANCE
    rising = ramp[: 4 * factor]
    blended = (1 - rising) * first[..., 8 * factor : 12 * factor] + rising * second[..., : 4 * factor]
    assert apart(found[..., 8 * factor : 12 * factor], blended) < TOLERANCE
    variation = whole - whole.mean(dim=(2, 3), keepdim=True)
    assert 1e-3 < (found - whole).norm() / variation.norm() < 0.25


def test_weights_are_ramps_that_make_one() -> None:
    """Where two tiles overlap one fades out as the other comes in, evenly; the last one lies at the end."""
    tiling = Tiling(8, 4)
    assert tiling.starts(20) == [0, 4, 8, 12]
    assert tiling.starts(18) == [0, 4, 8, 10]
    assert tiling.tiles(PixelGrid(1, 18, 8)) == 4
    first, second = tiling.weights(12, 1)
    assert first.tolist() == pytest.approx([1, 1, 1, 1, 0.875, 0.625, 0.375, 0.125])
    assert second.tolist() == pytest.approx(first.flip(0).tolist())
    for length in (9, 18, 31):
        line = torch.zeros(3 * length)
        for start, weights in zip(tiling.starts(length), tiling.weights(length, 3), strict=True):
            assert weights.min() > 0
            line[3 * start : 3 * (start + 8)] += weights
        assert torch.allclose(line, torch.ones_like(line))


def test_wrong_tilings() -> None:
    """Tiles that would never come to an end, or of nothing."""
    for size, overlap in ((0, 0), (8, 5), (8, -1), (-4, 0)):
        with pytest.raises(ValueError, match="give a size of 1 or more, and an overlap of at most half"):
            Tiling(size, overlap)
