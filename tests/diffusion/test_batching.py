"""Which calls of the denoiser a step makes, against a search through all ways of making them."""

from itertools import product

import pytest

from ridgeline.media.diffusion.batching import MARGIN, RIDGE_ROWS, Batching, choose_batching, ridge_seconds


@pytest.mark.parametrize(
    ("rows", "images", "passes", "expected"),
    [
        (4192, 1, 2, Batching(1, False)),  # 1024 x 1024 of Z-Image: two passes
        (4192, 4, 1, Batching(1, False)),
        (96, 1, 2, Batching(1, True)),  # 32 x 32 pixels: a pair
        (96, 1, 1, Batching(1, False)),
        (96, 4, 1, Batching(4, False)),
        (150, 8, 2, Batching(1, True)),  # a pair is the ridge
        (RIDGE_ROWS, 3, 2, Batching(1, False)),
        (RIDGE_ROWS - 10, 1, 2, Batching(1, True)),
    ],
)
def test_at_the_ridge(rows: int, images: int, passes: int, expected: Batching) -> None:
    """Rows that cost nothing are taken, and no more than those."""
    assert choose_batching(images, passes, lambda pictures: ridge_seconds(pictures * rows)) == expected


@pytest.mark.parametrize("rows", [10, 64, 96, 200, 299, 301, 1120])
@pytest.mark.parametrize("images", [1, 2, 3, 7, 10])
@pytest.mark.parametrize("passes", [1, 2])
def test_no_other_way_is_faster(rows: int, images: int, passes: int) -> None:
    """Nor as fast with fewer pictures at once."""

    def seconds(pictures: int) -> float:
        return ridge_seconds(pictures * rows)

    def took(size: int, paired: bool) -> float:
        groups = [size] * (images // size) + [images % size] * bool(images % size)
        return sum(seconds(passes * each) if paired else passes * seconds(each) for each in groups)

    sizes = sorted({images, *(size for size in (1, 2, 4, 8) if size <= images)})
    ways = {(size, paired): took(size, paired) for size, paired in product(sizes, (False, True)[:passes])}
    chosen = choose_batching(images, passes, seconds)
    assert ways[chosen.images, chosen.paired] <= (1 + MARGIN) * min(ways.values())
    held = chosen.images * (passes if chosen.paired else 1)
    for (size, paired), time in ways.items():
        if size * (passes if paired else 1) < held:
            assert time > (1 + MARGIN) * min(ways.values())


def test_calls() -> None:
    assert [Batching(1, paired).calls(2) for paired in (False, True)] == [2, 1]
