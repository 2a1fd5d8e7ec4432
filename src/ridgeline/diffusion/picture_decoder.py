"""What decoding a picture costs: an AutoencoderKL's decoder, whole or tile by tile; a clip, frame by frame."""

from ridgeline.diffusion.geometry import Geometry
from ridgeline.models.common.tiling import Tiling
from ridgeline.models.families.autoencoder_kl import AutoencoderKL
from ridgeline.ops.grid import Grid
from ridgeline.roofline.device import Device
from ridgeline.roofline.plan.phases import Phase, PhasePrice, price_phase
from ridgeline.roofline.price import Price


class PictureDecoder:
    """The price of an autoencoder's decodes."""

    def __init__(self, autoencoder: AutoencoderKL) -> None:
        self._autoencoder, self._price = autoencoder, Price(autoencoder)
        self.weight_bytes, self.parameters = self._price.weight_bytes, _parameters(autoencoder)

    def price(self, device: Device, geometry: Geometry, pictures: int, tiling: Tiling | None = None) -> PhasePrice:
        """So many pictures, or all frames of so many clips, one after the other, as a phase of a request."""
        latents = self._latents(geometry)
        tiles = 1 if tiling is None else tiling.tiles(latents)
        work = self._autoencoder.decode_work(latents if tiling is None else tiling.tile(latents))
        frames = f"{geometry.frames} frames of " if geometry.layout.clips else ""
        about = f"{frames}{geometry.size} pixels" + (f" in {tiles} tiles" if tiles > 1 else "")
        return price_phase(self._price, device, Phase("decode", (work,), tiles * pictures * geometry.frames, about))

    def activations(self, geometry: Geometry, tiling: Tiling | None = None) -> float:
        """Bytes of activations at once, of one picture."""
        return self._autoencoder.decode_bytes(self._latents(geometry), tiling)

    def _latents(self, geometry: Geometry) -> Grid:
        """Lines and columns of a picture's latents, as the autoencoder takes them."""
        factor, size = self._autoencoder.factor, geometry.size
        return Grid(1, size.height // factor, size.width // factor)


def _parameters(autoencoder: AutoencoderKL) -> int:
    return sum(op.parameter_count() for _, op in autoencoder.weighted_ops())
