"""The model of a config, on the meta device: to be priced, or to be filled and run."""

import re
from dataclasses import replace

import torch

from ridgeline.core.models.common.denoiser import Denoiser
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import DivisionRefused, Fields, ModelRefused
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.recipes import PLAIN, SECTIONS, Recipe, quantised_recipe, read_recipe
from ridgeline.core.models.common.recipes.module_names import beginnings
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.registry import denoiser_of, family_of
from ridgeline.core.ops.number_formats import KV_FORMATS, KVFormat, WeightFormat, format_of, kv_format_named
from ridgeline.core.ops.shard import WHOLE, Indivisible, Shard
from ridgeline.core.ops.weight_slot import WeightSlot


def build(
    fields: Fields,
    dtype: torch.dtype | None = None,
    *,
    shard: Shard = WHOLE,
    recipe: Recipe | None = None,
    experts: Shard | None = None,
    family: Family | None = None,
) -> Model:
    """The model of a config on the meta device: shapes without memory, ready to be priced, or filled if it `runs`.

    dtype: the number format of what no recipe narrows, as the config says by default. shard: one rank of a
    tensor-parallel model. recipe: how its matrices, keys and values are stored, as the config says by default. experts:
    one rank of those that share the experts, all else being whole on each of them, priced only. family: what it is
    built as, by default what its config says. Raises ModelRefused.
    """
    family = family or family_of(fields)
    recipe = read_recipe(fields) if recipe is None else recipe
    fields.ignore(*SECTIONS)
    try:
        with torch.device("meta"):
            storage = StorageConfig(dtype or stored_dtype(fields), shard, recipe.kv, experts)
            model = family.build(fields, storage).eval()
            assert isinstance(model, Model)
            if recipe.name:
                _store(fields, model, recipe, family)
                model.passed_over = (*model.passed_over, *recipe.passed_over)
                model.recipe = recipe.name
    except ModelRefused:
        raise
    except Indivisible as error:
        raise DivisionRefused(f"{fields.source}: {error}") from None
    except ValueError as error:  # what an op found when it divided itself
        raise fields.refuse(str(error)) from None
    fields.ignore_other_inputs()
    fields.refuse_unread()
    return model


def build_to_run(
    fields: Fields,
    *,
    shard: Shard = WHOLE,
    family: Family | None = None,
    weights: str | None = None,
    kv: str | None = None,
) -> Model:
    """As `build`, of a model that runs as its config says it is stored, or whose plain weights are quantised to the
    format `weights` while they are loaded. Of what is quantised numbers in fp16 are widened to fp32, in which scales of
    fp16 are exact, as they are not in bf16. kv: the format of keys and values where it is not to be the config's: the
    model's own, int8 or fp8. Raises ModelRefused for one that is priced only, ValueError for no format that there
    is.
    """
    family, recipe = family or family_of(fields), read_recipe(fields)
    stated_kv = recipe.kv
    if weights is not None:
        recipe = quantised_recipe(weights, fields)
    elif recipe.name in family.upcast_from:
        recipe = PLAIN
    stated = stored_dtype(fields, family)
    own = torch.float32 if recipe.name and stated == torch.float16 else stated
    recipe = replace(recipe, kv=kv_format_to_run(kv, fields, stated_kv, own))
    model = build(fields, own, shard=shard, recipe=recipe, family=family)
    if not model.weights_run:
        raise fields.refuse(
            f"weights stored as {recipe.name} are priced (ridgeline plan, show, trace --priced) and do not run yet; "
            "use the unquantised checkpoint"
        )
    check_kv_format(model, kv, fields)
    try:
        model.refuse_division()
    except Indivisible as error:
        raise DivisionRefused(f"{fields.source}: {error}") from None
    return model


def build_denoiser(fields: Fields, dtype: torch.dtype | None = None) -> Denoiser:
    """The denoiser of a config on the meta device, as `build`; in fp32 where neither a dtype is given nor the config
    has one. Raises ModelRefused.
    """
    family = denoiser_of(fields)
    with torch.device("meta"):
        denoiser = family.build(fields, StorageConfig(dtype or fields.dtype)).eval()
    assert isinstance(denoiser, Denoiser)
    fields.refuse_unread()
    return denoiser


def stored_dtype(fields: Fields, family: Family | None = None) -> torch.dtype:
    """Return the dtype of the numbers that no recipe narrows: bf16 if a quantised config does not state it, and fp32
    instead of fp16 in families that go beyond its range. family: as `build`.
    """
    stated = fields.stated_dtype or (torch.bfloat16 if read_recipe(fields).name else torch.float32)
    upcast_from = stated == torch.float16 and (family or family_of(fields)).widens_fp16
    return torch.float32 if upcast_from else stated


def _store(fields: Fields, model: Model, recipe: Recipe, family: Family) -> None:
    """Store a model as a recipe says, which knows each place by its names in the family's checkpoints.

    Raises ModelRefused if the recipe narrows no weight of the model, or lists a module that the model lacks: the
    weights would silently stay in a wider format.
    """
    choose, known, narrowed = recipe.choice(model), set[str](), False

    def chosen(place: WeightSlot) -> WeightFormat | None:
        nonlocal narrowed
        name, *others = (each for spelt in family.spellings(place.name) for each in (spelt, *_of_all_experts(spelt)))
        named = replace(place, name=name, spellings=tuple(others))
        known.update(*map(beginnings, (name, *others)))
        stored = choose(named)
        narrowed |= stored is not None
        return stored

    model.store(chosen)
    passed_over = (*family.ignored, *model.passed_over)
    missing = [
        module
        for module in recipe.listed
        if module not in known and not any(re.fullmatch(pattern, f"{module}.weight") for pattern in passed_over)
    ]
    # AutoFP8 may narrow keys and values alone.
    if missing or not (narrowed or read_recipe(fields).kv is not None):
        what = f"{missing[0]} and {len(missing) - 1} more modules" if len(missing) > 1 else "".join(missing)
        raise fields.refuse(
            f"its weights are said to be stored as {recipe.name}, but the model has no {what or 'weight for that'}; "
            "give the config.json of this checkpoint, with its quantisation"
        )


def _of_all_experts(name: str) -> tuple[str, ...]:
    """Return the names that a list may have for all experts' matrices of a layer, by that of the first expert."""
    mixture, _, matrix = name.partition(".experts.0.")
    if not matrix:
        return ()
    return (f"{mixture}.experts.{'gate_up_proj' if matrix in ('gate_proj', 'up_proj') else matrix}",)


def kv_format_to_run(kv: str | None, fields: Fields, stated: KVFormat | None, dtype: torch.dtype) -> KVFormat | None:
    """The format `kv` that is asked for, by default the one that the config states; None for the model's own, `dtype`.
    Raises ModelRefused where the config states one that is priced only, ValueError where such a one is asked for.
    """
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
    that nothing reads.
    """
    kept = [spec for spec in model.kv_specs if not spec.is_state]
    if kv is not None and not kept:
        raise ValueError(f"{fields.source} keeps no keys and values; leave --kv {kv} out")
    if model.storage.kv is not None and model.storage.kv.stated and any(spec.is_latent for spec in kept):
        raise fields.refuse("scales of latents in fp8 are not read; give --kv fp8, which does without")
