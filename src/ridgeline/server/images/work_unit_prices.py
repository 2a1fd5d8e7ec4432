"""What requests of a pipeline cost on this machine: seconds of each stride, and the memory beside the weights."""

from ridgeline.core.models.common.tiling import Tiling
from ridgeline.core.models.families.autoencoder_kl import AutoencoderKL
from ridgeline.core.ops.pixel_grid import PixelGrid
from ridgeline.media.diffusion.decoding import SPARE, choose_tiling
from ridgeline.media.diffusion.diffusion_request import DiffusionPlan
from ridgeline.media.diffusion.forecast import Forecaster
from ridgeline.media.diffusion.geometry import Geometry
from ridgeline.media.diffusion.pipeline import Pipeline
from ridgeline.media.diffusion.work_units import StageName, seconds_per_unit
from ridgeline.price.device import Device
from ridgeline.util.document.humanize import gib, say_gib


class WorkUnitPrices:
    """The prices of one pipeline. To find what a size takes, its parts are run on meta, and nobody else may run them
    meanwhile: so only the thread that draws asks, once for each size.
    """

    def __init__(self, pipeline: Pipeline, device: Device, room: float) -> None:
        """room: bytes that activations may have. The figure never changes while the server lives, because tiles change
        the result: a request is to give the same picture whenever it comes.
        """
        self._autoencoder, self._texts, self._room = pipeline.autoencoder, pipeline.texts, room
        self._forecaster = Forecaster(pipeline, device)
        self._tilings: dict[Geometry, Tiling | None] = {}
        self._activations: dict[tuple[Geometry, int], float] = {}

    def of(self, plan: DiffusionPlan) -> tuple[dict[StageName, float], Tiling | None]:
        """Expected seconds of a plan's strides, and how its pictures are decoded. Raises ValueError for one whose
        activations do not fit.
        """
        tiling = self._tiling(plan.geometry)
        wanted = (
            self._each(plan.geometry, max(map(len, plan.texts)))
            * plan.batching.pictures
            * (len(plan.texts) if plan.batching.paired else 1)
        )
        self._check(wanted, f"a step at {plan.geometry.size}")
        seconds = seconds_per_unit(plan, self._forecaster.seconds(plan, tiling))
        if all(ids in self._texts for ids in plan.texts):
            seconds["encode"] = 0.0  # they are kept
        return seconds, tiling

    def _tiling(self, geometry: Geometry) -> Tiling | None:
        """How a picture of a size is decoded; None where whole, as a clip is, frame by frame. Raises ValueError where
        there is no room for it.
        """
        if geometry.layout.clips:
            self._check(self._forecaster.decode_activations(geometry), f"decoding frames of {geometry.size}")
            return None
        if geometry not in self._tilings:
            assert isinstance(self._autoencoder, AutoencoderKL)
            height, width = geometry.latents[-2:]
            self._tilings[geometry] = choose_tiling(self._autoencoder, PixelGrid(1, height, width), self._room)
        return self._tilings[geometry]

    def _check(self, nbytes: float, what: str) -> None:
        """Raises ValueError where there is no room for so much."""
        if nbytes > SPARE * self._room:
            raise ValueError(
                f"{what} wants {say_gib(gib(nbytes / SPARE))} free beside the weights; {say_gib(gib(self._room))} are: "
                "ask for a smaller size"
            )

    def _each(self, geometry: Geometry, text: int) -> float:
        """Bytes of activations of one picture in a pass, with a text of so many tokens."""
        key = geometry, text
        if key not in self._activations:
            self._activations[key] = self._forecaster.activations(geometry, text)
        return self._activations[key]
