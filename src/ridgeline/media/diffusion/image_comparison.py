"""A video compared with an image: the ratios of parameters and latents, next to the ratios often quoted for video."""

import math
from dataclasses import dataclass

from ridgeline.core.checkpoint.catalogue import parameter_counts
from ridgeline.media.diffusion.geometry import LAYOUTS, Geometry, Size
from ridgeline.util.document.humanize import three_digits
from ridgeline.util.json_data import json_shape

IMAGE_LAYOUT = "z-image"
"""The image model with which video models are compared, at 1024 x 1024."""
_TITLE, _SIZE = "Z-Image", Size(1024, 1024)


@json_shape("clip=own", "picture=image", "times", "said", "place")
@dataclass(frozen=True, slots=True)
class QuotedRatio:
    """A quantity of a video model relative to an image model, with the range that is often quoted for this ratio."""

    own: int
    """The number of parameters or latents of the video model."""
    image: int
    """The number of parameters or latents of the image model."""
    least: float
    """The lower end of the range that is often quoted for the ratio."""
    most: float
    """The upper end of the range that is often quoted for the ratio."""

    @property
    def times(self) -> float:
        """The ratio of the video model's quantity to the image model's."""
        return self.own / self.image

    @property
    def said(self) -> tuple[float, float]:
        """The range that is often quoted for the ratio."""
        return self.least, self.most

    @property
    def place(self) -> str:
        """The position of the ratio relative to the quoted range: below, within or above."""
        return "below" if self.times < self.least else "above" if self.times > self.most else "within"

    @property
    def text(self) -> str:
        """The ratio as text, like `x 8.00; often said: 10 to 100, this is below`."""
        return f"x {three_digits(self.times)}; often quoted: {self.least:g} to {self.most:g}, this is {self.place}"


@dataclass(frozen=True, slots=True)
class ImageComparison:
    """A comparison of a video model with an image model."""

    parameters: QuotedRatio
    """The ratio of the denoisers' parameters, including all experts, between video and image model."""
    latents: QuotedRatio
    """The ratio of the latent positions of a video to those of an image."""

    @classmethod
    def of(cls, parameters: int, geometry: Geometry) -> "ImageComparison":
        """Return the comparison for a video model with this number of parameters and this geometry."""
        reference = LAYOUTS[IMAGE_LAYOUT].geometry(_SIZE)
        return cls(
            QuotedRatio(parameters, parameter_counts()[IMAGE_LAYOUT][0], 3, 5),
            QuotedRatio(positions(geometry), positions(reference), 10, 100),
        )

    @property
    def words(self) -> str:
        """The text on a video model's parameters and latents, with the ratio of each to those of Z-Image."""
        own, latents = self.parameters, self.latents
        return (
            f"{three_digits(own.own / 1e9)} billion parameters ({own.text}) and {latents.own:,} latents "
            f"({latents.text}), compared with {three_digits(own.image / 1e9)} billion and {latents.image:,} of "
            f"{_TITLE} at {_SIZE}"
        )


def positions(geometry: Geometry) -> int:
    """Return the number of latent positions of an image or a video, not counting channels."""
    return math.prod(geometry.latents[1:])
