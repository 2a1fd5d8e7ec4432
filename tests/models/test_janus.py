"""Janus beside transformers' with the same random weights: what its drawing half writes and shows, what its reading
half says of images; its costs beside what aten computes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import JanusForConditionalGeneration

from models.comparing import apart
from ridgeline.backends.model_loader import load_model, load_vq_autoencoder
from ridgeline.core.models import Fields, ModelRefused, build
from ridgeline.core.models.building import build_to_run
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.families.janus import JanusImageModel, JanusReader
from ridgeline.core.models.families.vq_autoencoder import build as build_vq
from ridgeline.core.models.registry import image_generator_of
from ridgeline.core.ops.kv_context import Uncached
from ridgeline.core.ops.pixel_grid import PixelGrid
from ridgeline.core.ops.work import ENCODER, LOGITS, TOKENS, StepSegment, Work
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.scheduler import Limits
from ridgeline.price.price import Price
from support.audit import check_attention, check_bytes, check_products
from support.engines import GREEDY, AuditedRunner, RecordingRunner, complete, token_engine
from support.januses import PLACEHOLDER, config, patches_of, their_janus, their_tokens

TOLERANCE = 1e-5  # of the largest
CODES = 37
CASES: dict[str, dict[str, Any]] = {
    "small": {},
    "tied": {"tie_word_embeddings": True},
    "other depths": {
        "vision_config": {"depth": 1, "attention_bias": False, "hidden_act": "gelu_pytorch_tanh"},
        "vq_config": {"num_hidden_layers": 3, "hidden_act": "silu"},
    },
    "llama 3's rope": {"text_config": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}},
}
GREEDY_PICTURE = SamplingParams(temperature=0.0, max_tokens=9)
PROMPTS = [[3, 17, 40, 5, 62, 9, 33], [8, 2], [71, 70, 69, 11]]


def moved(prompt: list[int]) -> list[int]:
    """The ids of a text where image tokens come first."""
    return [CODES + token for token in prompt]


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[JanusForConditionalGeneration, Path]:
    """Theirs, and the folder that it wrote."""
    return their_janus(tmp_path, **CASES[request.param]), tmp_path


# -- drawing -----------------------------------------------------------------------------------------------------------


def test_logits_of_image_tokens(case: tuple[JanusForConditionalGeneration, Path]) -> None:
    """Every position's, of a text and the image tokens behind it."""
    theirs, folder = case
    ours = load_model(str(folder), draws=True)
    drawn = torch.tensor([36, 0, 5, 11])
    for prompt in PROMPTS:
        with torch.no_grad():
            text = theirs.get_input_embeddings()(torch.tensor([prompt]))
            embedded = torch.cat([text, theirs.prepare_embeddings_for_image_generation(drawn[None])], dim=1)
            states = theirs.model.language_model(inputs_embeds=embedded).last_hidden_state
            expected = theirs.model.generation_head(states)[0]
        length = len(prompt) + len(drawn)
        ids, rows = torch.cat([torch.tensor(moved(prompt)), drawn]), torch.arange(length)
        with torch.inference_mode():
            found = ours(ids, rows, Uncached([StepSegment(length, length)]), rows)
        assert apart(found, expected) < TOLERANCE


@pytest.mark.parametrize("limits", [Limits(), Limits(tokens=7, chunk=3)])
def test_drawn_pictures(case: tuple[JanusForConditionalGeneration, Path], limits: Limits) -> None:
    """Through the engine: the tokens of several pictures at once, over pages and in chunks, and their pixels."""
    theirs, folder = case
    ours, autoencoder = load_model(str(folder), draws=True), load_vq_autoencoder(str(folder))
    assert isinstance(ours, JanusImageModel)
    assert ours.side**2 == autoencoder.tokens == 9
    engine = token_engine(ours, limits=limits, prefix_cache=True)
    params = GREEDY_PICTURE
    drawn = complete(engine, list(map(moved, PROMPTS)), params)
    assert drawn == [their_tokens(theirs, prompt, 9) for prompt in PROMPTS]
    assert len(set(map(tuple, drawn))) > 1
    tokens = torch.tensor(drawn)
    with torch.no_grad():
        expected = theirs.decode_image_tokens(tokens).permute(0, 3, 1, 2)
        assert apart(autoencoder.decode(tokens.view(-1, 3, 3)), expected) < TOLERANCE
    assert complete(engine, list(map(moved, PROMPTS)), params) == drawn


def test_what_may_be_asked_of_image_tokens(tmp_path: Path) -> None:
    """Prompts have ids of both vocabularies, answers of one: biases of others are refused, penalties pass them over."""
    their_janus(tmp_path)
    engine = token_engine(load_model(str(tmp_path), draws=True))
    for change, why in (
        ({"logit_bias": {CODES: 1.0}}, "logit_bias has the key 37; give token ids from 0 to 36"),
        ({"prompt_logprobs": 0}, "prompt_logprobs: the model cannot generate the tokens of a prompt"),
        ({"logprobs": 38}, "logprobs is 38; give at most 37"),
    ):
        with pytest.raises(ValueError, match=why):
            engine.add(GenerationRequest(moved([3, 4]), replace(GREEDY_PICTURE, **change)))
    with pytest.raises(ValueError, match="token id 128 is out of range; the model has ids 0 to 127"):
        engine.add(GenerationRequest([CODES + 91]))
    (plain,) = complete(engine, [moved([3, 4, 5])])
    (penalised,) = complete(engine, [moved([3, 4, 5])], replace(GREEDY_PICTURE, presence_penalty=2.0, max_tokens=16))
    assert len(set(penalised)) > len(set(plain))
    assert max(penalised) < CODES


# -- reading -----------------------------------------------------------------------------------------------------------


def prompt_with(images: int) -> list[int]:
    """A text with images in it."""
    return [4, 9, *([85, *[PLACEHOLDER] * 9, 86] * images), 31, 7, 52]


@pytest.mark.parametrize("images", [1, 2])
def test_logits_behind_images(case: tuple[JanusForConditionalGeneration, Path], images: int) -> None:
    """Every position's, of a text with images in it, all at once."""
    theirs, folder = case
    ours = load_model(str(folder))
    assert isinstance(ours, JanusReader)
    pixels = torch.randn(images, 3, 12, 12, generator=torch.Generator().manual_seed(4))
    prompt = prompt_with(images)
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor([prompt]), pixel_values=pixels).logits[0]
        blank = theirs(input_ids=torch.tensor([prompt]), pixel_values=0 * pixels).logits[0]
    assert apart(blank, expected) > 1e-2
    engine = token_engine(ours, runner=RecordingRunner)
    complete(engine, [prompt], images=[patches_of(pixels)])
    assert isinstance(engine.executor, RecordingRunner)
    found = torch.stack([engine.executor.logits[1, position] for position in range(len(prompt))])
    assert apart(found, expected) < TOLERANCE


def test_a_placeholder_without_images_is_a_token(tmp_path: Path) -> None:
    """As in the reference: its row of the embedding."""
    theirs, ours = their_janus(tmp_path), load_model(str(tmp_path))
    ids = torch.tensor([5, PLACEHOLDER, 6])
    with torch.inference_mode():
        expected = theirs(input_ids=ids[None]).logits[0]
        found = ours(ids, torch.arange(3), Uncached([StepSegment(3, 3)]), torch.arange(3))
    assert apart(found, expected) < TOLERANCE


@pytest.mark.parametrize("draws", [False, True])
def test_every_parameter_matters(tmp_path: Path, draws: bool) -> None:
    """A tensor that is read and not used would pass every comparison with weights that hide it; every tensor of the
    folder is read by one of the three parts."""
    their_janus(tmp_path)
    ours = load_model(str(tmp_path), draws=draws)
    prompt = [*moved([4, 9, 31]), 7, 3] if draws else prompt_with(1)
    features = None if draws else patches_of(torch.randn(1, 3, 12, 12, generator=torch.Generator().manual_seed(4)))

    def logits() -> Tensor:
        engine = token_engine(ours, runner=RecordingRunner)
        complete(engine, [prompt], replace(GREEDY, max_tokens=1), images=[features])
        assert isinstance(engine.executor, RecordingRunner)
        return torch.stack([engine.executor.logits[1, position] for position in range(len(prompt))])

    before = logits()
    for name, (module, own) in ours.tensors().items():
        if name.endswith("k_proj.bias"):
            continue  # adds the same to all scores of a query
        held = module.get_parameter(own)
        changed = held + 0.3 * torch.randn(held.shape, generator=torch.Generator().manual_seed(1))
        module.register_parameter(own, torch.nn.Parameter(changed, requires_grad=False))
        assert apart(logits(), before) > 1e-3, name
        module.register_parameter(own, held)
    assert apart(logits(), before) == 0


def test_each_tensor_is_of_a_part(tmp_path: Path) -> None:
    """Of the one that reads, the one that draws, or the autoencoder; those of the text are of two."""
    their_janus(tmp_path)
    parts = [load_model(str(tmp_path)), load_model(str(tmp_path), draws=True), load_vq_autoencoder(str(tmp_path))]
    counts = [sum(p.numel() for p in part.parameters()) for part in parts]
    text = sum(p.numel() for p in parts[0].get_submodule("model").parameters())
    assert sum(counts) - text == sum(tensor.numel() for tensor in load_file(tmp_path / "model.safetensors").values())


# -- configs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"text_config": {"model_type": "qwen2"}}, "model_type = 'qwen2' is not supported; llama is"),
        ({"vision_config": {"use_qk_norm": True}}, "use_qk_norm = True is not supported"),
        ({"vision_config": {"patch_size": 5}}, "image_size 12 does not divide into patches of 5"),
        ({"vision_config": {"num_image_tokens": 8}}, "num_image_tokens is 8, but an image of 12 x 12 has 9 patches"),
        ({"vision_config": {"num_attention_heads": 3}}, "hidden_size 20 does not divide into 3 heads"),
        (
            {"vision_config": {"projection_dim": 20}},
            "projection_dim of vision_config must be the text's hidden_size, 24",
        ),
        ({"image_token_id": 91}, "image_token_id is 91; it must be from 0 to 90"),
    ],
)
def test_refused_configs(change: dict[str, Any], why: str) -> None:
    values = {"architectures": ["JanusForConditionalGeneration"]}
    build(Fields(values | config(), "c"))
    with pytest.raises(ModelRefused, match=why):
        build(Fields(values | config(**change), "c"))


def test_refused_configs_of_drawers() -> None:
    values = {"architectures": ["JanusForConditionalGeneration"]}
    fields = Fields(values | config(vq_config={"projection_dim": 20}), "c")
    with pytest.raises(ModelRefused, match="image_token_embed_dim and projection_dim must be the text's hidden_size"):
        build_to_run(fields, family=image_generator_of(fields))
    with pytest.raises(ModelRefused, match="LlamaForCausalLM cannot generate image tokens; Janus"):
        image_generator_of(Fields({"architectures": ["LlamaForCausalLM"]}, "c"))


# -- cost --------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("torch_only")
@pytest.mark.parametrize("draws", [False, True])
def test_every_op_computes_what_it_states(tmp_path: Path, draws: bool) -> None:
    """Products, pairs of attention, weights read, nothing between ops: in chunks, with several images in one step."""
    their_janus(tmp_path)
    engine = token_engine(
        load_model(str(tmp_path), draws=draws), runner=AuditedRunner, limits=Limits(tokens=30, chunk=25)
    )
    prompts = list(map(moved, PROMPTS)) if draws else [prompt_with(1), prompt_with(2), [5, 6]]
    pixels = torch.randn(3, 3, 12, 12, generator=torch.Generator().manual_seed(4))
    images = [None] * 3 if draws else [patches_of(pixels[:1]), patches_of(pixels[1:]), None]
    complete(engine, prompts, images=images)
    assert isinstance(engine.executor, AuditedRunner)
    for run in engine.executor.runs:
        check_products(run)
        check_attention(run)
        check_bytes(run)
    encoded = [run.work.rows.get(ENCODER, 0) for run in engine.executor.runs]
    assert draws or (encoded[0] >= 18 and not any(encoded[3:]))
    assert any(encoded) != draws


def pro(**text: int) -> dict[str, Any]:
    """The keys of Janus-Pro, with these sizes of its text."""
    sizes = {"vocab_size": 102400, "max_position_embeddings": 16384, **text}
    return {
        "architectures": ["JanusForConditionalGeneration"],
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
        "text_config": {"model_type": "llama", "rms_norm_eps": 1e-6, **sizes},
        "vision_config": {"projection_dim": text["hidden_size"]},
        "vq_config": {"projection_dim": text["hidden_size"], "image_token_embed_dim": text["hidden_size"]},
    }


PRO_1B = pro(hidden_size=2048, intermediate_size=5632, num_hidden_layers=24, num_attention_heads=16)
PRO_7B = pro(hidden_size=4096, intermediate_size=11008, num_hidden_layers=30, num_attention_heads=32)


@pytest.mark.parametrize(("values", "tflop", "gigabytes"), [(PRO_1B, 2.16, 1505), (PRO_7B, 8.15, 7201)])
def test_the_table_of_docs(values: dict[str, Any], tflop: float, gigabytes: float) -> None:
    """576 passes behind a prompt of 32 tokens, and the pixels."""
    fields = Fields(values, "c")
    drawer, autoencoder = (
        build_to_run(fields, family=image_generator_of(fields)),
        build_vq(fields, StorageConfig(torch.bfloat16)),
    )
    price, pixels = Price(drawer), Price(autoencoder).step(autoencoder.decode_work(PixelGrid(1, 24, 24)))
    works = [Work.of([StepSegment(32, 32)], drawer.attention_patterns)]
    works += [Work.decode([32 + done], drawer.attention_patterns) for done in range(1, 576)]
    steps = [price.step(work) for work in works]
    assert sum(step.total_flops for step in (*steps, pixels)) / 1e12 == pytest.approx(tflop, rel=3e-3)
    assert sum(step.memory_bytes for step in (*steps, pixels)) / 1e9 == pytest.approx(gigabytes, rel=1e-3)


def test_the_price_of_a_picture() -> None:
    """Of Janus-Pro 1B's sizes: what writes a token is Llama's trunk and the generation head, not the head of text."""
    fields = Fields(PRO_1B, "c")
    drawer, reader = build_to_run(fields, family=image_generator_of(fields)), build(Fields(PRO_1B, "c"))
    step = Price(drawer).step(Work.decode([100], drawer.attention_patterns))
    blocks = 24 * (4 * 2048**2 + 3 * 2048 * 5632)
    head, aligner = 2048**2 + 2048 * 16384, 8 * 2048 + 2048**2
    products = 2 * (blocks + head + aligner)
    assert step.flops["bf16"] == pytest.approx(products + 4 * 24 * 2048 * 100, rel=1e-6)
    seen = StepSegment(600, 600, 576, runs_encoder=True)
    work = Work.of([seen], reader.attention_patterns, 1)
    assert work.rows == {TOKENS: 600, LOGITS: 1, ENCODER: 576}
    tower = 24 * (2 * 576 * (4 * 1024**2 + 2 * 1024 * 4096) + 4 * 1024 * 576**2)
    around = 2 * 576 * (768 * 1024 + 1024 * 2048 + 2048**2)
    plain = Price(reader).step(Work.of([StepSegment(600, 600)], reader.attention_patterns, 1))
    with_image = Price(reader).step(work)
    assert with_image.flops["bf16"] - plain.flops["bf16"] == pytest.approx(tower + around, rel=1e-6)
