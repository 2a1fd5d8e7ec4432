"""Whether a compiled library is of the sources that lie beside it: a structure that Python fills in one way and the
library reads in another gives wrong numbers and no error.

setup.py runs this file alone, without the package.
"""

import ctypes
import hashlib
from pathlib import Path


def digest_of(folder: Path) -> str:
    """What stands for the sources in a folder: names and contents."""
    state = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.iterdir()):
        if path.suffix in (".h", ".cpp"):
            content = path.read_bytes()
            state.update(f"{path.name} {len(content)}\n".encode())
            state.update(content)
    return state.hexdigest()


def unusable(library: Path) -> str:
    """Why a library is not to be called, in words, and what to do; "" where it may be. Where no sources lie beside it
    there is nothing that it could differ from.
    """
    try:
        said = ctypes.CDLL(str(library)).ridgeline_sources
    except OSError as error:
        return f"those in the package cannot be loaded, {error} (install ridgeline again)"
    except AttributeError:  # it was compiled before libraries said this
        said = None
    if said is not None:
        said.restype, said.argtypes = ctypes.c_char_p, ()
        folder = library.with_name("native")
        if not folder.is_dir() or said().decode() == digest_of(folder):
            return ""
    return "those in the package were compiled from other sources than it has now (make, or pip install --editable .)"
