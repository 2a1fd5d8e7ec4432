"""Files that anybody may have made: images of several sorts, and one line for what is none."""

import struct
import zlib
from pathlib import Path

import pytest
from PIL import Image

from ridgeline.media.images.preprocess import MAX_PIXELS, read_image


def painted(mode: str = "RGB", size: tuple[int, int] = (5, 3)) -> Image.Image:
    """The upper left corner is red."""
    image = Image.new("RGB", size, (10, 200, 30))
    image.putpixel((0, 0), (255, 0, 0))
    return image.convert(mode)


@pytest.mark.parametrize(("name", "mode"), [("a.png", "RGB"), ("a.png", "RGBA"), ("a.png", "L"), ("a.gif", "P")])
def test_images(tmp_path: Path, name: str, mode: str) -> None:
    """Whatever they are stored as, they come in RGB."""
    painted(mode).save(tmp_path / name)
    read = read_image(tmp_path / name)
    assert (read.mode, read.size) == ("RGB", (5, 3))
    assert list(read.get_flattened_data()) == list(painted(mode).convert("RGB").get_flattened_data())


def test_upright(tmp_path: Path) -> None:
    """A camera that was held on its side says so in its EXIF."""
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise by a quarter
    painted().save(tmp_path / "a.png", exif=exif)
    read = read_image(tmp_path / "a.png")
    assert read.size == (3, 5)
    assert read.getpixel((2, 0)) == (255, 0, 0)


def png(width: int, height: int) -> bytes:
    """A PNG that claims a size, of next to no bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [8_000, 12_000, 100_000])
def test_bombs(tmp_path: Path, side: int) -> None:
    """Refused by what they claim, before anything is unpacked; below Pillow's own bounds and above them."""
    assert side * side > MAX_PIXELS
    path = tmp_path / "bomb.png"
    path.write_bytes(png(side, side))
    with pytest.raises(ValueError, match=r"bomb.png has .* pixels.*, but at most 50,000,000 are allowed: scale it"):
        read_image(path)


def test_what_is_no_image(tmp_path: Path) -> None:
    """One line for each."""
    words, cut, program, missing = (tmp_path / name for name in ("a.png", "b.png", "c.eps", "d.png"))
    words.write_text("no image at all", encoding="utf-8")
    painted(size=(64, 64)).save(cut)
    cut.write_bytes(cut.read_bytes()[:90])
    painted().save(program)
    for path, why in (
        (words, "is not an image in a supported format; give a PNG, JPEG, WEBP, GIF, BMP or TIFF"),
        (cut, r"cannot be read: it is broken \("),
        (program, "is not an image in a supported format"),
        (missing, "cannot be read: No such file or directory"),
        (tmp_path, "cannot be read: Is a directory"),
    ):
        with pytest.raises(ValueError, match=f"{path.name}.*{why}") as caught:
            read_image(path)
        assert "\n" not in str(caught.value)
