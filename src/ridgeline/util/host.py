"""The machine's resources that this process may use: cores, threads and memory, within cgroups and ulimits.

/proc shows a container or a batch job the whole machine, although the kernel kills it for using that much.
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

from ridgeline.util.document.humanize import gib, say_gib

MIB, GIB = 1 << 20, 1 << 30

# Weights below this size stay in the caches of a core, and a second thread costs more than it saves.
SMALL_MODEL_BYTES = 32 << 20

# Options of mallopt(3): the size from which malloc uses mmap, and the free memory that it keeps before trimming.
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1

_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_NO_MEMORY = ("can't allocate memory", "Cannot allocate memory", "out of memory")  # of torch, the kernel, CUDA
_REFUSED = "out of memory: an allocation"
_CACHED = ("inactive_file", "active_file")  # entries of memory.stat that the kernel can drop


def cores(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Return the number of CPU cores that this process may use, by its affinity and the CPU quota of its cgroups."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [quota for folder in _folders("cpu", proc, cgroups) if (quota := _quota(folder)) is not None]
    return max(1, min([allowed, *(math.ceil(quota) for quota in quotas)]))


def _quota(folder: Path) -> float | None:
    """Return the CPU quota of a cgroup (v1 or v2) in cores; None without a limit."""
    stated = _words(folder / "cpu.max") or [*_words(folder / "cpu.cfs_quota_us"), *_words(folder / "cpu.cfs_period_us")]
    if len(stated) != 2 or not all(word.isdecimal() for word in stated) or int(stated[1]) == 0:
        return None  # "max" and -1 are no limit
    return int(stated[0]) / int(stated[1])


def processor(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> str:
    """Return the name of the CPU and how many of its cores this process may use."""
    try:
        lines = (proc / "cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    many = cores(proc, cgroups)
    return f"{names[0] if names else platform.machine()}, {many} core{'s' if many > 1 else ''}"


def check_threads(threads: int, name: str = "threads") -> int:
    """Return `threads` if there are as many cores, else raise ValueError.

    More threads would only wait for each other, and PyTorch cannot start thousands.

    Args:
        threads: The number of threads.
        name: The name of the option for the error message.

    Raises:
        ValueError: If there are fewer cores, or the number is below 1.
    """
    most = cores()
    if not 1 <= threads <= most:
        raise ValueError(f"{name} is {threads}; it must be from 1 to {most}, the cores that this process may use")
    return threads


def threads_for(weight_bytes: float, threads: int | None = None, ranks: int = 1) -> int:
    """Return the number of threads for a model: `threads`, else one for a small model and all cores for others.

    Without `threads`, several ranks share the cores evenly, whatever the size of the model.

    Args:
        weight_bytes: The size of the weights.
        threads: The requested number; None for the default.
        ranks: The number of processes that share the cores.

    Raises:
        ValueError: If `threads` is invalid, as in `check_threads`.
    """
    if threads is not None:
        return check_threads(threads)
    if ranks > 1:
        return max(1, cores() // ranks)
    return 1 if weight_bytes < SMALL_MODEL_BYTES else cores()


def total_memory(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> float:
    """Return the bytes of memory of the machine, or the limit of this process's cgroups if that is less."""
    limits = [_memory_limit(folder) for folder in _folders("memory", proc, cgroups)]
    try:
        total = _meminfo(proc, "MemTotal")
    except ValueError:
        total = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min([total, *limits])


def available_memory(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> float:
    """Return the bytes that this process can still allocate without swapping, refusal or being killed.

    This is the kernel's estimate for the machine (MemAvailable), limited by the cgroups and by `address_space`.

    Raises:
        ValueError: If the kernel has no estimate, as on systems other than Linux.
    """
    left = [_memory_left(folder) for folder in _folders("memory", proc, cgroups)]
    return max(0.0, min([_meminfo(proc, "MemAvailable"), *left, address_space(proc)]))


def fresh_memory(nbytes: int) -> mmap.mmap:
    """Return private anonymous memory, allocated on first write, in huge pages if the system has them.

    Huge pages save page-table lookups in steps that read small scattered pieces.

    Raises:
        OSError: If the system refuses the memory.
    """
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # the kernel has no huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def read_in_huge_pages(address: int, nbytes: int) -> None:
    """Ask the system to read a mapped part of a file in huge pages, which saves page-table lookups.

    File systems that store files in huge pages support it (ext4 since Linux 6.16, XFS). Data that is already in the
    page cache stays as it is. A step that reads all weights benefits.

    Args:
        address: The address of the mapped part.
        nbytes: The size of the part.
    """
    libc = ctypes.CDLL(None)
    if hasattr(mmap, "MADV_HUGEPAGE") and hasattr(libc, "madvise"):
        start = address // mmap.PAGESIZE * mmap.PAGESIZE
        libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(address + nbytes - start), mmap.MADV_HUGEPAGE)


def give_back_freed_memory() -> None:
    """Return to the system the memory that this process has freed; glibc may keep it otherwise.

    With another C library this does nothing.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def keep_freed_memory() -> None:
    """Let glibc keep freed memory for reuse by this process.

    glibc returns large pieces to the system at once, and each step allocates the same ones again with a page fault per
    4 KB: 6 to 10 % of a prefill. With another C library this does nothing.
    """
    _mallopt((_MMAP_THRESHOLD, 256 * MIB), (_TRIM_THRESHOLD, GIB))


def return_freed_memory() -> None:
    """Let glibc return memory to the system soon after this process frees it, which undoes `keep_freed_memory`.

    A server whose requests are seldom large would otherwise hold the memory of the largest ones, in the heap of each
    thread that read one. With another C library this does nothing.
    """
    _mallopt((_MMAP_THRESHOLD, MIB), (_TRIM_THRESHOLD, MIB))


def _mallopt(*options: tuple[int, int]) -> None:
    """Set options of glibc's malloc; do nothing with another C library."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in options:
            mallopt(option, value)


def disk_bytes(proc: Path = _PROC) -> int | None:
    """Return the bytes that this process has read from disks so far, without hits of the page cache.

    It returns None if the kernel does not report them.
    """
    words = _words(proc / "self" / "io")
    stated = dict(zip(words[::2], words[1::2], strict=False))
    return int(stated["read_bytes:"]) if "read_bytes:" in stated else None


def interruptions() -> int:
    """Return how often other processes have preempted this one so far (the kernel's involuntary context switches)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def out_of_memory(error: BaseException) -> str | None:
    """Return a one-line message for an allocation that Python, PyTorch or the kernel refused; None for other errors."""
    text = str(error)
    if text.startswith(_REFUSED):
        return text  # already converted where it was raised
    if not (isinstance(error, MemoryError) or any(word in text for word in _NO_MEMORY)):
        return None
    wanted = re.search(r"tried to allocate (\d+) bytes", text)
    size = f" of {say_gib(gib(int(wanted[1])))}" if wanted is not None else ""
    return f"{_REFUSED}{size} was refused; use a smaller model or batch, or raise the limit (ulimit)"


def address_space(proc: Path = _PROC) -> float:
    """Return the bytes that this process may still map or allocate under `ulimit -v` and `ulimit -d`.

    It is infinite without these limits. A mapped file counts towards `ulimit -v`, although it takes no memory.
    """
    kinds = ((resource.RLIMIT_AS, 0), (resource.RLIMIT_DATA, 5))  # with the field of statm that counts towards it
    limits = [(resource.getrlimit(kind)[0], field) for kind, field in kinds]
    stated = [(limit, field) for limit, field in limits if limit != resource.RLIM_INFINITY]
    used = [int(word) * resource.getpagesize() for word in _words(proc / "self" / "statm")] if stated else []
    return min((max(0.0, limit - (used[field] if used else 0)) for limit, field in stated), default=math.inf)


def _memory_limit(folder: Path) -> float:
    """Return the memory limit of a cgroup (v1 or v2) in bytes; infinity without a limit."""
    names = ("memory.max", "memory.high", "memory.limit_in_bytes")
    stated = [word for name in names for word in _words(folder / name) if word.isdecimal()]
    return min(map(float, stated), default=math.inf)


def _memory_left(folder: Path) -> float:
    """Return the bytes that a cgroup may still allocate; its cached files count as free."""
    limit = _memory_limit(folder)
    if limit == math.inf:
        return limit
    used = _words(folder / "memory.current") or _words(folder / "memory.usage_in_bytes")
    words = _words(folder / "memory.stat")
    stat = dict(zip(words[::2], words[1::2], strict=False))
    cached = sum(int(stat.get(f"total_{name}", stat.get(name, "0"))) for name in _CACHED)
    return max(0.0, limit - max(0, int(used[0] if used else 0) - cached))


def _folders(controller: str, proc: Path, cgroups: Path) -> Iterator[Path]:
    """Yield the folders of this process's cgroup and its parents for a controller, in cgroup v1 and v2.

    A container may see its own cgroup as the root of the mount, under a path that does not exist inside.
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
    raise ValueError(f"{proc / 'meminfo'} has no {field}; give the memory of the KV cache (--kv-memory)")


def _words(path: Path) -> list[str]:
    return _read(path).split()


def _read(path: Path) -> str:
    """Return the text of a small kernel file; "" if it does not exist or is not readable."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
