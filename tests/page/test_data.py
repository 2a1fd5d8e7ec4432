"""What the page's data is called, by Python and on the page."""

import json

import pytest

from page.modules import Modules
from ridgeline.learn.page.data import models_data, stored_of, table_name, writers
from ridgeline.learn.page.model_tables import StoredModel

WAYS = [
    StoredModel(),
    StoredModel("int4-g64", "fp8"),
    StoredModel("fp8+head", None, 8),
    StoredModel(devices=2, own_attention=True),
    StoredModel("q4_k_m", "int8", 4, own_attention=True),
]


@pytest.mark.parametrize("stored", WAYS, ids=str)
def test_a_table_has_one_name(stored: StoredModel) -> None:
    """Which says how its model is stored."""
    page = Modules("source.js")
    for model in ("llama-3-8b", "a b/c?d&e=f#%ü"):
        said = {
            "weights": stored.weights,
            "kv": stored.kv,
            "devices": stored.devices,
            "attention": stored.own_attention,
        }
        name = table_name(model, stored)
        assert page.eval(f"modules['source.js'].tableName({json.dumps(model)}, {json.dumps(said)})") == name
        path, _, query = name.partition("?")
        assert path.count("/") == 1
        assert stored_of(query) == stored
    assert page.eval("modules['source.js'].tableName('x')") == "tables/x.json"


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("devices=0", "from 1 to 8"),
        ("devices=9", "from 1 to 8"),
        ("devices=-1", "from 1 to 8"),
        ("devices=" + "9" * 9999, "from 1 to 8"),
        ("devices=٣", "from 1 to 8"),
        ("layers=3", "layers is not a parameter of a table"),
        ("weights", "bad query"),
        ("attention=1", "give --devices 2"),
    ],
)
def test_a_name_that_says_no_way_to_store_a_model_is_refused(query: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        stored_of(query)


def test_models_are_those_that_tables_can_be_of() -> None:
    told = models_data(served=["mine", "gpt2"])
    assert told["models"][:2] == [{"name": "mine", "served": True}, {"name": "gpt2", "served": True}]
    names = [each["name"] for each in told["models"]]
    assert len(names) == len(set(names))
    assert {"llama-3-8b", "deepseek-v3"} < set(names) == {"mine", *writers()}
    assert "bert-base-uncased" not in names
    assert told["tables"] is None
    listed = models_data({"gpt2": WAYS[:2]})
    assert listed["models"] == [{"name": "gpt2", "served": False}]
    assert listed["tables"] == ["tables/gpt2.json", "tables/gpt2.json?weights=int4-g64&kv=fp8"]
