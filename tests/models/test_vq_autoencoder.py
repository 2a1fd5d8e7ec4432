"""The autoencoder of Janus beside transformers' with the same random weights, its costs beside what aten computes, its
memory beside what a run holds."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.utils.flop_counter import FlopCounterMode
from transformers import JanusVQVAEConfig
from transformers.models.janus.modeling_janus import JanusVQVAE

from models.comparing import apart
from ridgeline.backends.model_loader import load_model, load_vq_autoencoder
from ridgeline.core.models import Fields, ModelRefused
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.families.vq_autoencoder import VQAutoencoder, build
from ridgeline.core.ops.pixel_grid import PixelGrid
from ridgeline.core.ops.vector_quantiser import BLOCK, NearestCode
from ridgeline.price.price import Price
from support.autoencoders import check_memory, check_ops
from support.januses import VQ, their_vq

TOLERANCE = 1e-5  # of the largest
FILE = "model.safetensors"
CASES: dict[str, dict[str, Any]] = {
    "small": VQ,
    "one": {**VQ, "channel_multiplier": [1]},
    "deep": {**VQ, "base_channels": 64, "channel_multiplier": [1, 1, 3], "num_res_blocks": 2},
    "wider than its stem": {**VQ, "channel_multiplier": [2, 1]},
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[JanusVQVAE, VQAutoencoder]:
    """Theirs, and ours from the folder that it wrote."""
    theirs = their_vq(CASES[request.param], tmp_path)
    return theirs, load_vq_autoencoder(str(tmp_path))


# -- parity ------------------------------------------------------------------------------------------------------------


def test_decode(case: tuple[JanusVQVAE, VQAutoencoder]) -> None:
    """Tokens to pixels, several pictures at once; each alone is the same."""
    theirs, ours = case
    side = ours.shape.side
    ids = torch.randint(ours.shape.codes, (2, side, side), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        found = ours.decode(ids)
        assert apart(found, theirs.decode(ids.flatten(1))) < TOLERANCE
        assert apart(ours.decode(ids[1:]), found[1:]) < TOLERANCE
    assert found.shape == (2, 3, side * ours.factor, side * ours.factor)


@pytest.mark.parametrize("size", [(1, 5, 7), (2, 3, 2)])
def test_encode(case: tuple[JanusVQVAE, VQAutoencoder], size: tuple[int, int, int]) -> None:
    """Pixels to the same tokens, of many; what is searched for the nearest is within 1e-5."""
    theirs, ours = case
    images, height, width = size
    pixels = torch.rand(images, 3, ours.factor * height, ours.factor * width) * 2 - 1
    given: list[torch.Tensor] = []
    ours.quantize.nearest.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    with torch.no_grad():
        expected = theirs.encode(pixels)
        found = ours.encode(pixels)
        latents = theirs.quant_conv(theirs.encoder(pixels)).permute(0, 2, 3, 1).flatten(0, 2)
    assert apart(given[0], latents) < TOLERANCE
    assert found.flatten().tolist() == expected.image_tokens.tolist()
    assert len(set(found.flatten().tolist())) > found.numel() // 3


def test_nearest_is_the_nearest_of_all() -> None:
    """Each distance taken by itself in fp64, over more vectors than are searched at once; of equal codes the first."""
    op = NearestCode(19, 3, torch.float32)
    codes = torch.randn(19, 3)
    codes[7] = codes[3]
    op.weight = torch.nn.Parameter(codes, requires_grad=False)
    x = torch.randn(BLOCK + 5, 3)
    distances = (x.double()[:, None] - codes.double()).square().sum(dim=2)
    found = op(x)
    assert torch.equal(found, distances.argmin(dim=1))
    assert 3 in found
    assert 7 not in found


def test_every_parameter_matters(tmp_path: Path) -> None:
    """A tensor that is read and not used would pass every comparison with weights that hide it."""
    their_vq({**VQ, "base_channels": 64}, tmp_path)  # two channels to a group: of one a bias is normed away
    ours = load_vq_autoencoder(str(tmp_path))
    ids, pixels = torch.arange(4).view(1, 2, 2), torch.rand(1, 3, 4, 4)
    latents: list[torch.Tensor] = []
    ours.quantize.nearest.register_forward_pre_hook(lambda _, inputs: latents.append(inputs[0]))

    def results() -> tuple[torch.Tensor, ...]:
        ours.encode(pixels)
        return ours.decode(ids), latents.pop()

    with torch.no_grad():
        before = results()
        for name, (module, own) in ours.tensors().items():
            if name.endswith("to_k.bias"):
                continue  # adds the same to all scores of a query
            held = module.get_parameter(own)
            changed = held + 0.3 * torch.randn(held.shape, generator=torch.Generator().manual_seed(1))
            module.register_parameter(own, torch.nn.Parameter(changed, requires_grad=False))
            assert max(map(apart, results(), before)) > 1e-3, name
            module.register_parameter(own, held)
    assert max(map(apart, results(), before)) == 0


# -- folders -----------------------------------------------------------------------------------------------------------


def test_broken_folders(tmp_path: Path) -> None:
    """A tensor too few, one too many, one of another shape, another dtype; and it is no language model."""
    their_vq(VQ, tmp_path)
    whole = load_file(tmp_path / FILE)
    some = "decoder.mid.attn_1.q.weight"
    assert whole[some].shape == (64, 64, 1, 1)
    for tensors, why in (
        ({name: tensor for name, tensor in whole.items() if name != some}, "lacks tensors of the model: decoder.mid_"),
        (whole | {"loss.weight": torch.ones(2)}, "has tensors that the model lacks: loss.weight"),
        (whole | {some: torch.ones(64, 64, 3, 3)}, r"has shape \[64, 64, 3, 3\], but the config requires \[64, 64\]"),
    ):
        save_file(tensors, tmp_path / FILE)
        with pytest.raises(ModelRefused, match=why):
            load_vq_autoencoder(str(tmp_path))
    with pytest.raises(ValueError, match=r"cannot run in torch.float16"):
        load_vq_autoencoder(str(tmp_path), torch.float16)
    with pytest.raises(ModelRefused, match="is the image-token autoencoder of Janus"):
        load_model(str(tmp_path))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM has no autoencoder of image tokens"),
        ({"base_channels": 48}, "base_channels 48 does not divide into 32 groups"),
        ({"channel_multiplier": [1] * 9}, "channel_multiplier is .*; it must be 1 to 8 integers"),
        ({"channel_multiplier": [1, 0]}, "channel_multiplier is .*; it must be 1 to 8 integers"),
        ({"channel_multiplier": [1, -2]}, "channel_multiplier is .*; it must be 1 to 8 integers"),
        ({"num_embeddings": 0}, "num_embeddings is 0"),
        ({"num_res_blocks": 10**9}, "num_res_blocks is 1000000000"),
        ({"double_latent": True}, "double_latent = True is not supported"),
        ({"attn_resolutions": [16]}, r"attn_resolutions = \[16\] is not supported"),
    ],
)
def test_refused_configs(change: dict[str, Any], why: str) -> None:
    """What would change the result is refused by its name."""
    values = {"architectures": ["JanusVQVAE"], **VQ}
    build(Fields({**values, "dropout": 0.1, "initializer_range": 0.02, "beta": 0.5}, "c"), StorageConfig(torch.float32))
    with pytest.raises(ModelRefused, match=why):
        build(Fields(values | change, "c"), StorageConfig(torch.float32))


def test_wrong_tensors(tmp_path: Path) -> None:
    """Tokens that are none, pictures of no whole number of latents."""
    their_vq(VQ, tmp_path)
    ours = load_vq_autoencoder(str(tmp_path))
    for ids in (torch.zeros(9, dtype=torch.int64), torch.zeros(0, 3, 3, dtype=torch.int64)):
        with pytest.raises(ValueError, match=r"tokens have shape \[.*\]; they must be \[images, height, width\]"):
            ours.decode(ids)
    for token in (37, -1):
        with pytest.raises(ValueError, match="a token is outside the codebook; give numbers from 0 to 36"):
            ours.decode(torch.full((1, 3, 3), token))
    with pytest.raises(ValueError, match=r"an image has 6 x 5 pixels, .* multiples of 2; crop or scale it"):
        ours.encode(torch.zeros(1, 3, 5, 6))


# -- cost --------------------------------------------------------------------------------------------------------------

RELEASED = {"architectures": ["JanusVQVAE"], "num_patches": 24}
"""Janus-Pro's is what transformers' class takes, but for the side of a picture."""


def test_products_are_those_that_aten_counts_of_theirs() -> None:
    """Janus-Pro's: exactly the FLOPs of transformers' class on meta, of a decode of 576 tokens and of an encode, beside
    what is done to each distance; a half costs nothing of the other."""
    ours = build(Fields(RELEASED, "c"), StorageConfig(torch.bfloat16))
    price, latents = Price(ours), PixelGrid(1, 24, 24)
    with torch.device("meta"):
        theirs = JanusVQVAE(JanusVQVAEConfig(num_patches=24))
        ids, pixels = torch.zeros(1, 576, dtype=torch.int64), torch.empty(1, 3, 384, 384)
    with FlopCounterMode(display=False) as decoded, torch.no_grad():
        theirs.decode(ids)
    with FlopCounterMode(display=False) as encoded, torch.no_grad():
        theirs.encode(pixels)
    decode, encode = price.step(ours.decode_work(latents)), price.step(ours.encode_work(latents))
    search = ours.quantize.nearest.product_flops(576)
    assert decode.flops["bf16"] == decoded.get_total_flops()
    assert encode.flops["bf16"] + search == encoded.get_total_flops()
    count = sum(parameter.numel() for parameter in theirs.parameters())
    assert price.weight_bytes == 2 * count
    assert decode.weight_bytes + encode.weight_bytes == 2 * count + 2 * 576 * 8  # rows of the codebook


@pytest.mark.usefixtures("torch_only")
def test_every_op_computes_what_it_states(case: tuple[JanusVQVAE, VQAutoencoder]) -> None:
    """Op by op, decoding and encoding: products, weights read, nothing computed between ops."""
    _, ours = case
    looked_up = ("min", "max", "_local_scalar_dense")  # that tokens are rows of the codebook
    check_ops(ours, PixelGrid(2, 5, 3), torch.zeros(2, 5, 3, dtype=torch.int64), between=looked_up)


def test_memory_is_what_a_run_holds(case: tuple[JanusVQVAE, VQAutoencoder]) -> None:
    """Most bytes alive of all tensors that aten made, within 1 %."""
    _, ours = case
    ids = torch.zeros(1, 22, 18, dtype=torch.int64)
    pixels = torch.rand(1, 3, 22 * ours.factor, 18 * ours.factor)
    check_memory(
        ours,
        (
            (ours.decode_bytes(PixelGrid(1, 22, 18)), lambda: ours.decode(ids)),
            (ours.encode_bytes(PixelGrid(1, 22, 18)), lambda: ours.encode(pixels)),
        ),
    )
