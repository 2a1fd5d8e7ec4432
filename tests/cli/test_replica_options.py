"""Options of `serve --replicas`: what they refuse, in a line, before anything is started."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from cli.running import USAGE, Run, assert_one_line
from ridgeline.cli import batch_run, replica_options
from ridgeline.cli.batch_options import BatchFlags
from ridgeline.cli.batch_run import run_batch
from ridgeline.cli.engine_flags import TextFlags
from ridgeline.cli.serve_replicas import ReplicaFlags, replica_resources
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.server.lifecycle import ServedLLM
from ridgeline.server.replicas import ray_batch

CASES: tuple[tuple[Sequence[str], str], ...] = (
    (("--replicas", "0"), "--replicas is 0"),
    (("--router", "prefix"), "--router needs --replicas 2 or more"),
    (("--router", "prefix", "--ray-address", "auto"), "--router needs --replicas 2 or more"),
    (("--router", "fastest", "--replicas", "2"), "must be one of two, least"),
    (("--scale", "1:2"), "--scale needs --scale-at"),
    (("--scale", "2:1", "--scale-at", "4"), "write the smaller number first"),
    (("--scale", "1:2", "--scale-at", "4", "--replicas", "2"), "leave out --replicas"),
    (("--scale-at", "4"), "--scale-at applies only with --scale"),
    (("--scale-calm", "4s", "--replicas", "2"), "--scale-calm applies only with --scale"),
    (("--threads", "100000", "--replicas", "2"), "--threads is 100000; it must be from 1 to"),
    (("--threads", "0", "--ray-address", "auto"), "--threads is 0; give 1 or more"),
)


@pytest.mark.parametrize(("more", "says"), CASES)
def test_one_line_says_what_is_wrong(ridgeline: Run, more: Sequence[str], says: str) -> None:
    assert_one_line(ridgeline("serve", "tales", *more), USAGE, says)


def test_pictures_have_no_replicas(ridgeline: Run) -> None:
    assert_one_line(ridgeline("serve", "digits", "--replicas", "2"), USAGE, "--replicas is for language models")


@pytest.mark.parametrize("order", [1, -1])
def test_threads_of_a_cluster_are_its_machines(ridgeline: Run, order: int) -> None:
    """The front of kuberay/rayjob.yaml has fewer cores than each engine, and refused the engines' --threads."""
    pairs = [("--threads", "100000"), ("--ray-address", "nowhere")][::order]
    ended = ridgeline("serve", "tales", *(word for pair in pairs for word in pair))
    assert "--threads" not in ended.err
    assert "ridgeline[ray]" in ended.err or "--ray-address is 'nowhere'" in ended.err


FITS = [(2, 4, 1), (2, 2, 2), (8, 1, 1)]
DO_NOT = [
    (2, 8, 1, "2 engines of 8 threads each need 16 cores, but this machine has 8; give --threads 4, or fewer engines"),
    (2, 4, 2, "2 engines of 8 threads each need 16 cores, but this machine has 8; give --threads 2, or fewer engines"),
    (9, 1, 1, "9 engines of 1 thread each need 9 cores, but this machine has 8; give fewer engines"),
    (3, 1, 4, "3 engines of 4 threads each need 12 cores, but this machine has 8; give fewer engines"),
]


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (replica_options, batch_run):
        monkeypatch.setattr(module, "cores", lambda: 8)


@pytest.mark.parametrize(("count", "threads", "ranks"), FITS)
def test_replicas_on_this_machine_have_its_cores(eight_cores: None, count: int, threads: int, ranks: int) -> None:
    served = ServedLLM("tales", "tales", EngineSettings(ranks=ranks), threads=threads)
    assert replica_resources(ReplicaFlags(replicas=count), served).cores == threads * ranks


@pytest.mark.parametrize(("count", "threads", "ranks", "says"), DO_NOT)
def test_more_than_its_cores_is_refused(eight_cores: None, count: int, threads: int, ranks: int, says: str) -> None:
    """But not on a cluster, whose machines have others."""
    served = ServedLLM("tales", "tales", EngineSettings(ranks=ranks), threads=threads)
    with pytest.raises(ValueError, match=says):
        replica_resources(ReplicaFlags(replicas=count), served)
    assert replica_resources(ReplicaFlags(replicas=count, ray_address="auto"), served).cores == threads * ranks


@pytest.mark.parametrize(("count", "threads", "ranks", "says"), [case for case in DO_NOT if case[2] == 1])
def test_engines_of_a_batch_have_its_cores(
    eight_cores: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    count: int,
    threads: int,
    ranks: int,
    says: str,
) -> None:
    """As those of a server."""
    monkeypatch.setattr(ray_batch, "check_ray_data", lambda: None)
    source = tmp_path / "in"
    source.touch()
    with pytest.raises(ValueError, match=says):
        run_batch("tales", TextFlags(threads=threads), BatchFlags(str(source), replicas=count), {})
