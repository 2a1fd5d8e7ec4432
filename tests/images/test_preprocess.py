"""What a tower is given, beside transformers' processor with Pillow."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers.models.janus.image_processing_pil_janus import JanusImageProcessorPil

from ridgeline.core.models import ModelRefused
from ridgeline.core.models.common.model import ImagePlaceholders
from ridgeline.media.images.preprocess import Preprocessing, read_preprocessing
from support.janus_folders import PREPROCESSING

SIZES = [(40, 40), (37, 12), (9, 61), (300, 2), (1, 1), (12, 11)]


def noise(size: tuple[int, int]) -> Image.Image:
    numbers = np.random.default_rng(3).integers(0, 256, (size[1], size[0], 3), np.uint8)
    return Image.fromarray(numbers)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("change", [{}, {"size": {"height": 16, "width": 16}, "min_size": 1, "resample": 2}])
def test_pixels(tmp_path: Path, size: tuple[int, int], change: dict[str, Any]) -> None:
    """Of images of any shape, wider and higher than the tower's and smaller, within 1e-6."""
    said = PREPROCESSING | change
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(said), encoding="utf-8")
    ours = read_preprocessing(tmp_path).pixels(noise(size))
    theirs = JanusImageProcessorPil(**said)(noise(size), return_tensors="np")["pixel_values"][0]
    assert ours.dtype == np.float32
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() < 1e-6 * np.abs(theirs).max()


def test_what_the_reference_takes_where_a_file_says_nothing(tmp_path: Path) -> None:
    """CLIP's mean and deviation, 384 pixels; and the newer file, which has it in a section."""
    (tmp_path / "processor_config.json").write_text('{"image_processor": {}}', encoding="utf-8")
    assert read_preprocessing(tmp_path) == Preprocessing(384)
    theirs = JanusImageProcessorPil()(noise((40, 30)), return_tensors="np")["pixel_values"][0]
    assert np.abs(Preprocessing(384).pixels(noise((40, 30))) - theirs).max() < 1e-5


def test_patches() -> None:
    """Line by line, image by image; of a patch its channels one after the other, as a convolution's kernel lies."""
    images = [noise((12, 12)), noise((9, 5))]
    preprocessing = Preprocessing(12, least=1)
    features = preprocessing.patches(images, ImagePlaceholders(0, 9, 48))
    assert (len(features), features.inputs, features.width) == (18, 2, 48)
    for index, image in enumerate(images):
        pixels = preprocessing.pixels(image)
        for patch in range(9):
            top, left = 4 * (patch // 3), 4 * (patch % 3)
            expected = pixels[:, top : top + 4, left : left + 4].ravel()
            assert np.array_equal(features.values[9 * index + patch], expected)
    with pytest.raises(ValueError, match="images of 12 x 12 pixels do not give the model's 16 patches of 48 numbers"):
        preprocessing.patches(images, ImagePlaceholders(0, 16, 48))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"do_pad": False}, "do_pad = False is not supported"),
        ({"size": {"height": 12, "width": 16}}, "size is .*; height and width must be equal"),
        ({"size": {"shortest_edge": 12}}, "size is .*; height and width must be equal"),
        ({"size": 10**9}, "size is 1000000000; height and width must be equal, from 1 to 8192"),
        ({"min_size": 13}, "min_size is 13; it must be from 1 to size, which is 12"),
        ({"resample": 9}, "resample is 9; it must be the number of one of Pillow's resampling filters"),
        ({"image_std": [0.5, 0.0, 0.5]}, "image_std above 0"),
        ({"image_mean": [2.0, 0.0, 0.5]}, "image_mean must be from 0 to 1"),
        ({"image_mean": 0.5}, "image_mean is 0.5; it must be a list of 3 numbers"),
        ({"rescale_factor": float("nan")}, "rescale_factor is nan"),
    ],
)
def test_refused(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(PREPROCESSING | change), encoding="utf-8")
    with pytest.raises(ModelRefused, match=why):
        read_preprocessing(tmp_path)


def test_a_folder_that_says_nothing(tmp_path: Path) -> None:
    with pytest.raises(ModelRefused, match=r"lacks preprocessor_config.json, which states how images are preprocessed"):
        read_preprocessing(tmp_path)
    (tmp_path / "processor_config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ModelRefused, match="has no section image_processor; fetch the file again"):
        read_preprocessing(tmp_path)
