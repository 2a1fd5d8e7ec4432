"""The price of decoding a video with Wan's causal VAE, computed in closed form layer by layer.

diffusers runs the VAE (`video_autoencoder.py`). Latent frames are decoded one after the other; a convolution over time
caches the last two frames that it saw. The first latent frame becomes one frame, each other one `temporal` frames
(arXiv:2503.20314, section 4.2).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from ridgeline.core.models.common.fields import Fields
from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.number_formats import format_of
from ridgeline.core.ops.op import Launch
from ridgeline.media.diffusion.geometry import Geometry
from ridgeline.price.device import Device
from ridgeline.price.op_time import OpTime, compute_seconds, floor_seconds, op_seconds
from ridgeline.price.plan.request_phases import ClassRow, Estimate, PhasePrice

_KEPT = 2  # previous frames that a convolution over time reads
_OVER_TIME = (3, 27)  # volumes of kernels over time: 3 x 1 x 1 and 3 x 3 x 3
_NORM_FLOPS = 8  # per value: square, sum, products with the root and the scale; four for SiLU


@dataclass(frozen=True, slots=True)
class DecodeLayer:
    """All calls of one VAE layer in the decode of a video, with their cost."""

    kind: str
    """The kind of the VAE layer: convolution, attention or norm."""
    calls: int
    """The number of calls of the layer in a decode."""
    cost: Cost
    """The FLOPs and bytes of all calls of the layer together."""
    numbers: int
    """The number of activation values that one call of the VAE layer reads and writes, without its weights."""
    kept: int = 0
    """The number of tensor elements that the VAE layer caches from one call to the next."""
    parameters: int = 0
    """The number of the layer's parameters."""


@dataclass(frozen=True, slots=True)
class _FeatureMapSize:
    """The size of the feature maps at one layer of a video VAE."""

    latents: int
    """The number of the video's latent frames."""
    rate: int
    """The number of frames at this layer for each latent frame except the first."""
    pixels: int
    """The number of pixels of one frame in the feature maps at this VAE layer."""

    @property
    def frames(self) -> int:
        return 1 + (self.latents - 1) * self.rate


class VideoDecodePrice:
    """The price of the decoder of an AutoencoderKLWan, of Wan 2.1 or 2.2."""

    def __init__(self, fields: Fields, dtype: torch.dtype) -> None:
        """Read the sizes of the decoder from its config.json and store its dtype."""
        self.dtype = dtype
        multipliers = fields.integers("dim_mult")
        base = fields.count("decoder_base_dim", fields.count("base_dim", 96))
        self._widths = [base * m for m in (multipliers[-1], *reversed(multipliers))]
        self._depth = 1 + fields.count("num_res_blocks", 2)
        self._grows = [bool(each) for each in reversed(fields.value("temperal_downsample"))]
        self._residual = fields.flag("is_residual", False)
        self._latents, self._outputs = fields.count("z_dim", 16), fields.count("out_channels", 3)
        self.patch = fields.count("patch_size", 1)
        self.factor = self.patch * 2 ** (len(multipliers) - 1)

    @property
    def parameters(self) -> int:
        """The number of parameters of the decoder's convolutions, without those of its norms (one per channel)."""
        return sum(layer.parameters for layer in self.layers((2, 1, 1)))

    @property
    def weight_bytes(self) -> float:
        """The bytes of the decoder's convolution weights."""
        return self.parameters * self.dtype.itemsize

    def activations(self, geometry: Geometry) -> float:
        """Return the peak bytes of activations, which do not grow with the video because it is decoded frame by frame.

        They are the values of the largest call, half as much again for the residual stream, and the caches of all
        layers.
        """
        layers = list(self.layers(geometry.latents[1:]))
        return self.dtype.itemsize * (
            1.5 * max(layer.numbers for layer in layers) + sum(layer.kept for layer in layers)
        )

    def price(self, device: Device, geometry: Geometry, videos: int) -> PhasePrice:
        """Return the price of decoding `videos` videos, one after the other, as a phase of a request."""
        about = f"{geometry.frames} frames of {geometry.size} pixels"
        rows = [(layer, self._seconds(layer, device)) for layer in self.layers(geometry.latents[1:])]
        cost = sum((layer.cost for layer, _ in rows), Cost())
        once = self.weight_bytes
        floor = floor_seconds(Cost(cost.flops, once), device, once)
        seconds = Estimate(floor, sum(time.bound for _, time in rows), sum(time.expected for _, time in rows))
        arithmetic, memory = compute_seconds(cost, device), cost.total_bytes / device.bandwidth
        return PhasePrice(
            "decode", videos, about, 1, 0, None, cost.total_flops,
            cost.weight_bytes, 0.0, 0.0, cost.activation_bytes, {},
            arithmetic=arithmetic,
            memory=memory,
            intensity=cost.intensity,
            ridge=cost.intensity * memory / arithmetic,
            limit="compute" if arithmetic >= memory else "memory",
            idle=1 - arithmetic / floor,
            seconds=seconds,
            classes=_classes(rows, seconds.bound),
            host=0.0,
        )  # fmt: skip

    def _seconds(self, layer: DecodeLayer, device: Device) -> OpTime:
        each = layer.cost * (1 / layer.calls)
        name = format_of(self.dtype).name
        kernel = Launch(f"{layer.kind}.{'images' if layer.kind == 'convolution' else 'frames'}", name, 1, each)
        once = op_seconds(each, (kernel,), device, self.weight_bytes)
        return OpTime(once.bound * layer.calls, once.expected * layer.calls, once.limit)

    # -- layer by layer -----------------------------------------------------------------------------------------------

    def layers(self, latents: Sequence[int]) -> Iterator[DecodeLayer]:
        """Yield the layers of a decode in their order, for latents of (frames, rows, columns)."""
        frames, rows, columns = latents
        place, first = _FeatureMapSize(frames, 1, rows * columns), self._widths[0]
        yield self._convolution(_FeatureMapSize(1, 1, frames * place.pixels), self._latents, self._latents, 1)
        yield self._convolution(place, self._latents, first, 27)
        yield from self._block(place, first, first)
        yield from self._attention(place, first)
        yield from self._block(place, first, first)
        for stage, (inputs, width) in enumerate(zip(self._widths, self._widths[1:], strict=False)):
            halved = stage > 0 and not self._residual
            yield from self._block(place, inputs // 2 if halved else inputs, width)
            for _ in range(self._depth - 1):
                yield from self._block(place, width, width)
            if stage < len(self._grows):
                if self._grows[stage]:
                    if place.latents > 1:  # it is called for every latent frame but the first
                        yield self._convolution(place, width, 2 * width, 3, skipped=1)
                    place = _FeatureMapSize(place.latents, 2 * place.rate, place.pixels)
                place = _FeatureMapSize(place.latents, place.rate, 4 * place.pixels)
                yield self._convolution(place, width, width if self._residual else width // 2, 9)
        yield self._norm(place, self._widths[-1])
        yield self._convolution(place, self._widths[-1], self._outputs, 27)

    def _block(self, place: _FeatureMapSize, inputs: int, width: int) -> Iterator[DecodeLayer]:
        """Yield the layers of a VAE's residual block: norm and convolution, twice.

        If the number of channels changes, a convolution for the residual follows.
        """
        yield self._norm(place, inputs)
        yield self._convolution(place, inputs, width, 27)
        yield self._norm(place, width)
        yield self._convolution(place, width, width, 27)
        if inputs != width:
            yield self._convolution(place, inputs, width, 1)

    def _attention(self, place: _FeatureMapSize, width: int) -> Iterator[DecodeLayer]:
        """Yield the layers of single-head attention over the pixels of each frame."""
        yield self._norm(place, width)
        yield self._convolution(place, width, 3 * width, 1)
        numbers = 4 * width * place.pixels
        flops = {format_of(self.dtype).name: 4.0 * width * place.pixels**2 * place.frames}
        cost = Cost(flops, activation_bytes=numbers * place.frames * self.dtype.itemsize)
        yield DecodeLayer("attention", place.frames, cost, numbers)
        yield self._convolution(place, width, width, 1)

    def _convolution(
        self, place: _FeatureMapSize, inputs: int, width: int, volume: int, *, skipped: int = 0
    ) -> DecodeLayer:
        """Return a convolution layer; each of its calls reads its weights.

        Args:
            place: Size of the feature maps.
            inputs: Input channels.
            width: Output channels.
            volume: Kernel volume, frames x rows x columns.
            skipped: Latent frames for which it is not called.
        """
        calls, results = place.latents - skipped, (place.frames - skipped) * place.pixels
        parameters = (volume * inputs + 1) * width
        numbers = (inputs + width) * place.rate * place.pixels
        cost = Cost(
            {format_of(self.dtype).name: 2.0 * volume * inputs * width * results},
            weight_bytes=parameters * calls * self.dtype.itemsize,
            activation_bytes=(inputs + width) * results * self.dtype.itemsize,
        )
        kept = _KEPT * inputs * place.pixels if volume in _OVER_TIME else 0
        return DecodeLayer("convolution", calls, cost, numbers, kept, parameters)

    def _norm(self, place: _FeatureMapSize, width: int) -> DecodeLayer:
        """Return a layer of RMSNorm over channels and SiLU."""
        results = place.frames * place.pixels * width
        cost = Cost({"fp32": float(_NORM_FLOPS * results)}, activation_bytes=2 * results * self.dtype.itemsize)
        return DecodeLayer("norm", place.latents, cost, 2 * width * place.rate * place.pixels)


def _classes(rows: Sequence[tuple[DecodeLayer, OpTime]], bound: float) -> tuple[ClassRow, ...]:
    """Return the cost of a video decode by kind of layer, the longest first."""
    found = []
    for kind in dict.fromkeys(layer.kind for layer, _ in rows):
        own = [(layer, time) for layer, time in rows if layer.kind == kind]
        seconds = sum(time.bound for _, time in own)
        limits = {roof: sum(time.bound for _, time in own if time.limit == roof) for roof in ("compute", "memory")}
        found.append(
            ClassRow(
                kind,
                sum(layer.cost.total_flops for layer, _ in own),
                sum(layer.cost.total_bytes for layer, _ in own),
                seconds,
                sum(time.expected for _, time in own),
                seconds / bound,
                max(limits, key=lambda roof: limits[roof]),
            )
        )
    return tuple(sorted(found, key=lambda row: -row.bound))
