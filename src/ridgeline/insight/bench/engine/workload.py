"""A workload: requests that an engine receives at once. A file contains several by name.

    {
      "batch16": {"sequences": 16, "prompt": 128, "output": 128, "temperature": 0.8, "top_p": 0.95},
      "mixed": {"requests": 64, "prompt": [32, 512], "output": [16, 128], "seed": 0}
    }

Lengths are fixed, or drawn uniformly from the first number to the second. Tokens are random too: the same file and seed
give the same prompts in any engine that draws them this way.
"""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from typing_extensions import override

from ridgeline.engine.params import SamplingParams
from ridgeline.util.untrusted import read_object

MAX_COUNT = 1 << 20
"""The maximum number of requests in a workload, and of prompt tokens and of output tokens in one request."""
MAX_TOKENS = 1 << 24
"""The maximum number of prompt tokens in a workload, which are Python integers while it runs."""

_IDS = range(5, 1999)  # ids that most vocabularies have, without those that are often special tokens
_SHAPES = (
    '{"sequences": 16, "prompt": 128, "output": 128} or '
    '{"requests": 64, "prompt": [32, 512], "output": [16, 128], "seed": 0}'
)
_LENGTHS = ("prompt", "output")
_MORE = ("seed", "temperature", "top_p")


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """A request: the token ids of its prompt, and the number of tokens to generate."""

    prompt: list[int]
    output: int


@dataclass(frozen=True, slots=True)
class EngineWorkload:
    """A number of simultaneous requests with their lengths and sampling parameters."""

    name: str
    requests: int
    prompt: tuple[int, int]
    """The minimum and maximum prompt length in tokens."""
    output: tuple[int, int]
    """The minimum and maximum number of output tokens."""
    mixed: bool
    """Whether lengths are drawn, so that requests start and end at different times.

    Otherwise all are alike, and prefill and decode times can be separated.
    """
    seed: int = 1
    temperature: float = 0.0
    top_p: float = 1.0

    @property
    def longest(self) -> int:
        """The maximum length of a request, prompt and output together."""
        return self.prompt[1] + self.output[1]

    def asks(self, vocabulary: int) -> list[WorkloadRequest]:
        """Return the workload's requests, with random token ids below the given vocabulary size as prompts.

        Raises:
            ValueError: If the vocabulary is too small to draw from.
        """
        ids = range(_IDS.start, min(_IDS.stop, vocabulary))
        if not ids:
            raise ValueError(
                f"the model has only {vocabulary} token ids, but prompts are drawn from ids from {_IDS.start} on; use "
                "a model with a larger vocabulary"
            )
        # Other engines draw the same prompts only if the order of draws is the same: length, tokens, output.
        draw = random.Random(self.seed)
        return [
            WorkloadRequest(
                [draw.choice(ids) for _ in range(self._length(self.prompt, draw))], self._length(self.output, draw)
            )
            for _ in range(self.requests)
        ]

    def _length(self, between: tuple[int, int], draw: random.Random) -> int:
        return draw.randint(*between) if self.mixed else between[0]

    def params(self, output: int) -> SamplingParams:
        """Return sampling parameters that generate exactly `output` tokens, ignoring the end token."""
        return SamplingParams(temperature=self.temperature, top_p=self.top_p, max_tokens=output, ignore_eos=True)

    @override
    def __str__(self) -> str:
        """Describe the workload, such as `16 x 128 in, 128 out`."""
        given, made = (f"{a:,}" if a == b else f"{a:,}-{b:,}" for a, b in (self.prompt, self.output))
        sampled = f", temperature {self.temperature:g}, top-p {self.top_p:g}" if self.temperature else ""
        return f"{self.requests:,} x {given} in, {made} out{sampled}"


def read_workloads(path: Path) -> dict[str, EngineWorkload]:
    """Return the workloads of a file by name.

    Raises:
        ValueError: If the file is invalid; the one-line message names the file and, if one is wrong, the workload.
    """
    found = read_object(path, unique=True)
    if not found:
        raise ValueError(f'{path} defines no workload; write one like {{"batch16": {_SHAPES.partition(" or ")[0]}}}')
    return {name: _workload(f"{path}: workload {name!r}", name, fields) for name, fields in found.items()}


def choose(workloads: Mapping[str, EngineWorkload], names: Collection[str]) -> list[EngineWorkload]:
    """Return the workloads with the given names, in that order; all of them if no name is given.

    Raises:
        ValueError: If a name is unknown.
    """
    for name in names:
        if name not in workloads:
            near = get_close_matches(name, workloads, 1)
            meant = f"; did you mean {near[0]}?" if near else f"; the file has {', '.join(workloads)}"
            raise ValueError(f"there is no workload {name!r}{meant}")
    return [workloads[name] for name in dict.fromkeys(names or workloads)]


def _workload(where: str, name: str, fields: Any) -> EngineWorkload:
    if not isinstance(fields, dict):
        raise ValueError(f"{where} is not an object; write it like {_SHAPES}")
    kinds = [kind for kind in ("sequences", "requests") if kind in fields]
    if len(kinds) != 1:
        wrong = "neither sequences nor requests"
        if kinds:
            wrong = "both sequences (of equal length) and requests (of random lengths)"
        raise ValueError(f"{where} has {wrong}; write it like {_SHAPES}")
    (kind,) = kinds
    _check_keys(where, fields, kind)
    mixed = kind == "requests"
    read = _between if mixed else _fixed
    prompt, output = (read(where, key, fields[key]) for key in _LENGTHS)
    seed = fields.get("seed", 1)
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise ValueError(f"{where}: seed is {seed!r}; give a whole number")
    own = {key: fields[key] for key in ("temperature", "top_p") if key in fields}
    try:
        SamplingParams(**own)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    requests = _count(where, kind, fields[kind])
    if requests * prompt[1] > MAX_TOKENS:
        raise ValueError(
            f"{where} has up to {requests * prompt[1]:,} prompt tokens in total; give at most {MAX_TOKENS:,}"
        )
    return EngineWorkload(name, requests, prompt, output, mixed, seed, **own)


def _check_keys(where: str, fields: Mapping[str, Any], kind: str) -> None:
    """Check that a workload has all required keys and no unknown ones.

    Raises:
        ValueError: If it does not.
    """
    for key in _LENGTHS:
        if key not in fields:
            raise ValueError(f"{where} has no {key}; write it like {_SHAPES}")
    known = (kind, *_LENGTHS, *_MORE)
    for key in fields:
        if key not in known:
            raise ValueError(f"{where} has the unknown key {key!r}; known keys are {', '.join(known)}")


def _count(where: str, key: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_COUNT:
        raise ValueError(f"{where}: {key} is {value!r}; give a whole number from 1 to {MAX_COUNT:,}")
    return value


def _fixed(where: str, key: str, value: Any) -> tuple[int, int]:
    if isinstance(value, list):
        raise ValueError(
            f"{where}: {key} is {value!r}; sequences have equal lengths: give one number, or use requests instead of "
            "sequences"
        )
    length = _count(where, key, value)
    return length, length


def _between(where: str, key: str, value: Any) -> tuple[int, int]:
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
        raise ValueError(f"{where}: {key} is {value!r}; give a minimum and a maximum, like [32, 512]")
    least, most = (_count(where, key, each) for each in value)
    if least > most:
        raise ValueError(f"{where}: {key} is {value!r}; the minimum comes first: give {[most, least]}")
    return least, most
