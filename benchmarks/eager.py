"""What diffusers' denoisers move beside products and attention when nothing fuses it: `python benchmarks/eager.py`
writes src/ridgeline/media/diffusion/eager.toml.

Every op that torch dispatches in a pass on meta is noted with the bytes that it reads and writes; products and
attention are left out, and so are views. Two sizes of picture tell what grows with its tokens and what does not.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    Flux2Transformer2DModel,
    FluxTransformer2DModel,
    PixArtTransformer2DModel,
    WanTransformer3DModel,
    ZImageTransformer2DModel,
)
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ridgeline.core.checkpoint import open_source
from ridgeline.core.checkpoint.catalogue import pipeline_names

OUT = Path(__file__).resolve().parents[1] / "src" / "ridgeline" / "diffusion" / "eager.toml"
_SIDES = (768, 1280)  # neither is what PixArt was trained on, whose positions it does not make anew
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "convolution")
_CLASSES = {
    "ZImageTransformer2DModel": ZImageTransformer2DModel,
    "FluxTransformer2DModel": FluxTransformer2DModel,
    "Flux2Transformer2DModel": Flux2Transformer2DModel,
    "PixArtTransformer2DModel": PixArtTransformer2DModel,
    "Transformer2DModel": PixArtTransformer2DModel,
    "WanTransformer3DModel": WanTransformer3DModel,
}
Kernels = list[int]
"""Bytes of each op in turn."""
Config = dict[str, Any]


class Moved(TorchDispatchMode):
    """Notes the bytes that each op reads and writes, but for products and for views."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: Kernels = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        aliased = [each.alias_info for each in func._schema.returns]
        view = any(alias is not None and not alias.is_write for alias in aliased)
        if name not in _PRODUCTS and not view and not name.startswith("empty"):
            given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            made = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
            self.kernels.append(sum(map(_nbytes, (*given, *made))))
        return out


def _nbytes(tensor: Tensor) -> int:
    """What is read of it: what is repeated lies in memory once."""
    return min(tensor.numel() * tensor.itemsize, tensor.untyped_storage().nbytes())


@contextmanager
def _without_attention() -> Iterator[None]:
    """While it lasts, attention gives the shape of its result and is not noted."""
    attend = functional.scaled_dot_product_attention
    functional.scaled_dot_product_attention = lambda query, *_, **__: query  # type: ignore[assignment]
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = attend


def record(config: Config, side: int, text: int, frames: int = 1) -> tuple[int, Kernels]:
    """Tokens of latents of a picture of side x side pixels, and what a pass over it moves, op by op."""
    kind = config["_class_name"]
    fields = {name: value for name, value in config.items() if not name.startswith("_")}
    if _CLASSES[kind] is PixArtTransformer2DModel:
        fields = {name: value for name, value in fields.items() if name not in _OLD}
    with torch.device("meta"):
        model = _CLASSES[kind](**fields).eval().to(torch.bfloat16)
        tokens, given = _INPUTS[kind](config, side, text, frames)
    with _without_attention(), torch.inference_mode(), torch.device("meta"), Moved() as moved:
        model(**given, return_dict=False)
    return tokens, moved.kernels


_OLD = ("double_self_attention", "num_vector_embeds", "only_cross_attention", "use_linear_projection")


def _z_image(config: Config, side: int, text: int, frames: int) -> tuple[int, dict[str, Any]]:
    latents = [_empty(config["in_channels"], 1, side // 8, side // 8)]
    return (side // 16) ** 2, {"x": latents, "t": _empty(1), "cap_feats": [_empty(text, config["cap_feat_dim"])]}


def _flux(config: Config, side: int, text: int, frames: int) -> tuple[int, dict[str, Any]]:
    tokens, axes = (side // 16) ** 2, 3 if "pooled_projection_dim" in config else 4
    given = {
        "hidden_states": _empty(1, tokens, config["in_channels"]),
        "encoder_hidden_states": _empty(1, text, config["joint_attention_dim"]),
        "timestep": _empty(1),
        "img_ids": _empty(tokens, axes),
        "txt_ids": _empty(text, axes),
    }
    if axes == 3:
        given["pooled_projections"] = _empty(1, config["pooled_projection_dim"])
    if config["guidance_embeds"]:
        given["guidance"] = _empty(1)
    return tokens, given


def _pixart(config: Config, side: int, text: int, frames: int) -> tuple[int, dict[str, Any]]:
    return (side // 16) ** 2, {
        "hidden_states": _empty(1, config["in_channels"], side // 8, side // 8),
        "encoder_hidden_states": _empty(1, text, config["caption_channels"]),
        "timestep": _empty(1),
        "added_cond_kwargs": {"resolution": _empty(1, 2), "aspect_ratio": _empty(1, 1)},
    }


def _wan(config: Config, side: int, text: int, frames: int) -> tuple[int, dict[str, Any]]:
    return frames * (side // 16) ** 2, {
        "hidden_states": _empty(1, config["in_channels"], frames, side // 8, side // 8),
        "encoder_hidden_states": _empty(1, text, config["text_dim"]),
        "timestep": _empty(1),
    }


def _empty(*shape: int) -> Tensor:
    return torch.empty(*shape, dtype=torch.bfloat16)


_INPUTS: dict[str, Callable[[Config, int, int, int], tuple[int, dict[str, Any]]]] = {
    "ZImageTransformer2DModel": _z_image,
    "FluxTransformer2DModel": _flux,
    "Flux2Transformer2DModel": _flux,
    "PixArtTransformer2DModel": _pixart,
    "Transformer2DModel": _pixart,
    "WanTransformer3DModel": _wan,
}


def lines_of(config: Config, text: int) -> dict[tuple[int, int], int]:
    """How many ops of a pass move so many bytes whatever the picture is, and so many for each token of it. What grows
    as a side does, tables of positions, is far below what grows as tokens do."""
    frames = 2 if config["_class_name"].startswith("Wan") else 1
    (few, small), (many, large) = (record(config, side, text, frames) for side in _SIDES)
    assert len(small) == len(large), "the size changes what is dispatched"
    found: Counter[tuple[int, int]] = Counter()
    for less, more in zip(small, large, strict=True):
        each = round((more - less) / (many - few))
        found[max(less - each * few, 0), each] += 1
    return dict(sorted(found.items()))


def main() -> None:
    """Write the table of all pipelines of the catalogue, one of those that share a denoiser."""
    said = [
        "# Made by `python benchmarks/eager.py`: of a pass of diffusers' denoisers, by releases of the catalogue, what",
        "# torch dispatches beside products and attention: bytes whatever the picture is, bytes a token, how many ops.",
    ]
    done: dict[str, str] = {}
    for name in pipeline_names():
        source = open_source(name)
        config, text = source.components["transformer"].config, source.generation.get("tokens") or 96
        assert config is not None
        key = str(sorted(config.values.items(), key=str)) + str(text)
        if key not in done:
            rows = ", ".join(f"[{a}, {b}, {n}]" for (a, b), n in lines_of(config.values, text).items())
            done[key] = f"[{rows}]"
        said += ["", f'["{name}"]', f"kernels = {done[key]}"]
    OUT.write_text("\n".join(said) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
