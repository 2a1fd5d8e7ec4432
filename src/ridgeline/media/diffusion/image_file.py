"""Images as files: PNG, WebP or JPEG, with the parameters of the image as metadata.

PNG stores text unchanged in its own chunks (iTXt). WebP and JPEG store it in EXIF, whose texts are ASCII, as JSON with
other characters escaped.
"""

import json
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ridgeline.util.version import __version__

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = {".png": "PNG", ".webp": "WEBP", ".jpg": "JPEG", ".jpeg": "JPEG"}
"""Pillow's names of the supported image formats, keyed by file suffix."""
PARAMETERS = "parameters"
"""The name of the PNG chunk with all parameters as JSON.

Further chunks have the prompt (Description) and the program (Software).
"""
_SOFTWARE, _DESCRIPTION = 0x0131, 0x010E  # EXIF 2.32, table 4
_JPEG_QUALITY = 95
_MODES = {1: "L", 3: "RGB"}


def format_of(path: Path) -> str:
    """Return the format of an image by its file name.

    Raises:
        ValueError: If the suffix is unknown.
    """
    found = FORMATS.get(path.suffix.lower())
    if found is None:
        raise ValueError(f"{path}: images are written as {', '.join(FORMATS)}; end the file name in one of these")
    return found


def to_bytes(pixels_CHW: Tensor) -> Tensor:
    """Return pixels [channels, rows, columns] as uint8 [rows, columns, channels]: -1 becomes 0 and 1 becomes 255.

    Values outside are clipped.
    """
    scaled = (pixels_CHW / 2 + 0.5).clamp(0, 1) * 255
    return scaled.round().to(torch.uint8).permute(1, 2, 0).cpu()


def encode_image(pixels_CHW: Tensor, format_: str, parameters: Mapping[str, Any], quality: int | None = None) -> bytes:
    """Return the contents of an image file.

    Args:
        pixels_CHW: Pixels from -1 to 1.
        format_: One of the values of FORMATS; WebP is lossless unless a quality is given.
        parameters: Parameters of the image, including the prompt, for its metadata.
        quality: Pillow's quality of JPEG and WebP, 0 to 100; it has no effect on PNG.

    Raises:
        ValueError: If the number of channels is neither 1 nor 3.
    """
    image, out = to_image(pixels_CHW), BytesIO()
    options = pillow_options(format_, parameters)
    if quality is not None:
        options |= {"lossless": False, "quality": quality} if format_ == "WEBP" else {"quality": quality}
    image.save(out, format_, **options)
    return out.getvalue()


def to_image(pixels_CHW: Tensor) -> "Image":
    """Return pixels as a Pillow image, grey or RGB.

    Raises:
        ValueError: If the number of channels is neither 1 nor 3.
    """
    from PIL import Image

    channels = pixels_CHW.shape[0]
    if channels not in _MODES:
        raise ValueError(f"the VAE outputs {channels} channels, but images have 1 (grey) or 3 (RGB)")
    array = to_bytes(pixels_CHW).numpy()
    return Image.fromarray(array[:, :, 0] if channels == 1 else array)


def pillow_options(format_: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments for Pillow's `save` that set quality and metadata."""
    software = f"ridgeline {__version__}"
    if format_ == "PNG":
        from PIL.PngImagePlugin import PngInfo

        chunks = PngInfo()
        chunks.add_itxt("Software", software)
        chunks.add_itxt("Description", str(parameters.get("prompt", "")))
        chunks.add_itxt(PARAMETERS, json.dumps(parameters, ensure_ascii=False))
        return {"pnginfo": chunks}
    from PIL.Image import Exif

    exif = Exif()
    exif[_SOFTWARE], exif[_DESCRIPTION] = software, json.dumps(parameters)
    return {"exif": exif, **({"lossless": True} if format_ == "WEBP" else {"quality": _JPEG_QUALITY})}
