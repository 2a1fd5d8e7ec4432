"""What `digits-ar` is trained with: tokens, rows, the decoder, export."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import JanusForConditionalGeneration
from zoo.digits.data import Digits
from zoo.digits.measures import Bounds
from zoo.digits_ar.autoencoder import (
    BITS,
    CODES,
    Autoencoder,
    autoencoder,
    codebook,
    entropy,
    latents_of,
    losses,
    tokenized,
    tokens_of,
)
from zoo.digits_ar.evaluate import images_of
from zoo.digits_ar.export import export
from zoo.digits_ar.model import Drawer, Shape
from zoo.digits_ar.tokenizer import BEGIN, NO_TARGET, rows_of, train_tokenizer
from zoo.digits_ar.train import Taught

from ridgeline.core.checkpoint.source import open_source
from ridgeline.media.images.image_generator import load_image_generator
from support.checkpoints import redraw

TOKENIZER = train_tokenizer(480, prompts=2000)


def images(count: int, seed: int = 0) -> Tensor:
    return torch.rand(count, 1, 32, 32, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def rounded(model: torch.nn.Module) -> None:
    """Weights that a folder in bfloat16 keeps as they are."""
    for parameter in model.parameters():
        parameter.data = parameter.to(torch.bfloat16).float()


@pytest.fixture(scope="module")
def vq() -> Autoencoder:
    torch.manual_seed(0)
    model = autoencoder().eval()
    rounded(model)
    return model


# -- tokens ------------------------------------------------------------------------------------------------------------


def test_a_token_is_the_signs_of_what_is_nearest_to_it() -> None:
    """Every row of the codebook has a length of 1 and is the nearest to itself; of other vectors it is found by all
    distances."""
    codes = codebook()
    assert torch.allclose(codes.norm(dim=1), torch.ones(CODES))
    assert tokens_of(codes.T.view(1, BITS, 16, 16)).flatten().tolist() == list(range(CODES))
    latents = torch.randn(3, BITS, 2, 2, generator=torch.Generator().manual_seed(1))
    rows = latents.permute(0, 2, 3, 1).reshape(-1, BITS)
    assert torch.equal(tokens_of(latents).flatten(), torch.cdist(rows, codes).argmin(dim=1))


def test_a_loss_teaches_the_encoder_and_leaves_the_codebook(vq: Autoencoder) -> None:
    """Though a token is no smooth function of what it was made of. Pixels are those of the tokens."""
    own = autoencoder().eval()
    own.load_state_dict(vq.state_dict())
    square, distance = losses(own, images(2))
    (square + distance).backward()
    idle = [name for name, p in own.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())]
    assert not [name for name in idle if not name.endswith(".k.bias")]  # adds the same to all scores of a query
    assert own.quantize.embedding.weight.grad is None
    with torch.no_grad():
        found = own.decode(tokenized(own, images(2)))
        latents = latents_of(own, images(2))
    assert square.item() == pytest.approx((found - images(2)).square().mean().item())
    codes = codebook()[tokens_of(latents)].mT.view(2, BITS, 8, 8)
    assert distance.item() == pytest.approx((latents - codes).square().sum(1).mean().item())


def test_entropy_is_that_of_shares() -> None:
    assert entropy(torch.tensor([[3, 3], [3, 3]])) == 0
    assert entropy(torch.tensor([[0, 1], [255, 7]])) == pytest.approx(2 * 0.6931472)


# -- rows --------------------------------------------------------------------------------------------------------------


def test_rows_are_prompts_of_any_length_and_what_follows_them() -> None:
    """Each target is what the next position reads; nothing else is a target, and what is padded comes last."""
    drawn = torch.tensor([[5, 6, 7], [9, 9, 8]])
    inputs, targets = rows_of(TOKENIZER, ["a thick handwritten seven", "7"], drawn)
    begin = CODES + TOKENIZER.token_to_id(BEGIN)
    for row, tokens in enumerate(drawn):
        first = inputs[row].tolist().index(begin)
        assert targets[row, first : first + 3].tolist() == tokens.tolist()
        assert inputs[row, first + 1 : first + 3].tolist() == tokens[:2].tolist()
        assert bool((inputs[row, :first] >= CODES).all())
        assert int((targets[row] != NO_TARGET).sum()) == 3
        assert TOKENIZER.decode((inputs[row, :first] - CODES).tolist()) == ["a thick handwritten seven", "7"][row]
    assert inputs[1, -1] == 0


def test_padding_changes_no_loss() -> None:
    torch.manual_seed(1)
    drawer, drawn = Drawer(Shape()), torch.arange(6).view(2, 3)
    both = [rows_of(TOKENIZER, texts, drawn[: len(texts)]) for texts in (["7"], ["7", "please draw a thin seven"])]
    with torch.no_grad():
        alone = drawer(*both[0])
        padded = drawer(both[1][0][:1], both[1][1][:1])
    assert both[1][0].shape[1] > both[0][0].shape[1]
    assert float(padded) == pytest.approx(float(alone), rel=1e-5)


def test_a_batch_teaches_all_of_the_decoder(vq: Autoencoder) -> None:
    digits = Digits(images(20), torch.arange(20) % 10)
    taught = Taught(digits, Bounds.of(digits), vq, TOKENIZER)
    inputs, targets = taught.batch(4, torch.Generator().manual_seed(0))
    assert int((targets != NO_TARGET).sum()) == 4 * 64
    again = taught.batch(4, torch.Generator().manual_seed(0))
    assert torch.equal(inputs, again[0])
    drawer = Drawer(Shape())
    drawer(inputs, targets).backward()
    assert not [name for name, p in drawer.named_parameters() if p.grad is None or not p.grad.abs().sum()]


# -- export ------------------------------------------------------------------------------------------------------------


def test_an_exported_folder_is_what_was_trained(tmp_path: Path, vq: Autoencoder) -> None:
    """Transformers' class finds each of its tensors in it, has the logits of the decoder and the pixels of the
    autoencoder; so has what `ridgeline image` loads, which reads a prompt as it was trained on."""
    drawer = Drawer(Shape())
    redraw(drawer, seed=5)
    rounded(drawer)
    export(drawer, vq, TOKENIZER, tmp_path)
    theirs, found = JanusForConditionalGeneration.from_pretrained(
        tmp_path, dtype=torch.float32, output_loading_info=True
    )
    theirs.eval()
    assert not any(found.values())
    prompt = "a handwritten seven"
    tokens = torch.randint(CODES, (1, 64), generator=torch.Generator().manual_seed(3))
    inputs, targets = rows_of(TOKENIZER, [prompt], tokens)
    own = targets != NO_TARGET
    with torch.inference_mode():
        text = theirs.get_input_embeddings()((inputs - CODES).clamp(min=0))
        drawn = theirs.prepare_embeddings_for_image_generation(inputs.clamp(max=CODES - 1))
        rows = torch.where((inputs < CODES)[..., None], drawn, text)
        expected = theirs.model.generation_head(theirs.model.language_model(inputs_embeds=rows).last_hidden_state)
        logits = drawer.generation_head(drawer.hidden(inputs))
        pixels = theirs.model.vqmodel.decode(tokens)
        assert float((logits - expected)[own].abs().max() / expected.abs().max()) < 1e-5
    ours = load_image_generator(open_source(str(tmp_path)))
    assert float((ours.decode(tokens[0].tolist()) - pixels[0]).abs().max() / pixels.abs().max()) < 1e-5
    assert ours.plan(prompt, seed=0).prompt == tuple(inputs[0, : int(own[0].nonzero()[0]) + 1].tolist())
    assert images_of(ours, prompt, seed=0, count=3).shape == (3, 1, 32, 32)
