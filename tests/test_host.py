"""What this process may use of the machine, from files as kernels write them."""

import os
import platform
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from ridgeline.util import host
from ridgeline.util.host import (
    address_space,
    available_memory,
    check_threads,
    cores,
    fresh_memory,
    processor,
    threads_for,
    total_memory,
)

GIB = 1 << 30
MEMINFO = f"MemTotal: {64 * GIB // 1024} kB\nMemFree: 1024 kB\nMemAvailable: {48 * GIB // 1024} kB\n"
V1_UNLIMITED = "9223372036854771712"


def write(root: Path, files: dict[str, str]) -> None:
    """Files below `root`, by their paths there."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n", encoding="ascii")


@pytest.fixture
def roots(tmp_path: Path) -> tuple[Path, Path]:
    """/proc and /sys/fs/cgroup of a machine of 64 GiB, 48 of them available, without limits."""
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    cgroups.mkdir()
    (proc / "meminfo").write_text(MEMINFO, encoding="ascii")
    (proc / "self" / "cgroup").write_text("0::/work/job\n", encoding="ascii")
    return proc, cgroups


def test_the_processor_is_named_with_its_cores(roots: tuple[Path, Path]) -> None:
    many = cores(*roots)
    assert processor(*roots).endswith(f", {many} core{'s' if many > 1 else ''}")  # no cpuinfo: the architecture
    (roots[0] / "cpuinfo").write_text("processor\t: 0\nmodel name\t: A Chip @ 3 GHz\n" * 2, encoding="ascii")
    assert processor(*roots).startswith("A Chip @ 3 GHz, ")


def test_without_limits_the_kernel_is_believed(roots: tuple[Path, Path]) -> None:
    assert available_memory(*roots) == 48 * GIB
    assert total_memory(*roots) == 64 * GIB
    assert cores(*roots) == len(os.sched_getaffinity(0))


def test_a_cgroup_of_version_2(roots: tuple[Path, Path]) -> None:
    """The tightest of the cgroup and those around it counts; cached files make room, what else it holds does not."""
    limits = {"work/job/memory.max": "max", "work/memory.max": f"{6 * GIB}", "work/memory.current": f"{4 * GIB}"}
    cached = {"work/memory.stat": f"anon {3 * GIB}\ninactive_file {GIB // 2}\nactive_file {GIB // 2}"}
    write(roots[1], limits | cached)
    assert available_memory(*roots) == 3 * GIB
    assert total_memory(*roots) == 6 * GIB
    write(roots[1], {"work/job/memory.max": f"{GIB}", "work/job/memory.current": f"{2 * GIB}"})
    assert available_memory(*roots) == 0


def test_a_cgroup_of_version_1(roots: tuple[Path, Path]) -> None:
    """A container sees its own cgroup as the root of the mount, under a path that is not there."""
    write(roots[0], {"self/cgroup": "5:memory:/docker/4f81\n4:cpu,cpuacct:/docker/4f81\n0::/"})
    write(roots[1], {"memory/memory.limit_in_bytes": f"{4 * GIB}", "memory/memory.usage_in_bytes": f"{3 * GIB}"})
    write(roots[1], {"memory/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB}"})
    assert available_memory(*roots) == 2 * GIB
    write(roots[1], {"memory/memory.limit_in_bytes": V1_UNLIMITED})
    assert available_memory(*roots) == 48 * GIB


def test_cores_of_a_quota(roots: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)))
    write(roots[1], {"work/job/cpu.max": "max 100000", "work/cpu.max": "250000 100000"})
    assert cores(*roots) == 3
    write(roots[1], {"work/job/cpu.max": "10000 100000"})
    assert cores(*roots) == 1
    write(roots[0], {"self/cgroup": "4:cpu,cpuacct:/docker/4f81"})
    write(roots[1], {"cpu/cpu.cfs_period_us": "100000", "cpu/cpu.cfs_quota_us": "-1"})
    assert cores(*roots) == 16
    write(roots[1], {"cpu/cpu.cfs_quota_us": "400000"})
    assert cores(*roots) == 4


def test_a_kernel_that_says_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no MemAvailable; give the memory of the KV cache"):
        available_memory(tmp_path, tmp_path)
    assert total_memory(tmp_path, tmp_path) == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(("kind", "limit"), [("RLIMIT_AS", 3 * GIB), ("RLIMIT_DATA", 2 * GIB)])
def test_under_a_ulimit(kind: str, limit: int) -> None:
    """What is left of it can be had but for what Python itself needs, and more cannot."""
    program = f"""
import mmap, resource
from ridgeline.util.host import address_space, available_memory
resource.setrlimit(resource.{kind}, ({limit}, {limit}))
left = int(address_space())
assert available_memory() <= left < {limit}
held = mmap.mmap(-1, left - (64 << 20), flags=mmap.MAP_PRIVATE)
assert address_space() <= 64 << 20
try:
    mmap.mmap(-1, 65 << 20, flags=mmap.MAP_PRIVATE)
except OSError:
    print("refused")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.stdout, ended.stderr) == ("refused\n", "")


def test_no_ulimit_is_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert address_space() == float("inf")


def test_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for a small model, all cores for others; never more than there are."""
    monkeypatch.setattr(host, "cores", lambda: 6)
    assert (threads_for(1e6), threads_for(1e9), threads_for(1e6, 6), threads_for(1e9, 1)) == (1, 6, 6, 1)
    for wrong in (0, -1, 7, 40_000):
        with pytest.raises(ValueError, match=f"--threads is {wrong}; it must be from 1 to 6, the cores"):
            check_threads(wrong, "--threads")


def test_fresh_memory_is_zeros_that_may_be_written() -> None:
    memory = fresh_memory(3 << 21)
    assert not any(memory[:: 1 << 12])
    memory[5] = 7
    assert memory[5] == 7
    with pytest.raises(OSError, match="Cannot allocate memory"):
        fresh_memory(1 << 60)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library is left as it is")
def test_freed_memory_is_used_again() -> None:
    """What a step frees the next one takes without a fault; as glibc comes, each 4 KB of it are one."""
    script = """
import resource, sys
from ridgeline.util.host import keep_freed_memory
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
if sys.argv[1:]: keep_freed_memory()
for _ in range(2):
    before = faults(); b"x" * (40 << 20); count = faults() - before
print(count)
"""
    counts = [
        int(subprocess.run([sys.executable, "-c", script, *kept], capture_output=True, text=True, check=True).stdout)
        for kept in ([], ["kept"])
    ]
    assert counts[0] > 20 * max(counts[1], 10)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library is left as it is")
def test_freed_memory_is_returned_by_the_heaps_of_all_threads() -> None:
    """`keep_freed_memory` comes first, as it does in every command: what threads read is then held until the end."""
    script = """
import sys, threading
from ridgeline.util.host import keep_freed_memory, return_freed_memory
def pages():
    return int(open("/proc/self/statm").read().split()[1])
def read():
    bodies = [bytearray(4 << 20) for _ in range(8)]
    for body in bodies: body[:] = b"x" * len(body)
    del body, bodies
    held.wait(); done.wait()
keep_freed_memory()
if sys.argv[1:]: return_freed_memory()
held, done, before = threading.Barrier(5), threading.Event(), pages()
for _ in range(4): threading.Thread(target=read).start()
held.wait()
print((pages() - before) * 4096 >> 20)
done.set()
"""
    kept, returned = (
        int(subprocess.run([sys.executable, "-c", script, *given], capture_output=True, text=True, check=True).stdout)
        for given in ([], ["returned"])
    )
    assert kept > 60, "of 128 MiB"
    assert returned < 8
