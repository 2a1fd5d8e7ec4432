"""The common base of image autoencoders, whose rows are pixels at several resolutions.

Shapes: P pixels of all images, C channels.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence

from torch import Tensor

from ridgeline.core.models.common.activation_peak import peak_bytes
from ridgeline.core.models.common.priced_module import PricedModule
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.ops.pixel_grid import PixelGrid
from ridgeline.core.ops.work import AttentionPattern, AttentionSum, AttentionWork, RowAxis, StepSegment, Work

MAX_RESOLUTIONS = 8  # 128 pixels per latent on a side; the row axes of two such halves stay distinct


class ImageAutoencoder(PricedModule):
    """An encoder of images to latents and a decoder of latents to images.

    The rows of either half are pixels at each of its resolutions. Each resolution is a row axis of its own, so that a
    step that decodes costs nothing in the encoder.
    """

    inputs: int
    """The count of numbers per pixel at an autoencoder's input."""

    def __init__(self, resolutions: int, storage: StorageConfig) -> None:
        super().__init__()
        self.storage = storage
        levels = range(resolutions)
        self.factor: int = 2 ** levels[-1]
        """The number of pixels per latent on each side."""
        self.decoder_spaces: tuple[RowAxis, ...] = tuple(f"decoder 1/{2**level}" for level in levels)
        self.encoder_spaces: tuple[RowAxis, ...] = tuple(f"encoder 1/{2**level}" for level in levels)
        self.row_axes = self.decoder_spaces + self.encoder_spaces

    @abstractmethod
    def _encode(self, x_PC: Tensor, grids: Sequence[PixelGrid]) -> object:
        """Return the encoder's result, one row per latent, for pixels [pixels of the first grid, inputs].

        `grids` are the resolutions, the finest first.
        """

    def _grid(self, x_BCHW: Tensor, channels: int, what: str) -> PixelGrid:
        """Return the images, height and width of an input [B, channels, H, W], which errors call `what`.

        Raises:
            ValueError: If it has another shape or is empty.
        """
        if x_BCHW.dim() != 4 or x_BCHW.shape[1] != channels or not x_BCHW.numel():
            raise ValueError(
                f"{what} have shape {list(x_BCHW.shape)}; they must be [images, {channels}, height, width]"
            )
        return PixelGrid(x_BCHW.shape[0], *x_BCHW.shape[2:])

    def _latents_of(self, pixels_BCHW: Tensor) -> PixelGrid:
        """Return the size of the latents of pixels [B, inputs, H, W].

        Raises:
            ValueError: If the shape is wrong, or a side is no multiple of `factor`.
        """
        grid = self._grid(pixels_BCHW, self.inputs, "pixels")
        if grid.height % self.factor or grid.width % self.factor:
            raise ValueError(
                f"an image has {grid.width} x {grid.height} pixels, but width and height must be multiples of "
                f"{self.factor}; crop or scale it"
            )
        return PixelGrid(grid.images, grid.height // self.factor, grid.width // self.factor)

    def _grids(self, latents: PixelGrid) -> tuple[PixelGrid, ...]:
        """Return an autoencoder's pixel grids at all resolutions, the finest first."""
        return tuple(latents.finer(self.factor // 2**level) for level in range(len(self.decoder_spaces)))

    def _outlined(self, rows: Mapping[RowAxis, int]) -> tuple[tuple[PixelGrid, ...], tuple[PixelGrid, ...]]:
        """Return the pixel grids of decoder and encoder that have these numbers of rows, for a run on meta tensors."""
        decoded, encoded = (
            tuple(PixelGrid(1, 1, rows[space]) for space in spaces)
            for spaces in (self.decoder_spaces, self.encoder_spaces)
        )
        return decoded, encoded

    def decode_work(self, latents: PixelGrid) -> Work:
        """Return the rows and the attention of decoding latents of this size to pixels.

        For a tiled decode, pass the size of one tile (`Tiling.tile`).
        """
        return self._work(latents, self.decoder_spaces)

    def encode_work(self, latents: PixelGrid) -> Work:
        """Return the rows and the attention of encoding images whose latents have this size."""
        return self._work(latents, self.encoder_spaces)

    def _work(self, latents: PixelGrid, spaces: Sequence[RowAxis]) -> Work:
        """Return the rows and the attention of running an encoder or decoder over its pixels at each resolution."""
        grids = dict(zip(spaces, self._grids(latents), strict=True))
        rows = {space: grid.rows for space, grid in grids.items()}
        attention = {
            reach: AttentionWork.of(_of_image(reach, grids[reach.query_axis]) for _ in range(latents.images))
            if reach.query_axis in grids
            else AttentionWork()
            for reach in self.attention_patterns
        }
        return Work(rows, latents.images, attention)

    def encode_bytes(self, latents: PixelGrid) -> int:
        """Return the peak bytes of activations while images are encoded whose latents have this size."""
        grids = self._grids(latents)
        return peak_bytes(self, (grids[0].rows, self.inputs), lambda x_PC: self._encode(x_PC, grids))


def _of_image(reach: AttentionPattern, grid: PixelGrid) -> AttentionSum:
    """Return the queries, pairs and keys of attention over all pixels of one image."""
    return StepSegment(grid.each, grid.each).attention(reach)
