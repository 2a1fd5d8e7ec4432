"""The log-probabilities of completions: where in the text that was sent each token is, and an entry for each
alternative, however its bytes read."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from engine.folders import write_model
from ridgeline.core.text import PromptPart, Tokenizer
from ridgeline.core.text.vocabulary import Vocabulary
from ridgeline.engine.async_llm import AsyncLLM
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.llm import LLM
from ridgeline.engine.sampling import Sampled, SampleRow
from ridgeline.engine.setup import LoadedEngine, load_engine
from ridgeline.engine.step_plan import StepPlan
from ridgeline.server.routes.logprobs import TokenNames
from ridgeline.server.server_settings import ServerSettings
from ridgeline.server.service import Service
from server.conftest import Everybody, Running, running

PATH = "/v1/completions"
KINDS = ("bytes", "words")


class Spelled(Tokenizer):
    """A vocabulary that is only read."""

    def _encode_parts(self, parts: Sequence[PromptPart]) -> list[int]:
        raise NotImplementedError


class Says:
    """An executor that says a script, one for each choice, and that each token was certain."""

    def __init__(self, *scripts: Sequence[int]) -> None:
        self.scripts = scripts

    def execute(self, plan: StepPlan, rows: Sequence[SampleRow]) -> Sequence[Sampled]:
        said = [self.scripts[row.choice % len(self.scripts)][row.generated] for row in rows]
        return [Sampled(token, 0.0, 0.0, ((token, 0.0),), ((token, 0.0),)) for token in said]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Random models: one of byte-level BPE, and one of pieces with a dummy space and byte fallback."""
    return {kind: str(write_model(tmp_path_factory.mktemp(kind), pieces=kind)) for kind in KINDS}


@pytest.fixture(scope="module")
def loaded(folders: dict[str, str]) -> dict[str, LoadedEngine]:
    return {kind: load_engine(folder, EngineSettings(kv_bytes=4e6)) for kind, folder in folders.items()}


@pytest.fixture(scope="module")
def servers(loaded: dict[str, LoadedEngine]) -> Iterator[dict[str, Running]]:
    llms = {kind: AsyncLLM(each) for kind, each in loaded.items()}
    settings = ServerSettings(models=("m",))
    with (
        running(Service(llms["bytes"], Everybody()), settings) as first,
        running(Service(llms["words"], Everybody()), settings) as second,
    ):
        yield {"bytes": first, "words": second}
    for llm in llms.values():
        llm.close()


def streamed(server: Running, body: dict[str, Any]) -> dict[int, list[dict[str, Any]]]:
    """The pieces of each choice."""
    lines = server.post(PATH, {**body, "stream": True}).data.decode().split("\n")
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    pieces: dict[int, list[dict[str, Any]]] = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        pieces.setdefault(choice["index"], []).append(choice)
    return pieces


def check_alike(choice: dict[str, Any], pieces: Sequence[dict[str, Any]]) -> None:
    """A stream says the same of its tokens, piece by piece, and never of one whose text it has not reached."""
    assert "".join(piece["text"] for piece in pieces) == choice["text"]
    assert [token for piece in pieces for token in piece["token_ids"]] == choice["token_ids"]
    for column, values in choice["logprobs"].items():
        assert [value for piece in pieces for value in piece["logprobs"][column]] == values
    sent = 0
    for piece in pieces:
        sent += len(piece["text"])
        assert max(piece["logprobs"]["text_offset"], default=0) <= sent


SAID = "né 🙂🙂 te ST漢字 STOP, more"
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "characters of several tokens": (SAID, {}),
    "one that is cut": (SAID, {"max_tokens": 6}),
    "one that is cut later": (SAID, {"max_tokens": 9}),
    "a stop string that cuts the text": (SAID, {"stop": ["STOP"]}),
    "one that begins tokens before": (SAID, {"stop": ["字 STO"]}),
    "one that is left in": (SAID, {"stop": ["STOP"], "include_stop_str_in_output": True}),
    "a stop string that begins twice": ("aaab and so on", {"stop": ["aab"]}),
    "one that waits for another": ("aabdx", {"stop": ["aabc", "b", "abde"]}),
    "special tokens without text": ("a<think>b🙂<think>c", {}),
    "special tokens with text": ("a<think>b🙂<think>c", {"skip_special_tokens": False}),
    "a first space": (" and on", {}),
    "spaces": ("   and", {}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CASES)
def test_offsets_are_places_in_the_text_that_was_sent(
    loaded: dict[str, LoadedEngine], servers: dict[str, Running], kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole or streamed, for each choice, where text is kept back or cut off too. The prompt ends with a control token,
    after which a model of pieces drops a space."""
    said, fields = CASES[name]
    tokenizer = loaded[kind].tokenizer
    scripts = [tokenizer.encode(text, add_special=False) for text in (said, said[1:])]
    monkeypatch.setattr(loaded[kind].engine, "executor", Says(*([*ids, *tokenizer.eos_ids] for ids in scripts)))
    body = {"prompt": [tokenizer.control["<bos>"]], "max_tokens": 99, "logprobs": 1, "n": 2, "return_token_ids": True}
    body |= fields
    choices = servers[kind].post(PATH, body).json()["choices"]
    pieces = streamed(servers[kind], body)
    for choice in choices:
        text, offsets = choice["text"], choice["logprobs"]["text_offset"]
        assert offsets == sorted(offsets)
        assert 0 == offsets[0] <= offsets[-1] <= len(text)
        for token, place in zip(choice["token_ids"], offsets, strict=True):
            own = tokenizer.token_bytes(token, fields.get("skip_special_tokens", True)).decode("utf-8", "replace")
            shown = own[1:] if tokenizer.strips_space and place == 0 and own.startswith(" ") else own
            if "\ufffd" not in own and place + len(shown) <= len(text):
                assert text.startswith(shown, place), (text, place, own)
        check_alike(choice, pieces[choice["index"]])
    servers[kind].idle()


def places(data: Sequence[bytes], dropped: bool) -> list[int]:
    """Where tokens of these bytes are in their text, of which a first space may be dropped."""
    starts = [b"".join(data[:at]) + own[:1] for at, own in enumerate(data)]
    ends = [len(start.decode("utf-8", "replace")) - bool(own) for start, own in zip(starts, data, strict=True)]
    return [max(0, end - dropped) for end in ends]


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_offsets_of_whatever_a_model_says(
    loaded: dict[str, LoadedEngine], servers: dict[str, Running], kind: str, echo: bool
) -> None:
    """A random model says half characters. A prompt may end with one too, and is a text of its own."""
    tokenizer = loaded[kind].tokenizer
    prompts = [tokenizer.encode(text, add_special=False) for text in (" Hé 漢!", "two 🙂")]
    prompts[1].pop()
    body = {"prompt": prompts, "max_tokens": 40, "seed": 5, "logprobs": 0, "echo": echo, "n": 2}
    body |= {"return_token_ids": True, "ignore_eos": True, "temperature": 1.5}
    pieces = streamed(servers[kind], body)
    for choice in servers[kind].post(PATH, body).json()["choices"]:
        ids = prompts[choice["index"] // 2]
        prefix = tokenizer.decode(ids) if echo else ""
        assert choice["text"].startswith(prefix)
        offsets = choice["logprobs"]["text_offset"]
        asked = [tokenizer.token_bytes(token) for token in ids]
        said = [tokenizer.token_bytes(token) for token in choice["token_ids"]]
        wanted = places(asked, tokenizer.strips_space and asked[0].startswith(b" ")) if echo else []
        assert [*wanted, *(len(prefix) + place for place in places(said, dropped=False))] == offsets
        check_alike(choice, pieces[choice["index"]])
    servers[kind].idle()


def test_every_alternative_has_an_entry_of_its_own(folders: dict[str, str], servers: dict[str, Running]) -> None:
    """Half characters all read as U+FFFD, and a byte may be a piece too: no value hides another."""
    llm = LLM(folders["words"], EngineSettings(kv_bytes=4e6), threads=1)
    params = replace(llm.loaded.defaults, max_tokens=12, seed=3, logprobs=20, temperature=2.0, ignore_eos=True)
    wanted = llm.generate([5, 6], params)[0].choices[0]
    body = {"prompt": [5, 6], "max_tokens": 12, "seed": 3, "logprobs": 20, "temperature": 2.0, "ignore_eos": True}
    columns = servers["words"].post(PATH, body).json()["choices"][0]["logprobs"]
    for one, text, top in zip(wanted.tokens, columns["tokens"], columns["top_logprobs"], strict=True):
        values = dict(one.top_raw) | {one.token: one.logprob_raw}
        assert len(top) == len(values)
        assert sorted(top.values()) == pytest.approx(sorted(values.values()))
        assert top[text] == pytest.approx(one.logprob_raw)
    assert any(name.startswith("bytes:") for top in columns["top_logprobs"] for name in top)
    servers["words"].idle()


def test_names_tell_tokens_apart() -> None:
    """The one that comes first has its text; another that reads alike has its bytes, and a third one its id."""
    tokens = [b"A", b"A", b"A", b"\xe3\x81", b"\xe3\x82", b""]
    names = TokenNames(Spelled(Vocabulary(tokens, frozenset(), {}), {}))
    apart = {1: "A", 0: r"bytes:\x41", 2: "token_id:2", 3: "\ufffd", 4: r"bytes:\xe3\x82", 5: ""}
    assert names.distinct([1, 0, 2, 3, 4, 5, 1]) == apart
