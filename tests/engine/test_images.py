"""Images in prompts beside what else an engine does: chunks, the prefix cache, preemption, several choices, neighbours.

The reference is the model run once over the whole sequence without a cache, for each token again.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.small_models import LLAMA, assert_nothing_held, small_model
from ridgeline.backends.model_loader import load_model
from ridgeline.core.models.families.janus import JanusReader
from ridgeline.core.ops.kv_context import Uncached
from ridgeline.core.ops.work import ENCODER, StepSegment
from ridgeline.engine.encoder_features import EncoderFeatures
from ridgeline.engine.events import StepRecord
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.scheduler import Limits
from support.engines import GREEDY, complete, token_engine
from support.januses import PLACEHOLDER, patches_of, their_janus

PARAMS = replace(GREEDY, max_tokens=7)
IMAGE = [85, *[PLACEHOLDER] * 9, 86]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> JanusReader:
    folder = tmp_path_factory.mktemp("janus")
    their_janus(folder, seed=1)
    loaded = load_model(str(folder))
    assert isinstance(loaded, JanusReader)
    return loaded


def pixels(seed: int, images: int = 1) -> Tensor:
    return 2 * torch.randn(images, 3, 12, 12, generator=torch.Generator().manual_seed(seed))


def prompt(images: int = 1, end: int = 31) -> list[int]:
    return [4, 9, *(IMAGE * images), 7, 52, end]


def continued(model: JanusReader, ids: list[int], images: EncoderFeatures | None, count: int = 7) -> list[int]:
    """The likeliest tokens after a prompt, everything run again for each."""
    known = list(ids)
    with torch.inference_mode():
        rows = iter(range(len(images) if images else 0))
        placed = [-1 - next(rows) if images and token == PLACEHOLDER else token for token in known]
        encoded = None
        if images:
            each = [StepSegment(9, 9, 9, runs_encoder=True)] * images.inputs
            positions = torch.arange(9).repeat(images.inputs)
            encoded = model.encode(torch.from_numpy(images.values.copy()), positions, Uncached(each))
        for _ in range(count):
            length = len(placed)
            kv, last = Uncached([StepSegment(length, length)]), torch.tensor([length - 1])
            states = model.hidden(torch.tensor(placed), torch.arange(length), kv, last, encoded)
            placed.append(int(model.head(states)[0].argmax()))
    return placed[-count:]


@pytest.mark.parametrize("chunk", [1, 4, 9, 64])
@pytest.mark.parametrize("cached", [False, True])
def test_chunks_and_neighbours(model: JanusReader, chunk: int, cached: bool) -> None:
    """Prompts with one image, with two, and with none, cut anywhere, side by side."""
    prompts = [prompt(), prompt(2), [5, 6, 7], prompt(1, 33)]
    images = [patches_of(pixels(1)), patches_of(pixels(2, 2)), None, patches_of(pixels(3))]
    engine = token_engine(model, limits=Limits(tokens=24, chunk=chunk), prefix_cache=cached)
    expected = [continued(model, ids, own) for ids, own in zip(prompts, images, strict=True)]
    assert complete(engine, prompts, PARAMS, images=images) == expected
    assert complete(engine, prompts, PARAMS, images=images) == expected
    assert_nothing_held(engine)


def test_images_make_a_difference(model: JanusReader) -> None:
    """Or nothing here would prove anything: other images, other tokens; so does their order."""
    two = pixels(2, 2)
    answers = [
        continued(model, prompt(2), patches_of(each)) for each in (two, two.flip(0), torch.cat([pixels(5), pixels(6)]))
    ]
    assert len(set(map(tuple, answers))) == 3


def test_the_prefix_cache_knows_images_apart(model: JanusReader) -> None:
    """The same ids with another image share nothing; with the same image they share its pages, and its tower does not
    run where all of its places are found."""
    steps: list[StepRecord] = []
    engine = token_engine(model, prefix_cache=True, on_step=steps.append)
    first, second = patches_of(pixels(1)), patches_of(pixels(2))
    (told,) = complete(engine, [prompt()], PARAMS, images=[first])
    assert engine.stats.reused_tokens == 0
    (other,) = complete(engine, [prompt()], PARAMS, images=[second])
    assert engine.stats.reused_tokens == 0
    assert told == continued(model, prompt(), first) != other == continued(model, prompt(), second)
    (without,) = complete(engine, [prompt()], PARAMS)
    assert engine.stats.reused_tokens == 0
    assert without == continued(model, prompt(), None) != told

    def encoded() -> int:
        return sum(step.work.rows.get(ENCODER, 0) for step in steps)

    assert encoded() == 18
    assert complete(engine, [prompt(1, 40)], PARAMS, images=[first]) == [continued(model, prompt(1, 40), first)]
    assert engine.stats.reused_tokens == 12  # pages of 4; the image's last place is at 11
    assert encoded() == 18
    longer = [*prompt(), 3, 5, 8, 13]
    assert complete(engine, [longer], PARAMS, images=[first]) == [continued(model, longer, first)]
    assert encoded() == 18


def test_a_page_may_end_within_an_image(model: JanusReader) -> None:
    """Then its first places are found, and the tower runs for the others."""
    steps: list[StepRecord] = []
    engine = token_engine(model, page_size=8, prefix_cache=True, on_step=steps.append)
    image = patches_of(pixels(1))
    complete(engine, [prompt()], PARAMS, images=[image])
    assert complete(engine, [prompt(1, 40)], PARAMS, images=[image]) == [continued(model, prompt(1, 40), image)]
    assert engine.stats.reused_tokens == 8
    assert sum(step.work.rows.get(ENCODER, 0) for step in steps) == 18


def test_an_image_that_chunks_share_is_read_for_each(model: JanusReader) -> None:
    """Nothing of a tower is kept between steps: a step reads the images of which it has a place, and no other."""
    steps: list[StepRecord] = []
    engine = token_engine(model, limits=Limits(tokens=8, chunk=8), on_step=steps.append)
    images = patches_of(pixels(2, 2))  # at positions 3 to 11 and 14 to 22
    assert complete(engine, [prompt(2)], PARAMS, images=[images]) == [continued(model, prompt(2), images)]
    chunks = [(item.start, len(item.tokens), len(item.encoder)) for step in steps for item in step.plan.items][:4]
    assert chunks == [(0, 8, 9), (8, 8, 18), (16, 8, 9), (24, 3, 0)]
    first = steps[1].plan.items[0]
    assert list(first.tokens) == [-6, -7, -8, -9, 86, 85, -10, -11]
    assert isinstance(first.encoder, EncoderFeatures)
    assert np.array_equal(first.encoder.values, images.values)
    assert '"inputs":2' in steps[1].plan.to_json()


def test_preempted_requests_read_their_images_again(model: JanusReader) -> None:
    """KV memory too small for all: those that are put back begin anew, images and all."""
    prompts = [prompt(1, end) for end in range(30, 35)]
    images = [patches_of(pixels(seed)) for seed in range(5)]
    engine = token_engine(model, positions=64, limits=Limits(tokens=40, chunk=16), prefix_cache=True)
    params = replace(GREEDY, max_tokens=24)
    expected = [continued(model, ids, own, 24) for ids, own in zip(prompts, images, strict=True)]
    assert complete(engine, prompts, params, images=images) == expected
    assert engine.stats.preemptions > 0
    assert_nothing_held(engine)


def test_choices_share_an_image(model: JanusReader) -> None:
    """Several completions of one prompt run its tower once."""
    steps: list[StepRecord] = []
    engine = token_engine(model, on_step=steps.append)
    image = patches_of(pixels(1))
    engine.add(GenerationRequest(prompt(), replace(PARAMS, n=3), images=image))
    told: dict[int, list[int]] = {}
    while engine.has_work:
        for event in engine.step():
            if event.token is not None:
                told.setdefault(event.choice, []).append(event.token.token)
    assert list(told.values()) == [continued(model, prompt(), image)] * 3
    assert sum(step.work.rows.get(ENCODER, 0) for step in steps) == 9


def test_what_does_not_fit(model: JanusReader) -> None:
    """Images without places, places without images, other sizes, a model that reads none; nothing is queued."""
    engine = token_engine(model)
    one, two = patches_of(pixels(1)), patches_of(pixels(2, 2))
    for ids, images, why in (
        (
            prompt(1),
            two,
            "the prompt has 9 image placeholder tokens, but the 2 images have 18 rows: give 9 placeholder",
        ),
        (prompt(2), one, "the prompt has 18 image placeholder tokens, but the 1 images have 9"),
        ([5, 6], one, "the prompt has 0 image placeholder tokens"),
        (
            prompt(1),
            EncoderFeatures(one.data, 24),
            "an image has 18 patches of 24 numbers, but the model reads 9 patches of 48 numbers",
        ),
    ):
        with pytest.raises(ValueError, match=why):
            engine.add(GenerationRequest(ids, PARAMS, images=images))
    assert not engine.has_work
    with pytest.raises(ValueError, match="the model reads no images: leave the images out, or use a model with a vis"):
        token_engine(small_model(LLAMA)).add(GenerationRequest([5, 6], PARAMS, images=one))
