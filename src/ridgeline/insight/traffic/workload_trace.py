"""A reader of recorded request traces, line by line; unknown formats are rejected rather than guessed.

| format | lines |
| --- | --- |
| Azure LLM inference | CSV `TIMESTAMP,ContextTokens,GeneratedTokens` |
| BurstGPT | CSV `Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type`, perhaps with sessions |
| Mooncake | JSONL `{"timestamp": ms, "input_length", "output_length", "hash_ids": names of blocks of 512 tokens}` |
| Qwen-Bailian | JSONL like Mooncake's, with time in seconds, blocks of 16 tokens, and the chat and turn |
| Ridgeline | JSONL as `ridgeline serve --record` writes: a header, then requests and steps |
| Ridgeline | CSV as `ridgeline bench serve --csv` writes: a line for each request that was sent |
"""

import codecs
import csv
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from ridgeline.insight.traffic.arrivals import SECOND
from ridgeline.insight.traffic.lengths import MAX_TOKENS
from ridgeline.insight.traffic.request_record import COLUMNS

_KNOWN = "known formats: Azure, BurstGPT, Mooncake, Qwen-Bailian, `serve --record` and `bench serve --csv`"
_LONGEST_LINE = 1 << 22
_LATEST = 1e15  # the largest time in any unit; larger ones are errors, and would overflow nanoseconds
_MOST_CHOICES = 1024  # choices per request, the limit of engine/params.py, which this package does not import
_LONGEST = 3 * 10**7 * SECOND  # a year; a longer trace is in another unit
_DATE = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?")
_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_BURST_GPT = ("Timestamp", "Model", "Request tokens", "Response tokens", "Total tokens", "Log Type")
_BURST_GPT_3 = ("Timestamp", "Session ID", "Elapsed time", *_BURST_GPT[1:])
_MOONCAKE = {"timestamp", "input_length", "output_length", "hash_ids"}
_MOONCAKE_BLOCK = 512
_BAILIAN = _MOONCAKE | {"chat_id", "parent_chat_id", "type", "turn"}
_BAILIAN_BLOCK = 16


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """A request of a recorded trace or of synthetic traffic, with its arrival time, lengths and block names."""

    at: int
    """The arrival time in nanoseconds from the start of the traffic; in a trace, after its first request."""
    input: int
    """The number of tokens in the prompt."""
    output: int
    """The number of tokens in the response."""
    blocks: tuple[str, ...] = ()
    """The names of the prompt's blocks of `block` tokens each, the last one possibly shorter.

    If the trace knows them, the blocks of the response follow. Requests whose names start equal share a prefix. Empty
    if the trace names no blocks.
    """
    block: int = 0
    session: int = 0
    """The number of the conversation to which the request belongs; 0 if the traffic has no conversations."""
    turn: int = 0
    """The number of the turn in its conversation, from 0; 0 for traffic without conversations."""
    slo_class: str = ""
    """The request class, which determines its objectives; empty for none."""


_Numbered = tuple[int, TraceRequest]


def read_trace(path: Path) -> Iterator[TraceRequest]:
    """Yield the requests of a trace file as it is read.

    Raises:
        ValueError: If the file is invalid; the message names the file, the problem and, if there is one, the line.
    """
    requests = _requests(path)
    first = next(requests, None)
    if first is None:
        raise ValueError(f"{path} contains no request")
    return _from_zero(path, first, requests)


def _from_zero(path: Path, first: _Numbered, rest: Iterator[_Numbered]) -> Iterator[TraceRequest]:
    """Yield requests with times relative to the first.

    Raises:
        ValueError: If a request precedes the one before it, or is over a year after the first.
    """
    start = before = first[1].at
    for number, request in chain([first], rest):
        if request.at < before:
            raise ValueError(
                f"{path}, line {number}: its time is before that of the previous request; sort the file by time"
            )
        if request.at - start > _LONGEST:
            raise ValueError(
                f"{path}, line {number}: its time is over a year after the first request; check that times are in "
                "seconds"
            )
        before = request.at
        yield replace(request, at=request.at - start)


def _requests(path: Path) -> Iterator[_Numbered]:
    """Yield the requests of a file in any known format, which the first line identifies, with their line numbers."""
    lines = _lines(path)
    first = next(lines, "")
    if first.startswith("{"):
        yield from _json_requests(path, first, lines)
        return
    head = _read(path, 1, lambda text: tuple(name.strip() for name in next(csv.reader([text]), [])), first)
    readers: dict[tuple[str, ...], Callable[[list[str]], TraceRequest]] = {
        _AZURE: _azure,
        _BURST_GPT: _burst_gpt,
        _BURST_GPT_3: lambda cells: _burst_gpt([cells[0], *cells[3:]]),
        COLUMNS: _benched,
    }
    if head not in readers:
        raise ValueError(f"{path} is not a trace in a known format: its first line is {first[:80]!r}; {_KNOWN}")
    for number, line in enumerate(lines, 2):
        if line:
            yield number, _read(path, number, partial(_row, head, readers[head]), line)


def _row(head: Sequence[str], reader: Callable[[list[str]], TraceRequest], line: str) -> TraceRequest:
    cells = next(csv.reader([line]))
    if len(cells) != len(head):
        raise ValueError(f"it has {len(cells)} cells, but the header has {len(head)}: {', '.join(head)}")
    return reader(cells)


def _json_requests(path: Path, first: str, lines: Iterator[str]) -> Iterator[_Numbered]:
    head = _read(path, 1, _fields, first)
    if set(head) >= _MOONCAKE:
        reader = _bailian if "chat_id" in head else _mooncake
        yield 1, _read(path, 1, reader, head)
        for number, line in enumerate(lines, 2):
            if line:
                yield number, _read(path, number, lambda text: reader(_fields(text)), line)
        return
    if head.get("format") != 1 or head.get("kind") != "ridgeline-record":
        has = ", ".join(sorted(head))[:80]
        raise ValueError(f"{path} is not a trace in a known format: its first line has {has}; {_KNOWN}")
    block = _read(path, 1, lambda fields: _tokens(fields["page_size"]), head)
    for number, line in enumerate(lines, 2):
        if line:
            for request in _read(path, number, partial(_of_record, block), line):
                yield number, request


# -- formats ----------------------------------------------------------------------------------------------------------


def _azure(cells: list[str]) -> TraceRequest:
    moment, given, made = cells
    return TraceRequest(_dated(moment), _tokens(_whole(given)), _tokens(_whole(made)))


def _dated(text: str) -> int:
    """Return the nanoseconds since 1970 of a date.

    Examples are `2023-11-16 18:15:46.6805900`, which has one digit more than datetime reads, and `2024-05-10
    00:00:00.009930+00:00`, as in the release of 2024.
    """
    match = _DATE.fullmatch(text.strip())
    try:
        if match is not None:
            moment = datetime.fromisoformat(match[1] + (match[3] or "Z"))
            seconds = int((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds())
            return seconds * SECOND + int(f"{match[2] or '':0<9}"[:9])
    except ValueError:  # for example a thirteenth month
        pass
    raise ValueError(f"{text.strip()[:40] or 'nothing'} is not a time like 2023-11-16 18:15:46.5")


def _burst_gpt(cells: list[str]) -> TraceRequest:
    moment, _, given, made, _, kind = cells
    return TraceRequest(_moment(_number(moment)), _tokens(_whole(given)), _made(_whole(made)), slo_class=kind.strip())


def _benched(cells: list[str]) -> TraceRequest:
    """Return the request of a line in a benchmark's CSV export.

    Raises:
        ValueError: If it was not completed or lacks its prompt length, because its lengths are then unknown.
    """
    of = dict(zip(COLUMNS, cells, strict=True))
    if not of["input_tokens"] or of["outcome"] != "ok":
        raise ValueError(f"its outcome is {of['outcome']!r}, so its number of tokens is not known; remove such lines")
    return TraceRequest(
        _moment(_number(of["intended"])), _tokens(_whole(of["input_tokens"])), _tokens(_whole(of["output_tokens"]))
    )


def _mooncake(fields: dict[str, Any]) -> TraceRequest:
    _check_fields(fields, _MOONCAKE)
    given, blocks = _tokens(fields["input_length"]), _names(fields["hash_ids"])
    if len(blocks) != math.ceil(given / _MOONCAKE_BLOCK):
        raise ValueError(f"{given} tokens do not fill {len(blocks)} blocks of {_MOONCAKE_BLOCK}")
    return TraceRequest(
        _moment(fields["timestamp"], 1e3), given, _tokens(fields["output_length"]), blocks, _MOONCAKE_BLOCK
    )


def _bailian(fields: dict[str, Any]) -> TraceRequest:
    """Return the request of a Qwen-Bailian line; the blocks show which turns belong together."""
    _check_fields(fields, _BAILIAN)
    given, blocks = _tokens(fields["input_length"]), _names(fields["hash_ids"])
    if len(blocks) not in (given // _BAILIAN_BLOCK, math.ceil(given / _BAILIAN_BLOCK)):
        raise ValueError(f"{given} tokens do not fill {len(blocks)} blocks of {_BAILIAN_BLOCK}")
    return TraceRequest(
        _moment(fields["timestamp"]),
        given,
        _tokens(fields["output_length"]),
        blocks,
        _BAILIAN_BLOCK,
        slo_class=str(fields["type"]),
    )


def _of_record(block: int, line: str) -> list[TraceRequest]:
    """Return the requests that one line of a server's recording describes.

    The list is empty for steps and for rejected requests, whose response length is unknown.
    """
    fields = _fields(line)
    return _recorded(fields, block) if fields.get("kind") == "request" else []


def _recorded(fields: dict[str, Any], block: int) -> list[TraceRequest]:
    """Return one request per choice of a recorded request; the choices share its output tokens as evenly as possible.

    An engine computes the prompt once for all choices, whereas separate requests compute it each. The names are those
    of the full pages of the prompt and, in recordings that have them, of the response; the remaining tokens are unique.
    """
    given, pages, choices = _tokens(fields["input"]), _names(fields["pages"]), _tokens(fields.get("n", 1))
    made = _made(fields["output"])
    if len(pages) > (given + made) // block:
        raise ValueError(f"{given} tokens and {made} do not fill {len(pages)} pages of {block}")
    if choices > _MOST_CHOICES:
        raise ValueError(f"it has {choices} choices; at most {_MOST_CHOICES} are allowed")
    at, slo_class = _moment(fields["at"]), str(fields.get("class", ""))
    shares = (max(1, (made + place) // choices) for place in range(choices))
    return [TraceRequest(at, given, share, pages, block, slo_class=slo_class) for share in shares]


def _fields(line: str) -> dict[str, Any]:
    """Return the fields of a trace line that is a JSON object.

    Raises:
        ValueError: If it is not one; the message says why.
    """
    try:
        found = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not valid JSON ({error.msg}, character {error.pos + 1:,})") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError:  # the only other cause
        raise ValueError("a number in it has thousands of digits") from None
    if not isinstance(found, dict):
        raise ValueError(f"{line[:40]} is not an object with fields")
    return found


def _check_fields(fields: dict[str, Any], wanted: set[str]) -> None:
    if set(fields) != wanted:
        raise ValueError(f"its fields are {', '.join(sorted(fields))}, not {', '.join(sorted(wanted))}")


def _names(names: Any) -> tuple[str, ...]:
    """Return a list of block names as strings.

    Raises:
        ValueError: If they are not a list of names.
    """
    if not isinstance(names, list) or not all(isinstance(name, int | str) for name in names):
        raise ValueError(f"{str(names)[:40]} is not a list of block names")
    return tuple(map(str, names))


def _moment(time: Any, a_second: float = 1.0) -> int:
    """Convert a time to nanoseconds; `a_second` is the number of its units in a second, such as 1,000 for milliseconds.

    Raises:
        ValueError: If it is not a number from 0 to `_LATEST`.
    """
    if isinstance(time, bool) or not isinstance(time, int | float) or not 0 <= time < _LATEST:
        raise ValueError(f"its time is {str(time)[:40]}; give a number from 0 on")
    return round(time / a_second * SECOND)


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        raise ValueError(f"{cell.strip()[:40] or 'nothing'} is not a time in seconds") from None


def _whole(cell: str) -> int:
    count = cell.strip()
    if not count.isdecimal() or len(count.lstrip("0")) > len(str(MAX_TOKENS)):
        raise ValueError(f"{count[:40] or 'nothing'} is not a number of tokens")
    return int(count.lstrip("0") or "0")


def _made(count: Any) -> int:
    """Return the tokens of a response, at least one.

    A response of no token failed, or was cut off before its first one.
    """
    return _tokens(1 if type(count) is int and count == 0 else count)


def _tokens(count: Any) -> int:
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MAX_TOKENS:
        raise ValueError(f"{repr(count)[:40]} is not a number of tokens")
    return count


# -- lines ------------------------------------------------------------------------------------------------------------


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file without surrounding white space; lines of 4 MiB or more are rejected."""
    number = 0
    try:
        with path.open("rb") as file:
            while line := file.readline(_LONGEST_LINE):
                number += 1
                if number == 1:
                    line = _first(path, line)
                if len(line) == _LONGEST_LINE:
                    raise ValueError(f"{path}, line {number}: it is longer than {_LONGEST_LINE >> 20} MiB")
                yield line.decode("utf-8").strip()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}, line {number}: it is not text in UTF-8") from None


def _first(path: Path, line: bytes) -> bytes:
    """Return the first line without a byte order mark.

    Raises:
        ValueError: If the file is compressed.
    """
    if line.startswith(b"\x1f\x8b"):
        raise ValueError(f"{path} is compressed; gunzip it first")
    return line.removeprefix(codecs.BOM_UTF8)


def _read(path: Path, number: int, reader: Callable[[Any], Any], value: Any) -> Any:
    """Apply a reader to a part of a trace line and return its result; its errors then name the file and the line.

    Raises:
        ValueError: If the reader fails.
    """
    try:
        return reader(value)
    except (ValueError, csv.Error, KeyError) as error:
        what = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path}, line {number}: {what}") from None
