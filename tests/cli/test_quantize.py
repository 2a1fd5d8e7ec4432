"""Formats of weights on the command line: quantised while loading, quantised and saved, and what is refused."""

from pathlib import Path

import pytest

from cli.running import OK, REFUSED, USAGE, Run, assert_one_line


def test_a_checkpoint_is_saved_in_int8(ridgeline: Run, tmp_path: Path) -> None:
    """What became of it on stdout, what was left on stderr; a second time only with --force; not twice quantised."""
    out = tmp_path / "tales-int8"
    ended = ridgeline("quantize", "tales", out, "--weights", "INT8")
    assert (ended.code, ended.out) == (OK, f"{out}: 35 matrices quantized to int8, from 4.85 MB to 2.84 MB\n")
    assert ended.err == "not quantized: lm_head, model.embed_tokens\n"
    assert_one_line(ridgeline("quantize", "tales", out, "--weights", "int8"), USAGE, "exists already", "--force")
    assert ridgeline("quantize", "tales", out, "--weights", "int8", "--force").code == OK
    assert_one_line(ridgeline("run", out, "Once", "--weights", "int4"), REFUSED, "already", "leave --weights int4 out")
    assert_one_line(ridgeline("quantize", out, tmp_path / "again", "--weights", "int8"), REFUSED, "already")


@pytest.mark.parametrize(
    "command",
    [
        ("run", "tales", "Once upon a time", "--max-tokens", 4, "--json"),
        ("lab", "kv-cache", "--model", "tales", "--tokens", 4, "--json"),
    ],
)
def test_commands_run_in_a_format(ridgeline: Run, command: tuple[object, ...]) -> None:
    """And say in one line that they do not run in one that is priced only, or that there is not."""
    assert ridgeline(*command, "--weights", "int4-g32").json
    assert_one_line(
        ridgeline(*command, "--weights", "nvfp4"),
        USAGE,
        "cannot run yet, only be priced (ridgeline plan, trace --priced); give one of",
    )
    assert_one_line(ridgeline(*command, "--weights", "int3"), USAGE, "--weights is 'int3', an unknown format")
    if command[0] == "run":
        full = ridgeline("serve", "tales", "--weights", "fp32")
        assert_one_line(full, USAGE, "the checkpoint's weights are in bf16 and are never converted")
        assert_one_line(ridgeline(*command, "--quantization", "int8"), USAGE, "--weights int8")


def test_a_trace_has_the_bytes_of_the_codes(ridgeline: Run) -> None:
    """Of a decode step: those of int8 are fewer than those of bf16, by what the matrices of the blocks have."""

    def weights(*more: object) -> float:
        found = ridgeline("trace", "tales", "Once", "--max-tokens", 2, "--repeats", 1, "--json", *more).json
        return float(found["steps"]["decode"]["weight_bytes"])

    assert weights() - weights("--weights", "int8") > 1.9e6
