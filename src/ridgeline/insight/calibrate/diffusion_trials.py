"""The diffusion models that calibration times: denoisers by passes and autoencoders by decodes, small and random.

Their attention has no KV cache, so its kernel classes do not occur in an LLM engine's steps. None has the shape of a
pipeline on which predictions are evaluated.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

import torch
from typing_extensions import override

from ridgeline.backends import backend_of
from ridgeline.core.checkpoint.weight_loader import fill_dummy
from ridgeline.core.models import Fields
from ridgeline.core.models.building import build_denoiser
from ridgeline.core.models.common.denoiser import Denoiser
from ridgeline.core.models.common.priced_module import PricedModule
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.families import autoencoder_kl
from ridgeline.core.models.families.autoencoder_kl import AutoencoderKL
from ridgeline.core.ops.pixel_grid import PixelGrid
from ridgeline.insight.calibrate.steps import Stopwatch, TrialStep

Pass = tuple[tuple[int, int], tuple[int, ...]]
"""A denoiser pass to time: the latents' lines and columns, and each image's text tokens in the batch."""
Decode = tuple[int, int]
"""An autoencoder decode to time: the latents' lines and columns of one image."""

M = TypeVar("M", bound=PricedModule)
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class DiffusionTrial(ABC, Generic[M, S]):
    """A part of a diffusion pipeline to time, with the steps on which it is timed."""

    dtypes: ClassVar[tuple[torch.dtype, ...]]

    name: str
    config: dict[str, object]
    steps: tuple[S, ...]
    share: float
    """The share of the time budget relative to other trials."""

    def model(self, dtype: torch.dtype, device: torch.device) -> M:
        """Return the model with random weights on a device."""
        built = self._built(Fields(self.config, f"the trial {self.name}"), dtype)
        fill_dummy(built)
        built.to(device)
        backend_of(device).bind(built)
        return built

    def prepared(self, model: M, watch: Stopwatch) -> Iterator[TrialStep]:
        """Yield the trial's steps, ready to run on the model whose ops the stopwatch times."""
        for step in self.steps:
            yield self._prepared(model, step)

    @abstractmethod
    def _built(self, config: Fields, dtype: torch.dtype) -> M:
        """Return the trial's model on the meta device, without weights."""

    @abstractmethod
    def _prepared(self, model: M, step: S) -> TrialStep:
        """Return a step of the trial that is ready to run on a model."""


class DenoiserTrial(DiffusionTrial[Denoiser, Pass]):
    """A denoiser that is timed by passes, which prepare their texts each time."""

    dtypes = (torch.float32, torch.bfloat16)

    @override
    def _built(self, config: Fields, dtype: torch.dtype) -> Denoiser:
        return build_denoiser(config, dtype)

    @override
    def _prepared(self, model: Denoiser, step: Pass) -> TrialStep:
        size, texts = step
        device, dtype = next(model.parameters()).device, model.storage.dtype
        latents = torch.randn(len(texts), model.channels, *size, device=device)
        states = [torch.randn(tokens, model.text_width, device=device, dtype=dtype) for tokens in texts]

        @torch.inference_mode()
        def run() -> None:
            model(latents, 0.5, model.prepare(states))  # prepared in each step, because denoisers cache the result

        what = f"{len(texts)} x {size[0]} x {size[1]} with {texts[0]}"
        return TrialStep(what, model.work(size, texts), run)


class AutoencoderTrial(DiffusionTrial[AutoencoderKL, Decode]):
    """An autoencoder that is timed by decodes, in fp32 as pipelines run them."""

    dtypes = (torch.float32,)

    @override
    def _built(self, config: Fields, dtype: torch.dtype) -> AutoencoderKL:
        return autoencoder_kl.build(config, StorageConfig(dtype))

    @override
    def _prepared(self, model: AutoencoderKL, step: Decode) -> TrialStep:
        latents = torch.randn(1, model.channels, *step, device=next(model.parameters()).device)

        @torch.inference_mode()
        def run() -> None:
            model.decode(latents)

        return TrialStep(f"{step[0]} x {step[1]} latents", model.decode_work(PixelGrid(1, *step)), run)


def _autoencoder(*channels: int, groups: int, depth: int) -> dict[str, object]:
    count = len(channels)
    return {
        "_class_name": "AutoencoderKL",
        "block_out_channels": list(channels),
        "down_block_types": ["DownEncoderBlock2D"] * count,
        "up_block_types": ["UpDecoderBlock2D"] * count,
        "latent_channels": 6,
        "layers_per_block": depth,
        "norm_num_groups": groups,
        "use_quant_conv": False,
        "use_post_quant_conv": False,
    }


_STREAM: dict[str, object] = {
    "_class_name": "ZImageTransformer2DModel", "in_channels": 6, "dim": 192, "n_layers": 3, "n_refiner_layers": 1,
    "n_heads": 6, "n_kv_heads": 6, "cap_feat_dim": 96, "axes_dims": [8, 12, 12], "axes_lens": [512, 64, 64],
}  # fmt: skip
_JOINT: dict[str, object] = {
    "_class_name": "Flux2Transformer2DModel", "in_channels": 24, "num_layers": 1, "num_single_layers": 2,
    "attention_head_dim": 128, "num_attention_heads": 3, "joint_attention_dim": 320, "mlp_ratio": 3.0,
    "axes_dims_rope": [32, 32, 32, 32], "guidance_embeds": False,
}  # fmt: skip
_CROSS: dict[str, object] = {
    "_class_name": "PixArtTransformer2DModel", "in_channels": 6, "out_channels": 12, "num_layers": 3,
    "num_attention_heads": 5, "attention_head_dim": 64, "cross_attention_dim": 320, "caption_channels": 160,
    "sample_size": 64, "use_additional_conditions": False,
}  # fmt: skip

DIFFUSION_TRIALS = (
    DenoiserTrial("stream", _STREAM, (((8, 8), (20,)), ((12, 12), (20, 20)), ((32, 24), (40,))), 5),
    DenoiserTrial("joint", _JOINT, (((6, 6), (24,)), ((8, 10), (24, 24)), ((16, 14), (60,))), 5),
    DenoiserTrial("cross", _CROSS, (((12, 12), (24, 24)), ((32, 28), (60,))), 3),
    AutoencoderTrial("small autoencoder", _autoencoder(12, 24, 40, groups=4, depth=1), ((6, 6), (10, 12), (24, 24)), 3),
    AutoencoderTrial("autoencoder", _autoencoder(48, 96, 384, groups=12, depth=1), ((5, 6), (8, 8), (12, 12)), 6),
)
