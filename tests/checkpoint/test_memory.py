"""Loading maps the weights: memory rises by what the files hold, and none of it is the process's own. What does not fit
is refused before it is taken."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from models.configs import CONFIGS
from ridgeline.backends.cpu.library import library
from ridgeline.backends.model_loader import load_model
from ridgeline.core.checkpoint import open_source, read_config, weight_loader
from ridgeline.core.models import Fields, ModelRefused, build
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.setup import load_engine
from support.checkpoints import write_folder, write_raw

# 1.2 GB of bfloat16, in a file of zeros that takes no room on disk.
VALUES = CONFIGS["llama"] | {
    "vocab_size": 32_000,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "torch_dtype": "bfloat16",
}

# VmHWM, because ru_maxrss of a process that was just started is that of the process that started it.
LOAD = """
import json, sys
import torch
from ridgeline.backends.model_loader import load_model

def kib(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field + ":"))

before = {field: kib(field) for field in ("VmHWM", "RssAnon")}
model = load_model(sys.argv[1])
touched = sum(int(parameter.view(-1).view(torch.uint8)[::4096].sum()) for parameter in model.parameters())
rise = {field: (kib(field) - before[field]) * 1024 for field in before}
print(json.dumps({"touched": touched, "weights": sum(p.nbytes for p in model.parameters()), **rise}))
"""


def write_zeros(folder: Path) -> int:
    """A checkpoint of zeros as a sparse file; returns the bytes of its tensors."""
    write_folder(folder, VALUES)
    model = build(Fields(VALUES, "config.json"))
    header, end = {}, 0
    for path, parameter in model.named_parameters():
        name = model.checkpoint_name(path)
        assert parameter.dtype == torch.bfloat16
        begin, end = end, end + 2 * math.prod(parameter.shape)
        header[name] = {"dtype": "BF16", "shape": list(parameter.shape), "data_offsets": [begin, end]}
    path = write_raw(folder / "model.safetensors", header)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + end)
    return end


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this system does not say what a process holds")
def test_memory_rises_by_the_weights_and_no_more(tmp_path: Path) -> None:
    """At the peak, after every page was read, at most 1.15 times the weights more; of its own, next to nothing."""
    weights = write_zeros(tmp_path)
    assert weights >= 1 << 30
    done = subprocess.run([sys.executable, "-c", LOAD, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["touched"] == 0
    assert seen["weights"] == weights
    assert 0.9 * weights < seen["VmHWM"] <= 1.15 * weights
    assert seen["RssAnon"] < 0.05 * weights


# -- what does not fit -------------------------------------------------------------------------------------------------

MIXTRAL = CONFIGS["mixtral"]
TOO_LARGE = {
    "400 GB": read_config("llama-3.1-405b").values | {"num_hidden_layers": 60},
    "10 M wide": CONFIGS["llama"] | {"hidden_size": 10_000_000, "num_attention_heads": 10_000, "head_dim": 10},
    "10,000 experts": read_config("mixtral-8x7b").values | {"num_local_experts": 10_000},
    "10,000 tiny experts in 200 layers": MIXTRAL | {"num_local_experts": 10_000, "num_hidden_layers": 200},
}


@pytest.mark.parametrize("what", TOO_LARGE)
def test_random_weights_that_do_not_fit(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused with the bytes they need and the bytes there are, before a tensor or a module of an expert is made."""
    monkeypatch.setattr(weight_loader, "available_memory", lambda: 20.0 * 2**30)
    monkeypatch.setattr(weight_loader, "fill_dummy", lambda model: pytest.fail("it was filled"))
    write_folder(tmp_path, TOO_LARGE[what])
    load = load_model if what == "10 M wide" else load_engine
    with pytest.raises(
        ModelRefused, match=r"needs [\d,.]+ GiB of weights.*, but only 20\.00 GiB of memory is available"
    ) as caught:
        load(str(tmp_path), dummy_weights=True)
    assert len(str(caught.value).splitlines()) == 1


def test_mapped_weights_a_step_and_kv_memory_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them counts; what is asked for KV is the user's to lower, the rest is the model's."""
    monkeypatch.setattr(weight_loader, "available_memory", lambda: 1e6)
    with pytest.raises(
        ModelRefused, match=r"tales needs 4\.62 MiB of weights, but only 977 KiB of memory is available"
    ):
        load_model("tales")
    monkeypatch.setattr(weight_loader, "available_memory", lambda: 5.5e6)
    load_model("tales")
    recorded = "" if library() is None else r", [\d.]+ MiB of recorded decode steps"
    needs = rf"MiB of activations in a step of 2,048 tokens{recorded}, but only 5\.25 MiB of memory"
    with pytest.raises(ModelRefused, match=needs):
        load_engine("tales")
    monkeypatch.setattr(weight_loader, "available_memory", lambda: 50e6)
    with pytest.raises(
        ValueError, match=r"--kv-memory is [\d.]+ MiB, but only [\d.]+ MiB .* lower --kv-memory"
    ) as caught:
        load_engine("tales", EngineSettings(kv_bytes=60e6))
    assert not isinstance(caught.value, ModelRefused)


def test_what_takes_nothing_is_not_listed() -> None:
    with pytest.raises(
        ModelRefused, match=r"^tales needs 1\.00 GiB of weights, but only 512 MiB of memory is available"
    ):
        weight_loader.remaining_memory(open_source("tales"), {"weights": 1 << 30, "recorded decode steps": 0}, 1 << 29)


REFUSED_BY_ULIMIT = """
import resource, sys
from ridgeline.core.checkpoint import weight_loader
from ridgeline.engine.setup import load_engine

used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (768 << 20), used + (768 << 20)))
unseen = lambda: 1e12
for limit, dummy_weights in ((weight_loader.available_memory, False), (unseen, False), (unseen, True)):
    weight_loader.available_memory = limit
    try:
        load_engine(sys.argv[1], dummy_weights=dummy_weights)
    except ValueError as refused:
        print(refused)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this system does not say what a process holds")
def test_a_ulimit_smaller_than_the_machine(tmp_path: Path) -> None:
    """1.2 GB of weights where 768 MiB may be allocated or mapped: one line, whether the limit is seen or met."""
    write_zeros(tmp_path)
    command = [sys.executable, "-c", REFUSED_BY_ULIMIT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    seen, mapped, random = done.stdout.splitlines()
    assert "GiB of weights" in seen
    assert "out of memory: an allocation was refused" in mapped
    assert "out of memory: an allocation of 32.0 MiB was refused" in random
