"""An image file that anybody may have made, opened within bounds."""

import warnings
from pathlib import Path

from PIL import Image, ImageOps, UnidentifiedImageError

MAX_PIXELS = 50_000_000
"""Pixels of an image: 150 MB once it is unpacked, about as many as the largest hand-held cameras make."""
MAX_BYTES = 256 << 20
"""Bytes of a file."""
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
"""Those that Pillow reads by itself, without programs beside it."""


def read_picture(path: Path) -> Image.Image:
    """The image of a file in RGB, turned upright as its EXIF says; of several frames the first. Raises ValueError, in
    one line, for what is no image, is broken, or has too many pixels, which is seen before they are unpacked."""
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise ValueError(f"{path} has {size >> 20:,} MiB; an image of at most {MAX_BYTES >> 20} MiB is read")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the bound here is lower
            with Image.open(path, formats=FORMATS) as opened:
                width, height = opened.size
                if width * height > MAX_PIXELS:
                    raise _too_large(path, f"{width:,} x {height:,} pixels")
                return ImageOps.exif_transpose(opened).convert("RGB")
    except Image.DecompressionBombError:
        raise _too_large(path, "far more pixels than that") from None
    except UnidentifiedImageError:
        raise ValueError(
            f"{path} is no image that is read; give a {', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        ) from None
    except (OSError, SyntaxError, EOFError) as error:  # SyntaxError: what Pillow calls a broken PNG
        why = error.strerror if isinstance(error, OSError) and error.strerror else f"it is broken ({error})"
        raise ValueError(f"{path} cannot be read: {why}") from None


def _too_large(path: Path, what: str) -> ValueError:
    return ValueError(f"{path} has {what}; an image of at most {MAX_PIXELS:,} is read: scale it down")
