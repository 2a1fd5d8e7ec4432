"""Image preprocessing for vision encoders, from an untrusted file to normalised patches.

The file is opened within limits; then the image is scaled, padded to a square, normalised and cut into patches. The
result equals that of transformers' JanusImageProcessor with Pillow, with the values of preprocessor_config.json.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from ridgeline.core.models import ModelRefused
from ridgeline.core.models.common.model import ImagePlaceholders
from ridgeline.engine.encoder_features import EncoderFeatures
from ridgeline.util import untrusted

_FILES = ("preprocessor_config.json", "processor_config.json")  # in the second file it is a section
_SECTION = "image_processor"
_MEAN, _STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # CLIP's values are the default

_USUAL = {"image_mean": _MEAN, "image_std": _STD}

MAX_PIXELS = 50_000_000
"""The maximum pixels of an image: 150 MB as unpacked RGB."""
MAX_BYTES = 256 << 20
"""The maximum bytes of an image file."""
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
"""The accepted image formats, which Pillow reads by itself, without external programs."""


def read_image(path: Path) -> Image.Image:
    """Return the image in a file as RGB, rotated as its EXIF states; of several frames the first.

    Raises:
        ValueError: If the file is not an image, is broken or too large, or has too many pixels, which is checked before
            they are unpacked. The message is one line.
    """
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise ValueError(f"{path} has {size >> 20:,} MiB; give an image of at most {MAX_BYTES >> 20} MiB")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our limit is lower than Pillow's
            with Image.open(path, formats=FORMATS) as opened:
                width, height = opened.size
                if width * height > MAX_PIXELS:
                    raise _too_large(path, f"{width:,} x {height:,} pixels")
                return ImageOps.exif_transpose(opened).convert("RGB")
    except Image.DecompressionBombError:
        raise _too_large(path, "far too many pixels") from None
    except UnidentifiedImageError:
        raise ValueError(
            f"{path} is not an image in a supported format; give a {', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        ) from None
    except (OSError, SyntaxError, EOFError) as error:  # Pillow raises SyntaxError for a broken PNG
        why = error.strerror if isinstance(error, OSError) and error.strerror else f"it is broken ({error})"
        raise ValueError(f"{path} cannot be read: {why}") from None


def _too_large(path: Path, what: str) -> ValueError:
    return ValueError(f"{path} has {what}, but at most {MAX_PIXELS:,} are allowed: scale it down")


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """The parameters that convert an image to a vision encoder's input."""

    size: int
    """The pixels per side of the square image."""
    least: int = 14
    """The minimum pixels of the scaled image's shorter side, even if the image is long and narrow."""
    mean: tuple[float, ...] = _MEAN
    """The number that is subtracted from each channel after scaling, from 0 to 1; default: CLIP's means."""
    std: tuple[float, ...] = _STD
    """The number that divides each channel after the mean is subtracted; default: CLIP's standard deviations."""
    scale: float = 1 / 255
    """The factor by which pixel values from 0 to 255 are multiplied, before the mean is subtracted."""
    resample: int = Image.Resampling.BICUBIC
    """The number of the resampling filter in Pillow."""

    def pixels(self, image: Image.Image) -> NDArray[np.float32]:
        """Return an RGB image of any size as normalised pixels [3, size, size].

        Its longer side is scaled to `size`, the shorter in proportion but to at least `least` pixels, and the rest of
        the square is filled with the mean colour.
        """
        width, height = image.size
        ratio = self.size / max(width, height)
        scaled = max(round(width * ratio), self.least), max(round(height * ratio), self.least)
        square = Image.new("RGB", (self.size, self.size), tuple(int(255 * part) for part in self.mean))
        small = image.resize(scaled, Image.Resampling(self.resample))
        square.paste(small, ((self.size - scaled[0]) // 2, (self.size - scaled[1]) // 2))
        numbers = np.asarray(square, np.float64).transpose(2, 0, 1) * self.scale
        mean, std = (np.asarray(each)[:, None, None] for each in (self.mean, self.std))
        normalised: NDArray[np.float64] = (numbers - mean) / std
        return normalised.astype(np.float32)

    def patches(self, images: Sequence[Image.Image], rows: ImagePlaceholders) -> EncoderFeatures:
        """Return the patches of one or more images in row-major order, as a vision encoder reads them.

        `rows` describes the encoder's input. A patch has its channels one after the other.

        Raises:
            ValueError: If the image size does not match the model's patches.
        """
        side = round(rows.rows**0.5)
        patch = self.size // side
        if (side * side, side * patch, 3 * patch * patch) != (rows.rows, self.size, rows.width):
            raise ValueError(
                f"images of {self.size} x {self.size} pixels do not give the model's {rows.rows} patches of "
                f"{rows.width} numbers; correct the size in preprocessor_config.json"
            )
        cut = [
            self.pixels(image).reshape(3, side, patch, side, patch).transpose(1, 3, 0, 2, 4).reshape(rows.rows, -1)
            for image in images
        ]
        return EncoderFeatures(np.ascontiguousarray(np.concatenate(cut)).tobytes(), rows.width, len(images))


def read_preprocessing(folder: Path) -> Preprocessing:
    """Return the preprocessing parameters that a model's folder states.

    Raises:
        ModelRefused: If the folder states none, or unsupported ones.
    """
    path = next((folder / name for name in _FILES if (folder / name).is_file()), None)
    if path is None:
        raise ModelRefused(f"{folder} lacks {_FILES[0]}, which states how images are preprocessed; fetch it")
    try:
        fields = untrusted.read_object(path)
        own = fields if path.name == _FILES[0] else fields.get(_SECTION)
        if not isinstance(own, dict):
            raise ValueError(f"{path} has no section {_SECTION}")
        return _read(own, path)
    except ModelRefused:
        raise
    except ValueError as error:
        raise ModelRefused(f"{error}; fetch the file again") from None


def _read(fields: dict[str, Any], path: Path) -> Preprocessing:
    for name in ("do_resize", "do_rescale", "do_normalize", "do_pad"):
        if fields.get(name, True) is not True:
            raise ModelRefused(f"{path}: {name} = {fields[name]!r} is not supported; write true")
    size = fields.get("size", {"height": 384, "width": 384})
    sides = {size.get("height"), size.get("width")} if isinstance(size, dict) else {size}
    side = sides.pop()
    if sides or isinstance(side, bool) or not isinstance(side, int) or not 1 <= side <= 8192:
        raise ValueError(f"{path}: size is {size!r}; height and width must be equal, from 1 to 8192 pixels")
    least, resample = fields.get("min_size", 14), fields.get("resample", int(Image.Resampling.BICUBIC))
    if isinstance(least, bool) or not isinstance(least, int) or not 1 <= least <= side:
        raise ValueError(f"{path}: min_size is {least!r}; it must be from 1 to size, which is {side}")
    if resample not in list(Image.Resampling):
        raise ValueError(
            f"{path}: resample is {resample!r}; it must be the number of one of Pillow's resampling filters"
        )
    scale = fields.get("rescale_factor", 1 / 255)
    mean, std = (_numbers(fields.get(name, usual), name, path) for name, usual in _USUAL.items())
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < scale < float("inf"):
        raise ValueError(f"{path}: rescale_factor is {scale!r}; it must be a finite number above 0")
    if min(std) <= 0 or not all(0 <= part <= 1 for part in mean):
        raise ValueError(f"{path}: image_mean must be from 0 to 1 and image_std above 0")
    return Preprocessing(side, least, mean, std, float(scale), resample)


def _numbers(value: Any, name: str, path: Path) -> tuple[float, ...]:
    """Return a config value as a tuple of three numbers, one per colour channel.

    Raises:
        ValueError: If it is not a list of three numbers.
    """
    good = isinstance(value, list | tuple) and len(value) == 3
    if not good or any(isinstance(n, bool) or not isinstance(n, int | float) or abs(n) > 1e9 for n in value):
        raise ValueError(f"{path}: {name} is {value!r}; it must be a list of 3 numbers")
    return tuple(map(float, value))
