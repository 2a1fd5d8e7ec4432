"""The requests that an exported page plays: recorded here, or by a server."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ridgeline.cli.options import device_named
from ridgeline.cli.terminal import counting_bar
from ridgeline.engine.llm import LLM
from ridgeline.page.recorder import record
from ridgeline.page.recording import VERSION
from ridgeline.untrusted import read_object

MODEL, USUAL = "tales", "Once upon a time, there was a little dog named"
"""What runs where a prompt is recorded, and the prompt where none is given."""

_SEED = 1


def recordings(asked: Sequence[str] | None) -> list[Any]:
    """A recording of each: a .json file that `/page/trace` answered with, or else a prompt. None: of the usual prompt.
    An empty one is left out. Raises ValueError for what cannot be recorded or read."""
    wanted = [each for each in ([USUAL] if asked is None else asked) if each]
    files = {each: _read(Path(each)) for each in wanted if each.endswith(".json")}
    prompts = [each for each in wanted if each not in files]
    made = files | _recorded(prompts)
    return [made[each] for each in wanted]


def _recorded(prompts: Sequence[str]) -> dict[str, Any]:
    """Recordings of prompts, by them."""
    if not prompts:
        return {}
    llm = LLM(MODEL)
    rules = replace(llm.loaded.defaults, seed=_SEED)
    ids = {prompt: llm.encode(prompt) for prompt in prompts}
    made = {}
    with counting_bar("recordings", len(prompts)) as done:
        device = device_named("this", llm.threads)
        for count, prompt in enumerate(prompts, 1):
            made[prompt] = record(llm.loaded, MODEL, prompt, ids[prompt], rules, device)
            done(count)
    return made


def _read(path: Path) -> dict[str, Any]:
    """The recording in a file. Raises ValueError."""
    told = read_object(path)
    if told.get("version") != VERSION or not isinstance(told.get("steps"), list):
        raise ValueError(f"--trace {path} holds no recording of version {VERSION}; give what POST /page/trace answers")
    return told
