"""An encoder-decoder behind `LLM` and `AsyncLLM`: its encoder reads the prompt, and what is continued is the token that
the folder states."""

import asyncio
import dataclasses
import json
from pathlib import Path

import pytest
import torch

from engine.folders import write_model
from engine.scripted import GREEDY
from models.configs import ENCODER_DECODERS
from ridgeline.core.models import ModelRefused
from ridgeline.core.ops.kv_context import Uncached
from ridgeline.core.ops.work import StepSegment
from ridgeline.engine import LLM, AsyncLLM, EngineSettings, kv_budget
from ridgeline.engine.scheduler import Limits

PARAMS = dataclasses.replace(GREEDY, max_tokens=8, ignore_eos=True)


def loaded(folder: Path, generation: dict[str, int] | None = None, **changes: int | None) -> LLM:
    """A small random T5 with these fields of its config changed."""
    config = {k: v for k, v in {**ENCODER_DECODERS["t5"], **changes}.items() if v is not None}
    return LLM(str(write_model(folder, config=config, generation=generation)))


def greedy(llm: LLM, text: str, start: int) -> list[int]:
    """What the model says token by token, the whole run again for each."""
    model, encoder, ids = llm.loaded.model, llm.encode(text), [start]
    for _ in range(8):
        kv = Uncached([StepSegment(len(ids), len(ids), len(encoder), runs_encoder=True)])
        with torch.inference_mode():
            encoded_ED = model.encode(torch.tensor(encoder), torch.arange(len(encoder)), kv)
            last = torch.tensor([len(ids) - 1])
            x_RD = model.hidden(torch.tensor(ids), torch.arange(len(ids)), kv, last, encoded_ED)
            ids.append(int(model.head(x_RD)[0].argmax()))
    return ids[1:]


def test_prompts_are_read_and_the_start_is_continued(tmp_path: Path) -> None:
    llm = loaded(tmp_path, decoder_start_token_id=7)
    texts = ["abc", "a longer text", "d"]
    told = llm.generate(texts, PARAMS)
    assert [completion.choices[0].token_ids for completion in told] == [greedy(llm, text, 7) for text in texts]
    assert [completion.prompt_ids for completion in told] == [llm.encode(text) for text in texts]
    (three,) = llm.generate("abc", dataclasses.replace(PARAMS, n=3))
    assert [choice.token_ids for choice in three.choices] == [told[0].choices[0].token_ids] * 3

    async def served() -> None:
        async with AsyncLLM(llm.loaded) as server:
            assert list(await asyncio.gather(*(server.generate(text, PARAMS) for text in texts))) == told

    asyncio.run(served())


def test_the_start_is_the_generation_configs_then_the_configs(tmp_path: Path) -> None:
    """Transformers' order; where none is stated, the beginning of a text; where there is none either, a refusal."""
    first = loaded(tmp_path / "a", {"decoder_start_token_id": 9}, decoder_start_token_id=7)
    assert first.loaded.text_processor.start == (9,)
    assert first.generate("abc", PARAMS)[0].choices[0].token_ids == greedy(first, "abc", 9)
    assert loaded(tmp_path / "b", decoder_start_token_id=None, bos_token_id=5).loaded.text_processor.start == (5,)
    with pytest.raises(
        ModelRefused, match="decoder_start_token_id is None: give the id of the token that the decoder starts with"
    ):
        loaded(tmp_path / "c", decoder_start_token_id=None)
    path = tmp_path / "a" / "generation_config.json"
    path.write_text(json.dumps({"decoder_start_token_id": "<pad>"}), encoding="utf-8")
    with pytest.raises(ModelRefused, match="decoder_start_token_id is '<pad>'"):
        LLM(str(tmp_path / "a"))


def test_memory_has_room_for_the_longest_input_of_an_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which runs alone where a step has fewer positions: then the step is as large as one of so many."""
    kept: list[dict[str, float]] = []
    monkeypatch.setattr(kv_budget, "remaining_memory", lambda _, taken, memory: kept.append(taken) or 1e9)
    folder = str(write_model(tmp_path, config=ENCODER_DECODERS["t5"]))
    for tokens in (8, 64, 100):
        LLM(folder, settings=EngineSettings(limits=Limits(tokens=tokens, requests=1)))
    few, whole, more = (taken.items() for taken in kept)
    assert [name for name, _ in few] == [name for name, _ in whole] != [name for name, _ in more]
    assert "activations in a step of 64 tokens" in dict(few)
    assert dict(few) == dict(whole)
    assert dict(more)["activations in a step of 100 tokens"] >= dict(whole)["activations in a step of 64 tokens"]


def test_a_decoder_continues_its_prompt(tmp_path: Path) -> None:
    assert LLM(str(write_model(tmp_path))).loaded.text_processor.start == ()
