"""ClassPriced: a causal language model of the installed `transformers` that is priced, but that the engine cannot run.

Its attention, or the state of its layers, is that of the class's own code, which is traced like all other code of the
class. Its cache is the class's own, from which the KV bytes are read.
"""

import math
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from ridgeline.core.models.common.priced_module import emptied
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.from_transformers.aten_costs import AtenTrace
from ridgeline.core.models.from_transformers.cache_reading import Kept, kept_tensors, layer_specs, open_window
from ridgeline.core.models.from_transformers.cache_trace import watch_cache
from ridgeline.core.models.from_transformers.class_decoder import ClassDecoder
from ridgeline.core.models.from_transformers.class_latents import noting_latents
from ridgeline.core.models.from_transformers.cost_fit import Basis, TraceSize
from ridgeline.core.models.from_transformers.meta_tracing import (
    AssumesTrue,
    accepted,
    tracing,
    untraceable,
)
from ridgeline.core.models.from_transformers.not_bridged import NotBridged, summarise_error
from ridgeline.core.models.from_transformers.not_modelled import (
    add_not_modelled,
    free_name,
    sequence_sizes,
    trace_kernels,
)
from ridgeline.core.models.from_transformers.priced_latents import PricedLatents
from ridgeline.core.models.from_transformers.rank_part import WHOLE_CLASS, RankPart
from ridgeline.core.ops.latent_attention import LatentAttention
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
_CHOSEN = "index_topk"
"""The name that configs have for the number of keys that an index chooses for each query."""
_STATE_BASES: tuple[Basis, ...] = ("recurrence", "chunks", "joined")
"""The terms in which the cost of code may be linear in a model with a state."""
_UNIT = 8
"""The lengths of traces are multiples of this one, if no layer has a state."""
_KEEPS_NOTHING = "it keeps nothing of a text between steps, and runs the whole text again for each token"
_CONTINUES_NOTHING = "its code does not continue a text from what it keeps"
_SEVERAL_REACHES = "it attends to a window and to compressed keys at once, whose costs a trace does not tell apart"
_REPLACES_PARTS = "it computes attention in another way for short texts than for long ones"
_DEFAULT_CHUNK = 64
"""The chunk of a recurrence whose config states none."""
_POSITIONS = 16
"""The positions of the shorter prompt from which the cache is read."""


class ClassPriced(ClassDecoder):
    """A causal language model of which the engine knows the cost, but whose attention or state it does not run."""

    _has_own_cache = False
    """Whether the class makes a cache of its own, and takes none of transformers' common ones."""

    def __init__(
        self, module: Any, storage: StorageConfig, context: int, reason: str, part: RankPart = WHOLE_CLASS
    ) -> None:
        """Convert and trace the model of a class.

        Args:
            module: The model, a `PreTrainedModel` on the meta device with an attention implementation of its own.
            storage: The dtype and the KV format.
            context: The maximum number of positions of a sequence.
            reason: Why the engine does not run the class, as a clause.
            part: The part of the class that this rank holds.

        Raises:
            NotBridged: If the class cannot be traced.
        """
        super().__init__(module, storage, context, part)
        self.probe = lambda: reason
        with tracing():
            self.not_modelled = self._trace_code()

    @override
    def _attach_attention(self) -> None:
        config = self.causal.config.get_text_config()
        self._own_latents = PricedLatents(self.causal, self.storage, getattr(config, _CHOSEN, None))
        cache, short, long = self._kept()
        self._layers = layer_specs(cache, short, long, _POSITIONS, self.storage)
        if any(len({spec.reach for spec in own if not spec.is_state}) > 1 for own in self._layers):
            raise NotBridged(_SEVERAL_REACHES)
        with noting_latents(self.causal):
            self._trace_once()
            self._add_caches(self._own_latents.attach(self._layers))

    def _add_caches(self, latents: Sequence[LatentAttention]) -> None:
        """Add an op for what each layer keeps, unless it is latents, whose own op reads and writes them."""
        self._caches, places = list[TracedCache](), self._layer_paths()
        for number, (layer, spec) in enumerate((layer, spec) for layer, own in enumerate(self._layers) for spec in own):
            latent = next((op for op in latents if op.spec is spec), None)
            if latent is not None:
                latent.layer = number
                continue
            place, cache = self.causal.get_submodule(places[layer]), TracedCache(number, spec)
            self._caches.append(cache)
            place.add_module(free_name(place, cache), cache)
        self.collect_cache_specs()

    def _kept(self) -> tuple[Any, Kept, Kept]:
        """Return a cache of the class after a short prompt, what it keeps then, and what it keeps of a longer one.

        Raises:
            NotBridged: If it keeps nothing, or if the class becomes another one by the length of a prompt.
        """
        kinds = [type(module) for module in self.causal.modules()]
        with emptied(self), AssumesTrue():
            try:
                cache = self._pass(_POSITIONS, self._new_cache())[1]
            except Exception:  # a cache of transformers lacks what the class keeps
                self._has_own_cache = True
                cache = self._pass(_POSITIONS, None)[1]
            longer = self._pass(2 * _POSITIONS, self._new_cache())[1]
        if [type(module) for module in self.causal.modules()] != kinds:
            raise NotBridged(_REPLACES_PARTS)
        short, long = kept_tensors(cache), kept_tensors(longer)
        if not any(map(any, (short, long))):
            raise NotBridged(_KEEPS_NOTHING)
        return cache, short, long

    def _layer_paths(self) -> list[str]:
        """Return the path of each layer that keeps something; "" for the whole model if it is in no list.

        A class that runs some layers several times has more layers in its cache than in its list.
        """
        count, config = len(self._layers), self.causal.config.get_text_config()
        lists = [(path, len(each)) for path, each in self.causal.named_modules() if isinstance(each, nn.ModuleList)]
        wanted = count, getattr(config, "num_hidden_layers", count)
        found = next(((path, own) for length in wanted for path, own in lists if own == length <= count), ("", 0))
        return [f"{found[0]}.{number}" if number < found[1] else "" for number in range(count)]

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
            try:
                x_TD = self._pass(size.tokens, cache)[0]
            except Exception as error:  # a class may fail in any way
                reason = untraceable(error)
                raise NotBridged(
                    _CONTINUES_NOTHING if before and summarise_error(error) in reason else reason
                ) from None
            self.head(x_TD[: size.logits])

        has_state = any(spec.is_state for spec in self.kv_specs)
        bases: tuple[Basis, ...] = ("attention", *_STATE_BASES) if has_state else ("attention",)
        with emptied(self), AssumesTrue():
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
        """Return an empty cache for the class, whose windows have no end; None if the class makes one itself.

        The work of a window is then that of all keys before, which is linear. A price applies the windows.
        """
        from transformers import DynamicCache

        if self._has_own_cache:
            return None
        cache = DynamicCache(config=self.causal.config)
        for layer in cache.layers:
            open_window(layer)
        return cache

    def _pass(self, rows: int, cache: Any) -> tuple[Tensor, Any]:
        """Return the hidden states [rows, D] of the next rows of one sequence, and the cache after them."""
        backbone = self.wrapper.backbone
        ids_1T = torch.empty(1, rows, dtype=torch.int64)
        given = {"input_ids": ids_1T, "use_cache": True, "return_dict": True, **dict.fromkeys(_CACHES, cache)}
        names = accepted(backbone, **given)
        if sum(name in names for name in _CACHES) > 1:  # newer classes also take the older name
            names = {name: value for name, value in names.items() if name == "cache" or name not in _CACHES}
        with self._own_latents.attending():
            result = backbone(**names)
        kept = next((own for name in _CACHES if (own := getattr(result, name, None)) is not None), cache)
        self._rows = rows
        return result[0][0], kept

    @override
    def _states(self, ids_T: Tensor, positions_T: Tensor) -> Tensor:
        return self._pass(len(ids_T), self._new_cache())[0]
