"""Traces: what the readers make of released files, and which files they refuse, by line."""

import gzip
import json
from itertools import islice
from pathlib import Path

import pytest

from ridgeline.insight.traffic.request_record import COLUMNS
from ridgeline.insight.traffic.workload_trace import TraceRequest, read_trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
RECORD = '{"kind": "ridgeline-record", "format": 1, "page_size": 16}\n'
BURST_GPT = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def mooncake(**fields: object) -> str:
    return json.dumps({"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 7], **fields}) + "\n"


def read(folder: Path, text: str) -> list[TraceRequest]:
    path = folder / "trace"
    path.write_text(text)
    return list(read_trace(path))


def test_azure(tmp_path: Path) -> None:
    """Seven digits of a second, midnight between two requests, and the first at 0."""
    found = read(tmp_path, AZURE + "2023-11-16 23:59:59.6805900,374,44\r\n2023-11-17 00:00:01.0000001,396,109\r\n")
    assert found == [TraceRequest(0, 374, 44), TraceRequest(1_319_410_100, 396, 109)]


def test_azure_of_2024(tmp_path: Path) -> None:
    """Its moments say how far they are from UTC."""
    rows = (
        "2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 02:00:00.017335+02:00,2399,6\n2024-05-10T00:00:01Z,76,15\n"
    )
    found = read(tmp_path, AZURE + rows)
    assert found == [TraceRequest(0, 2162, 5), TraceRequest(7_405_000, 2399, 6), TraceRequest(990_070_000, 76, 15)]


def test_burst_gpt_with_sessions(tmp_path: Path) -> None:
    head = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    found = read(tmp_path, head + "5,s1,0,ChatGPT,472,18,490,Conversation log\n6,,2.5,GPT-4,10,3,13,API log\n")
    assert found == [
        TraceRequest(0, 472, 18, slo_class="Conversation log"),
        TraceRequest(10**9, 10, 3, slo_class="API log"),
    ]


def test_burst_gpt(tmp_path: Path) -> None:
    found = read(tmp_path, BURST_GPT + "5,ChatGPT,472,18,490,Conversation log\n5.5,GPT-4,10,0,10,API log\n")
    assert found == [
        TraceRequest(0, 472, 18, slo_class="Conversation log"),
        TraceRequest(500_000_000, 10, 1, slo_class="API log"),
    ]


def test_mooncake(tmp_path: Path) -> None:
    found = read(tmp_path, mooncake(timestamp=27482) + mooncake(timestamp=30535, hash_ids=[0, 8]))
    assert found == [
        TraceRequest(0, 600, 5, ("0", "7"), 512),
        TraceRequest(3_053_000_000, 600, 5, ("0", "8"), 512),
    ]


def bailian(**fields: object) -> str:
    own = {"chat_id": 3, "parent_chat_id": -1, "type": "text", "turn": 1}
    return mooncake(**{"timestamp": 1.5, "input_length": 20, "hash_ids": [4, 9], **own, **fields})


def test_qwen_bailian(tmp_path: Path) -> None:
    """Seconds, blocks of 16 tokens; whether the last, which is not full, is named is left to the file."""
    found = read(tmp_path, bailian() + bailian(timestamp=2.25, chat_id=4, parent_chat_id=3, turn=2, hash_ids=[4]))
    assert found == [
        TraceRequest(0, 20, 5, ("4", "9"), 16, slo_class="text"),
        TraceRequest(750_000_000, 20, 5, ("4",), 16, slo_class="text"),
    ]


def test_what_serve_records(tmp_path: Path) -> None:
    """Steps between requests are passed over."""
    lines = [
        {"format": 1, "kind": "ridgeline-record", "page_size": 16},
        {"kind": "request", "at": 2.0, "input": 40, "output": 9, "pages": ["a", "b"]},
        {"kind": "step", "step": 1, "seconds": 0.01},
        {"kind": "request", "at": 2.25, "input": 20, "output": 0, "pages": ["a"]},
        {"kind": "request", "at": 2.5, "input": 40, "output": 9, "pages": ["a", "b", "c"]},
    ]
    found = read(tmp_path, "\n".join(map(json.dumps, lines)))
    assert found == [
        TraceRequest(0, 40, 9, ("a", "b"), 16),
        TraceRequest(250_000_000, 20, 1, ("a",), 16),
        TraceRequest(500_000_000, 40, 9, ("a", "b", "c"), 16),
    ]
    lines[-1]["output"] = 7
    with pytest.raises(ValueError, match="line 5: 40 tokens and 7 do not fill 3 pages of 16"):
        read(tmp_path, "\n".join(map(json.dumps, lines)))


def recorded(**fields: object) -> str:
    """A line of `serve --record`, and what its file begins with."""
    own = {"kind": "request", "at": 1.0, "input": 40, "output": 9, "pages": ["a", "b"], "n": 1}
    return RECORD + json.dumps({**own, **fields}) + "\n"


def test_choices_are_requests_of_their_own(tmp_path: Path) -> None:
    """Which have as many tokens together; what the server refused has no answer whose length anybody knows."""
    refused = json.dumps({"kind": "refused", "at": 0.5, "input": 7}) + "\n"
    found = read(tmp_path, recorded(n=4, output=10) + refused)
    assert found == [TraceRequest(0, 40, made, ("a", "b"), 16) for made in (2, 2, 3, 3)]
    assert [each.output for each in read(tmp_path, recorded(n=3, output=0))] == [1, 1, 1]


def test_the_mark_before_a_text_is_none_of_it(tmp_path: Path) -> None:
    """Spreadsheets write one."""
    assert read(tmp_path, "\ufeff" + AZURE + "2023-11-16 18:15:46,374,44\n") == [TraceRequest(0, 374, 44)]


def benched(**fields: object) -> str:
    """A line of `bench serve --csv`."""
    cells = dict.fromkeys(COLUMNS, "") | {"outcome": "ok", "intended": 1.5, "input_tokens": 40, "output_tokens": 9}
    return ",".join(str((cells | fields)[name]) for name in COLUMNS) + "\n"


def test_what_bench_serve_wrote(tmp_path: Path) -> None:
    head = ",".join(COLUMNS) + "\n"
    found = read(tmp_path, head + benched() + benched(intended=2.0, input_tokens=7, output_tokens=1))
    assert found == [TraceRequest(0, 40, 9), TraceRequest(500_000_000, 7, 1)]
    with pytest.raises(ValueError, match="line 3: its outcome is 'failed'"):
        read(tmp_path, head + benched() + benched(outcome="failed", input_tokens=""))


@pytest.mark.parametrize(
    ("name", "count", "seconds", "given", "made"),
    [
        ("AzureLLMInferenceTrace_conv.csv", 19_366, 3_502, 1_155, 211),
        ("mooncake_conversation_trace.jsonl", 12_031, 3_537, 12_035, 343),
    ],
)
def test_the_released_traces_have_the_sizes_their_papers_say(
    data_dir: Path, name: str, count: int, seconds: int, given: int, made: int
) -> None:
    found = list(read_trace(data_dir / "traces" / name))
    assert len(found) == count
    assert round(found[-1].at / 1e9) == pytest.approx(seconds, abs=1)
    assert round(sum(request.input for request in found) / count) == pytest.approx(given, abs=1)
    assert round(sum(request.output for request in found) / count) == pytest.approx(made, abs=1)


def test_a_trace_is_read_as_it_is_needed(tmp_path: Path) -> None:
    """A fault further down is met when it is reached."""
    path = tmp_path / "trace"
    path.write_text(AZURE + "2023-11-16 18:15:46,374,44\n" * 3 + "nonsense\n")
    assert len(list(islice(read_trace(path), 3))) == 3
    with pytest.raises(ValueError, match="line 5"):
        list(read_trace(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a trace in a known format"),
        (AZURE, "contains no request"),
        ("a,b,c\n1,2,3\n", "not a trace in a known format"),
        ('{"prompt": "x"}\n', "not a trace in a known format"),
        ("{]\n", "line 1"),
        (AZURE + "2023-11-16 18:15:46,0,44\n", "line 2: 0 is not a number of tokens"),
        (AZURE + "2023-11-16 18:15:46,-3,44\n", "line 2: -3 is not a number of tokens"),
        (AZURE + "2023-11-16 18:15:46,nan,44\n", "line 2: nan is not a number of tokens"),
        (
            AZURE + "2023-11-16 18:15:46,3\n",
            "line 2: it has 2 cells, but the header has 3: TIMESTAMP",
        ),
        (AZURE + "yesterday,3,4\n", "line 2: yesterday is not a time like 2023-11-16 18:15:46.5"),
        (AZURE + "2023-13-16 18:15:46,3,4\n", "line 2: 2023-13-16 18:15:46 is not a time like"),
        (AZURE + "2023-11-16T18:15:46+0x:00,3,4\n", "line 2: .* is not a time like"),
        (AZURE + "2023-11-16T18:15:46+99:00,3,4\n", "line 2: .* is not a time like"),
        (AZURE + "2023-11-16 18:15:46.5x,3,4\n", "line 2: .* is not a time like"),
        (BURST_GPT + "noon,m,1,1,2,x\n", "line 2: noon is not a time in seconds"),
        (
            AZURE + "2023-11-16 18:15:46,3,4\n2023-11-16 18:15:45,3,4\n",
            "line 3: its time is before that of the previous request",
        ),
        (BURST_GPT + "nan,m,1,1,2,x\n", "line 2: its time is nan"),
        (BURST_GPT + "1e305,m,1,1,2,x\n", r"line 2: its time is 1e\+305"),
        (mooncake() + mooncake(extra=1), "line 2: its fields are extra"),
        (mooncake() + mooncake(hash_ids=[1]), "line 2: 600 tokens do not fill 1 blocks"),
        (mooncake() + mooncake(hash_ids="ab"), "line 2: ab is not a list of block names"),
        (mooncake() + mooncake(hash_ids={"a": 1, "b": 2}), "line 2: .* is not a list of block names"),
        (mooncake() + mooncake(hash_ids=[1, None]), "line 2: .* is not a list of block names"),
        (bailian(hash_ids="ab"), "line 1: ab is not a list of block names"),
        (recorded(pages="ab"), "line 2: ab is not a list of block names"),
        (recorded(output=-5), "line 2: -5 is not a number of tokens"),
        (recorded(output=float("nan")), "line 2: nan is not a number of tokens"),
        (recorded(output=0.5), "line 2: 0.5 is not a number of tokens"),
        (recorded(output=False), "line 2: False is not a number of tokens"),
        (recorded(n=2000), "line 2: it has 2000 choices"),
        (recorded(n=0), "line 2: 0 is not a number of tokens"),
        (BURST_GPT + f"1,m,1,{10**15},2,x\n", "line 2: 1000000000000000 is not a number of tokens"),
        (mooncake() + mooncake(timestamp=-1), "line 2: its time is"),
        (mooncake() + mooncake(timestamp="1"), "line 2: its time is 1"),
        (mooncake() + mooncake(timestamp=10**400), "line 2: its time is 10{39}; give a number from 0 on$"),
        (mooncake() + mooncake(timestamp=1e305), r"line 2: its time is 1e\+305"),
        (mooncake() + mooncake(input_length="x" * 100_000), "line 2: 'x{39} is not a number of tokens$"),
        (mooncake() + mooncake(timestamp=True), "line 2: its time is True"),
        (mooncake() + mooncake(output_length=2.5), "line 2: 2.5 is not a number of tokens"),
        (bailian() + bailian(hash_ids=[1, 2, 3]), "line 2: 20 tokens do not fill 3 blocks of 16"),
        (bailian() + mooncake(), "line 2: its fields are"),
        (bailian() + bailian(timestamp=float("nan")), "line 2: its time is nan"),
        (bailian() + bailian(timestamp=1.25), "line 2: its time is before that of the previous request"),
        (mooncake() + "[" * 100_000 + "\n", "line 2: it is nested too deeply"),
        ('{"a":' * 100_000 + "\n", "line 1: it is nested too deeply"),
        (mooncake() + '{"timestamp": 1, "inp\n', "line 2: it is not valid JSON .*, character 18"),
        (mooncake() + f'{{"timestamp": {"1" * 5000}}}\n', "line 2: a number in it has thousands of digits"),
        (mooncake() + "[1]\n", r"line 2: \[1\] is not an object with fields"),
        (RECORD + "[1]\n", r"line 2: \[1\] is not an object with fields"),
        (RECORD + "null\n", "line 2: null is not an object with fields"),
        (AZURE + "2023-11-16 18:15:46.5,3\r4,5\n", "line 2"),
        (AZURE + f"{'9' * 200_000},3,4\n", "line 2"),
        (AZURE + f"2023-11-16 18:15:46,{'9' * 5000},4\n", "line 2: 9{40} is not a number of tokens"),
        (
            AZURE + "1970-01-01 00:00:00,3,4\n9999-01-01 00:00:00,3,4\n",
            "line 3: its time is over a year after the first",
        ),
        (BURST_GPT + "1,m,1,1,2,x\n1e13,m,1,1,2,x\n", "line 3: its time is over a year after the first"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        read(tmp_path, text)
    assert "\n" not in str(refused.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        list(read_trace(tmp_path / "none"))
    (tmp_path / "packed").write_bytes(gzip.compress(AZURE.encode()))
    with pytest.raises(ValueError, match="packed is compressed; gunzip it first"):
        list(read_trace(tmp_path / "packed"))
    (tmp_path / "bytes").write_bytes(b"TIMESTAMP,ContextTokens,GeneratedTokens\n\xff\xfe")
    with pytest.raises(ValueError, match="line 2: it is not text in UTF-8"):
        list(read_trace(tmp_path / "bytes"))
