"""Compiles the kernels of `src/ridgeline/backends/cpu/native` into the package when it is built.

pyproject.toml says all else. They are plain C functions that ctypes calls, so one wheel serves every
Python of a platform. Where there is no compiler the package is built without them, and runs on torch alone.
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
PLAIN = {"plain": "-DLANES=4 -DREGISTERS=16"}
SETS = {
    "x86_64": PLAIN
    | {
        "avx2": "-DLANES=8 -DREGISTERS=16 -mavx2 -mfma",
        "avx512": f"-DLANES=16 -DREGISTERS=32 {AVX512}",
        "avx512_bf16": f"-DLANES=16 -DREGISTERS=32 -DBF16_DOTS {AVX512} -mavx512bf16 -mavx512vnni",
    },
    # For aarch64 g++ orders instructions before it hands out registers: loads move up until there are none left. And it
    # notes what it passes otherwise than g++ 9 did, though nothing of another compiler calls it.
    "aarch64": {"neon": "-DLANES=4 -DREGISTERS=32 -fno-schedule-insns -Wno-psabi"},
}
"""The instruction sets of a processor, and what compiles the kernels for each; any other processor has the plain one.
That comes first: of an inline function that several of them contain the linker takes the first, which every processor
can run."""

PROBE = """
#if !__has_builtin(__builtin_shufflevector)
#error
#elif defined __x86_64__
x86_64
#elif defined __aarch64__
aarch64
#endif
"""
"""What a compiler refuses that is too old for the kernels (g++ has that builtin since version 12), and what any other
makes the name of the processor that it compiles for, which need not be this machine's."""


def compiler() -> tuple[list[str], str]:
    """The C++ compiler, with what it is always told, and the processor that it compiles for: the words of $CXX, or one
    of the usual names. Raises OSError where it is not there or too old."""
    cxx = words("CXX") or list(filter(shutil.which, ("g++", "c++")))[:1]
    if not cxx:
        raise FileNotFoundError("no C++ compiler; the kernels take g++ 12 or newer")
    command = [*cxx, "-std=gnu++20", "-E", "-P", "-x", "c++", "-"]
    probed = subprocess.run(command, input=PROBE, text=True, capture_output=True, check=False)
    if probed.returncode:
        raise OSError(
            f"{shlex.join(cxx)} is too old for the kernels, which take g++ 12 or newer; CXX names another compiler"
        )
    return cxx, probed.stdout.strip()


def words(variable: str) -> list[str]:
    """What an environment variable holds, in words of a shell. Raises OSError for a quotation without an end."""
    try:
        return shlex.split(os.environ.get(variable, ""))
    except ValueError as error:
        raise OSError(f"{variable} cannot be taken apart as a shell would: {error}") from None


def compile_kernels(source: Path, library: Path) -> None:
    """Compile the kernels for each instruction set and link them, with $CXXFLAGS behind our own. Raises
    CalledProcessError or OSError."""
    (cxx, processor), added = compiler(), words("CXXFLAGS")
    digest = runpy.run_path(str(source.parent / "kernel_sources.py"))["digest_of"](source)
    with tempfile.TemporaryDirectory() as folder:
        jobs = {Path(folder, "library.o"): (source / "library.cpp", [f'-DSOURCES="{digest}"'])}
        jobs[Path(folder, "pool.o")] = source / "pool.cpp", []
        for name, flags in SETS.get(processor, PLAIN).items():
            own = [*flags.split(), f"-DNAME={name}", f'-DNAME_IN_QUOTES="{name}"']
            jobs[Path(folder, f"{name}.o")] = source / "kernels.cpp", own
        always = [*cxx, *FLAGS]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            commands = [[*always, *own, *added, "-c", str(file), "-o", str(to)] for to, (file, own) in jobs.items()]
            list(pool.map(lambda command: subprocess.run(command, check=True), commands))
        library.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([*cxx, *map(str, jobs), *LINK, *added, "-o", str(library)], check=True)


class BuildWithKernels(build_py):
    """The package's Python files, and the kernels beside them."""

    def run(self) -> None:
        super().run()
        self.library = Path("src" if self.editable_mode else self.build_lib) / FOLDER / LIBRARY
        # One of an earlier build may be of other sources, whose structures Python no longer fills in.
        self.library.unlink(missing_ok=True)
        try:
            compile_kernels(Path("src") / FOLDER / "native", self.library)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"ridgeline is built without its own kernels, on torch alone: {error}", file=sys.stderr)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """As build_py.get_outputs."""
        own = [str(self.library)] if self.library.exists() else []
        return [*super().get_outputs(include_bytecode), *own]


class PlatformWheel(bdist_wheel):
    """A wheel for every Python of this platform."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class WithKernels(Distribution):
    """A distribution with compiled parts, if there is a compiler."""

    def has_ext_modules(self) -> bool:
        try:
            return bool(compiler())
        except OSError:
            return False


setup(
    distclass=WithKernels,
    cmdclass={"build_py": BuildWithKernels, "bdist_wheel": PlatformWheel},
)
