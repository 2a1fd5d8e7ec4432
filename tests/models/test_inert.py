"""Keys of config.json that change nothing: transformers' classes do not read them, and neither do ours."""

import importlib
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, PreTrainedConfig

from models.configs import CONFIGS
from models.parity_cases import CASES
from models.released import AROUND, HALVES, INERT, as_released, inert_keys
from models.test_config import refusal
from ridgeline.core.models import FAMILIES, Fields, build
from ridgeline.core.models.common.architecture_alias import KIN
from ridgeline.core.models.common.fields import _BOOKKEEPING, _OTHER_INPUTS

FIRST = {case.model_type: case for case in reversed(CASES)}
# What transformers' models read of the fields that ours pass over by their names: for training, for other outputs, for
# heads that are not built, for images; padding_idx, which leaves a row out of gradients; and GPT-2's upcast, which
# changes rounding alone.
OF_NO_EFFECT = {
    "_attn_implementation", "attention_dropout", "attn_pdrop", "classifier_dropout", "embd_pdrop", "embedding_dropout",
    "hidden_dropout", "image_token_id", "initializer_range", "num_labels", "output_attentions", "output_hidden_states",
    "output_router_logits", "pad_token_id", "problem_type", "projector_dropout", "reorder_and_upcast_attn",
    "resid_pdrop", "residual_dropout", "return_dict", "router_aux_loss_coef", "router_jitter_noise",
    "summary_activation", "summary_first_dropout", "summary_last_dropout", "summary_proj_to_labels", "summary_type",
    "summary_use_proj", "use_cache", "video_token_id",
    "image_size", "mm_tokens_per_image", "projector_input_dim", "projector_output_dim", "vision_config",
}  # fmt: skip


def read_by_transformers(model_type: str) -> set[str]:
    """Return the fields of a config that the code of transformers' models of a type names."""
    config = type(AutoConfig.for_model(model_type))
    module = importlib.import_module(config.__module__.replace("configuration_", "modeling_"))
    pairs = re.findall(r"config\.(\w+)|config,\s*[\"'](\w+)[\"']", inspect.getsource(module))
    return {name for pair in pairs for name in pair if name}


def test_every_family_and_every_larger_model_has_its_keys() -> None:
    """Compare the lists of keys with what is built."""
    assert INERT.keys() <= {family.model_type for family in FAMILIES}
    assert AROUND.keys() == {kin.model_type for kin in KIN if kin.section}
    assert {(kin.architecture, kin.model_type) for kin in KIN}.issuperset(HALVES.values())


@pytest.mark.parametrize("family", CONFIGS)
def test_what_is_passed_over_by_name_is_read_for_nothing_that_counts(family: str) -> None:
    """Check that the names of bookkeeping and other inputs cover no field that transformers computes a text with."""
    read = read_by_transformers(family)
    assert len(read) >= 10
    by_name = {name for name in read if _BOOKKEEPING.fullmatch(name) or _OTHER_INPUTS.fullmatch(name)}
    assert by_name <= OF_NO_EFFECT


@pytest.mark.parametrize("family", CONFIGS)
def test_transformers_reads_no_inert_key(family: str) -> None:
    """Look for each key in the code of its model; its config class may declare a key that the model does not read."""
    assert not inert_keys(family).keys() & read_by_transformers(family)


def differences(ours: PreTrainedConfig, theirs: PreTrainedConfig) -> Iterator[str]:
    """Yield the fields in which two configs differ, but for those that say where they come from."""
    one, other = ours.to_dict(), theirs.to_dict()
    for name in one.keys() | other.keys():
        if one.get(name) != other.get(name) and name not in ("dtype", "architectures", "transformers_version"):
            yield name


@pytest.mark.parametrize("family", CONFIGS)
def test_the_released_layout_is_the_same_model_to_transformers(family: str, tmp_path: Path) -> None:
    """Expect its reading of the file to differ from the config of the parity case by the inert keys alone."""
    plain = AutoConfig.for_model(family, **FIRST[family].config)
    plain.dtype = torch.float32
    plain.architectures = [each.architecture for each in FAMILIES if each.model_type == family]
    values = as_released(json.loads(plain.to_json_string(use_diff=True)))
    (tmp_path / "config.json").write_text(json.dumps(values), encoding="utf-8")
    theirs = AutoConfig.from_pretrained(tmp_path).get_text_config()
    assert set(differences(theirs, plain)) <= {*inert_keys(family), "_name_or_path"}
    fields = Fields(values, "config.json")
    assert build(fields).storage.dtype == torch.float32
    assert fields.unread() in ([], ["vision_config"])


@pytest.mark.parametrize("family", CONFIGS)
def test_other_inputs_change_nothing(family: str) -> None:
    """Expect keys of images, sound, further tokens and training to pass, whatever else their names say."""
    keys = {
        "use_vision_chunk_attention": True, "audio_norm_type": "rms", "mm_projector_bias": True, "video_scale": 3,
        "use_image_gate": True, "mtp_loss_scaling_factor": 0.1, "num_nextn_predict_layers_limit": 2,
        "router_bias_update_rate": 0.001, "moe_z_loss_scale": 0.5, "label_smoothing_factor": 0.1,
    }  # fmt: skip
    fields = Fields({**CONFIGS[family], **keys, "image_config": {"scale": 2}}, "config.json")
    build(fields)
    assert fields.unread() == ["image_config"]


STATED: tuple[tuple[str, str, Any, Any], ...] = (
    ("qwen3", "use_qk_norm", True, False),
    ("qwen3_moe", "use_qk_norm", True, False),
    ("qwen3_next", "use_qk_norm", True, False),
    ("gemma3_text", "use_qk_norm", True, False),
    ("olmo2", "use_qk_norm", True, False),
    ("exaone4", "use_qk_norm", True, False),
    ("qwen3_5_text", "output_gate_type", "swish", "sigmoid"),
    ("qwen3_5_moe_text", "output_gate_type", "silu", "sigmoid"),
    ("llama", "is_causal", True, False),
    ("llama", "use_rope", True, False),
    ("minimax_m2", "scoring_func", "sigmoid", "softmax"),
)


@pytest.mark.parametrize(("family", "name", "always", "other"), STATED)
def test_a_setting_that_states_what_is_always_so(family: str, name: str, always: object, other: object) -> None:
    """Expect another value of it to be refused, and the same switch in other families."""
    fields = Fields({**CONFIGS[family], name: always}, "config.json")
    build(fields)
    assert fields.unread() == []
    assert f"{name} = {other!r} is not supported" in refusal({**CONFIGS[family], name: other})
    if name in ("use_qk_norm", "output_gate_type"):
        assert f"{name} = {always!r} is not supported, and its name says" in refusal({**CONFIGS["llama"], name: always})
