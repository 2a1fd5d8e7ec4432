"""Tables of tokens in every layout that transformers loads by its rules of tied weights: the same logits, or a refusal
that names what is missing."""

import itertools
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    T5EncoderModel,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from models.comparing import TOLERANCE, off
from models.encoder_decoder_cases import CASES
from models.test_encoder_decoders import random_theirs, uncached
from ridgeline.backends.model_loader import load_model
from ridgeline.core.checkpoint import open_source
from ridgeline.core.checkpoint.checkpoint_quantiser import quantise_folder
from ridgeline.core.models import ModelRefused
from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.kv_context import Uncached
from ridgeline.core.ops.work import FULL, StepSegment
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.setup import load_engine
from ridgeline.insight.check.model_check import check_model
from support.checkpoints import random_model
from support.engines import uncached_logits

SHARED, ENCODER, DECODER, HEAD = (
    "shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight",
)  # fmt: skip
IDS, READ = [5, 11, 3, 60, 7], [9, 2, 33, 1, 70, 44, 8]
CASE = {case.id: case for case in CASES}
SEQ2SEQ = {"t5": "t5-tied", "t5-v1.1": "t5-v1.1", "umt5": "umt5-tied", "bart": "bart-plain", "marian": "marian-plain"}
LAYOUTS = [layout for size in (1, 2, 3, 4) for layout in itertools.combinations((SHARED, ENCODER, DECODER, HEAD), size)]


def table(seed: int, like: Tensor) -> Tensor:
    """Another table of the same shape."""
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(seed)) * 0.18


@pytest.fixture(scope="module", params=SEQ2SEQ)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder-decoder as transformers saves it, with the config of a release."""
    case = CASE[SEQ2SEQ[request.param]]
    folder = tmp_path_factory.mktemp(request.param)
    random_theirs(case, 3).save_pretrained(folder)
    values = json.loads((folder / "config.json").read_text())
    values.pop("scale_decoder_outputs", None)
    values["tie_word_embeddings"] = case.config.get("tie_word_embeddings", True)
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def laid_out(whole: Path, folder: Path, tables: dict[str, Tensor]) -> Path:
    """A copy with these tables alone, by T5's names of them."""
    values = json.loads((whole / "config.json").read_text())
    tensors = load_file(whole / "model.safetensors")
    trunk = "" if "t5" in values["model_type"] else "model."
    names = {name: name if name == HEAD else trunk + name for name in (SHARED, ENCODER, DECODER, HEAD)}
    kept = {name: tensor for name, tensor in tensors.items() if name not in names.values()}
    (folder / "config.json").write_text(json.dumps(values))
    save_file(kept | {names[name]: tensor for name, tensor in tables.items()}, folder / "model.safetensors",
              metadata={"format": "pt"})  # fmt: skip
    return folder


def first_table(whole: Path) -> Tensor:
    return next(t for n, t in load_file(whole / "model.safetensors").items() if n.endswith(SHARED))


def check(folder: Path, auto: Any = AutoModelForSeq2SeqLM) -> Model:
    """Assert that our logits of a folder are those that transformers gives after loading it; our model."""
    theirs = auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        logits_TV = theirs(input_ids=torch.tensor([READ]), decoder_input_ids=torch.tensor([IDS])).logits[0]
    ours = load_model(str(folder))
    assert off(uncached(ours, READ, IDS), logits_TV) <= TOLERANCE
    return ours


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda names: "+".join(n.removesuffix(".weight") for n in names))
def test_one_table_under_any_names(layout: tuple[str, ...], whole: Path, tmp_path: Path) -> None:
    """`google/madlad400-3b-mt` has it as the encoder's and the decoder's, safetensors' own tool keeps one of them."""
    held = first_table(whole)
    model = check(laid_out(whole, tmp_path, {name: held.clone() for name in layout}))
    tied = json.loads((whole / "config.json").read_text())["tie_word_embeddings"]
    assert model.tied or not tied


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if len(layout) > 1],
                         ids=lambda names: "+".join(n.removesuffix(".weight") for n in names))  # fmt: skip
def test_tables_that_differ(layout: tuple[str, ...], whole: Path, tmp_path: Path) -> None:
    """Each is used where transformers uses it."""
    held = first_table(whole)
    check(laid_out(whole, tmp_path, {name: table(seed, held) for seed, name in enumerate(layout)}))


def test_two_of_them_are_one(whole: Path, tmp_path: Path) -> None:
    """The encoder's is another one."""
    held = first_table(whole)
    other = table(4, held)
    model = check(laid_out(whole, tmp_path, {ENCODER: other, DECODER: held, SHARED: held.clone()}))
    assert any("encoder.embed_tokens" in path for path, _ in model.ops())


def test_no_table_at_all_is_refused_by_name(whole: Path, tmp_path: Path) -> None:
    """It is really missing: transformers would draw a random one."""
    laid_out(whole, tmp_path, {})
    with pytest.raises(
        ModelRefused,
        match=r"lacks tensors of the model: (model\.)?shared\.weight; "
        "use the checkpoint's own config.json, or fetch the checkpoint again$",
    ):
        load_model(str(tmp_path))


def test_a_table_of_another_size_is_refused_by_name(whole: Path, tmp_path: Path) -> None:
    """The name is that of the file."""
    held = first_table(whole)
    laid_out(whole, tmp_path, {ENCODER: held[:-1].clone(), DECODER: held[:-1].clone()})
    with pytest.raises(
        ModelRefused, match=r"tensor (model\.)?(en|de)coder\.embed_tokens\.weight has shape \[\d+, 36\], but the"
    ):
        load_model(str(tmp_path))


def test_the_price_counts_every_table(whole: Path, tmp_path: Path) -> None:
    """Also one that only the checkpoint has."""
    held, priced = first_table(whole), list[float]()
    for other in (held.clone(), table(1, held)):
        folder = laid_out(whole, tmp_path, {ENCODER: held.clone(), DECODER: other})
        (folder / "tokenizer.json").write_text(byte_pieces(len(held)))
        priced.append(load_engine(str(folder), EngineSettings(kv_bytes=1e6)).price.weight_bytes)
    assert priced[1] - priced[0] in (held.nbytes, 2 * held.nbytes)


def byte_pieces(count: int) -> str:
    """A tokenizer.json of so many pieces."""
    vocab = {chr(0x4E00 + i): i for i in range(count)}
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": chr(0x4E00)}
    return json.dumps({"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
                       "pre_tokenizer": None, "post_processor": None, "decoder": None, "model": model})  # fmt: skip


T5_ENCODER = {
    "vocab_size": 83, "d_model": 36, "d_kv": 10, "d_ff": 44, "num_layers": 2, "num_heads": 3,
    "feed_forward_proj": "relu",
}  # fmt: skip


@pytest.mark.parametrize("names", [(SHARED,), (ENCODER,), (SHARED, ENCODER)], ids=str)
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "decoder beside"])
def test_the_encoder_of_a_pipeline(names: tuple[str, ...], beside: bool, tmp_path: Path) -> None:
    """With one table or two, of which the encoder's own is used; in the checkpoint of a whole model, too."""
    theirs = T5EncoderModel(AutoConfig.for_model("t5", **T5_ENCODER)).eval()
    theirs.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    held = tensors.pop(SHARED)
    more = {DECODER: held.clone(), "decoder.block.0.layer.0.layer_norm.weight": torch.ones(36), HEAD: held.clone()}
    tables = {name: table(seed, held) for seed, name in enumerate(names)}
    save_file(tensors | tables | (more if beside else {}), tmp_path / "model.safetensors", metadata={"format": "pt"})
    theirs = T5EncoderModel.from_pretrained(tmp_path, dtype=torch.float32).eval()
    with torch.no_grad():
        wanted_ND = theirs(input_ids=torch.tensor([READ])).last_hidden_state[0]
    model, every_N = load_model(str(tmp_path)), torch.arange(len(READ))
    with torch.inference_mode():
        given_ND = model.hidden(torch.tensor(READ), every_N, Uncached([StepSegment(len(READ), len(READ))]), every_N)
    assert off(given_ND, wanted_ND) <= TOLERANCE
    assert FULL in model.attention_patterns


LLAMA = {
    "vocab_size": 97, "hidden_size": 48, "intermediate_size": 44, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "max_position_embeddings": 96, "tie_word_embeddings": True,
}  # fmt: skip
GPT2 = {"vocab_size": 97, "n_embd": 48, "n_layer": 2, "n_head": 6, "n_positions": 96}
GEMMA = LLAMA | {"head_dim": 8, "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 8}
DECODERS = {
    "llama": (LLAMA, "model.embed_tokens.weight"),
    "qwen3": (LLAMA | {"head_dim": 8}, "model.embed_tokens.weight"),
    "gemma3_text": (GEMMA, "model.embed_tokens.weight"),
    "gpt2": (GPT2, "transformer.wte.weight"),
}


def decoder_folder(kind: str, folder: Path, change: Callable[[dict[str, Tensor], str], None], **more: Any) -> Path:
    """A tied language model as transformers saves it, with other tables."""
    values, name = DECODERS[kind]
    random_model(kind, values | more, 5).save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    change(tensors, name)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def head_alone(tensors: dict[str, Tensor], name: str) -> None:
    """As safetensors' save_model keeps one of two names of a tensor: the first."""
    tensors[HEAD] = tensors.pop(name)


def head_too(tensors: dict[str, Tensor], name: str) -> None:
    tensors[HEAD] = tensors[name].clone()


def no_head(tensors: dict[str, Tensor], name: str) -> None:
    del tensors[HEAD]


def another_head(tensors: dict[str, Tensor], name: str) -> None:
    tensors[HEAD] = table(2, tensors[name])


@pytest.mark.parametrize("change", [head_alone, head_too, another_head], ids=lambda change: change.__name__)
@pytest.mark.parametrize("kind", DECODERS)
def test_a_language_model(kind: str, change: Callable[[dict[str, Tensor], str], None], tmp_path: Path) -> None:
    """Whose config ties its head: the table is the head's, or there twice, or there are two."""
    folder = decoder_folder(kind, tmp_path, change)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        logits_TV = theirs(input_ids=torch.tensor([IDS])).logits[0]
    ours = load_model(str(folder))
    assert off(uncached_logits(ours, [IDS])[0], logits_TV) <= TOLERANCE
    assert ours.tied == (change is not another_head)


def test_a_head_that_the_config_unties_must_be_there(tmp_path: Path) -> None:
    """Transformers would draw a random one."""
    decoder_folder("llama", tmp_path, no_head, tie_word_embeddings=False)
    with pytest.raises(
        ModelRefused,
        match=r"lacks tensors of the model: lm_head\.weight; "
        "use the checkpoint's own config.json, or fetch the checkpoint again$",
    ):
        load_model(str(tmp_path))


def test_what_is_said_of_a_head_that_differs(tmp_path: Path) -> None:
    """A line, by the engine and by `check`; what it takes is counted."""
    folder = decoder_folder("llama", tmp_path, another_head)
    (folder / "tokenizer.json").write_text(byte_pieces(97))
    loaded = load_engine(str(folder), EngineSettings(kv_bytes=1e6))
    assert [line for line in loaded.warnings if "lm_head.weight differs from the embedding" in line]
    assert loaded.price.weight_bytes == loaded.weight_bytes
    report = check_model(str(folder))
    assert [note for note in report.notes if "lm_head.weight differs from the embedding" in note.problem]
    assert not [finding for finding in report.findings if finding.part == "tensors"]


def test_quantised_and_saved(tmp_path: Path) -> None:
    """A table under the head's name stays as it is; the folder loads."""
    values = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    folder = decoder_folder("llama", tmp_path, head_alone, **values)
    quantise_folder(open_source(str(folder)), tmp_path / "int8", "int8")
    quantised, plain = (uncached_logits(load_model(str(each)), [IDS])[0] for each in (tmp_path / "int8", folder))
    assert off(quantised, plain) < 0.05


WHISPER = {
    "vocab_size": 97, "d_model": 36, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 3,
    "decoder_attention_heads": 3, "encoder_ffn_dim": 44, "decoder_ffn_dim": 44, "num_mel_bins": 8,
    "max_source_positions": 10, "max_target_positions": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1,
}  # fmt: skip


@pytest.mark.parametrize("names", [("model.decoder.embed_tokens.weight",), ("proj_out.weight",),
                                   ("proj_out.weight", "model.decoder.embed_tokens.weight")], ids=str)  # fmt: skip
@pytest.mark.parametrize("differ", [False, True], ids=["one", "two"])
def test_whisper(names: tuple[str, ...], differ: bool, tmp_path: Path) -> None:
    """Its head is called proj_out."""
    WhisperForConditionalGeneration(WhisperConfig(**WHISPER)).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    held = tensors.pop("model.decoder.embed_tokens.weight")
    tables = {name: table(seed * differ, held) for seed, name in enumerate(names)}
    save_file(tensors | tables, tmp_path / "model.safetensors", metadata={"format": "pt"})
    theirs = WhisperForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.float32).eval()
    ours = load_model(str(tmp_path))
    pairs: Iterable[tuple[str, Tensor]] = (
        ("model.decoder.embed_tokens.weight", theirs.model.decoder.embed_tokens.weight),
        ("lm_head.matrix.weight", theirs.proj_out.weight),
    )
    for path, wanted in pairs:
        assert torch.equal(ours.get_parameter(path), wanted)
