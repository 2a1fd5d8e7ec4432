"""`ridgeline plan --enable-dp-attention`: users and money of all cards, memory and steps of one."""

import re

import pytest

from cli.running import OK, USAGE, Ended, Run, assert_one_line

DIVIDED = ("plan", "mixtral-8x7b", "--device", "h100-sxm", "--devices", "4")
OWN = (*DIVIDED, "--enable-dp-attention")


def said(ended: Ended) -> str:
    """What it said, without the ends of its lines."""
    assert (ended.code, ended.err) == (OK, "")
    return re.sub(r"\s+", " ", ended.out)


def test_requests_are_divided_among_cards(ridgeline: Run) -> None:
    words = ("--price", "2", "--batch", "10", "--json")
    own, divided = (ridgeline(*flags, *words).json for flags in (OWN, DIVIDED))
    assert (own["engine"]["name"], divided["engine"]["name"]) == ("vllm-dp", "vllm")
    memory, other = own["memory"], divided["memory"]
    assert (memory["ranks"], other["ranks"]) == (4, 1)
    assert memory["kv_bytes_per_token"] == 4 * other["kv_bytes_per_token"]
    assert memory["weights"] > other["weights"]
    assert memory["users"] % 4 == 0
    assert memory["users"] <= 4 * memory["kv_tokens"] / memory["admitted_tokens"]
    assert memory["users"] == own["load"]["all_that_memory_holds"]["users"]
    load = own["load"]["most"]
    assert own["answer"]["users"] == load["users"]
    assert load["waits"]["users"] == -(-load["users"] // 4)
    assert divided["load"]["most"]["waits"] is None
    rate = load["tokens_per_second"]["expected"]
    apart, together = (load["waits"][f"tokens_per_second_{ends}"]["expected"] for ends in ("apart", "together"))
    assert apart < rate < together
    assert own["answer"]["dollars_per_million_tokens"] == pytest.approx(4 * 2 / 3600 / rate * 1e6)
    assert own["decode"]["tokens"] == 3
    assert own["decode"]["tokens_per_second"]["expected"] == pytest.approx(10 / own["answer"]["itl"]["expected"])
    assert own["experts_touched"]["1"] == pytest.approx(8 * (1 - 0.75**4))
    assert "each of 4 devices runs attention for an equal share of the requests" in own["model"]["notes"][0]
    assert divided["model"]["notes"] == []


def test_an_answer_says_what_cards_that_wait_for_each_other_are_between(ridgeline: Run) -> None:
    answer = said(ridgeline(*OWN))
    assert "on vLLM 0.14 and later, data-parallel attention (--engine)" in answer
    found = re.search(r"users (\d+) \[\d+ \.\. \d+\] concurrent, (\d+) per device, ", answer)
    assert found is not None
    assert int(found[2]) == -(-int(found[1]) // 4)
    speed = re.search(
        r"then ([\d.]+) \[[^]]+\] tok/s each \(([\d.]+) if prompts reach one device after the other, ([\d.]+) if",
        answer,
    )
    assert speed is not None
    assert float(speed[2]) < float(speed[1]) < float(speed[3])
    full = said(ridgeline(*OWN, "--full"))
    for words in (
        "TPOT, prompts on all devices at once",
        "TPOT, on one device after the other",
        "x per device Weights",
    ):
        assert words in full
    assert "334 users at a time on each replica, 84 per device" in said(ridgeline(*OWN, "--users", "1000"))
    lone = said(ridgeline(*OWN, "--users", "1"))
    assert "per device" not in re.sub(r"usable per device|per device and hour", "", lone)
    assert "one device after the other" not in lone


def test_on_many_cards(ridgeline: Run) -> None:
    words = ("plan", "mixtral-8x7b", "--compare-devices", "l40s,h100-sxm", "--devices", "4", "--enable-dp-attention")
    words = (*words, "--weights", "bf16", "--kv", "bf16")  # those of OWN, where narrower ones would be tried too
    table = said(ridgeline(*words))
    assert "on vLLM 0.14 and later, data-parallel attention;" in table
    assert "each of several devices runs attention for an equal share of the requests" in table
    offer = next(each for each in ridgeline(*words, "--json").json["cards"] if each["card"] == "h100-sxm")
    alone = ridgeline(*OWN, "--json").json
    assert (offer["users"], offer["load"]) == (alone["answer"]["users"], alone["load"]["most"])


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            ("llama-3-8b", "--device", "h100-sxm", "--devices", "2"),
            "but the model has none: leave out --enable-dp-attention",
        ),
        (("llama-3-8b", "--compare-devices", "l40s", "--devices", "2"), "leave out --enable-dp-attention"),
        (DIVIDED[1:4], "divides requests among devices; give --devices 2 or more"),
        ((*DIVIDED[1:], "--engine", "sglang"), "SGLang 0.4 and later has no profile with data-parallel attention"),
        ((*DIVIDED[1:], "--batch", "100000"), "GiB of KV per device, "),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(ridgeline: Run, words: tuple[str, ...], why: str) -> None:
    assert_one_line(ridgeline("plan", *words, "--enable-dp-attention"), USAGE, why)
