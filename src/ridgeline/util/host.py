"""The machine as far as this process may use it: cores, threads and memory, under cgroups and ulimits as without them.

A container or a batch job sees the whole machine in /proc and is killed for taking it; the limits stand elsewhere.
"""

import ctypes
import math
import mmap
import os
import platform
import re
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MIB, GIB = 1 << 20, 1 << 30

# Below this the weights stay in a core's caches, and handing work to a second thread costs more than it saves.
SMALL_MODEL_BYTES = 32 << 20

# Of mallopt(3): pieces from this size on are the system's, and so much may lie free before it is given back.
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1

_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_NO_MEMORY = ("can't allocate memory", "Cannot allocate memory", "out of memory")  # torch, the kernel, CUDA
_REFUSED = "out of memory: an allocation"
_CACHED = ("inactive_file", "active_file")  # of memory.stat: what the kernel drops before it runs out


def cores(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Cores that this process may use: those it may run on, no more than its cgroups' share of time is worth."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [quota for folder in _folders("cpu", proc, cgroups) if (quota := _quota(folder)) is not None]
    return max(1, min([allowed, *(math.ceil(quota) for quota in quotas)]))


def _quota(folder: Path) -> float | None:
    """Cores' worth of time that a cgroup has, by either version's files; None where it has no limit."""
    stated = _words(folder / "cpu.max") or [*_words(folder / "cpu.cfs_quota_us"), *_words(folder / "cpu.cfs_period_us")]
    if len(stated) != 2 or not all(word.isdecimal() for word in stated) or int(stated[1]) == 0:
        return None  # "max" and -1 are no limit
    return int(stated[0]) / int(stated[1])


def processor(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> str:
    """The processor's name and how many cores of it this process may use."""
    try:
        lines = (proc / "cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    many = cores(proc, cgroups)
    return f"{names[0] if names else platform.machine()}, {many} core{'s' if many > 1 else ''}"


def check_threads(threads: int, name: str = "threads") -> int:
    """`threads`, if there are so many cores. Raises ValueError, saying `name`: more would only wait for one another,
    and of thousands torch cannot start the last.
    """
    most = cores()
    if not 1 <= threads <= most:
        raise ValueError(f"{name} is {threads}; it must be from 1 to {most}, the cores that this process may use")
    return threads


def threads_for(weight_bytes: float, threads: int | None = None, ranks: int = 1) -> int:
    """`threads`, by default one for a small model and all cores for others, divided among processes that share one.
    Raises ValueError as `check_threads`.
    """
    if threads is not None:
        return check_threads(threads)
    if ranks > 1:
        return max(1, cores() // ranks)
    return 1 if weight_bytes < SMALL_MODEL_BYTES else cores()


def total_memory(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> float:
    """Bytes of memory that the machine has, or that this process's cgroups may hold."""
    limits = [_memory_limit(folder) for folder in _folders("memory", proc, cgroups)]
    try:
        total = _meminfo(proc, "MemTotal")
    except ValueError:
        total = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min([total, *limits])


def available_memory(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> float:
    """Bytes that this process can still take without swapping and without being refused or killed: the kernel's own
    estimate for the machine, no more than its cgroups have left, nor `address_space`.

    Raises ValueError where the kernel does not say, as on systems other than Linux.
    """
    left = [_memory_left(folder) for folder in _folders("memory", proc, cgroups)]
    return max(0.0, min([_meminfo(proc, "MemAvailable"), *left, address_space(proc)]))


def fresh_memory(nbytes: int) -> mmap.mmap:
    """Memory of this process alone, which the system gives when it is first written; in huge pages where there are
    such: a step that reads a little here and there waits for fewer pages to be looked up.

    Raises OSError where it is refused.
    """
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def read_in_huge_pages(address: int, nbytes: int) -> None:
    """Have the system read the part of a file that is mapped there in huge pages, where its file system keeps files in
    such (ext4 since Linux 6.16, XFS): a step that reads all weights waits for fewer pages to be looked up. What is in
    the page cache already stays as it is.
    """
    libc = ctypes.CDLL(None)
    if hasattr(mmap, "MADV_HUGEPAGE") and hasattr(libc, "madvise"):
        start = address // mmap.PAGESIZE * mmap.PAGESIZE
        libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(address + nbytes - start), mmap.MADV_HUGEPAGE)


def give_back_freed_memory() -> None:
    """Let the system have what this process freed, which glibc keeps for itself. Another C library is left as it is."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def keep_freed_memory() -> None:
    """Let this process use again what it frees. glibc gives large pieces back to the system at once, and a step takes
    the same ones anew, at a fault for every 4 KB: 6 to 10 % of a prefill. Another C library is left as it is.
    """
    _mallopt((_MMAP_THRESHOLD, 256 * MIB), (_TRIM_THRESHOLD, GIB))


def return_freed_memory() -> None:
    """Give memory back to the system soon after this process frees it, which undoes `keep_freed_memory`.

    A server whose requests are seldom large would otherwise hold what the largest ones took, in the heap of each thread
    that read one. Another C library than glibc is left as it is.
    """
    _mallopt((_MMAP_THRESHOLD, MIB), (_TRIM_THRESHOLD, MIB))


def _mallopt(*options: tuple[int, int]) -> None:
    """Set options of glibc's malloc; another C library has none."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in options:
            mallopt(option, value)


def disk_bytes(proc: Path = _PROC) -> int | None:
    """Bytes that this process has had read from disks so far: not those that were in the page cache. None where the
    kernel does not say.
    """
    words = _words(proc / "self" / "io")
    stated = dict(zip(words[::2], words[1::2], strict=False))
    return int(stated["read_bytes:"]) if "read_bytes:" in stated else None


def interruptions() -> int:
    """How often other processes took a processor from this one so far, as the kernel counts it."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def out_of_memory(error: BaseException) -> str | None:
    """An error that is an allocation refused, by Python, torch or the kernel, in one line; None for any other."""
    text = str(error)
    if text.startswith(_REFUSED):
        return text  # said where it happened
    if not (isinstance(error, MemoryError) or any(word in text for word in _NO_MEMORY)):
        return None
    wanted = re.search(r"tried to allocate (\d+) bytes", text)
    size = f" of {int(wanted[1]) / GIB:.2f} GiB" if wanted is not None else ""
    return f"{_REFUSED}{size} was refused; use a smaller model or batch, or raise the limit (ulimit)"


def address_space(proc: Path = _PROC) -> float:
    """Bytes that may still be mapped or allocated under `ulimit -v` and `ulimit -d`; infinite without them. A mapped
    file counts here, though it takes no memory.
    """
    kinds = ((resource.RLIMIT_AS, 0), (resource.RLIMIT_DATA, 5))  # with the field of statm that counts towards each
    limits = [(resource.getrlimit(kind)[0], field) for kind, field in kinds]
    stated = [(limit, field) for limit, field in limits if limit != resource.RLIM_INFINITY]
    used = [int(word) * resource.getpagesize() for word in _words(proc / "self" / "statm")] if stated else []
    return min((max(0.0, limit - (used[field] if used else 0)) for limit, field in stated), default=math.inf)


def _memory_limit(folder: Path) -> float:
    """Bytes that a cgroup may hold, by either version's files; infinite where it has no limit."""
    names = ("memory.max", "memory.high", "memory.limit_in_bytes")
    stated = [word for name in names for word in _words(folder / name) if word.isdecimal()]
    return min(map(float, stated), default=math.inf)


def _memory_left(folder: Path) -> float:
    """Bytes that a cgroup may hold beside what it holds; cached files make room."""
    limit = _memory_limit(folder)
    if limit == math.inf:
        return limit
    used = _words(folder / "memory.current") or _words(folder / "memory.usage_in_bytes")
    words = _words(folder / "memory.stat")
    stat = dict(zip(words[::2], words[1::2], strict=False))
    cached = sum(int(stat.get(f"total_{name}", stat.get(name, "0"))) for name in _CACHED)
    return max(0.0, limit - max(0, int(used[0] if used else 0) - cached))


def _folders(controller: str, proc: Path, cgroups: Path) -> Iterator[Path]:
    """The cgroup of this process and those it is in, for a controller, of either version. A container may see its own
    cgroup as the root of the mount, under a path that is not there.
    """
    for line in _read(proc / "self" / "cgroup").splitlines():
        _, names, path = line.split(":", 2)
        mounts = [cgroups / controller] if controller in names.split(",") else []
        mounts = [cgroups, cgroups / "unified"] if not names else mounts
        for mount in mounts:
            inside = Path(path.lstrip("/"))
            yield from (mount / folder for folder in (inside, *inside.parents) if (mount / folder).is_dir())


def _meminfo(proc: Path, field: str) -> float:
    for line in _read(proc / "meminfo").splitlines():
        if line.startswith(f"{field}:"):
            return float(line.split()[1]) * 1024
    raise ValueError(f"{proc / 'meminfo'} does not say {field}; state the KV budget (--kv-memory)")


def _words(path: Path) -> list[str]:
    return _read(path).split()


def _read(path: Path) -> str:
    """The text of a small file of the kernel; empty where there is none, or it may not be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
