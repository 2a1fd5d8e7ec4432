"""JSON data of result dataclasses, compared with `dataclasses.asdict`."""

import dataclasses
import json

from ridgeline.core.models.common.sizes import HeadSharing
from ridgeline.insight.traffic.slo import SLO
from ridgeline.util.json_data import json_data, json_name, json_object


@dataclasses.dataclass(frozen=True, slots=True)
class Inner:
    kept: int
    renamed: float | None = dataclasses.field(default=None, metadata=json_name("old"))


@dataclasses.dataclass(frozen=True, slots=True)
class Outer:
    each: tuple[Inner, ...]
    by_name: dict[str, Inner]
    absent: Inner | None = None


def test_a_renamed_field_keeps_its_key_at_any_depth() -> None:
    found = json_object(Outer((Inner(1, 2.5),), {"a": Inner(3)}))
    assert found == {
        "each": [{"kept": 1, "old": 2.5}],
        "by_name": {"a": {"kept": 3, "old": None}},
        "absent": None,
    }
    assert list(json_data(HeadSharing("GQA", 2, 8.0, 4.0))) == ["form", "kv_heads", "bytes_per_token", "less"]


def test_without_renames_it_is_asdict() -> None:
    slo = SLO(ttft=10**9, classes={"batch": SLO(e2e=2 * 10**9)})
    assert json_data(slo) == dataclasses.asdict(slo)
    assert json.dumps(json_data([slo, None, (1, "a")])) == json.dumps([dataclasses.asdict(slo), None, [1, "a"]])
