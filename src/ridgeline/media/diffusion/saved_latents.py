"""Latents on disk: the result of hours of denoising is safe before the decode, which can then run later.

The file is a safetensors file with one tensor, `latents` in fp32, and the parameters of the image or video as JSON in
its metadata. The tensor is [C, H, W], or for a video [C, T, H, W].
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


def latents_path(image: Path) -> Path:
    """Return the path where an image's latents are saved, in the same folder as the image."""
    return image.with_name(image.stem + SUFFIX)


def decoded_path(latents: Path, suffix: str) -> Path:
    """Return the path of the image or video decoded from a file of latents, in its folder and with a given suffix."""
    return latents.with_name(latents.name.removesuffix(SUFFIX).removesuffix(".safetensors") + suffix)


def save_latents(path: Path, latents_CHW: Tensor, parameters: Mapping[str, Any]) -> None:
    """Write the latents and the parameters of an image or a video to a file.

    Raises:
        ValueError: If the file cannot be written.
    """
    tensors = {_TENSOR: latents_CHW.float().cpu().contiguous()}
    write_whole(path, save(tensors, {_PARAMETERS: json.dumps(parameters)}))


def read_latents(path: Path) -> tuple[Tensor, dict[str, Any]]:
    """Return the latents in a file, [C, H, W] or for a video [C, T, H, W], and the parameters of the image or video.

    Raises:
        ValueError: If the file is missing or unreadable, or contains no latents of an image or a video.
    """
    try:
        with safe_open(path, framework="pt") as file:
            stated = (file.metadata() or {}).get(_PARAMETERS, "{}")
            if list(file.keys()) != [_TENSOR]:
                raise ValueError("it has other tensors than `latents`")
            latents = file.get_tensor(_TENSOR)
        parameters = json.loads(stated)
        if latents.dtype != torch.float32 or latents.dim() not in (3, 4) or not isinstance(parameters, dict):
            raise ValueError(
                f"latents are {latents.dtype} {list(latents.shape)}, not the fp32 latents of an image or a video"
            )
    except FileNotFoundError:
        raise ValueError(f"{path} is not a file; give the saved latents of an image, NAME{SUFFIX}") from None
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} has no latents of an image or a video: {error}") from None
    return latents, parameters
