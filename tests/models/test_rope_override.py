"""--rope: the config that model cards describe, and refusals of models and values that it does not suit."""

import pytest

from ridgeline.core.checkpoint.catalogue import config_of
from ridgeline.core.models import build
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.rope_override import RopeOverride, offered_rope, parse_rope
from ridgeline.core.ops.rotary import Rope, Yarn


def _ropes(fields: Fields) -> set[Rope]:
    ropes = (getattr(module, "rope", None) for module in build(fields).modules())
    return {rope for rope in ropes if isinstance(rope, Rope)}


@pytest.mark.parametrize("name", ["qwen3-32b", "qwen3-30b-a3b"])
def test_qwen3s_card(name: str) -> None:
    # "Processing Long Texts" of Qwen3's cards: this section makes 131,072 positions, which the config does not state.
    section = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}
    fields = config_of(name)
    scaled, by_hand = RopeOverride(4).of(fields), Fields({**fields.values, "rope_scaling": section}, "by hand")
    assert build(scaled).context == 131_072
    assert _ropes(scaled) == _ropes(by_hand) == {Rope(128, 1_000_000.0, Yarn(4.0, 32_768, 32.0, 1.0, None, True))}
    assert fields.values["max_position_embeddings"] == 40_960  # unchanged


def test_stated_original_context_overrides_the_cards() -> None:
    assert build(RopeOverride(4, 40_960).of(config_of("qwen3-32b"))).context == 163_840


def test_context_of_the_config_where_no_card_states_another() -> None:
    assert build(RopeOverride(2).of(config_of("llama-3-8b"))).context == 16_384


def test_base_and_axes_stay() -> None:
    values = dict(config_of("qwen3-0.6b").values)
    theta = values.pop("rope_theta")
    new = {"rope_type": "default", "rope_theta": theta, "mrope_section": [24, 20, 20]}
    scaled = RopeOverride(4).of(Fields({**values, "rope_scaling": None, "rope_parameters": new}, "transformers 5"))
    assert _ropes(scaled) == _ropes(RopeOverride(4).of(config_of("qwen3-0.6b")))
    assert scaled.values["rope_parameters"]["mrope_section"] == [24, 20, 20]
    old = {"type": "mrope", "mrope_section": [24, 20, 20]}
    scaled = RopeOverride(4).of(Fields({**values, "rope_theta": theta, "rope_scaling": old}, "old spelling"))
    assert _ropes(scaled) == _ropes(RopeOverride(4).of(config_of("qwen3-0.6b")))


@pytest.mark.parametrize(
    ("name", "override", "why"),
    [
        ("llama-3.1-8b", RopeOverride(4), r"already scales the context \(rope_scaling: llama3\)"),
        ("ministral-3-3b", RopeOverride(4), r"already scales the context \(rope_parameters: yarn\)"),
        ("gpt2", RopeOverride(4), "has no max_position_embeddings"),
        ("nemotron-h-8b", RopeOverride(4), "cannot have this scaling"),
        ("phi-4", RopeOverride(4), "cannot have this scaling"),
        ("qwen3-32b", RopeOverride(1.1), "32,768 positions x 1.1 are 36,044; they must be more than the 40,960"),
        ("qwen3-32b", RopeOverride(1e9), "at most 16,777,216"),
    ],
)
def test_models_that_it_does_not_suit(name: str, override: RopeOverride, why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        override.of(config_of(name))
    assert str(caught.value).startswith(f"--rope {override} does not suit {name}: ")
    assert "\n" not in str(caught.value)


def test_different_ropes_of_layers_are_refused() -> None:
    both = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    fields = Fields({**config_of("gemma-3-1b").values, "rope_parameters": both}, "both")
    with pytest.raises(ValueError, match="different rotary embeddings"):
        RopeOverride(4).of(fields)


@pytest.mark.parametrize(
    ("text", "override"),
    [("yarn:4", RopeOverride(4)), (" YaRN:2.5 ", RopeOverride(2.5)), ("yarn:4:32768", RopeOverride(4, 32_768))],
)
def test_values(text: str, override: RopeOverride) -> None:
    assert parse_rope(text) == override
    assert parse_rope(str(override)) == override


@pytest.mark.parametrize(
    "text",
    ["", "yarn", "yarn:", "yarn:x", "yarn:1", "yarn:-4", "yarn:nan", "yarn:inf", "linear:4", "4", "yarn:4:0",
     "yarn:4:4k", "yarn:4:-1", "yarn:4:", "yarn:4:32768:2", "yarn:4:99999999999"],
)  # fmt: skip
def test_bad_values(text: str) -> None:
    with pytest.raises(ValueError, match="--rope is") as caught:
        parse_rope(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("tokens", [40_961, 65_536, 65_537, 131_072, 131_328])
def test_offered_scaling_is_the_smallest_in_hundredths(tokens: int) -> None:
    fields = config_of("qwen3-32b")
    offered = offered_rope(fields, tokens)
    assert offered is not None
    override, original = offered
    assert original == 32_768
    assert build(override.of(fields)).context >= tokens > int(original * (override.factor - 0.01))


def test_no_scaling_is_offered_where_none_suits() -> None:
    assert offered_rope(config_of("llama-3.1-8b"), 200_000) is None
    assert offered_rope(config_of("gpt2"), 2_000) is None
