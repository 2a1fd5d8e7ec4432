"""`ridgeline translate`, and what other commands do with an encoder-decoder: a small random T5 that reads bytes."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM

from cli.running import OK, REFUSED, USAGE, Run, assert_one_line
from support.checkpoints import edit_config, random_model
from support.embedders import write_bert
from text.tiny_tokenizers import write_bytes

CONFIG = {
    "vocab_size": 263, "d_model": 24, "d_kv": 6, "d_ff": 28, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4,
    "feed_forward_proj": "gated-gelu", "n_positions": 48, "decoder_start_token_id": 0, "pad_token_id": 0,
    "eos_token_id": None,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A T5 folder that a test may break."""
    path = tmp_path / "pebble"
    torch.manual_seed(5)
    AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model("t5", **CONFIG), dtype=torch.float32).save_pretrained(path)
    write_bytes(path)
    edit_config(path, scale_decoder_outputs=None)
    (path / "generation_config.json").write_text(json.dumps({"temperature": 0.0}), encoding="utf-8")
    return path


def test_texts_are_answered_a_line_each(ridgeline: Run, folder: Path) -> None:
    """As arguments and from standard input alike, together as alone; a line without text stays one."""
    flags = ("--model", folder, "--max-tokens", 7, "--ignore-eos")
    alone = [ridgeline("translate", text, *flags) for text in ("stone", "a river")]
    assert all(ended.code == OK for ended in alone), alone[0].err
    both = ridgeline("translate", "stone", "a river", *flags)
    assert both.out == "".join(ended.out for ended in alone)
    piped = ridgeline("translate", "-", *flags, stdin="stone\n\na river\n")
    first, second = (ended.out for ended in alone)
    assert piped.out == f"{first}\n{second}"
    assert "cut off after 7 tokens" in both.err


def test_json_is_one_object(ridgeline: Run, folder: Path) -> None:
    ended = ridgeline("translate", "stone", "a river", "--model", folder, "--max-tokens", 5, "--ignore-eos", "--json")
    assert ended.code == OK, ended.err
    first, second = ended.json["translations"]
    assert (first["text"], second["text"]) == ("stone", "a river")
    assert len(first["token_ids"]) == 5
    assert first["prompt_tokens"] == 1 + len("stone")
    assert first["finish_reason"] == "length"


def test_the_prompt_of_run_is_what_the_encoder_reads(ridgeline: Run, folder: Path) -> None:
    most = ("--max-tokens", 6, "--ignore-eos", "--json")
    told = ridgeline("translate", "stone", "--model", folder, *most).json["translations"][0]
    ran = ridgeline("run", folder, "stone", *most)
    assert ran.code == OK, ran.err
    assert ran.json["token_ids"] == told["token_ids"]


def test_beams_are_named_and_not_ignored(ridgeline: Run, folder: Path) -> None:
    asked = {"temperature": 0.0, "num_beams": 4, "no_repeat_ngram_size": 3}
    (folder / "generation_config.json").write_text(json.dumps(asked), encoding="utf-8")
    ended = ridgeline("translate", "stone", "--model", folder, "--max-tokens", 3)
    assert ended.code == OK
    assert "sets num_beams, which this version does not support" in " ".join(ended.err.split())
    assert "sets no_repeat_ngram_size, which this version does not support" in " ".join(ended.err.split())


def test_what_cannot_be_translated_is_one_line(ridgeline: Run, folder: Path, tmp_path: Path) -> None:
    assert_one_line(ridgeline("translate", "", "--model", folder), USAGE, "nothing to translate")
    long = ridgeline("translate", "stone " * 9, "--model", folder)
    assert_one_line(long, USAGE, "the encoder input has", "reads at most 48: shorten it")
    assert_one_line(ridgeline("translate", "stone " * 999, "--model", folder), USAGE, "shorten it")
    for text in ("stone " * 9, "stone " * 999):
        second = ridgeline("translate", "stone", text, "a river", "--model", folder)
        assert_one_line(second, USAGE, "ridgeline: prompt 2 of 3: the ", "shorten it")
    much = ridgeline("translate", "stone", "--model", folder, "--max-tokens", "1k")
    assert_one_line(much, USAGE, "the model's context is 48; give --max-tokens 47 or less")
    decoder = {"vocab_size": 263, "hidden_size": 24, "intermediate_size": 28, "num_hidden_layers": 1,
               "num_attention_heads": 4, "max_position_embeddings": 32}  # fmt: skip
    random_model("llama", decoder, 0).save_pretrained(tmp_path / "llama")
    write_bytes(tmp_path / "llama")
    assert_one_line(ridgeline("translate", "hi", "--model", tmp_path / "llama"), USAGE, "has no encoder")
    write_bert(tmp_path / "bert")
    assert_one_line(ridgeline("translate", "hi", "--model", tmp_path / "bert"), REFUSED, "use ridgeline embed")
    edit_config(folder, decoder_start_token_id=None, bos_token_id=None)
    assert_one_line(ridgeline("translate", "hi", "--model", folder), REFUSED, "decoder_start_token_id")


def test_an_answer_that_is_cut_off_says_what_would_help(ridgeline: Run, folder: Path) -> None:
    """More tokens, where there is room for them."""
    few = ridgeline("translate", "stone", "--model", folder, "--max-tokens", 3, "--ignore-eos")
    assert few.err == "cut off after 3 tokens: 'stone'; give --max-tokens\n"
    full = ridgeline("translate", "stone", "--model", folder, "--ignore-eos")
    assert full.err == "cut off after 47 tokens: 'stone'; the context is full\n"


def test_a_trace_shows_what_was_read_for_each_token(ridgeline: Run, folder: Path) -> None:
    asked = (
        "trace",
        folder,
        "stone",
        "--attention",
        "--max-tokens",
        4,
        "--repeats",
        1,
        "--threads",
        1,
        "--device",
        "a10",
    )
    ended = ridgeline(*asked, "--layer", 0)
    assert ended.code == OK, ended.err
    page = " ".join(ended.out.split())
    assert "Cross-attention of layer 0, mean of its 4 heads" in page
    assert "‹s› ‹t› ‹o› ‹n› ‹e› most" in page
    cross = ridgeline(*asked, "--json").json["cross"]
    assert [token["piece"] for token in cross["sources"]] == ["<|endoftext|>", *"stone"]
    assert len(cross["weights"]) == 2
    for layer in cross["weights"]:
        assert len(layer) == len(cross["produced"]) >= 2
        assert [sum(row) for row in layer] == pytest.approx([1.0] * len(layer))
    lens = ridgeline("trace", folder, "stone", "--lens")
    assert_one_line(lens, USAGE, "for an encoder-decoder, a trace shows only --attention")


def test_a_request_is_priced_with_its_encoder(ridgeline: Run) -> None:
    """The encoder's ops are in the prefill alone."""
    ended = ridgeline("trace", "flan-t5-base", "--priced", "h100-sxm", "--input", 200, "--json")
    assert ended.code == OK, ended.err
    prefill, decode = (ended.json["steps"][name]["flops"] for name in ("prefill", "decode"))
    assert prefill > 50 * decode > 0
    long = ridgeline("trace", "flan-t5-base", "--priced", "h100-sxm", "--input", "1k")
    assert_one_line(long, USAGE, "the prompt has 1,024 tokens, but the model's encoder takes at most 512")
