"""Build the package with the kernels of `src/ridgeline/backends/cpu/native`; pyproject.toml holds everything else.

The kernels are plain C functions that ctypes calls, so one wheel serves every Python version of a platform. Without a
compiler, the package is built without them and runs on torch alone.
"""

import os
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

FOLDER = Path("ridgeline", "backends", "cpu")
LIBRARY = "libridgeline.so"
FLAGS = [
    "-std=gnu++20",
    "-O3",
    "-g0",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-ffp-contract=fast",
    "-Wall",
    "-Wextra",
]
LINK = ["-shared", "-static-libstdc++", "-static-libgcc", "-pthread"]

AVX512 = "-mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mprefer-vector-width=512"
AVX512_BF16 = f"-DLANES=16 -DREGISTERS=32 -DBF16_DOTS {AVX512} -mavx512bf16 -mavx512vnni"
PLAIN = {"plain": "-DLANES=4 -DREGISTERS=16"}
SETS = {
    "x86_64": PLAIN
    | {
        "avx2": "-DLANES=8 -DREGISTERS=16 -mavx2 -mfma",
        "avx512": f"-DLANES=16 -DREGISTERS=32 {AVX512}",
        "avx512_bf16": AVX512_BF16,
        "amx": f"{AVX512_BF16} -DTILES",
    },
    # On aarch64 g++ schedules instructions before it allocates registers, and moves loads up until no register is left.
    # It also warns that g++ 9 passed vectors differently, but no code of another compiler calls these functions.
    "aarch64": {"neon": "-DLANES=4 -DREGISTERS=32 -fno-schedule-insns -Wno-psabi"},
}
"""The instruction sets of each processor architecture, with the compiler's flags; others have the plain set.

The plain set comes first: if several sets contain an inline function, the linker takes the first one, which every
processor can run.
"""

EMULATED_SETS = {
    "": PLAIN | {"amx_emulated": f"{PLAIN['plain']} -DTILES -DEMULATED_TILES"},
    "x86_64": {"amx_emulated_avx512": f"{AVX512_BF16} -DTILES -DEMULATED_TILES"},
}
"""The sets that are built for tests with RIDGELINE_EMULATED_TILES=1, for every architecture and for one more.

They compute what Intel's manual specifies for the tiles of `amx`, on any processor.
"""

PROBE = """
#if !__has_builtin(__builtin_shufflevector)
#error
#elif defined __x86_64__
x86_64
#elif defined __aarch64__
aarch64
#endif
"""
"""Source that prints the architecture for which a compiler compiles, which need not be this machine's.

A compiler that is too old for the kernels refuses it: g++ has the builtin since version 12.
"""


def compiler() -> tuple[list[str], str]:
    """Return the command of the C++ compiler, from $CXX or the usual names, and the architecture that it compiles for.

    Raises:
        OSError: If there is no compiler, or it is too old.
    """
    cxx = words("CXX") or list(filter(shutil.which, ("g++", "c++")))[:1]
    if not cxx:
        raise FileNotFoundError("no C++ compiler was found; install g++ 12 or newer, or name one in CXX")
    command = [*cxx, "-std=gnu++20", "-E", "-P", "-x", "c++", "-"]
    probed = subprocess.run(command, input=PROBE, text=True, capture_output=True, check=False)
    if probed.returncode:
        raise OSError(
            f"{shlex.join(cxx)} is too old for the kernels, which need g++ 12 or newer; name another compiler in CXX"
        )
    return cxx, probed.stdout.strip()


def words(variable: str) -> list[str]:
    """Split the value of an environment variable into words, as a shell does.

    Raises:
        OSError: If a quotation has no end.
    """
    try:
        return shlex.split(os.environ.get(variable, ""))
    except ValueError as error:
        raise OSError(f"cannot split ${variable} into words: {error}; correct its quotation marks") from None


def sets_of(processor: str, *, emulated: bool) -> dict[str, str]:
    """Return the instruction sets to compile for an architecture, with the compiler's flags."""
    if emulated:
        return EMULATED_SETS[""] | EMULATED_SETS.get(processor, {})
    return SETS.get(processor, PLAIN)


def compile_kernels(source: Path, library: Path) -> None:
    """Compile the kernels for each instruction set and link them. $CXXFLAGS follows our own flags.

    Raises:
        CalledProcessError: If the compiler fails.
        OSError: If there is no suitable compiler, or a file cannot be written.
    """
    (cxx, processor), added = compiler(), words("CXXFLAGS")
    emulated = bool(os.environ.get("RIDGELINE_EMULATED_TILES"))
    digest = runpy.run_path(str(source.parent / "kernel_sources.py"))["digest_of"](source)
    with tempfile.TemporaryDirectory() as folder:
        own = [f'-DSOURCES="{digest}"', *["-DEMULATED_TILES"] * emulated]
        jobs = {Path(folder, "library.o"): (source / "library.cpp", own)}
        jobs[Path(folder, "pool.o")] = source / "pool.cpp", []
        for name, flags in sets_of(processor, emulated=emulated).items():
            own = [*flags.split(), f"-DNAME={name}", f'-DNAME_IN_QUOTES="{name}"']
            jobs[Path(folder, f"{name}.o")] = source / "kernels.cpp", own
        always = [*cxx, *FLAGS]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            commands = [[*always, *own, *added, "-c", str(file), "-o", str(to)] for to, (file, own) in jobs.items()]
            list(pool.map(lambda command: subprocess.run(command, check=True), commands))
        library.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([*cxx, *map(str, jobs), *LINK, *added, "-o", str(library)], check=True)


class BuildWithKernels(build_py):
    """Builds the package's Python files and the kernels."""

    def run(self) -> None:
        super().run()
        self.library = Path("src" if self.editable_mode else self.build_lib) / FOLDER / LIBRARY
        # A library of an earlier build may have been compiled from other sources, with other structures than Python's.
        self.library.unlink(missing_ok=True)
        try:
            compile_kernels(Path("src") / FOLDER / "native", self.library)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"ridgeline is built without its own kernels and will run on torch alone: {error}", file=sys.stderr)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """Return the files that the build writes, including the library of the kernels."""
        own = [str(self.library)] if self.library.exists() else []
        return [*super().get_outputs(include_bytecode), *own]


class PlatformWheel(bdist_wheel):
    """A wheel for every Python of this platform."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class WithKernels(Distribution):
    """A distribution that has compiled parts if there is a compiler."""

    def has_ext_modules(self) -> bool:
        try:
            return bool(compiler())
        except OSError:
            return False


setup(
    distclass=WithKernels,
    cmdclass={"build_py": BuildWithKernels, "bdist_wheel": PlatformWheel},
)
