"""JSON data of result dataclasses, compared with `dataclasses.asdict`."""

import dataclasses
import json
import math

import pytest

from ridgeline.core.models.common.sizes import HeadSharing
from ridgeline.insight.traffic.slo import SLO
from ridgeline.util.json_data import json_data, json_name, json_object, json_select, json_shape


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


@json_shape("total", ..., "*pair", "first=pair.kept", "none=absent.kept", omit=("hidden",))
@dataclasses.dataclass(frozen=True)
class Shaped:
    pair: Inner
    hidden: int = 1
    count: int = 2
    share: float = math.inf
    absent: Inner | None = None

    @property
    def total(self) -> int:
        return self.count * 2


def test_a_class_declares_properties_merged_records_and_omitted_fields() -> None:
    found = json_object(Shaped(Inner(5, 0.5)))
    expected = {"total": 4, "count": 2, "share": None, "kept": 5, "old": 0.5, "first": 5, "none": None}
    assert list(found.items()) == list(expected.items())
    assert json_data({"a": [Shaped(Inner(5, 0.5))]}) == {"a": [expected]}


def test_a_declared_key_without_an_attribute_is_refused() -> None:
    with pytest.raises(AssertionError, match="Inner has no missing"):
        json_shape(..., "missing")(Inner)


def test_a_part_of_a_record_has_the_json_names_of_its_fields() -> None:
    outer = Outer((Inner(1),), {"a": Inner(3, math.nan)}, Inner(4, 2.0))
    assert json_select(outer, "absent.renamed", "absent.kept", "each") == {
        "old": 2.0,
        "kept": 4,
        "each": [{"kept": 1, "old": None}],
    }
    kept = {"kept": 3, "old": None}
    assert json_select(outer, "names=by_name", "*by_name") == {"names": {"a": kept}, "a": kept}
