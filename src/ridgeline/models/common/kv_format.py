"""The format in which a model that runs keeps its keys and values."""

import torch

from ridgeline.models.common.fields import Fields
from ridgeline.models.common.model import Model
from ridgeline.ops.formats import KV_FORMATS, KVFormat, format_of, kv_format_named


def kv_format_to_run(kv: str | None, fields: Fields, stated: KVFormat | None, dtype: torch.dtype) -> KVFormat | None:
    """The format `kv` that is asked for, by default the one that the config states; None for the model's own, `dtype`.
    Raises ModelRefused where the config states one that is priced only, ValueError where such a one is asked for."""
    running = [known.name for known in KV_FORMATS if known.code]
    if kv is None:
        if stated is not None and not stated.code:
            raise fields.refuse(
                f"keys and values stored in {stated.name} with the checkpoint's scales are priced (ridgeline plan, "
                f"show, trace --priced) and do not run yet; give --kv {' or '.join(running)}"
            )
        return stated
    own, priced_too = format_of(dtype), [known.name for known in KV_FORMATS]
    if own.is_called(kv):
        return None
    if kv not in running:
        priced = ", which is priced (ridgeline plan --kv) and does not run" if kv in priced_too else ""
        names = ", ".join((own.name, *running))
        raise ValueError(f"--kv is {kv!r}{priced}; keys and values of {fields.title} may be in {names}")
    return kv_format_named(kv)


def check_kv_format(model: Model, kv: str | None, fields: Fields) -> None:
    """Raises ValueError where a format is asked for and the model keeps nothing, ModelRefused for a checkpoint's scales
    that nothing reads."""
    kept = [spec for spec in model.kv_specs if not spec.is_state]
    if kv is not None and not kept:
        raise ValueError(f"{fields.source} keeps no keys and values; leave --kv {kv} out")
    if model.storage.kv is not None and model.storage.kv.stated and any(spec.is_latent for spec in kept):
        raise fields.refuse("scales of latents in fp8 are not read; give --kv fp8, which does without")
