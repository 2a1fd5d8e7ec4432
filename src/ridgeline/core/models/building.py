"""The construction of a config's model on the meta device, either to estimate its cost or to load and run it."""

import re
from dataclasses import replace

import torch

from ridgeline.core.models.common.denoiser import Denoiser
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import DivisionRefused, Fields, ModelRefused
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.recipes import PLAIN, SECTIONS, Recipe, quantised_recipe, read_recipe
from ridgeline.core.models.common.recipes.module_names import name_prefixes
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
    """Build the model of a config on the meta device: it has shapes but no memory.

    Its cost can be estimated, and it can be loaded if it `runs`.

    Args:
        fields: The config.
        dtype: The dtype of everything that the recipe does not quantise. Default: the config's.
        shard: The tensor-parallel rank whose part is built.
        recipe: The storage formats of the matrices and of the KV cache. Default: the config's.
        experts: The expert-parallel rank whose experts are built, with everything else whole on each rank. Such a model
            is priced but does not run.
        family: The family to build it as. Default: the family that the config names.

    Raises:
        ModelRefused: If the config cannot be built, or has a key that changes the result and that nothing reads.
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
                model.ignored_tensors = (*model.ignored_tensors, *recipe.ignored_tensors)
                model.recipe = recipe.name
    except ModelRefused:
        raise
    except Indivisible as error:
        raise DivisionRefused(f"{fields.source}: {error}") from None
    except ValueError as error:  # an op refused its sizes
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
    """Build the model of a config to be loaded and run, in the storage formats of its config or the given ones.

    In a quantised model, plain numbers in fp16 are widened to fp32, which represents fp16 scales exactly; bf16 does
    not.

    Args:
        fields: The config.
        shard: The tensor-parallel rank whose part is built.
        family: The family to build it as. Default: the family that the config names.
        weights: The format to which plain weights are quantised while they are loaded. Default: as they are stored.
        kv: The format of the KV cache: the model's own, int8 or fp8. Default: the config's.

    Raises:
        ModelRefused: If the model can be priced but does not run, cannot be built or divided, or if `weights` is given
            and the checkpoint is already quantised.
        ValueError: If a given format does not exist or does not run, or if `kv` is given and the model has no KV cache.
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
    if model.priced_only:
        raise fields.refuse(
            f"{family.architecture} can only be priced (ridgeline plan, show, trace --priced), because "
            f"{model.priced_only}"
        )
    if not model.weights_run:
        raise fields.refuse(
            f"weights stored as {recipe.name} cannot run yet, only be priced (ridgeline plan, show, trace --priced); "
            "use the unquantized checkpoint"
        )
    check_kv_format(model, kv, fields)
    try:
        model.refuse_division()
    except Indivisible as error:
        raise DivisionRefused(f"{fields.source}: {error}") from None
    return model


def build_denoiser(fields: Fields, dtype: torch.dtype | None = None) -> Denoiser:
    """Build the denoiser of a config on the meta device, in the given dtype, else the config's, else fp32.

    Raises:
        ModelRefused: If the config cannot be built.
    """
    family = denoiser_of(fields)
    with torch.device("meta"):
        denoiser = family.build(fields, StorageConfig(dtype or fields.dtype)).eval()
    assert isinstance(denoiser, Denoiser)
    fields.refuse_unread()
    return denoiser


def stored_dtype(fields: Fields, family: Family | None = None) -> torch.dtype:
    """Return the dtype of the weights of a checkpoint that no quantisation recipe covers.

    It is the dtype that the config states. If the config states none, it is bf16 for a quantised checkpoint and fp32
    for any other. Families whose activations exceed the range of fp16 get fp32 instead of fp16. The family is by
    default the one that the config names.
    """
    stated = fields.stated_dtype or (torch.bfloat16 if read_recipe(fields).name else torch.float32)
    upcast_from = stated == torch.float16 and (family or family_of(fields)).upcasts_fp16
    return torch.float32 if upcast_from else stated


def _store(fields: Fields, model: Model, recipe: Recipe, family: Family) -> None:
    """Set the storage format of each weight of a model, as a recipe chooses it by the weight's checkpoint name.

    Raises:
        ModelRefused: If the recipe quantises no weight of the model, or lists a module that the model does not have:
            the weights would silently stay in a wider format.
    """
    choose, known, narrowed = recipe.choice(model), set[str](), False

    def chosen(place: WeightSlot) -> WeightFormat | None:
        nonlocal narrowed
        name, *others = (
            each for spelt in family.checkpoint_names(place.name) for each in (spelt, *_of_all_experts(spelt))
        )
        named = replace(place, name=name, spellings=tuple(others))
        known.update(*map(name_prefixes, (name, *others)))
        stored = choose(named)
        narrowed |= stored is not None
        return stored

    model.store(chosen)
    missing = [
        module
        for module in recipe.listed
        if module not in known
        and not family.ignores(f"{module}.weight")
        and not any(re.fullmatch(pattern, f"{module}.weight") for pattern in model.ignored_tensors)
    ]
    # AutoFP8 may quantise keys and values only.
    if missing or not (narrowed or read_recipe(fields).kv is not None):
        what = f"{missing[0]} and {len(missing) - 1} more modules" if len(missing) > 1 else "".join(missing)
        raise fields.refuse(
            f"the config says that weights are stored as {recipe.name}, but the model has no {what or 'such weight'}; "
            "give the config.json of this checkpoint, with its quantisation"
        )


def _of_all_experts(name: str) -> tuple[str, ...]:
    """Return the names by which quantisers' lists may exclude a matrix of all experts, from the first expert's name."""
    mixture, _, matrix = name.partition(".experts.0.")
    if not matrix:
        return ()
    return (f"{mixture}.experts.{'gate_up_proj' if matrix in ('gate_proj', 'up_proj') else matrix}",)


def kv_format_to_run(kv: str | None, fields: Fields, stated: KVFormat | None, dtype: torch.dtype) -> KVFormat | None:
    """Return the KV-cache format to run with: the requested one, else the config's; None for the model's own dtype.

    Args:
        kv: The requested format.
        fields: The config, for error messages.
        stated: The format that the config states.
        dtype: The model's own dtype.

    Raises:
        ModelRefused: If the format of the config is priced but does not run.
        ValueError: If the requested format does not run.
    """
    running = [known.name for known in KV_FORMATS if known.code]
    if kv is None:
        if stated is not None and not stated.code:
            raise fields.refuse(
                f"keys and values stored in {stated.name} with the checkpoint's scales cannot run yet, only be priced "
                f"(ridgeline plan, show, trace --priced); give --kv {' or '.join(running)}"
            )
        return stated
    own, priced_too = format_of(dtype), [known.name for known in KV_FORMATS]
    if own.is_called(kv):
        return None
    if kv not in running:
        priced = ", which can only be priced (ridgeline plan --kv)" if kv in priced_too else ""
        names = ", ".join((own.name, *running))
        raise ValueError(f"--kv is {kv!r}{priced}; {fields.title} can store keys and values in {names}")
    return kv_format_named(kv)


def check_kv_format(model: Model, kv: str | None, fields: Fields) -> None:
    """Check that a requested KV-cache format applies to a model.

    Args:
        model: The model, with its KV format set.
        kv: The requested format.
        fields: The config, for error messages.

    Raises:
        ValueError: If a format is requested and the model has no KV cache.
        ModelRefused: If the checkpoint has fp8 scales for latents (MLA), which nothing reads.
    """
    kept = [spec for spec in model.kv_specs if not spec.is_state]
    if kv is not None and not kept:
        raise ValueError(f"{fields.source} has no KV cache; leave --kv {kv} out")
    if model.storage.kv is not None and model.storage.kv.scales_in_checkpoint and any(spec.is_latent for spec in kept):
        raise fields.refuse("fp8 scales for latents are not supported; give --kv fp8, which does not need scales")
