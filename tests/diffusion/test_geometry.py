"""Shapes of released models, and what sizes and frames are refused."""

import math

import pytest

from ridgeline.media.diffusion.geometry import LAYOUTS, PipelineLayout, Size, sizes_of_sides


def test_what_the_texts_say() -> None:
    """1024 x 1024 pixels are 128 x 128 latents: 4,096 patches of 2 x 2 or 1,024 of 4 x 4, and 64 x fewer positions."""
    size = Size(1024, 1024)
    geometry = LAYOUTS["z-image"].geometry(size)
    assert geometry.latents == (16, 128, 128)
    assert (geometry.grid, geometry.tokens) == ((1, 64, 64), 4096)
    assert PipelineLayout(16, (size,), patch=(1, 4, 4)).geometry(size).tokens == 1024
    assert 1024 * 1024 / (128 * 128) == 64


@pytest.mark.parametrize(
    ("model", "size", "frames", "latents", "tokens"),
    [
        ("flux.1", Size(1024, 1024), 1, (16, 128, 128), 4096),
        ("flux.2", Size(1024, 1024), 1, (128, 64, 64), 4096),
        ("pixart-1024", Size(1024, 1024), 1, (4, 128, 128), 4096),
        ("z-image", Size(512, 512), 1, (16, 64, 64), 1024),
        ("z-image", Size(1376, 768), 1, (16, 96, 172), 4128),
        ("wan-480p", Size(832, 480), 81, (16, 21, 60, 104), 32760),
        ("wan-720p", Size(1280, 720), 81, (16, 21, 90, 160), 75600),
        ("wan2.2-5b", Size(1280, 704), 121, (48, 31, 44, 80), 27280),
        ("wan2.2-5b", Size(704, 1280), 1, (48, 1, 80, 44), 880),
    ],
)
def test_released_models(model: str, size: Size, frames: int, latents: tuple[int, ...], tokens: int) -> None:
    """Tokens as their papers and cards count them."""
    geometry = LAYOUTS[model].geometry(size, frames)
    assert (geometry.latents, geometry.tokens) == (latents, tokens)


def test_sizes_of_the_menu() -> None:
    """Each has about as many pixels as its square and about its ratio, and both ways up."""
    sizes = sizes_of_sides((512, 1024))
    assert sizes[:4] == (Size(512, 512), Size(576, 448), Size(640, 416), Size(672, 384))
    assert sizes[7:11] == (Size(1024, 1024), Size(1184, 896), Size(1248, 832), Size(1376, 768))
    assert set(sizes) == {Size(size.height, size.width) for size in sizes}
    for side, size in zip([512] * 7 + [1024] * 7, sizes, strict=True):
        assert size.width * size.height == pytest.approx(side * side, rel=0.02)


def test_a_size_off_the_menu() -> None:
    """Is refused with the menu, in one line."""
    with pytest.raises(ValueError, match=r"^this model cannot make size 833x480; give one of 832x480, 480x832$"):
        LAYOUTS["wan-480p"].geometry(Size(833, 480))
    with pytest.raises(ValueError, match=r"^this model cannot make size 1000x1000; give one of 1024x1024, 1184x896, "):
        LAYOUTS["z-image"].geometry(Size(1000, 1000))


@pytest.mark.parametrize(
    ("frames", "says"),
    [
        (0, "this model cannot make 0 frames: it makes 1 to 4,093 frames"),
        (82, "this model cannot make 82 frames: the number must be 4k \\+ 1, like 81 or 85"),
        (4, "this model cannot make 4 frames: the number must be 4k \\+ 1, like 1 or 5"),
        (4094, "this model cannot make 4094 frames: it makes 1 to 4,093 frames"),
    ],
)
def test_frames_that_cannot_be(frames: int, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{says}$"):
        LAYOUTS["wan-480p"].geometry(Size(832, 480), frames)


def test_pictures_are_one_frame() -> None:
    with pytest.raises(ValueError, match=r"^this model cannot make 5 frames: it makes only images$"):
        LAYOUTS["flux.1"].geometry(Size(1024, 1024), 5)


def test_every_layout_covers_its_menu() -> None:
    """What is a layout is checked when it is made; a size that patches do not cover is our own mistake."""
    for layout in LAYOUTS.values():
        for size in layout.sizes:
            geometry = layout.geometry(size)
            *_, rows, columns = geometry.latents
            assert (rows * layout.spatial, columns * layout.spatial) == (size.height, size.width)
            assert geometry.tokens * math.prod(layout.patch) * layout.channels == math.prod(geometry.latents)
    with pytest.raises(AssertionError, match="sizes that are not a multiple of the patch size"):
        PipelineLayout(4, (Size(40, 32),))


@pytest.mark.parametrize(("text", "size"), [("1024x768", (1024, 768)), (" 480X832 ", (480, 832)), ("64×32", (64, 32))])
def test_sizes_as_people_write_them(text: str, size: tuple[int, int]) -> None:
    assert Size.parse(text) == size
    assert Size.parse(str(Size(*size))) == size


@pytest.mark.parametrize(
    "text", ["", "1024", "1024x", "x", "0x64", "1024x-8", "1e3x4", "1024x768x3", "9" * 50, "٣٢x٣٢"]
)
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="write width x height in pixels, like 1024x768") as refused:
        Size.parse(text)
    assert len(str(refused.value)) < 200
