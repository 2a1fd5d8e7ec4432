"""The cost of image and video requests on this machine: seconds per work unit, and memory besides the weights."""

from functools import cache

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
from ridgeline.price.error_interval import ErrorInterval
from ridgeline.util.document.humanize import gib, say_gib


class WorkUnitPrices:
    """The predicted costs of one pipeline's requests.

    The cost of a size is computed by running the pipeline's parts on the meta device, during which no other thread may
    run them. So only the diffusion thread uses this object. It computes the cost of each size once.
    """

    def __init__(self, pipeline: Pipeline, device: Device, room: float) -> None:
        """Prepare the cost predictions of a pipeline.

        Args:
            pipeline: The pipeline.
            device: The device that the seconds are predicted for.
            room: The bytes available for activations. The value never changes while the server runs, because it decides
                on tiling, which changes the image: the same request has to give the same image at any time.
        """
        self._autoencoder, self._texts, self._room = pipeline.autoencoder, pipeline.texts, room
        self._forecaster = Forecaster(pipeline, device)
        self._tilings: dict[Geometry, Tiling | None] = {}
        self._activations = cache(self._forecaster.activations)

    @property
    def interval(self) -> ErrorInterval:
        """The interval in which 8 of 10 measured times of the pipeline lie."""
        return self._forecaster.interval

    def predict(self, plan: DiffusionPlan) -> tuple[dict[StageName, float], Tiling | None]:
        """Return the predicted seconds of a plan's work units by stage, and the tiling of its decoding.

        Raises:
            ValueError: If the activations do not fit into memory.
        """
        tiling = self._tiling(plan.geometry)
        wanted = (
            self._activations(plan.geometry, max(map(len, plan.token_ids)))
            * plan.batching.images
            * (len(plan.token_ids) if plan.batching.paired else 1)
        )
        self._check(wanted, f"a step at {plan.geometry.size}")
        seconds = seconds_per_unit(plan, self._forecaster.seconds(plan, tiling))
        if all(ids in self._texts for ids in plan.token_ids):
            seconds["encode"] = 0.0  # the text embeddings are cached
        return seconds, tiling

    def _tiling(self, geometry: Geometry) -> Tiling | None:
        """Return the tiling for decoding an image of this size; None for decoding it whole.

        Videos are decoded frame by frame, without tiles.

        Raises:
            ValueError: If the decoding does not fit into memory.
        """
        if geometry.layout.is_video:
            self._check(self._forecaster.decode_activations(geometry), f"decoding frames of {geometry.size}")
            return None
        if geometry not in self._tilings:
            assert isinstance(self._autoencoder, AutoencoderKL)
            height, width = geometry.latents[-2:]
            self._tilings[geometry] = choose_tiling(self._autoencoder, PixelGrid(1, height, width), self._room)
        return self._tilings[geometry]

    def _check(self, nbytes: float, what: str) -> None:
        """Raise ValueError if this many bytes do not fit into memory."""
        if nbytes > SPARE * self._room:
            raise ValueError(
                f"{what} needs {say_gib(gib(nbytes / SPARE))} free next to the weights, but only "
                f"{say_gib(gib(self._room))} are free: request a smaller size"
            )
