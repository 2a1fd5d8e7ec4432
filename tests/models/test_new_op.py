"""An op of a class that the package does not know: its own file answers all that others ask of it."""

from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from ridgeline.core.checkpoint.adapter import targets_of
from ridgeline.core.checkpoint.folder import open_checkpoint
from ridgeline.core.checkpoint.weight_loader import load_tensors, quantises, weight_bytes
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.parameter_breakdown import parameter_breakdown
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.ops.cost import NO_COST, Cost
from ridgeline.core.ops.cost_features import ExpectedExperts, Feature, GatheredRows
from ridgeline.core.ops.embedding import Embedding
from ridgeline.core.ops.kv_context import KVContext, Uncached
from ridgeline.core.ops.kv_layout import CacheSpec, KVSpec, StateSpec
from ridgeline.core.ops.linear import LMHead
from ridgeline.core.ops.matrix import AdaptedMatrix, AdapterRows, LoraWeights, Matrix, MatrixSpec, matrix_of
from ridgeline.core.ops.number_formats import WeightFormat, weight_format_named
from ridgeline.core.ops.op import Op
from ridgeline.core.ops.shard import Indivisible
from ridgeline.core.ops.stored_module import StorageShare
from ridgeline.core.ops.weight_slot import WeightSlot
from ridgeline.core.ops.work import CAUSAL, TOKENS, AttentionPattern, RowAxis, StepSegment, Work
from ridgeline.insight.trace.priced_trace import op_shapes
from ridgeline.insight.trace.tracer import Tracer
from ridgeline.price.price import Price

FP32, VOCABULARY, HIDDEN = torch.float32, 67, 32
FAMILY = Family("New", "new", lambda fields, storage: Small(), backbone_prefix="")
SPEC = KVSpec(2, 8, 8, CAUSAL, FP32)


class Memory(Op):
    """A product with a matrix `slots`, which gives to each question another answer than Op does."""

    kind = "memory"
    part = "attention"
    reads_context = True

    def __init__(self) -> None:
        super().__init__()
        self.slots: Matrix = matrix_of(MatrixSpec(HIDDEN, HIDDEN, FP32))
        self.gathered_ranks, self.whole_sequences, self.created, self.told = 2, False, False, dict[str, str | None]()

    def forward(self, x_TD: Tensor) -> Tensor:
        """[rows, hidden] -> [rows, hidden]."""
        return self.slots.product(x_TD)

    def cost(self, work: Work, space: RowAxis = TOKENS) -> Cost:
        return self.cost_of(work.rows[space]) if work.rows.get(space) else NO_COST

    def cost_of(self, rows: int) -> Cost:
        return Cost({"fp32": 2.0 * rows * self.gathered_ranks * HIDDEN * HIDDEN})

    def signature(self) -> Hashable:
        return self.gathered_ranks

    def storage_shares(self) -> tuple[StorageShare, ...]:
        """As Stored.shares."""
        return self.slots.storage_shares()

    def weight_slots(self) -> Mapping[str, WeightSlot]:
        return {"slots": self.slots.spec.place("matrix", "slots")}

    def set_weight_formats(self, stored: Mapping[str, WeightFormat | None]) -> None:
        self.slots = matrix_of(self.slots.spec, stored["slots"])

    def adaptable_matrices(self) -> Mapping[str, Matrix]:
        return {"slots": self.slots}

    def attach_adapter(self, number: int, name: str, added: LoraWeights, rows: AdapterRows) -> None:
        adapted = AdaptedMatrix(self.slots, rows)
        adapted.adapt(number, added)
        self.slots = adapted

    def match_checkpoint(self, dtype_of: Callable[[str], str | None]) -> None:
        """As Stored.match_checkpoint."""
        self.told = {name: dtype_of(name) for name in ("slots.weight", "other")}

    def check_divisible(self) -> None:
        """As Stored.refuse_division."""
        raise Indivisible("slots are whole")

    def create_parameters(self) -> None:
        """As Stored.create_parameters."""
        self.created = True

    @property
    def pending_matrices(self) -> int:
        """As Stored.pending_matrices."""
        return 3

    @property
    def idle_parameters(self) -> int:
        return 100

    @property
    def features(self) -> tuple[Feature, ...]:
        return (self.experts, GatheredRows())

    @property
    def experts(self) -> ExpectedExperts:
        return ExpectedExperts(4, 1)

    def experts_hit(self, inputs: tuple[Any, ...]) -> int:
        return len(inputs[0])

    @property
    def attention_pattern(self) -> AttentionPattern:
        return CAUSAL

    @property
    def cache_spec(self) -> CacheSpec | None:
        return None if self.whole_sequences else SPEC

    def disable_kv_cache(self) -> None:
        self.whole_sequences = True

    @property
    def score_heads(self) -> int:
        return 5


class Small(Model):
    """An embedding, the op and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.context, self.vocabulary, self.storage = 64, VOCABULARY, StorageConfig(FP32)
        self.embed, self.layers = Embedding(VOCABULARY, HIDDEN, FP32), nn.ModuleList([Memory()])
        self.lm_head = LMHead(MatrixSpec(HIDDEN, VOCABULARY, FP32))
        self.collect_cache_specs()

    @property
    def memory(self) -> Memory:
        """The op."""
        (op,) = (module for module in self.modules() if isinstance(module, Memory))
        return op

    def hidden(
        self, ids_T: Tensor, positions_T: Tensor, kv: KVContext, rows_R: Tensor, encoded_ED: Tensor | None = None
    ) -> Tensor:
        """As Model.hidden."""
        x_TD: Tensor = self.memory(self.embed(ids_T))
        return x_TD[: len(rows_R)]

    def head(self, x_RD: Tensor) -> Tensor:
        """As Model.head."""
        logits_RV: Tensor = self.lm_head(x_RD)
        return logits_RV


@pytest.fixture
def model() -> Small:
    """On meta."""
    with torch.device("meta"):
        return Small()


def test_a_recipe_stores_what_the_op_names(model: Small) -> None:
    """Its place has the name that a checkpoint gives it, and the format that is chosen arrives."""
    int8, seen = weight_format_named("int8"), list[WeightSlot]()
    with torch.device("meta"):
        model.store(lambda place: seen.append(place) or (int8 if place.kind == "matrix" else None))
    assert seen == [
        WeightSlot("embed", "embedding", HIDDEN, VOCABULARY),
        WeightSlot("layers.0.slots", "matrix", HIDDEN, HIDDEN),
        WeightSlot("lm_head", "head", HIDDEN, VOCABULARY),
    ]
    assert model.memory.slots.stored == int8
    assert quantises(model)
    assert model.lm_head.stored is None


def test_the_bill_and_the_price_count_it(model: Small) -> None:
    """By the part, the idle parameters and the matrices to come that it states; its rows are those of several ranks."""
    found, slots, table = parameter_breakdown(model), HIDDEN * HIDDEN, VOCABULARY * HIDDEN
    assert found.parameters == {"embedding": table, "attention": slots, "feed-forward": 0, "norms": 0, "head": table}
    assert found.total - found.active == 100
    assert weight_bytes(model) == 4 * (2 * table + slots) + 3 * 4096
    price = Price(model)
    gathered = {priced.path: priced.op.gathered_ranks for priced in price.with_active_ranks(7).ops}
    assert gathered == {"embed": 1, "layers.0": 7, "lm_head": 1}
    assert model.memory.gathered_ranks == 2
    assert price.ops[1].op.features == (ExpectedExperts(4, 1), GatheredRows())


def test_what_it_sees_and_keeps(model: Small) -> None:
    """Reaches and specs of the model are those that it states, until it is to keep nothing."""
    assert model.attention_patterns == {CAUSAL}
    assert model.kv_specs == (SPEC,)
    for _, op in model.ops():
        op.disable_kv_cache()
    model.collect_cache_specs()
    assert model.kv_specs == ()
    assert op_shapes(model)["layers.0"].scores == 5
    assert op_shapes(model)["lm_head"].scores is None


def test_a_state_and_a_latent_are_told_apart() -> None:
    """A state is overwritten by every step; a latent has no values of its own."""
    kept = (SPEC, KVSpec(1, 24, 0, CAUSAL, FP32), StateSpec(10, FP32))
    assert [(spec.is_state, spec.is_latent) for spec in kept] == [(False, False), (False, True), (True, False)]


def test_it_is_divided_created_and_matched_with_its_checkpoint(model: Small, tmp_path: Path) -> None:
    """Before it is filled, the loader tells it of its tensors, by their names within it."""
    with pytest.raises(Indivisible, match="slots are whole"):
        model.refuse_division()
    tensors = {
        "embed.weight": torch.zeros(VOCABULARY, HIDDEN),
        "layers.0.slots.weight": torch.eye(HIDDEN).bfloat16(),
        "lm_head.weight": torch.zeros(VOCABULARY, HIDDEN),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    load_tensors(model, open_checkpoint(tmp_path), FAMILY)
    assert model.memory.created
    assert model.memory.told == {"slots.weight": "BF16", "other": None}
    assert torch.equal(model.memory.slots.dequantised(), torch.eye(HIDDEN))


@torch.inference_mode()
def test_an_adapter_and_a_trace_find_it() -> None:
    """Its matrix takes an adapter, the head's does not; a trace notes how many experts a call ran."""
    model = Small()
    for parameter in model.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    kv, ids = Uncached([StepSegment(3, 3)]), torch.arange(3)
    with Tracer(model).recording() as calls:
        before = model.hidden(ids, ids, kv, ids)
    assert [(call.path, call.experts_hit) for call in calls] == [("embed", None), ("layers.0", 3)]
    targets, rows, added = targets_of(model, FAMILY), AdapterRows(), LoraWeights(HIDDEN, HIDDEN, 1, 0.5, FP32)
    assert list(targets) == ["layers.0.slots"]
    first, second = torch.ones(1, HIDDEN), torch.ones(HIDDEN, 1)
    added.fill(first, second)
    targets["layers.0.slots"].put(1, added, rows)
    assert targets_of(model, FAMILY)["layers.0.slots"].added(1) is added
    assert model.adapter_bytes == 4 * 2 * HIDDEN
    rows.set_step([1], [3], torch.device("cpu"))
    x_TD = model.embed(ids)
    assert torch.allclose(model.hidden(ids, ids, kv, ids) - before, 0.5 * x_TD.sum(1, keepdim=True), atol=1e-4)
