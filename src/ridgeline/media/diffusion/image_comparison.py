"""A clip beside a picture: parameters and latents as multiples, against what is often said of video."""

import math
from dataclasses import dataclass

from ridgeline.core.checkpoint.catalogue import parameter_counts
from ridgeline.media.diffusion.geometry import LAYOUTS, Geometry, Size
from ridgeline.util.document.humanize import three_digits

PICTURE = "z-image"
"""The release that a clip's is held against, at 1024 x 1024."""
_TITLE, _SIZE = "Z-Image", Size(1024, 1024)


@dataclass(frozen=True, slots=True)
class QuotedRatio:
    """Something of a clip's model, how many times a picture's it is, and between which multiples it is said to be."""

    own: int
    picture: int
    least: float
    most: float

    @property
    def times(self) -> float:
        """Of the picture's."""
        return self.own / self.picture

    @property
    def place(self) -> str:
        """Where it is by what is said: below, within or above."""
        return "below" if self.times < self.least else "above" if self.times > self.most else "within"

    @property
    def said(self) -> str:
        """`x 8.00; often said: 10 to 100, this is below`."""
        return f"x {three_digits(self.times)}; often said: {self.least:g} to {self.most:g}, this is {self.place}"


@dataclass(frozen=True, slots=True)
class ImageComparison:
    """parameters: of the denoiser, all of its experts. latents: positions."""

    parameters: QuotedRatio
    latents: QuotedRatio

    @classmethod
    def of(cls, parameters: int, geometry: Geometry) -> "ImageComparison":
        """A clip of a model of so many."""
        picture = LAYOUTS[PICTURE].geometry(_SIZE)
        return cls(
            QuotedRatio(parameters, parameter_counts()[PICTURE][0], 3, 5),
            QuotedRatio(positions(geometry), positions(picture), 10, 100),
        )

    @property
    def words(self) -> str:
        """Both, and whose they are held against."""
        own, latents = self.parameters, self.latents
        return (
            f"{three_digits(own.own / 1e9)} billion parameters ({own.said}) and {latents.own:,} latents "
            f"({latents.said}), "
            f"beside {three_digits(own.picture / 1e9)} billion and {latents.picture:,} of {_TITLE} at {_SIZE}"
        )


def positions(geometry: Geometry) -> int:
    """Latents of a picture or a clip, whatever their channels."""
    return math.prod(geometry.latents[1:])
