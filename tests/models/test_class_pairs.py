"""Features in pairs, with models whose definition is a class of transformers: the results stay those of transformers.

References are transformers in fp32 (`generate` or whole forwards of the class's eager code), or the same engine without
the second feature.
"""

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from checkpoint.test_compressed_tensors import ASYMMETRIC, INT4, PACKED, section
from engine.folders import CHAT, write_model, write_tokenizer
from engine.small_models import greedy
from engine.test_metamorphic import Subject, Way, check_guessed, check_way, make_trace
from models.comparing import off
from models.test_class_decoders import generated, logits_of
from ridgeline.core.checkpoint import open_source
from ridgeline.core.checkpoint.checkpoint_quantiser import quantise_folder
from ridgeline.core.models.common.sizes import sizes_of
from ridgeline.core.ops.embedding import Embedding
from ridgeline.core.text import load_tokenizer
from ridgeline.engine.async_llm import AsyncLLM
from ridgeline.engine.embedding_llm import EmbeddingLLM
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.llm import LLM
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.result import Completion
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.setup import load_engine
from ridgeline.engine.speculation.config import Speculation
from ridgeline.insight.trace.attention_weights import attention_at
from ridgeline.insight.trace.capture import capture
from ridgeline.insight.trace.request_trace import TraceOptions, check
from ridgeline.server.server_settings import ServerSettings
from ridgeline.server.service import Service
from server.conftest import Everybody, Running, running
from support.adapters import merged, write_adapter
from support.engines import uncached_logits
from support.layouts import packed
from support.registered_classes import load_class, random_class_model
from text.tiny_tokenizers import byte_level

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["n"],
    "additionalProperties": False,
}
SHORT_OF_PAGES = Limits(requests=8, tokens=32, chunk=7)


def class_folder(model_type: str, folder: Path, seed: int = 3, **changes: Any) -> PreTrainedModel:
    """Write a folder with a small random model of a class and a tokenizer of bytes, and return the model."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = write_tokenizer(folder, byte_level(), CHAT)
    tokens = {"bos_token_id": vocabulary - 4, "eos_token_id": vocabulary - 3, "pad_token_id": 0, **changes}
    per_layer = {"vocab_size_per_layer_input": vocabulary} if model_type.startswith("gemma3n") else {}
    model = random_class_model(model_type, seed, vocab_size=vocabulary, **per_layer, **tokens)
    model.save_pretrained(folder)
    return model


def prompts_of(vocabulary: int = 250) -> list[list[int]]:
    """Return prompts of several lengths, most of which begin alike."""
    generator = torch.Generator().manual_seed(1)

    def tokens(length: int) -> list[int]:
        return torch.randint(3, vocabulary, (length,), generator=generator).tolist()

    stem = tokens(25)
    return [stem[:shared] + tokens(own) for shared, own in ((25, 4), (25, 9), (17, 13), (0, 5), (25, 1), (8, 30))]


def engine_of(folder: Path, **settings: Any) -> LLM:
    return LLM(str(folder), EngineSettings(**{"kv_bytes": 2**24, **settings}), threads=1)


def tokens_of(completions: Sequence[Completion]) -> list[list[int]]:
    return [choice.token_ids for completion in completions for choice in completion.choices]


# -- the prefix cache, preemption, aborts and speculation --------------------------------------------------------------

WAYS = (
    Way("preempted", 7, prefix_cache=True, page_size=4, aborts=False),
    Way("many", None, prefix_cache=True, page_size=4, aborts=True),
)


@pytest.fixture(scope="module", params=["apertus", "gemma3n_text", "laguna", "opt"])
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """Return a model of a class, and what transformers answers."""
    theirs, folder = random_class_model(request.param, seed=3), tmp_path_factory.mktemp("model")
    theirs.save_pretrained(folder)
    every = make_trace(random.Random(1).choices(range(3, 88), k=120))
    trace = (*every[:2], every[3], every[8])
    answer = partial(greedy, lambda ids: logits_of(theirs, list(ids)))
    return Subject(load_class(folder), trace, {asked: answer(asked.prompt, asked.max_tokens) for asked in trace})


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_pages_are_shared_and_taken_away(subject: Subject, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare all logits with those of transformers; pages that are free hold NaN."""
    check_way(subject, way, monkeypatch)


def test_drafts_beside_shared_pages(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let drafts be right and wrong while prefixes are shared and neighbours are aborted."""
    check_guessed(subject, WAYS[1], monkeypatch)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[PreTrainedModel, Path]]:
    """Return models of classes with one tokenizer."""
    root = tmp_path_factory.mktemp("models")
    return {name: (class_folder(name, root / name), root / name) for name in ("seed_oss", "olmoe")}


def test_draft_models(folders: dict[str, tuple[PreTrainedModel, Path]], tmp_path: Path) -> None:
    """Compare drafts by a class for a class, by a class for a family, and by a family for a class."""
    own = write_model(tmp_path / "own", template=CHAT)
    (dense, first), (_, second) = folders["seed_oss"], folders["olmoe"]
    prompts = prompts_of()
    alone = [generated(dense, prompt) for prompt in prompts]
    for target, draft, wanted in (
        (first, first, alone),
        (first, second, alone),
        (first, own, alone),
        (own, first, tokens_of(engine_of(own).generate(prompts, GREEDY))),
    ):
        llm = engine_of(target, speculation=Speculation("draft_model", 3, model=str(draft)), page_size=4)
        assert tokens_of(llm.generate(prompts, GREEDY)) == wanted
        assert llm.engine.stats.drafts > 0


@pytest.mark.parametrize("kv", ["int8", "fp8"])
def test_narrow_keys_and_values(folders: dict[str, tuple[PreTrainedModel, Path]], kv: str) -> None:
    """Compare a memory that holds one request, with chunks and the prefix cache, with one that holds all."""
    folder, prompts, params = folders["seed_oss"][1], prompts_of(), replace(GREEDY, max_tokens=12)
    wanted = tokens_of(engine_of(folder, kv=kv, prefix_cache=False).generate(prompts, params))
    small = engine_of(folder, kv=kv, kv_bytes=10_000, context=56, page_size=4, limits=SHORT_OF_PAGES)
    assert tokens_of(small.generate(prompts * 2, params)) == wanted * 2
    assert small.engine.scheduler.preemptions > 0


# -- weights in fewer bits, and adapters -------------------------------------------------------------------------------


def stand_for(model: PreTrainedModel, folder: Path) -> None:
    """Store the matrices of a model's layers in int4 as compressed-tensors does, and give the model what they mean."""
    stored, quantise = load_file(folder / "model.safetensors"), packed(4, 16, symmetric=False)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name != "lm_head":
            tensors, numbers = quantise(module.weight.numpy())
            del stored[f"{name}.weight"]
            stored |= {f"{name}.{part}": tensor for part, tensor in tensors.items()}
            module.weight.data = torch.from_numpy(numbers)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = section(PACKED, INT4 | ASYMMETRIC)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def test_adapters_on_int4_share_a_batch(tmp_path: Path) -> None:
    """Compare two adapters and none, in one batch, with transformers on the numbers that the codes stand for."""
    theirs = class_folder("seed_oss", tmp_path / "model")
    stand_for(theirs, tmp_path / "model")
    places = {"a": ["q_proj", "o_proj", "down_proj"], "b": ["v_proj", "gate_proj"]}
    adapters = {name: write_adapter(tmp_path / name, theirs, ends, seed=ord(name)) for name, ends in places.items()}
    llm = engine_of(tmp_path / "model", adapters={name: str(path) for name, path in adapters.items()})
    prompt = prompts_of()[0]
    completions = llm.generate([prompt] * 3, GREEDY, adapter=["a", "b", ""])
    models = (merged(theirs, adapters["a"]), merged(theirs, adapters["b"]), theirs)
    wanted = [generated(model, prompt) for model in models]
    assert tokens_of(completions) == wanted
    assert len(set(map(tuple, wanted))) == 3


# -- over HTTP ---------------------------------------------------------------------------------------------------------


@contextmanager
def served(folder: Path, **settings: Any) -> Iterator[Running]:
    llm = AsyncLLM(load_engine(str(folder), EngineSettings(**settings)))
    with closing(llm), running(Service(llm, Everybody()), ServerSettings(models=("m",))) as server:
        yield server


FORMS: Mapping[str, tuple[Mapping[str, Any], Any]] = {
    "json": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": SCHEMA}}},
        lambda text: jsonschema.validate(json.loads(text), SCHEMA) is None,
    ),
    "regex": ({"guided_regex": "[a-f]{3}[0-9]"}, lambda text: re.fullmatch("[a-f]{3}[0-9]", text)),
    "choice": ({"guided_choice": ["red", "blue"]}, lambda text: text in ("red", "blue")),
}


def test_structured_outputs_over_http_short_of_pages(folders: dict[str, tuple[PreTrainedModel, Path]]) -> None:
    """Ask for eight texts of each form at once; the KV memory holds less than two of the longest."""
    settings = {"kv_bytes": 3 * 2**14, "context": 48, "page_size": 4, "limits": SHORT_OF_PAGES}
    with served(folders["olmoe"][1], **settings) as server, ThreadPoolExecutor(3) as pool:

        def ask(name: str) -> None:
            fields, fits = FORMS[name]
            body = {"prompt": ["Tell me.", "Tell", "Me.", "Once"], "max_tokens": 40, "seed": 3, "n": 2, **fields}
            reply = server.post("/v1/completions", body)
            assert reply.status == 200, reply.data
            for choice in reply.json()["choices"]:
                assert choice["finish_reason"] == "stop"
                assert fits(choice["text"])

        list(pool.map(ask, FORMS))
        assert server.service.llm.stats.preemptions > 0
        server.idle()


def test_log_probabilities_and_stop_strings_over_http(folders: dict[str, tuple[PreTrainedModel, Path]]) -> None:
    """Compare log-probabilities with transformers, and a stream that a stop string ends with the text without it."""
    theirs, folder = folders["olmoe"]
    prompt = prompts_of()[0]
    body = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
    with served(folder, kv_bytes=2**22, speculation=Speculation("ngram", 3, shortest=1)) as server:
        more = {"prompt": prompt, "logprobs": 2, "return_token_ids": True}
        choice = server.post("/v1/completions", body | more).json()["choices"][0]
        scores_TV = logits_of(theirs, prompt + choice["token_ids"]).log_softmax(-1)
        wanted = [scores_TV[len(prompt) - 1 + place, token] for place, token in enumerate(choice["token_ids"])]
        torch.testing.assert_close(torch.tensor(choice["logprobs"]["token_logprobs"]), torch.stack(wanted))
        whole = server.post("/v1/completions", body | {"prompt": "hello"}).json()["choices"][0]["text"]
        stop = whole[4:6]
        lines = server.post("/v1/completions", body | {"prompt": "hello", "stop": stop, "stream": True}).data.decode()
        pieces = [json.loads(line[6:])["choices"][0]["text"] for line in lines.split("\n\n") if line[:7] == "data: {"]
        assert "".join(pieces) == whole[: whole.index(stop)]


# -- traces ------------------------------------------------------------------------------------------------------------


def test_a_trace_looks_into_attention_only(folders: dict[str, tuple[PreTrainedModel, Path]]) -> None:
    """Compare the weights of a token with those that the class's own attention returns."""
    theirs, folder = folders["olmoe"]
    prompt, llm = prompts_of()[0], engine_of(folder)
    given = attention_at(capture(llm.loaded.model, prompt, 20).attention, 20)
    wanted = theirs(input_ids=torch.tensor([prompt]), use_cache=False, output_attentions=True).attentions
    for layer, weights_1HTT in zip(given.weights, wanted, strict=True):
        torch.testing.assert_close(torch.tensor(layer), weights_1HTT[0, :, 20, :21])
    for look in (TraceOptions(lens=True), TraceOptions(memory=True), TraceOptions(experts=True)):
        with pytest.raises(ValueError, match=r"for a model traced from transformers 5\..*, a trace shows only"):
            check(llm, prompt, look)


# -- vectors of decoders -----------------------------------------------------------------------------------------------


def write_pooling(folder: Path) -> None:
    """Write that the last token's state is the vector, as sentence-transformers does."""
    kinds = {"": "Transformer", "1_Pooling": "Pooling"}
    modules = [
        {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for place, (path, kind) in enumerate(kinds.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    (folder / "1_Pooling").mkdir()
    pooling = {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling), encoding="utf-8")


@pytest.mark.parametrize("model_type", ["gemma3n_text", "cohere2_moe", "gpt_neox", "electra"])
@pytest.mark.parametrize("headless", [False, True], ids=["with a head", "without a head"])
def test_vectors_of_a_decoder(model_type: str, headless: bool, tmp_path: Path) -> None:
    """Compare with the states of transformers: heads that are tied or not, and checkpoints without one."""
    theirs: Any = class_folder(model_type, tmp_path)
    if headless:
        theirs.base_model.save_pretrained(tmp_path)
    write_pooling(tmp_path)
    llm, tokenizer = EmbeddingLLM(str(tmp_path), threads=1), load_tokenizer(tmp_path)
    texts = ["a b c", "hello there, how is it going", "z"]
    for text, vector in zip(texts, llm.embed(texts), strict=True):
        ids_1T = torch.tensor([tokenizer.encode(text)])
        wanted_D = theirs.base_model(input_ids=ids_1T, use_cache=False).last_hidden_state[0, -1]
        assert off(torch.from_numpy(vector.values), wanted_D) < 1e-5


def test_a_quantised_copy_embeds_too(tmp_path: Path) -> None:
    """Compare with quantising while loading; the copy needs the folder of the pooling."""
    class_folder("seed_oss", tmp_path / "model")
    write_pooling(tmp_path / "model")
    quantise_folder(open_source(str(tmp_path / "model")), tmp_path / "copy", "int8")
    copied = EmbeddingLLM(str(tmp_path / "copy"), threads=1)
    loaded = EmbeddingLLM(str(tmp_path / "model"), EngineSettings(weights="int8"), threads=1)
    ours, wanted = (llm.embed(["hello there"])[0].values for llm in (copied, loaded))
    assert off(torch.from_numpy(ours), torch.from_numpy(wanted)) < 1e-5


# -- what a checkpoint may have ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("model_type", ["gemma3n_text", "vaultgemma"])
def test_a_padding_token_outside_of_small_tables(model_type: str, tmp_path: Path) -> None:
    """Take embeddings with a scale, which are recognised by their results in a table of a few rows."""
    theirs = class_folder(model_type, tmp_path, pad_token_id=200)
    model = load_class(tmp_path)
    assert {op.entries for _, op in model.ops_of(Embedding)} == {theirs.config.get_text_config().vocab_size}
    assert engine_of(tmp_path, weights="int8+head").generate(["hello"], GREEDY)[0].choices[0].token_ids


@pytest.mark.parametrize("model_type", ["electra", "gemma3n_text"])
def test_the_hidden_size_is_the_width_of_the_states(model_type: str, tmp_path: Path) -> None:
    """Take a class with narrower embeddings, and one with several."""
    theirs = random_class_model(model_type, seed=3)
    theirs.save_pretrained(tmp_path)
    assert sizes_of(load_class(tmp_path)).hidden == theirs.config.hidden_size


@pytest.mark.parametrize("stored", ["another head", "the same head"])
def test_a_config_that_ties_and_a_checkpoint_with_a_head(stored: str, tmp_path: Path) -> None:
    """Check what transformers 5 does: a head that differs is used, an equal one is tied."""
    theirs: Any = random_class_model("seed_oss", seed=3, tie_word_embeddings=False)
    if stored == "the same head":
        theirs.lm_head.weight.data = theirs.model.embed_tokens.weight.data.clone()
    theirs.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}), encoding="utf-8")
    prompt = prompts_of(88)[0]
    model = load_class(tmp_path)
    assert off(uncached_logits(model, [prompt])[0], logits_of(theirs, prompt)) < 1e-5
    assert model.tied == (stored == "the same head")


@pytest.mark.parametrize("model_type", ["apertus", "gpt_neox", "opt"])
def test_bf16_is_as_near_to_fp32_as_in_transformers(model_type: str, tmp_path: Path) -> None:
    """Compare the root mean square of the errors of both, in dense models, where no router turns to another expert."""

    def error(logits_TV: Tensor, exact_TV: Tensor) -> float:
        return float((logits_TV - exact_TV).pow(2).mean().sqrt())

    theirs: Any = random_class_model(model_type, seed=3)
    theirs.to(torch.bfloat16)
    twin = deepcopy(theirs).float()
    theirs.save_pretrained(tmp_path)
    prompts = prompts_of(88)
    ours = torch.cat(uncached_logits(load_class(tmp_path), prompts))
    half, exact = (torch.cat([logits_of(model, each) for each in prompts]) for model in (theirs, twin))
    assert 0 < error(ours, exact) < 1.3 * error(half.float(), exact)
