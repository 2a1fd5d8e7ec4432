"""What is read off a clip: where its ink moves, and which digit it shows.

Shapes: B clips, F frames, S side of a picture.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from zoo.digits_video.data import DIRECTIONS, SCALE, SPEED


def centres(clips: Tensor) -> Tensor:
    """The centre of mass of each frame's ink, row and column in pixels from the middle [B, F, 2], of clips
    [B, F, 1, S, S]."""
    ink = (clips[:, :, 0].clamp(-1, 1) + 1) / 2
    ink = torch.where(ink > 0.25, ink, 0.0)  # what is hardly grey, all over a frame, would weigh more than a stroke
    place = torch.arange(ink.shape[-1]) - (ink.shape[-1] - 1) / 2
    both = [(ink.sum(axis) * place).sum(-1) for axis in (-1, -2)]
    return torch.stack(both, -1) / ink.sum((-1, -2)).clamp(min=1e-6)[..., None]


def speeds(clips: Tensor) -> Tensor:
    """Pixels that the ink moves down and to the right a frame, by least squares over all frames [B, 2]."""
    time = torch.arange(clips.shape[1]) - (clips.shape[1] - 1) / 2
    return torch.einsum("bfa,f->ba", centres(clips), time) / time.square().sum()


def unsteady(clips: Tensor) -> Tensor:
    """How far frames are from where a steady speed would have them, root of the mean square of pixels [B]."""
    found = centres(clips)
    time = torch.arange(clips.shape[1]) - (clips.shape[1] - 1) / 2
    straight = found.mean(1, keepdim=True) + speeds(clips)[:, None] * time[:, None]
    return (found - straight).square().sum(-1).mean(-1).sqrt()


def directions(clips: Tensor) -> list[str | None]:
    """Where each moves to; None for one that moves at less than half of the speed that was trained."""
    ways = torch.tensor(list(DIRECTIONS.values()), dtype=torch.float32)
    fastest, which = (speeds(clips) @ ways.T).max(-1)
    names = list(DIRECTIONS)
    return [
        names[way] if speed >= SPEED / 2 else None for speed, way in zip(fastest.tolist(), which.tolist(), strict=True)
    ]


def centred(clips: Tensor) -> Tensor:
    """Frames [B * F, 1, S, S] with their ink in the middle, as large as the images of digits are."""
    side = clips.shape[-1]
    offsets = centres(clips).flatten(0, 1).flip(-1) * 2 / side  # column before row, of a half of the picture
    maps = torch.cat([SCALE * torch.eye(2).expand(len(offsets), 2, 2), offsets[..., None]], -1)
    grid = functional.affine_grid(maps, [len(offsets), 1, side, side], align_corners=False)
    # Sampled about 0, so that what comes from outside is paper.
    return functional.grid_sample(clips.flatten(0, 1) + 1, grid, mode="bicubic", align_corners=False).clamp(0, 2) - 1


@torch.inference_mode()
def shown(reader: nn.Module, clips: Tensor) -> Tensor:
    """The digit that a reader of pictures finds in most frames, the surer where two are as many; int64 [B]."""
    shares = reader(centred(clips)).softmax(-1).unflatten(0, (len(clips), -1))
    votes = functional.one_hot(shares.argmax(-1), shares.shape[-1]).sum(1)
    return (votes + shares.mean(1) / 2).argmax(-1)
