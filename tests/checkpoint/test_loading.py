"""What loading is said to have taken, and the reading that it is compared with."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ridgeline.core.checkpoint.casting import Casts
from ridgeline.core.checkpoint.folder import open_checkpoint
from ridgeline.core.checkpoint.load_report import LoadReport, time_buffered_read
from ridgeline.core.checkpoint.source import open_source
from ridgeline.core.checkpoint.weight_loader import load_weights
from ridgeline.core.models import build_to_run
from ridgeline.util.host import disk_bytes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two shards, one tensor of no bytes."""
    shards = {"a": {"x": torch.arange(7.0), "none": torch.empty(0)}, "b": {"y": torch.arange(6.0).view(2, 3)}}
    for name, tensors in shards.items():
        save_file(tensors, tmp_path / f"{name}.safetensors")
    return tmp_path


@pytest.mark.parametrize(("most", "read"), [(1e9, 52), (30, 28), (24, 24), (3, 0)])
def test_a_reading_stops_before_it_has_too_much(folder: Path, most: float, read: int) -> None:
    assert time_buffered_read(open_checkpoint(folder), most).nbytes == read


def test_a_reading_reads_what_the_file_has(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the header, nor somebody else's bytes."""
    kept: list[torch.Tensor] = []
    empty = torch.empty

    def watched(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        kept.append(empty(*shape, dtype=dtype))
        return kept[-1]

    monkeypatch.setattr(torch, "empty", watched)
    time_buffered_read(open_checkpoint(folder), 1e9)
    assert [tensor.view(torch.float32).tolist() for tensor in kept] == [[*range(7)], [*range(6)]]


def test_what_loading_took_is_of_the_whole_checkpoint() -> None:
    source = open_source("tales")
    assert source.folder is not None
    loading = load_weights(build_to_run(source.config), source)
    assert loading is not None
    assert loading.nbytes == open_checkpoint(source.folder).nbytes
    assert loading.header > 0
    assert loading.mapped > 0
    assert loading.from_disk is None or loading.from_disk >= 0
    assert load_weights(build_to_run(source.config), source, dummy_weights=True) is None


def test_speed_counts_headers_too(folder: Path) -> None:
    loading = LoadReport(open_checkpoint(folder), header=1.0, mapped=3.0, from_disk=None, casts=Casts())
    assert (loading.nbytes, loading.seconds, loading.speed) == (52, 4.0, 13.0)


def test_bytes_from_disks_are_those_of_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    assert disk_bytes(tmp_path) is None
    (tmp_path / "self" / "io").write_text("rchar: 9\nwchar: 8\nread_bytes: 4096\nwrite_bytes: 0\n")
    assert disk_bytes(tmp_path) == 4096
