"""Latents on disk: what took hours is there before it is decoded, and can be decoded later.

A safetensors file with one tensor, `latents` fp32 [C, H, W], and what it was drawn from as JSON in its metadata.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ridgeline.util.files import write_whole

SUFFIX = ".latents.safetensors"
_TENSOR, _PARAMETERS = "latents", "parameters"


def latents_path(picture: Path) -> Path:
    """Where the latents of a picture lie: beside it."""
    return picture.with_name(picture.stem + SUFFIX)


def drawn_path(latents: Path, suffix: str) -> Path:
    """The picture or the clip of a file of latents, with this suffix: beside it."""
    return latents.with_name(latents.name.removesuffix(SUFFIX).removesuffix(".safetensors") + suffix)


def save_latents(path: Path, latents_CHW: Tensor, parameters: Mapping[str, Any]) -> None:
    """Write the latents of a picture. Raises ValueError where the disk refuses."""
    tensors = {_TENSOR: latents_CHW.float().cpu().contiguous()}
    write_whole(path, save(tensors, {_PARAMETERS: json.dumps(parameters)}))


def read_latents(path: Path) -> tuple[Tensor, dict[str, Any]]:
    """Latents [C, H, W], of a clip [C, T, H, W], and what they were drawn from. Raises ValueError for a file that holds
    none.
    """
    try:
        with safe_open(path, framework="pt") as file:
            stated = (file.metadata() or {}).get(_PARAMETERS, "{}")
            if list(file.keys()) != [_TENSOR]:
                raise ValueError("it holds other tensors than `latents`")
            latents = file.get_tensor(_TENSOR)
        parameters = json.loads(stated)
        if latents.dtype != torch.float32 or latents.dim() not in (3, 4) or not isinstance(parameters, dict):
            raise ValueError(f"latents are {latents.dtype} {list(latents.shape)}, not fp32 of a picture or a clip")
    except FileNotFoundError:
        raise ValueError(f"{path} is no file; give the latents of a picture, NAME{SUFFIX}") from None
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} holds no latents of a picture or a clip: {error}") from None
    return latents, parameters
