"""Options of `serve --replicas`: what they refuse, in a line, before anything is started."""

from collections.abc import Sequence

import pytest

from cli.running import USAGE, Run, assert_one_line
from ridgeline.cli import serve_replicas
from ridgeline.cli.serve_replicas import ReplicaFlags, share_of
from ridgeline.engine.setup import EngineSettings
from ridgeline.server.serve import Served

CASES: tuple[tuple[Sequence[str], str], ...] = (
    (("--replicas", "0"), "--replicas is 0"),
    (("--router", "prefix"), "--router is for --replicas 2 or more"),
    (("--router", "prefix", "--ray-address", "auto"), "--router is for --replicas 2 or more"),
    (("--router", "fastest", "--replicas", "2"), "must be one of two, least"),
    (("--scale", "1:2"), "--scale wants --scale-at"),
    (("--scale", "2:1", "--scale-at", "4"), "write the fewer replicas first"),
    (("--scale", "1:2", "--scale-at", "4", "--replicas", "2"), "leave --replicas out"),
    (("--scale-at", "4"), "--scale-at is for --scale"),
    (("--scale-calm", "4s", "--replicas", "2"), "--scale-calm is for --scale"),
    (("--threads", "100000", "--replicas", "2"), "--threads is 100000; it must be from 1 to"),
    (("--threads", "0", "--ray-address", "auto"), "--threads is 0; give 1 or more"),
)


@pytest.mark.parametrize(("more", "says"), CASES)
def test_one_line_says_what_is_wrong(ridgeline: Run, more: Sequence[str], says: str) -> None:
    assert_one_line(ridgeline("serve", "tales", *more), USAGE, says)


def test_pictures_have_no_replicas(ridgeline: Run) -> None:
    assert_one_line(ridgeline("serve", "digits", "--replicas", "2"), USAGE, "--replicas is of language models")


@pytest.mark.parametrize("order", [1, -1])
def test_threads_of_a_cluster_are_its_machines(ridgeline: Run, order: int) -> None:
    """The front of kuberay/rayjob.yaml has fewer cores than each engine, and refused the engines' --threads."""
    pairs = [("--threads", "100000"), ("--ray-address", "nowhere")][::order]
    ended = ridgeline("serve", "tales", *(word for pair in pairs for word in pair))
    assert "--threads" not in ended.err
    assert "ridgeline[ray]" in ended.err or "--ray-address is 'nowhere'" in ended.err


def test_replicas_on_this_machine_have_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_replicas, "cores", lambda: 8)
    for count, threads, ranks, says in (
        (2, 4, 1, ""),
        (2, 2, 2, ""),
        (2, 8, 1, "give --threads 4"),
        (2, 4, 2, "give --threads 2"),
        (9, 1, 1, "9 replicas need 9 cores"),
        (3, 1, 4, "3 replicas need 12 cores, one for each process"),
    ):
        served = Served("tales", "tales", EngineSettings(ranks=ranks), threads=threads)
        if not says:
            assert share_of(ReplicaFlags(replicas=count), served).cores == threads * ranks
            continue
        with pytest.raises(ValueError, match=says):
            share_of(ReplicaFlags(replicas=count), served)
        assert share_of(ReplicaFlags(replicas=count, ray_address="auto"), served).cores == threads * ranks
