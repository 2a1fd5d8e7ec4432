"""A model with its weights: every parameter filled exactly once, by the name it has in the checkpoint."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from time import perf_counter

import torch
from torch import Tensor, nn

from ridgeline.checkpoint.folder import Checkpoint, NoWeights, open_checkpoint
from ridgeline.checkpoint.gguf_tensors import open_gguf_checkpoint
from ridgeline.checkpoint.loading import Loading
from ridgeline.checkpoint.source import Source, as_source
from ridgeline.checkpoint.ties import settle_tables, settle_tables_of
from ridgeline.document.numbers import three
from ridgeline.host import (
    GIB,
    available_memory,
    check_threads,
    disk_bytes,
    out_of_memory,
    threads_for,
    total_memory,
)
from ridgeline.models.bill import bill
from ridgeline.models.building import build_denoiser, build_to_run
from ridgeline.models.denoiser import Denoiser
from ridgeline.models.embedder import Embedder
from ridgeline.models.families import denoiser_of, drawer_of, family_of
from ridgeline.models.family import Family
from ridgeline.models.fields import ModelRefused
from ridgeline.models.model import Model
from ridgeline.models.network import Network
from ridgeline.ops.attention import ONE_SCALE, Attention
from ridgeline.ops.expert_layout import INTERLEAVED, MXFP4_BLOCKS, STACKED, TURNED, UNGATED
from ridgeline.ops.experts import Experts
from ridgeline.ops.kernels import DTYPES
from ridgeline.ops.matrix import Fp8Matrix, QuantisedMatrix
from ridgeline.ops.matrix.fp8 import SCALE_NAMES
from ridgeline.ops.shard import WHOLE, Shard
from ridgeline.ops.stored import Stored

Progress = Callable[[int, int], None]
_NAMES_SHOWN = 3
_PAGE_BYTES = 4096
# What the objects around one expert's matrix take beside its numbers: a module, a parameter, a view of a mapped file.
_MATRIX_OBJECT = 4096
_HEAD = "lm_head.weight"
# As compressed-tensors and, with a projection's name, ModelOpt call the scales of a layer's keys and values; AutoFP8
# has one for both, or those of what the projections give.
_KV_SCALE = re.compile(r"(.*\.self_attn)\.(?:(?:[kv]_proj\.)?(k|v|kv)_scale|([kv])_proj\.output_scale)")


def load_model(
    model: Source | str,
    *,
    shard: Shard = WHOLE,
    dummy_weights: bool = False,
    progress: Progress | None = None,
    draws: bool = False,
    weights: str | None = None,
    kv: str | None = None,
) -> Model:
    """Build the model of a source (or of a name as `open_source` takes it) and fill it with its memory-mapped weights,
    or with random ones.

    shard: the part that this rank of a tensor-parallel model holds. draws: the model that writes the tokens of an
    image, where a folder holds one. weights, kv: the formats that plain weights, and keys and values, are quantised to,
    as `build_to_run`. Raises ModelRefused for anything that cannot become a model here, in one line.
    """
    source = as_source(model)
    family = drawer_of(source.config) if draws else family_of(source.config)
    built = build_to_run(source.config, shard=shard, family=family, weights=weights, kv=kv)
    if not dummy_weights:
        settle_tables_of(source, built, family)
    memory_beside(source, {"weights": weight_bytes(built)})
    load_weights(built, source, dummy_weights=dummy_weights, progress=progress, family=family)
    stay_here(built)
    return built


def load_denoiser(
    model: Source | str,
    dtype: torch.dtype | None = None,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Denoiser:
    """Build the denoiser of a folder, such as the `transformer` of a pipeline, and fill it with its weights,
    memory-mapped where they need no conversion.

    dtype: fp32 or bf16; as they are stored where none is given, as language models run. threads: the number that torch
    uses from now on; by default all cores, one for small models, as in `load_pipeline`. Raises ModelRefused, as
    `load_model`, and ValueError for another dtype or more threads than cores.
    """
    if threads is not None:
        check_threads(threads)
    if dtype not in (None, *DTYPES):
        raise ValueError(f"a denoiser does not run in {dtype}; give torch.float32 or torch.bfloat16")
    source = as_source(model)
    family = denoiser_of(source.config)
    if source.folder is None:
        raise ModelRefused(f"{source.name} is a catalogue config without weights; give a checkpoint folder")
    checkpoint = open_checkpoint(source.folder)
    built = build_denoiser(source.config, dtype or checkpoint.dtype)
    memory_beside(source, {"weights": sum(op.stored_bytes() for _, op in built.weighted_ops())})
    fill(built, checkpoint, family, progress, converts=dtype is not None)
    torch.set_num_threads(threads_for(sum(parameter.nbytes for parameter in built.parameters()), threads))
    built.fuse()
    return built


def weight_bytes(model: Model) -> float:
    """Bytes that a model on meta takes once it is filled, a tied head counted once."""
    experts = sum(len(op.specs) * op.count for _, op in model.ops() if isinstance(op, Experts))
    return bill(model).nbytes + model.repacked_bytes + experts * _MATRIX_OBJECT


def memory_beside(source: Source, needs: Mapping[str, float], available: float | None = None) -> float:
    """Bytes of memory that are left beside what a source needs, by name. available: what there is, where others are to
    have the rest. Raises ModelRefused where it is too much: the kernel would kill the process in the middle of its
    loading, or read mapped weights anew for every token."""
    if available is None:
        try:
            available = available_memory()
        except ValueError:  # this system does not say what is free, but what it has
            available = total_memory()
    left = available - sum(needs.values())
    if left < 0:
        parts = ", ".join(f"{three(need / GIB)} GiB of {name}" for name, need in needs.items() if need)
        raise ModelRefused(
            f"{source.name} needs {parts}; {three(available / GIB)} GiB of memory is available; "
            "use a smaller model, or a machine that has more"
        )
    return left


def load_weights(
    model: Model,
    source: Source,
    *,
    dummy_weights: bool = False,
    progress: Progress | None = None,
    family: Family | None = None,
    device: torch.device | None = None,
) -> Loading | None:
    """Fill a model on meta with the mapped weights of its source, or with random ones; what that took, None of random
    ones. family: what it was built as, by default what its config says. device: where random ones are made; mapped ones
    are the processor's (`to_card`). Raises ModelRefused, also where memory for them is refused."""
    if source.folder is None and not dummy_weights:
        raise ModelRefused(
            f"{source.name} is a catalogue config without weights; add --dummy-weights, or give a checkpoint folder"
        )
    try:
        if not dummy_weights and source.folder is not None:
            loading = _fill_measured(model, source, family or family_of(source.config), progress)
            if isinstance(model, Embedder):
                for name, folder in model.elsewhere.items():
                    _fill_stage(model.tensors_of(name), open_checkpoint(folder))
            return loading
        fill_dummy(model, device=device)
        return None
    except (RuntimeError, MemoryError) as error:
        refused = out_of_memory(error)
        if refused is None:
            raise
        raise ModelRefused(f"{source.name}: {refused}") from None


def _fill_measured(model: Model, source: Source, family: Family, progress: Progress | None) -> Loading:
    """As `fill`, from the folder or the file of a source."""
    read, start = disk_bytes(), perf_counter()
    try:
        assert source.folder is not None
        checkpoint = open_checkpoint(source.folder) if source.gguf is None else open_gguf_checkpoint(source.gguf)
    except NoWeights as error:
        raise NoWeights(f"{error}, or run its config without them (--dummy-weights)") from None
    opened = perf_counter()
    fill(model, checkpoint, family, progress=progress)
    filled, now = perf_counter(), disk_bytes()
    from_disk = None if read is None or now is None else now - read
    return Loading(checkpoint, opened - start, filled - opened, from_disk, quantised=quantises(model))


def fill(
    model: Network,
    checkpoint: Checkpoint,
    family: Family,
    progress: Progress | None = None,
    *,
    converts: bool = False,
) -> None:
    """Replace every meta parameter by its mapped tensor, or, where it `converts`, by a copy in the model's dtype if
    that is another. `progress(bytes done, bytes in all)` is called as it goes.

    Of a model whose weights are quantised on the way each is read, and let go of before the next, instead of mapped:
    memory never holds both forms of all. Raises ModelRefused for a tensor that is missing, extra, mis-shaped, of
    another dtype or NaN.
    """
    naming = Naming(model, family, checkpoint)
    places = naming.places
    sources: dict[str, str] = {}  # of each place, the tensor that fills it
    extra: list[str] = []
    done = 0
    for name, tensor in checkpoint.tensors(mapped=not quantises(model)):
        place = naming.place(name)
        done += tensor.nbytes
        if place in places:
            if place in sources:
                raise ModelRefused(f"{checkpoint.folder}: {name} fills {place} a second time")
            module, own_name = places[place]
            given = tensor.to(model.storage.dtype) if converts else widened(model, module, own_name, tensor)
            _put(name, module, own_name, given)
            sources[place] = name
        elif not naming.ignored(name):
            extra.append(name)
        if progress is not None:
            progress(done, checkpoint.nbytes)
    _refuse_names(checkpoint, "has tensors that the model does not", extra)
    _refuse_names(checkpoint, "lacks tensors of the model", [name for name in places if name not in sources])
    model.tie()


def quantises(model: Network) -> bool:
    """Whether a plain weight becomes codes as it is taken."""
    return any(isinstance(m, QuantisedMatrix) and not m.stored.layout for m in model.modules())


def _fill_stage(places: Mapping[str, tuple[Stored, str]], checkpoint: Checkpoint) -> None:
    """Fill a part whose tensors have a folder of their own, by their names there. Raises ModelRefused."""
    given = dict(checkpoint.tensors())
    _refuse_names(checkpoint, "has tensors that the model does not", [name for name in given if name not in places])
    _refuse_names(checkpoint, "lacks tensors of the model", [name for name in places if name not in given])
    for name, tensor in given.items():
        _put(name, *places[name], tensor)


class Naming:
    """The places in a model on meta that the tensors of a checkpoint go to.

    places: the module that takes each tensor, and the tensor's name there.
    """

    def __init__(self, model: Network, family: Family, checkpoint: Checkpoint) -> None:
        with torch.device("meta"):
            model.expand()
        settle_tables(model, family, checkpoint)
        self._family, self._passed_over, self._tables = family, model.passed_over, model.tables
        there = _own_names(family, checkpoint.entries)
        _lay_out_experts(model, there)
        _name_scales(model, there)
        self.places: dict[str, tuple[Stored, str]] = model.tensors()

    def place(self, name: str) -> str:
        """Return the model's name of a tensor, with the trunk's name added if the checkpoint leaves it out; "" for a
        second copy of a table of tokens."""
        own = _own_name(self._family, name)
        whole = _own_name(self._family, self._family.trunk + name)
        found = whole if not self._knows(own) and self._knows(whole) else own
        return found if self._tables is None else self._tables.renamed.get(found, found)

    def _knows(self, own: str) -> bool:
        return own in self.places or (self._tables is not None and own in self._tables.names)

    def ignored(self, name: str) -> bool:
        """Whether nothing reads a tensor of the checkpoint: a second copy of a table of tokens, or scales of keys and
        values that are kept in another format than the checkpoint says."""
        if not self.place(name):
            return True
        patterns = (*self._family.ignored, *self._passed_over, _KV_SCALE.pattern)
        return any(re.fullmatch(pattern, name) for pattern in patterns)


def _own_name(family: Family, name: str) -> str:
    """What the model calls a checkpoint's tensor; scales of keys and values are those of attention."""
    if (scale := _KV_SCALE.fullmatch(name)) is not None:
        name = f"{scale[1]}.attend.{scale[2] or scale[3]}_scale"
    return family.own_name(name)


def _own_names(family: Family, names: Iterable[str]) -> Set[str]:
    """What the model may call a checkpoint's tensors, with the trunk's name and without."""
    places = [_own_name(family, name) for name in names]
    return {*places, *(family.trunk + place for place in places)}


def _name_scales(model: Network, there: Set[str]) -> None:
    """Scales of fp8 have one of two names; a layer's keys and values a scale each, or one."""
    for path, module in model.named_modules():
        if isinstance(module, Fp8Matrix):
            named = (own for own in SCALE_NAMES if model.checkpoint_name(f"{path}.{own}") in there)
            module.names = ("weight", next(named, SCALE_NAMES[0]))
        elif isinstance(module, Attention) and module.k_scale is not None:
            module.one_scale = model.checkpoint_name(f"{path}.{ONE_SCALE}") in there


def _lay_out_experts(model: Network, there: Set[str]) -> None:
    """Mixtures have a tensor for each matrix of each expert, or, from newer tools, one for all of a layer's; so has
    Llama 4, turned or, where it was made to be quantised, each; gpt-oss has a layer's in two number formats."""
    for path, op in model.ops():
        if not isinstance(op, Experts):
            continue
        layout, first = (STACKED, "gate_up_proj") if op.gated else (UNGATED, "up_proj")
        whole = model.checkpoint_name(f"{path}.{first}") in there
        if op.layout is None and whole:
            op.layout = layout
        elif op.layout is TURNED and not whole:
            op.layout = None
        elif op.layout is INTERLEAVED and model.checkpoint_name(f"{path}.gate_up_proj_blocks") in there:
            op.layout = MXFP4_BLOCKS


def widened(model: Network, module: Stored, own_name: str, tensor: Tensor) -> Tensor:
    """A tensor of a checkpoint in the dtype in which a module of a model that widens takes it."""
    widens = tensor.dtype == model.widens and not module.keeps(own_name)
    return tensor.to(model.storage.dtype) if widens else tensor


def _put(name: str, module: Stored, own_name: str, full: Tensor) -> None:
    try:
        parameters = module.take(own_name, full)
    except ValueError as error:
        raise ModelRefused(f"tensor {name} {error}") from None
    for path, tensor in parameters.items():
        owner, _, attribute = path.rpartition(".")
        held = module.get_submodule(owner)
        check_fits(name, tensor, getattr(held, attribute))
        # Scales and biases are small enough to look at; one NaN in them spoils every token.
        if tensor.dim() == 1 and not torch.isfinite(tensor).all():
            raise ModelRefused(f"tensor {name} holds NaN or infinity; the checkpoint is broken, fetch it again")
        _page_in(tensor)
        setattr(held, attribute, nn.Parameter(tensor, requires_grad=False))


def check_fits(name: str, tensor: Tensor, wanted: Tensor) -> None:
    """Raises ModelRefused where a tensor has another shape or dtype than the parameter that it is to be."""
    if tensor.shape != wanted.shape:
        raise ModelRefused(f"tensor {name} is {list(tensor.shape)}, the config wants {list(wanted.shape)}")
    if tensor.dtype != wanted.dtype:
        raise ModelRefused(f"tensor {name} is {tensor.dtype}, the config says {wanted.dtype}; correct its torch_dtype")


def _page_in(tensor: Tensor) -> None:
    """Touch every page of a mapped tensor now, under a progress bar, rather than in the middle of the first prefill."""
    if tensor.is_contiguous():
        tensor.view(-1).view(torch.uint8)[::_PAGE_BYTES].sum()


def _refuse_names(checkpoint: Checkpoint, problem: str, names: list[str]) -> None:
    if not names:
        return
    shown = ", ".join(names[:_NAMES_SHOWN])
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    raise ModelRefused(f"{checkpoint.folder} {problem}: {shown}{more}")


@contextmanager
def room_on(device: torch.device) -> Iterator[None]:
    """Where weights are moved to a card. Raises ModelRefused where its memory does not do."""
    try:
        yield
    except torch.cuda.OutOfMemoryError:
        raise ModelRefused(
            f"the weights do not fit into what is free of the memory of {torch.cuda.get_device_name(device)}; end what "
            "else is on the card, or use a smaller model or format (--weights int8)"
        ) from None


def stay_here(model: Network) -> None:
    """Settle a model that is filled in this machine's memory. Raises ModelRefused where what that takes is refused."""
    try:
        model.settle_here()
    except OSError as error:
        raise ModelRefused(
            f"memory to lay weights out for this processor was refused ({error}); use a smaller model, or free some"
        ) from None


def to_card(model: Network, device: torch.device) -> None:
    """Move a model that is filled to a card, a tensor at a time, and settle it there. Raises ModelRefused where its
    memory does not do."""
    with room_on(device):
        model.to(device)
        model.tie()
        model.settle_on_card()


def fill_dummy(model: Network, seed: int = 0, device: torch.device | None = None) -> None:
    """Random weights of std 0.02, for speed, not sense; norms and biases are ones. device: where they are made."""
    generator = torch.Generator().manual_seed(seed)
    # One block repeated: drawing 600 M normal numbers would take longer than running them.
    block = (torch.randn(1 << 20, generator=generator) * 0.02).to(model.storage.dtype)
    with torch.device("meta"):
        model.expand()
    for module in model.modules():
        codes = module.drawn(block) if isinstance(module, QuantisedMatrix) else {}
        for attribute, wanted in list(module.named_parameters(recurse=False)):
            tensor = codes.get(attribute)
            if tensor is None:
                tensor = torch.ones(wanted.shape, dtype=wanted.dtype, device=device)
                if wanted.dim() > 1:
                    _repeat(block.to(tensor), tensor.view(-1))
            setattr(module, attribute, nn.Parameter(tensor, requires_grad=False))
    model.tie()


def _repeat(block: Tensor, flat: Tensor) -> None:
    """Fill `flat` with `block`, over and over."""
    for piece in torch.split(flat, block.numel()):
        piece.copy_(block[: piece.numel()])
