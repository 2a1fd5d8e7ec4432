"""Options of `serve --split`, `--kv-listen` and `--kv-from`: what they refuse, in a line, before anything starts."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from cli.running import REFUSED, USAGE, Run, assert_one_line
from engine.folders import write_model
from engine.small_models import DELTA, LLAMA
from ridgeline.cli import replica_options, serve_split
from ridgeline.cli.serve_split import SplitFlags, check_split
from ridgeline.core.models import Fields, build
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.transfer.config import KVTransfer

PEER, CONFIG = "10.0.0.1:14579", '{"kv_role": "kv_consumer", "kv_ip": "10.0.0.1"}'
CASES: tuple[tuple[Sequence[str], str], ...] = (
    (("--split", "2"), "--split is '2'; write two numbers"),
    (("--split", "0:1"), "--split is '0:1'; write two numbers"),
    (("--split", "1:1", "--replicas", "2"), "--split sets the engines; leave out --replicas"),
    (("--split", "1:1", "--scale", "1:2", "--scale-at", "4"), "leave out --replicas, --scale and --ray-address"),
    (("--split", "1:1", "--priced", "h100-sxm"), "--split transfers the KV cache, but with --priced there is none"),
    (("--split", "1:1", "--kv-from", PEER), "--split starts all engines itself"),
    (("--split", "1:1", "--kv-key-file", "nowhere"), "--kv-key-file needs --kv-listen or --kv-from"),
    (("--split", "1:1", "--kv-timeout", "soon"), "--kv-timeout is 'soon'"),
    (("--split", "1:1", "--tensor-parallel", "2"), "leave --tensor-parallel out"),
    (("--split", "1:1", "--no-prefix-cache"), "leave --no-prefix-cache out"),
    (("--split", "999:1"), "1000 engines of 1 thread each need 1000 cores"),
    (("--kv-timeout", "3s"), "--kv-timeout is for --kv-from and --split"),
    (("--kv-listen", "0.0.0.0:5"), "--kv-listen 0.0.0.0:5 accepts connections from other machines"),
    (("--kv-listen", "localhost"), "'localhost' is not an address"),
    (("--kv-listen", "127.0.0.1:5", "--kv-timeout", "3s"), "--kv-timeout applies only to --kv-from"),
    (("--kv-listen", "127.0.0.1:5", "--kv-from", PEER), "give only one of the two"),
    (("--kv-listen", "127.0.0.1:5", "--replicas", "2"), "--kv-listen sets the engines"),
    (("--kv-from", ""), "--kv-from is empty"),
    (("--kv-from", "unix:/tmp/kv"), "the KV transfer between two servers needs HOST:PORT"),
    (("--kv-from", f"{PEER},{PEER}"), "given twice"),
    (("--kv-from", PEER, "--kv-key-file", "nowhere"), "--kv-key-file nowhere cannot be read"),
    (("--kv-from", PEER, "--kv-timeout", "0s"), "--kv-timeout"),
    (
        ("--kv-from", PEER, "--kv-timeout", "60s"),
        "--stall-timeout (60 s) counts as hanging; give a shorter --kv-timeout",
    ),
    (
        ("--split", "1:1", "--stall-timeout", "20s"),
        "--stall-timeout (20 s) counts as hanging; give a shorter --kv-timeout",
    ),
    (("--kv-transfer-config", CONFIG, "--priced", "h100-sxm"), "--kv-transfer-config transfers the KV cache"),
    (("--kv-from", PEER, "--kv-transfer-config", CONFIG), "give one of them"),
    (("--kv-transfer-config", '{"kv_role": "kv_both"}'), "kv_role is 'kv_both'"),
)


@pytest.mark.parametrize(("more", "says"), CASES)
def test_one_line_says_what_is_wrong(ridgeline: Run, more: Sequence[str], says: str) -> None:
    assert_one_line(ridgeline("serve", "tales", *more), USAGE, says)


def test_models_that_cannot_be_apart(ridgeline: Run, tmp_path: Path) -> None:
    assert_one_line(ridgeline("serve", "digits", "--split", "1:1"), USAGE, "--split is for language models")
    states = write_model(tmp_path / "states", config=DELTA)
    assert_one_line(ridgeline("serve", str(states), "--split", "1:1"), REFUSED, "keeps a recurrent state")
    assert_one_line(ridgeline("serve", "translate", "--kv-from", PEER), REFUSED, "has an encoder")


def test_a_key_is_no_short_one(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("short\n", encoding="ascii")
    with pytest.raises(ValueError, match="has 5 bytes; give 16 or more"):
        SplitFlags(kv_from=PEER, kv_key_file=file).transfer()
    file.write_text("0123456789abcdef\n", encoding="ascii")
    wanted = KVTransfer(peers=(PEER,), key=b"0123456789abcdef", timeout=2.0)
    assert SplitFlags(kv_from=PEER, kv_key_file=file, kv_timeout="2s").transfer() == wanted
    listening = KVTransfer(listen="0.0.0.0:5", key=b"0123456789abcdef")
    assert SplitFlags(kv_listen="0.0.0.0:5", kv_key_file=file).transfer() == listening
    assert SplitFlags(kv_transfer_config=CONFIG).transfer() == KVTransfer(peers=(PEER,))


def test_engines_have_this_machines_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_options, "cores", lambda: 8)
    model, settings = build(Fields(LLAMA, "a model")), EngineSettings()
    check_split(SplitFlags(split="1:1"), model, "m", settings, 4)
    with pytest.raises(ValueError, match="2 engines of 5 threads each need 10 cores"):
        check_split(SplitFlags(split="1:1"), model, "m", settings, 5)
    monkeypatch.setattr(serve_split.placement, "device_named", lambda name: torch.device("cuda"))
    with pytest.raises(ValueError, match="--split runs on this machine's CPU"):
        check_split(SplitFlags(split="1:1"), model, "m", settings, None)
