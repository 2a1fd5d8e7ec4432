"""Loading maps the weights: memory rises by what the files hold, and none of it is the process's own."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from models.configs import CONFIGS
from ridgeline.models import Fields, build
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
from ridgeline.checkpoint import load_model

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
    for name, parameter in model.named_parameters():
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
