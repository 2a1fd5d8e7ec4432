"""A check that the compiled library matches the C++ sources next to it.

If Python fills a structure in one way and the library reads it in another, the results are wrong without an error.
setup.py runs this file alone, without the package.
"""

import ctypes
import hashlib
from pathlib import Path


def digest_of(folder: Path) -> str:
    """Return a hash of the names and contents of the C++ sources in a folder."""
    state = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.iterdir()):
        if path.suffix in (".h", ".cpp"):
            content = path.read_bytes()
            state.update(f"{path.name} {len(content)}\n".encode())
            state.update(content)
    return state.hexdigest()


def unusable(library: Path, folder: Path | None = None) -> str:
    """Return the reason why a compiled library of kernels cannot be used, and the fix; "" if it can be used.

    Args:
        library: The library.
        folder: The folder of its sources; by default `native` next to it. If it is missing, the library counts as
            matching.
    """
    try:
        digest_function = ctypes.CDLL(str(library)).ridgeline_sources
    except OSError as error:
        return f"those in the package cannot be loaded: {error} (reinstall ridgeline)"
    except AttributeError:  # an old build without this function
        digest_function = None
    if digest_function is not None:
        digest_function.restype, digest_function.argtypes = ctypes.c_char_p, ()
        folder = folder or library.with_name("native")
        if not folder.is_dir() or digest_function().decode() == digest_of(folder):
            return ""
    return "those in the package do not match its sources (run make, or pip install --editable .)"
