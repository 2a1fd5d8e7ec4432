"""ClassPriced: a causal language model of the installed `transformers` that is priced, but that the engine cannot run.

Its attention, or the state of its layers, is that of the class's own code, which is traced like all other code of the
class. Its cache is the class's own, from which the KV bytes are read.
"""

import math
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from ridgeline.core.models.common.priced_module import PricedModule
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.from_transformers.aten_costs import AtenTrace
from ridgeline.core.models.from_transformers.cache_reading import kept_tensors, layer_specs
from ridgeline.core.models.from_transformers.cache_trace import watch_cache
from ridgeline.core.models.from_transformers.class_decoder import ClassDecoder
from ridgeline.core.models.from_transformers.cost_fit import Basis, TraceSize
from ridgeline.core.models.from_transformers.meta_tracing import AssumesTrue, accepted, meta_buffers
from ridgeline.core.models.from_transformers.not_bridged import NotBridged, summarise_error
from ridgeline.core.models.from_transformers.not_modelled import (
    add_not_modelled,
    free_name,
    sequence_sizes,
    trace_kernels,
)
from ridgeline.core.ops.number_formats import format_of
from ridgeline.core.ops.op import Op
from ridgeline.core.ops.traced_cache import TracedCache
from ridgeline.core.ops.work import CAUSAL, TOKENS, AttentionPattern, RowAxis

_CACHES = ("cache", "past_key_values", "cache_params", "state")
"""The names that classes have for their cache, as an argument and in the result."""
_CHUNKS = ("chunk_size", "mamba_chunk_size", "block_size", "ssm_chunk_size")
"""The names that configs have for the chunks in which a recurrence runs."""
_LOOPS = ("time_step_rank", "mamba_dt_rank")
"""The names that configs have for a width of the first Mamba, whose code is a loop over positions."""
_UNIT = 8
"""The lengths of traces are multiples of this one, if no layer has a state."""
_DEFAULT_CHUNK = 64
"""The chunk of a recurrence whose config states none."""
_POSITIONS = 16
"""The positions of the shorter prompt from which the cache is read."""


class ClassPriced(ClassDecoder):
    """A causal language model of which the engine knows the cost, but whose attention or state it does not run."""

    _has_own_cache = False
    """Whether the class makes a cache of its own, and takes none of transformers' common ones."""

    def __init__(self, module: Any, storage: StorageConfig, context: int, reason: str) -> None:
        """Convert and trace the model of a class.

        Args:
            module: The model, a `PreTrainedModel` on the meta device with an attention implementation of its own.
            storage: The dtype and the KV format.
            context: The maximum number of positions of a sequence.
            reason: Why the engine does not run the class, as a clause.

        Raises:
            NotBridged: If the class cannot be traced.
        """
        super().__init__(module, storage, context)
        self.probe = lambda: reason
        try:
            self.not_modelled = self._trace_code()
        except Exception as error:  # code that reads values, or whose work is not linear
            raise NotBridged(f"its code cannot be traced ({summarise_error(error)})") from None

    @override
    def _attach_attention(self) -> None:
        with PricedModule.on_meta(self, lambda *_: None), meta_buffers(self), AssumesTrue():
            try:
                cache = self._pass(_POSITIONS, self._new_cache())[1]
            except Exception:  # a cache of transformers lacks what the class keeps
                self._has_own_cache = True
                cache = self._pass(_POSITIONS, None)[1]
            longer = self._pass(2 * _POSITIONS, self._new_cache())[1]
            short, long = kept_tensors(cache), kept_tensors(longer)
        self._trace_once()
        self._layers = layer_specs(cache, short, long, _POSITIONS, self.storage)
        places = self._layer_paths()
        specs = [(layer, spec) for layer, own in enumerate(self._layers) for spec in own]
        self._caches = [TracedCache(number, spec) for number, (_, spec) in enumerate(specs)]
        for number, (layer, _) in enumerate(specs):
            place, cache = self.causal.get_submodule(places[layer]), self._caches[number]
            place.add_module(free_name(place, cache), cache)
        self.collect_cache_specs()

    def _layer_paths(self) -> list[str]:
        """Return the path of each layer that keeps something, or of the whole model if the layers are in no list."""
        count = len(self._layers)
        lists = [path for path, each in self.causal.named_modules() if isinstance(each, nn.ModuleList)]
        found = next((path for path in lists if len(self.causal.get_submodule(path)) == count), None)
        return [""] * count if found is None else [f"{found}.{number}" for number in range(count)]

    def _pattern_of(self, path: str) -> AttentionPattern:
        """Return the keys that a query sees in the module at a path: those that its layer keeps."""
        for layer, place in enumerate(self._layer_paths()):
            if place and f"{path}.".startswith(f"{place}."):
                return next((spec.reach for spec in self._layers[layer] if not spec.is_state), CAUSAL)
        return CAUSAL

    @override
    def _trace_code(self) -> list[tuple[RowAxis, Op]]:
        """Trace the class at several sizes, and return the calls of ops that stand for its code and for its cache."""
        caches = dict[int, Any]()  # those of prompts, by length

        def run(size: TraceSize, trace: AtenTrace) -> None:
            before = size.keys - size.tokens
            with trace.paused():
                if before not in caches:
                    caches[before] = self._pass(before, self._new_cache())[1] if before else self._new_cache()
                cache = deepcopy(caches[before])
            watch_cache(cache, trace)
            self.head(self._pass(size.tokens, cache)[0][: size.logits])

        has_state = any(spec.is_state for spec in self.kv_specs)
        bases: tuple[Basis, ...] = ("attention", "recurrence", "chunks") if has_state else ("attention",)
        with PricedModule.on_meta(self, lambda *_: None), meta_buffers(self), AssumesTrue():
            sizes = sequence_sizes(self._chunk())
            kernels = trace_kernels(self.causal, run, sizes, format_of(self.storage.dtype).name, bases)
        kept = [(TOKENS, cache) for cache in self._caches]
        return [*add_not_modelled(self.causal, kernels, self._pattern_of), *kept]

    def _chunk(self) -> int:
        """Return a length that the class's recurrences, if it has some, divide into whole chunks."""
        config = self.causal.config.get_text_config()
        loops = not any(spec.is_state for spec in self.kv_specs) or any(hasattr(config, name) for name in _LOOPS)
        stated = [size for name in _CHUNKS if isinstance(size := getattr(config, name, None), int)]
        return math.lcm(_UNIT, *(stated or [1 if loops else _DEFAULT_CHUNK]))

    def _new_cache(self) -> Any:
        """Return an empty cache for the class; None if it makes one itself."""
        from transformers import DynamicCache

        return None if self._has_own_cache else DynamicCache(config=self.causal.config)

    def _pass(self, rows: int, cache: Any) -> tuple[Tensor, Any]:
        """Return the hidden states [rows, D] of the next rows of one sequence, and the cache after them."""
        backbone = self.wrapper.backbone
        ids_1T = torch.empty(1, rows, dtype=torch.int64)
        given = {"input_ids": ids_1T, "use_cache": True, "return_dict": True, **dict.fromkeys(_CACHES, cache)}
        names = accepted(backbone, **given)
        if sum(name in names for name in _CACHES) > 1:  # newer classes also take the older name
            names = {name: value for name, value in names.items() if name == "cache" or name not in _CACHES}
        result = backbone(**names)
        kept = next((own for name in _CACHES if (own := getattr(result, name, None)) is not None), cache)
        self._rows = rows
        return result[0][0], kept

    @override
    def _states(self, ids_T: Tensor, positions_T: Tensor) -> Tensor:
        return self._pass(len(ids_T), self._new_cache())[0]
