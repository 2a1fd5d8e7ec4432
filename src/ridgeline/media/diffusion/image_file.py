"""Pictures as files: pixels in PNG, WebP or JPEG, with what they were drawn from inside.

PNG keeps text as it is, in chunks of its own (iTXt); WebP and JPEG keep it in EXIF, whose texts are ASCII: there it is
JSON with other characters escaped.
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
"""By the suffix of a file's name."""
PARAMETERS = "parameters"
"""The PNG chunk with all of them as JSON; others are the prompt (Description) and the program (Software)."""
_SOFTWARE, _DESCRIPTION = 0x0131, 0x010E  # EXIF 2.32, table 4
_JPEG_QUALITY = 95
_MODES = {1: "L", 3: "RGB"}


def format_of(path: Path) -> str:
    """The format of a file by its name. Raises ValueError for a suffix of another."""
    found = FORMATS.get(path.suffix.lower())
    if found is None:
        raise ValueError(f"{path}: pictures are written as {', '.join(FORMATS)}; give the file one of these suffixes")
    return found


def to_bytes(pixels_CHW: Tensor) -> Tensor:
    """Pixels [channels, lines, columns] from -1 to 1, cut to it -> uint8 [lines, columns, channels]."""
    scaled = (pixels_CHW / 2 + 0.5).clamp(0, 1) * 255
    return scaled.round().to(torch.uint8).permute(1, 2, 0).cpu()


def encode_image(pixels_CHW: Tensor, format_: str, parameters: Mapping[str, Any], quality: int | None = None) -> bytes:
    """The file of a picture. format_: one of FORMATS; WebP is lossless unless a quality is given. parameters: what it
    was drawn from, the prompt among them. quality: 0 to 100 of JPEG and WebP, as Pillow has it. Raises ValueError for a
    number of channels that no picture has.
    """
    image, out = to_image(pixels_CHW), BytesIO()
    options = pillow_options(format_, parameters)
    if quality is not None:
        options |= {"lossless": False, "quality": quality} if format_ == "WEBP" else {"quality": quality}
    image.save(out, format_, **options)
    return out.getvalue()


def to_image(pixels_CHW: Tensor) -> "Image":
    """A picture for Pillow, grey or in colours. Raises ValueError for another number of channels."""
    from PIL import Image

    channels = pixels_CHW.shape[0]
    if channels not in _MODES:
        raise ValueError(f"the VAE gives {channels} channels; pictures have 1 (grey) or 3 (red, green, blue)")
    array = to_bytes(pixels_CHW).numpy()
    return Image.fromarray(array[:, :, 0] if channels == 1 else array)


def pillow_options(format_: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """What Pillow is told when it writes a file."""
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
