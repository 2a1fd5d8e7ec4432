"""FLUX.2's autoencoder beside diffusers' with the same random weights, with what its pipeline does around it: packing,
and the statistics of a batch norm."""

from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLFlux2, Flux2KleinPipeline
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from models.comparing import MATTERS, TOLERANCE, changes_of_parameters, off
from models.denoiser_configs import AUTOENCODER_FLUX_2
from ridgeline.backends.model_loader import load_autoencoder
from ridgeline.core.models import Fields, ModelRefused
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.common.tiling import Tiling
from ridgeline.core.models.families.autoencoder_kl import PackedAutoencoderKL, build
from ridgeline.core.ops.pixel_grid import PixelGrid
from ridgeline.price.price import Price
from support.autoencoders import check_memory, check_ops, config, their_packed_autoencoder

CASES = {
    "one": config([4], latent_channels=1, layers_per_block=1, batch_norm_eps=0.01),
    "deep": config([4, 6, 8], latent_channels=3, layers_per_block=2, in_channels=2, out_channels=5),
    "plain": config([4, 8], latent_channels=2, layers_per_block=1, use_quant_conv=False, use_post_quant_conv=False),
}
SIZES = [(1, 3, 5), (2, 2, 1)]  # images, lines and columns of packed latents

Pair = tuple[AutoencoderKLFlux2, PackedAutoencoderKL]


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Pair:
    """Theirs, and ours from the folder that it wrote."""
    theirs = their_packed_autoencoder(CASES[request.param], tmp_path)
    ours = load_autoencoder(str(tmp_path))
    assert isinstance(ours, PackedAutoencoderKL)
    return theirs, ours


def statistics(theirs: AutoencoderKLFlux2) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of packed channels, as the pipeline takes them."""
    spread = torch.sqrt(theirs.bn.running_var + theirs.config.batch_norm_eps)
    return theirs.bn.running_mean.view(1, -1, 1, 1), spread.view(1, -1, 1, 1)


@pytest.mark.parametrize("size", SIZES)
def test_decode(case: Pair, size: tuple[int, int, int]) -> None:
    """Latents as the denoiser has them, unpacked by the pipeline for theirs."""
    theirs, ours = case
    mean, spread = statistics(theirs)
    latents = torch.randn(size[0], ours.channels, *size[1:])
    with torch.no_grad():
        unpacked = Flux2KleinPipeline._unpatchify_latents(latents * spread + mean)
        expected = theirs.decode(unpacked).sample
        assert off(ours.decode(latents), expected) <= TOLERANCE
        assert off(ours.decode(latents.to(memory_format=torch.channels_last)), expected) <= TOLERANCE
    assert expected.shape[2:] == (ours.factor * size[1], ours.factor * size[2])


@pytest.mark.parametrize("size", SIZES)
def test_encode(case: Pair, size: tuple[int, int, int]) -> None:
    """Mean and variance of the denoiser's latents; what is decoded of them is what was encoded to them."""
    theirs, ours = case
    mean, spread = statistics(theirs)
    pixels = torch.rand(size[0], ours.shape.inputs, ours.factor * size[1], ours.factor * size[2]) * 2 - 1
    with torch.no_grad():
        expected, found = theirs.encode(pixels).latent_dist, ours.encode(pixels)
        packed = (Flux2KleinPipeline._patchify_latents(each) for each in (expected.mean, expected.std))
        packed_mean, packed_std = packed
        assert off(found.mean, (packed_mean - mean) / spread) <= TOLERANCE
        assert off((0.5 * found.logvar).exp(), packed_std / spread) <= TOLERANCE
        assert off(ours.decode(found.mean), theirs.decode(expected.mean).sample) <= TOLERANCE


def test_every_parameter_matters(tmp_path: Path) -> None:
    """Both statistics among them."""
    theirs = their_packed_autoencoder(CASES["deep"], tmp_path)
    ours = load_autoencoder(str(tmp_path))
    latents, pixels = torch.randn(1, 12, 3, 2), torch.rand(1, 2, 24, 16)

    def given() -> Tensor:
        with torch.no_grad():
            posterior = ours.encode(pixels)
            return torch.cat([x.flatten() / x.std() for x in (ours.decode(latents), posterior.mean, posterior.logvar)])

    keys = [name for name, _ in ours.named_parameters() if name.endswith("to_k.bias")]  # the same for all of a query
    changes = dict(changes_of_parameters(ours, given, keys))
    assert {"bn.running_mean", "bn.running_var"} <= changes.keys()
    assert len(changes) + len(keys) == len(theirs.state_dict()) - 1  # but for the batches that were counted
    assert not {name: change for name, change in changes.items() if change <= MATTERS / 2}


@pytest.mark.parametrize("tiling", [Tiling(2, 1), Tiling(64, 16)])
def test_tiles(case: Pair, tiling: Tiling) -> None:
    """Of packed latents; one tile over all is the whole, bit for bit."""
    _, ours = case
    latents = torch.randn(1, ours.channels, 4, 6)
    with torch.no_grad():
        tiles, whole = ours.decode(latents, tiling), ours.decode(latents)
    assert tiles.shape == whole.shape
    assert torch.equal(tiles, whole) == (tiling.size == 64)


def test_in_bf16(tmp_path: Path) -> None:
    """Statistics are read in the dtype of all tensors; the counter beside them is left out."""
    their_packed_autoencoder(CASES["plain"], tmp_path)
    file = tmp_path / "diffusion_pytorch_model.safetensors"
    exact = load_autoencoder(str(tmp_path))
    tensors = load_file(file)
    assert tensors["bn.num_batches_tracked"].dtype == torch.int64
    save_file({name: x.bfloat16() if x.is_floating_point() else x for name, x in tensors.items()}, file)
    ours, latents = load_autoencoder(str(tmp_path)), torch.randn(1, 8, 3, 2)
    assert {parameter.dtype for parameter in ours.parameters()} == {torch.bfloat16}
    with torch.no_grad():
        assert 1e-5 < off(ours.decode(latents).float(), exact.decode(latents)) < 0.1


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"patch_size": [1, 1]}, r"patch_size = \[1, 1\] is not supported; \[2, 2\] is"),
        ({"decoder_block_out_channels": [4, 4]}, r"decoder_block_out_channels = \[4, 4\] is not supported; \[4\] is"),
        ({"batch_norm_eps": 0}, "batch_norm_eps is 0; it must be a finite number above 0"),
        ({"scaling_factor": 0.5}, "scaling_factor = 0.5 is not supported; remove it if it changes nothing"),
    ],
)
def test_refused_configs(change: dict[str, Any], why: str) -> None:
    """What would change the result is refused by its name."""
    values = {"_class_name": "AutoencoderKLFlux2", **CASES["one"]}
    build(Fields(values | {"batch_norm_momentum": 0.1, "patch_size": [2, 2]}, "c"), StorageConfig(torch.float32))
    with pytest.raises(ModelRefused, match=why):
        build(Fields(values | change, "c"), StorageConfig(torch.float32))


def test_wrong_tensors(tmp_path: Path) -> None:
    """Latents that are not packed, and pixels that are half of one."""
    their_packed_autoencoder(CASES["plain"], tmp_path)
    ours = load_autoencoder(str(tmp_path))
    with pytest.raises(ValueError, match=r"latents have shape \[.*\]; they must be \[images, 8, height, width\]"):
        ours.decode(torch.zeros(1, 2, 4, 4))
    with pytest.raises(ValueError, match=r"an image has 8 x 6 pixels, .* multiples of 4; crop or scale it"):
        ours.encode(torch.zeros(1, 3, 6, 8))


# -- cost -------------------------------------------------------------------------------------------------------------


def test_the_release() -> None:
    """Names, parameters, and a decode's products to the digit of diffusers' class on meta."""
    fields = Fields(AUTOENCODER_FLUX_2, "config.json")
    ours, latents = build(fields, StorageConfig(torch.bfloat16)), PixelGrid(1, 64, 64)
    values = {name: value for name, value in AUTOENCODER_FLUX_2.items() if name not in ("_class_name", "force_upcast")}
    with torch.device("meta"):
        theirs = AutoencoderKLFlux2(**values)
        z, pixels = torch.empty(1, 32, 128, 128), torch.empty(1, 3, 1024, 1024)
    assert ours.tensors().keys() | {"bn.num_batches_tracked"} == theirs.state_dict().keys()
    assert sum(p.numel() for p in ours.parameters()) == pytest.approx(84.0e6, rel=1e-3)
    price = Price(ours)
    for run, work in ((theirs.decode, ours.decode_work(latents)), (theirs.encode, ours.encode_work(latents))):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            run(z if run == theirs.decode else pixels)
        assert price.step(work).flops["bf16"] == counter.get_total_flops()
    assert price.step(ours.decode_work(latents)).total_flops == pytest.approx(10.5e12, rel=0.01)


def test_defaults_are_those_of_the_class() -> None:
    """A config that says nothing is diffusers' class without arguments."""
    with torch.device("meta"):
        theirs = AutoencoderKLFlux2()
    ours = build(Fields({"_class_name": "AutoencoderKLFlux2"}, "c"), StorageConfig(torch.float32))
    assert isinstance(ours, PackedAutoencoderKL)
    assert ours.tensors().keys() | {"bn.num_batches_tracked"} == theirs.state_dict().keys()
    assert ours.bn.eps == theirs.bn.eps


@pytest.mark.usefixtures("torch_only")
def test_every_op_computes_what_it_states(case: Pair) -> None:
    """Op by op, decoding and encoding: products, weights read, nothing computed between ops."""
    _, ours = case
    latents = torch.randn(2, ours.channels, 3, 2).to(memory_format=torch.channels_last)
    check_ops(ours, PixelGrid(2, 3, 2), latents)


def test_memory_is_what_a_run_holds(case: Pair) -> None:
    """Most bytes alive of all tensors that aten made, within 1 %."""
    _, ours = case
    latents, own = torch.randn(1, ours.channels, 11, 9), PixelGrid(1, 11, 9)
    pixels, tiling = torch.rand(1, ours.shape.inputs, 11 * ours.factor, 9 * ours.factor), Tiling(6, 2)
    check_memory(
        ours,
        (
            (ours.decode_bytes(own), lambda: ours.decode(latents)),
            (ours.encode_bytes(own), lambda: ours.encode(pixels)),
            (ours.decode_bytes(own, tiling), lambda: ours.decode(latents, tiling)),
        ),
    )
