"""One process of two that compute a model together: it imports what it needs, and none of the references."""

from collections.abc import Iterable
from datetime import timedelta

import torch
from torch import Tensor, distributed

from ridgeline.backends.model_loader import load_model
from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.kv_context import Uncached
from ridgeline.core.ops.shard import Shard
from ridgeline.core.ops.work import StepSegment

IDS = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5])


def logits_of(model: Model) -> Tensor:
    """What the model says of every position of IDS: fp32 [positions, vocabulary]."""
    every = torch.arange(len(IDS))
    encoded = 13 if model.has_cross_attention else 0
    kv = Uncached([StepSegment(len(IDS), len(IDS), encoded, runs_encoder=model.has_cross_attention)])
    with torch.inference_mode():
        if not model.has_cross_attention:
            return model(IDS, every, kv, every)
        features_EF = torch.randn(encoded, model.encoder_width, generator=torch.Generator().manual_seed(1))
        read = features_EF if model.encoder_width else torch.arange(encoded) * 3
        encoded_ED = model.encode(read, torch.arange(encoded), kv)
        return model.head(model.hidden(IDS, every, kv, every, encoded_ED))


def run_rank(rank: int, folder: str, names: Iterable[str]) -> None:
    """What each process does: its part of every checkpoint of the folder, saved for the test to compare."""
    torch.set_num_threads(1)
    store = distributed.FileStore(f"{folder}/meeting", 2)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    for name in names:
        model = load_model(f"{folder}/{name}", shard=Shard(rank, 2))
        torch.save(logits_of(model), f"{folder}/{name}.{rank}.pt")
    distributed.destroy_process_group()
