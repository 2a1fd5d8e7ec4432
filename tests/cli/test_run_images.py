"""`ridgeline run MODEL --image FILE` on random weights, beside transformers; one line for what cannot be read."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from transformers import JanusForConditionalGeneration
from transformers.models.janus.image_processing_pil_janus import JanusImageProcessorPil

from cli.running import REFUSED, USAGE, Run, assert_one_line
from engine.folders import write_model
from support.janus_folders import PREPROCESSING, SPECIAL, write_janus

GREEDY = ("--temperature", "0", "--max-tokens", "6", "--ignore-eos", "--json")
IMAGE = ("<begin_of_image>", *["<image_placeholder>"] * 9, "<end_of_image>")


@pytest.fixture(scope="module")
def janus(tmp_path_factory: pytest.TempPathFactory) -> tuple[JanusForConditionalGeneration, Path]:
    folder = tmp_path_factory.mktemp("janus")
    return write_janus(folder, seed=1), folder


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two of different shapes and colours."""
    folder = tmp_path_factory.mktemp("pictures")
    paths = [folder / "wide.png", folder / "high.jpg"]
    for path, size, colour in zip(paths, ((31, 14), (8, 20)), ((250, 10, 60), (0, 90, 255)), strict=True):
        image = Image.linear_gradient("L").resize(size).convert("RGB")
        Image.blend(image, Image.new("RGB", size, colour), 0.5).save(path)
    return paths


def their_answer(
    theirs: JanusForConditionalGeneration, folder: Path, parts: list[str], pictures: list[Path], count: int = 6
) -> tuple[int, list[int]]:
    """The prompt's length and the likeliest tokens after it: parts are texts and control tokens."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = [
        token
        for part in parts
        for token in ([tokenizer.token_to_id(part)] if part in SPECIAL else tokenizer.encode(part).ids)
    ]
    images = [Image.open(path).convert("RGB") for path in pictures]
    pixels = JanusImageProcessorPil(**PREPROCESSING)(images, return_tensors="pt")["pixel_values"]
    known = list(ids)
    with torch.no_grad():
        for _ in range(count):
            known.append(int(theirs(input_ids=torch.tensor([known]), pixel_values=pixels).logits[0, -1].argmax()))
    return len(ids), known[-count:]


@pytest.mark.parametrize("count", [1, 2])
def test_answers_about_images(
    ridgeline: Run, janus: tuple[JanusForConditionalGeneration, Path], pictures: list[Path], count: int
) -> None:
    """With a template: where it writes the images' places; the same tokens as transformers' whole model."""
    theirs, folder = janus
    flags = [flag for path in pictures[:count] for flag in ("--image", path)]
    told = ridgeline("run", folder, "What is it?", *flags, *GREEDY).json
    places = [part for _ in range(count) for part in (*IMAGE, "\n")]
    expected = their_answer(
        theirs, folder, ["<bos>", "user: ", *places, "What is it?\n", "assistant:"], pictures[:count]
    )
    assert (told["prompt_tokens"], told["token_ids"]) == expected
    assert told["token_ids"] != ridgeline("run", folder, "What is it?", *GREEDY).json["token_ids"]


def test_without_a_template(
    ridgeline: Run, janus: tuple[JanusForConditionalGeneration, Path], pictures: list[Path]
) -> None:
    """The images come first; what is typed is text, placeholders too."""
    theirs, folder = janus
    told = ridgeline("run", folder, "a <image_placeholder>", "--raw", "--image", pictures[1], *GREEDY).json
    typed = ["a ", *"<image_placeholder>"]
    assert (told["prompt_tokens"], told["token_ids"]) == their_answer(theirs, folder, [*IMAGE, *typed], pictures[1:])


def test_refused(
    ridgeline: Run, janus: tuple[JanusForConditionalGeneration, Path], pictures: list[Path], tmp_path: Path
) -> None:
    """One line each, before a model is loaded where that can be."""
    _, folder = janus
    text = write_model(tmp_path / "text")
    words = tmp_path / "words.png"
    words.write_text("no image", encoding="utf-8")
    assert_one_line(ridgeline("run", text, "Hi", "--image", pictures[0]), USAGE, "reads no images; give a model with a")
    assert_one_line(
        ridgeline("run", folder, "Hi", "--image", words), USAGE, "words.png is not an image in a supported format"
    )
    missing = tmp_path / "missing.png"
    assert_one_line(
        ridgeline("run", folder, "Hi", "--image", missing), USAGE, "missing.png cannot be read: No such file"
    )
    together = ridgeline("run", folder, "--input-file", words, "--image", pictures[0])
    assert_one_line(together, USAGE, "--image is for a single prompt")
    small = ridgeline("run", folder, "Hi", "--image", pictures[0], "--max-model-len", "12", "--max-tokens", "1")
    assert_one_line(small, USAGE, "the model's context is 12")


@pytest.fixture
def one_place(tmp_path: Path) -> Path:
    """A folder whose template writes a place for one image; made before a command's output is watched."""
    template = "{% for m in messages %}<image_placeholder>{{ m.content[-1].text }}{% endfor %}"
    write_janus(tmp_path / "janus", template=template)
    return tmp_path / "janus"


def test_refused_folders(one_place: Path, ridgeline: Run, pictures: list[Path]) -> None:
    """A template that writes fewer places than there are images; a folder that does not say how images are brought to
    it; a tokenizer without the tokens around them."""
    folder = one_place
    flags = ("--image", pictures[0], "--image", pictures[1])
    assert_one_line(
        ridgeline("run", folder, "Hi", *flags), USAGE, "the prompt has 1 image placeholder, but 2 images are given"
    )
    names = folder / "tokenizer_config.json"
    said = json.loads(names.read_text(encoding="utf-8"))
    names.write_text(json.dumps(said | {"boi_token": "<picture>"}), encoding="utf-8")
    wrong = ridgeline("run", folder, "Hi", *flags[:2])
    assert_one_line(wrong, REFUSED, "its tokenizer has no token <picture>, which the model needs around images")
    (folder / "preprocessor_config.json").unlink()
    assert_one_line(ridgeline("run", folder, "Hi", *flags[:2]), REFUSED, "lacks preprocessor_config.json")
