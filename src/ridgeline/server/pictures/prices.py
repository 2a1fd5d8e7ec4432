"""What requests of a pipeline cost on this machine: seconds of each stride, and the memory beside the weights."""

from ridgeline.diffusion.decoding import SPARE, choose_tiling
from ridgeline.diffusion.forecast import Forecaster
from ridgeline.diffusion.geometry import Geometry
from ridgeline.diffusion.pipeline import Pipeline
from ridgeline.diffusion.request import Plan
from ridgeline.diffusion.strides import StageName, seconds_each
from ridgeline.document.numbers import gib, say_gib
from ridgeline.models.autoencoder_kl import AutoencoderKL
from ridgeline.models.tiling import Tiling
from ridgeline.ops.grid import Grid
from ridgeline.roofline.device import Device


class Prices:
    """Of one pipeline, of pictures. What a size takes is found by running parts on meta, in whose place nobody else may
    run them meanwhile: it is asked by whoever runs them, and once."""

    def __init__(self, pipeline: Pipeline, device: Device, room: float) -> None:
        """room: bytes that activations may have. It is one figure for all the server's life, because tiles change the
        result: a request gives the same picture whenever it comes."""
        assert isinstance(pipeline.autoencoder, AutoencoderKL)
        self._autoencoder, self._texts, self._room = pipeline.autoencoder, pipeline.texts, room
        self._longest = pipeline.encoder.most_tokens
        self._forecaster = Forecaster(pipeline, device)
        self._sizes: dict[Geometry, tuple[float, Tiling | None]] = {}

    def of(self, plan: Plan) -> tuple[dict[StageName, float], Tiling | None]:
        """Expected seconds of a plan's strides, and how its pictures are decoded. Raises ValueError for one whose
        activations do not fit."""
        each, tiling = self._size(plan.geometry)
        wanted = each * plan.batching.pictures * (len(plan.texts) if plan.batching.paired else 1)
        if wanted > SPARE * self._room:
            raise ValueError(
                f"a step at {plan.geometry.size} wants {say_gib(gib(wanted / SPARE))} free beside the weights; "
                f"{say_gib(gib(self._room))} are: ask for a smaller size"
            )
        seconds = seconds_each(plan, self._forecaster.seconds(plan, tiling))
        if all(ids in self._texts for ids in plan.texts):
            seconds["encode"] = 0.0  # they are kept
        return seconds, tiling

    def _size(self, geometry: Geometry) -> tuple[float, Tiling | None]:
        """Bytes of activations of a picture of a size in a pass, with the longest text, and how it is decoded."""
        if geometry not in self._sizes:
            _, height, width = geometry.latents
            tiling = choose_tiling(self._autoencoder, Grid(1, height, width), self._room)
            self._sizes[geometry] = self._forecaster.activations(geometry, self._longest), tiling
        return self._sizes[geometry]
