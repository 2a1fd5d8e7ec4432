"""The choice of a few layers of a config of transformers, so that a layer of each kind stays."""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias

Values: TypeAlias = dict[str, Any]
"""The fields of a config, as `to_dict` gives them."""

WHOLE_PERIOD = 8
"""The largest number of first layers that are kept as they are. Of longer patterns, a layer of each kind is kept."""
LONGEST_PERIOD = 12
"""The largest number of first layers that are kept because a number in the config is their period."""

COUNTS = (
    "num_layers_per_stack",
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "decoder_layers",
    "num_decoder_layers",
    "num_blocks",
    "encoder_layers",
    "depth",
)
"""Fields that have the number of layers. The first that a config has decides."""
LISTS = ("layer_types", "layers_block_type")
"""Fields that list the kind of each layer, whose length is the number of layers in a config without such a field."""
CYCLE = "block_types"
"""The field that lists the kinds of the first layers, which the later ones repeat."""
OTHER_COUNT = re.compile(r"(?!num_feat_extract)\w+_layers|num_mem_blocks")
"""Fields that have the numbers of layers of other stacks."""
BOUNDARY = re.compile(
    r"first_k_dense_replace|num_dense_layers|moe_layer_start_index|max_window_layers|loop_layer_index_(start|end)"
)
"""Fields that have the number of first layers that differ from the later ones."""
LAST = ("moe_layer_end_index",)
"""Fields that have the index of the last layer of a kind."""
FROM_END = ("num_kv_shared_layers",)
"""Fields that have the number of last layers that differ from the earlier ones."""
SEGMENTS = ("n_input_layers", "n_recurrent_layers", "n_output_layers")
"""Fields that have the numbers of layers of consecutive parts."""
PERIOD = re.compile(
    r"\w+_(period|interval|every_n_layers|sparse_step|layer_step|pattern|group_size|per_attn_res_block|layer_offset)"
)
"""Fields that have the number of layers after which a pattern repeats, or where in it a kind stands."""
INDEX_LIST = re.compile(r"\w*(layers|layer_ids|layer_indices|idxs|layer_idx|indexes)")
"""Fields that list the indices of the layers of a kind."""
FROM_ONE = ("ple_layer_ids",)
"""The lists whose indices begin at one."""
PREDICTION = re.compile(r"num_nextn_predict_layers|num_mtp_layers|mtp_num_hidden_layers")
"""Fields that have the number of layers which predict further tokens. A class that has them keeps one."""


def is_layer_field(name: str) -> bool:
    """Return whether a field says which layers there are, so that `keep_layers` has given its small value."""
    named = name in (*COUNTS, *LISTS, *LAST, *FROM_END, *SEGMENTS)
    return named or any(pattern.fullmatch(name) for pattern in (OTHER_COUNT, BOUNDARY, PERIOD, INDEX_LIST, PREDICTION))


def keep_layers(values: Values, layers: int | None = None) -> Values:
    """Return a config's fields with few layers, one of each kind at least.

    Args:
        values: The fields of one config.
        layers: The number of layers. By default, as many as the kinds need.
    """
    main = next((name for name in COUNTS if _is_count(values.get(name)) and values[name]), None)
    count = values[main] if main else next((len(values[name]) for name in LISTS if values.get(name)), 0)
    if count:
        pattern = _Pattern(values, count)
        values = pattern.cut(pattern.chosen(layers))
    known = {main, *FROM_END, *SEGMENTS, *(COUNTS if main == COUNTS[0] else ())}
    others = [
        name
        for name, value in values.items()
        if _is_count(value) and OTHER_COUNT.fullmatch(name) and name not in known and not _places_kinds(name)
    ]
    return values | {name: min(values[name], 1 if PREDICTION.fullmatch(name) else 2) for name in others}


class _Pattern:
    """The fields of a config that tell its layers apart.

    Args:
        values: The fields of the config.
        count: The number of layers.
    """

    def __init__(self, values: Values, count: int) -> None:
        self.values = values
        self.count = count
        self.layers_in = {name: values[name] // self.count for name in COUNTS if self._is_multiple(name)}
        self.index_lists = [name for name in values if INDEX_LIST.fullmatch(name) and self._has_indices(name)]
        self.per_layer = [name for name in values if name not in self.index_lists and self._has_all_layers(name)]
        self.boundaries = [name for name in values if BOUNDARY.fullmatch(name) and _is_count(values[name])]
        self.last = [name for name in LAST if _is_count(values.get(name))]
        self.from_end = [name for name in FROM_END if _is_count(values.get(name))]
        self.segments = [name for name in SEGMENTS if _is_count(values.get(name))]
        self.periods = [values[name] for name in values if PERIOD.fullmatch(name) and self._repeats(name)]
        self.periods += [len(values[CYCLE])] if isinstance(values.get(CYCLE), list) else []
        overrides: dict[str | int, Values] = values.get("per_layer_config") or {}
        self.overrides = {int(index): own for index, own in overrides.items()}

    def chosen(self, layers: int | None) -> list[int]:
        """Return the indices of the layers that stay, in order."""
        kinds = [self._kind(index) for index in range(self.count)]
        firsts = [index for index, kind in enumerate(kinds) if kind not in kinds[:index]]
        prefix = firsts[-1] + 1
        if prefix <= WHOLE_PERIOD or self.periods:
            stay = list(range(_with_whole_run(kinds, min(prefix, LONGEST_PERIOD))))
        else:
            stay = firsts[:LONGEST_PERIOD]
        others = [index for index in range(self.count) if index not in stay]
        return sorted([*stay, *others][: layers or max(2, len(stay))])

    def cut(self, stay: Sequence[int]) -> Values:
        """Return the fields for the layers that stay."""
        old, new = self.values, dict(self.values)
        new |= {name: times * len(stay) for name, times in self.layers_in.items()}
        new |= {name: [old[name][index] for index in stay] for name in self.per_layer}
        new |= {name: self._places(name, stay) for name in self.index_lists}
        new |= {name: sum(index < old[name] for index in stay) for name in self.boundaries}
        new |= {name: max(0, sum(index <= old[name] for index in stay) - 1) for name in self.last}
        new |= {name: sum(index >= self.count - old[name] for index in stay) for name in self.from_end}
        new |= {name: sum(self._segment(index) == name for index in stay) for name in self.segments}
        if self.overrides:
            places = {place: self.overrides[index] for place, index in enumerate(stay) if index in self.overrides}
            new["per_layer_config"] = places
        if "attention_types" in new and "attention_layers" in self.per_layer:
            new["attention_types"] = [[new["attention_layers"], 1]]
        return new

    def _places(self, name: str, stay: Sequence[int]) -> list[int]:
        """Return the indices of a list's layers among those that stay."""
        first = int(name in FROM_ONE)
        return [place + first for place, index in enumerate(stay) if index + first in self.values[name]]

    def _kind(self, index: int) -> str:
        values = self.values
        return str(
            [
                [values[name][index] for name in self.per_layer],
                [index + (name in FROM_ONE) in values[name] for name in self.index_lists],
                [index < values[name] for name in self.boundaries],
                [index <= values[name] for name in self.last],
                [index >= self.count - values[name] for name in self.from_end],
                [index % period for period in self.periods],
                self._segment(index),
                self._uses_of_shared_blocks(index),
                self.overrides.get(index),
            ]
        )

    def _segment(self, index: int) -> str | None:
        end = 0
        for name in self.segments:
            end += self.values[name]
            if index < end:
                return name
        return None

    def _uses_of_shared_blocks(self, index: int) -> int:
        """Return the number of hybrid layers before one, up to the first that uses another's weights again."""
        kinds, blocks = self.values.get("layers_block_type"), self.values.get("num_mem_blocks")
        if not kinds or not _is_count(blocks) or kinds[index] != "hybrid":
            return 0
        return min(sum(kind == "hybrid" for kind in kinds[:index]), blocks)

    def _is_multiple(self, name: str) -> bool:
        """Return whether a field counts the main layers, once or once for each of several passes."""
        value = self.values.get(name)
        return isinstance(value, int) and _is_count(value) and value > 0 and value % self.count == 0

    def _has_indices(self, name: str) -> bool:
        value = self.values[name]
        if not isinstance(value, list) or not all(_is_count(index) and index <= self.count for index in value):
            return False
        return all(first < second for first, second in pairwise(value))

    def _has_all_layers(self, name: str) -> bool:
        """Return whether a field lists something for each layer; short lists of other things may be as long."""
        value = self.values[name]
        listed = isinstance(value, list) and len(value) == self.count
        return listed and (self.count > 4 or re.search("layer|block_type", name) is not None)

    def _repeats(self, name: str) -> bool:
        """Return whether a field is the period of a pattern that no list of layer types states."""
        value = self.values[name]
        stated = name.endswith("pattern") and self.values.get("layer_types")
        return _is_count(value) and 1 < value <= self.count and not stated and not name.endswith("offset")


def _places_kinds(name: str) -> bool:
    """Return whether a number says where the layers of a kind stand, although its name is like that of a count."""
    return BOUNDARY.fullmatch(name) is not None or PERIOD.fullmatch(name) is not None


def _with_whole_run(kinds: Sequence[str], prefix: int) -> int:
    """Return how many first layers end with the last layer of those alike, if the run ends within a whole period."""
    end = next((index for index in range(prefix, len(kinds)) if kinds[index] != kinds[prefix - 1]), len(kinds))
    return end if end <= WHOLE_PERIOD and prefix > 1 else prefix


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
