"""Encoders without a family here against transformers: states of texts of several lengths in one step, released names,
a price of every op."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import CONFIG_MAPPING, AutoModelForMaskedLM, AutoModelForSequenceClassification, PreTrainedModel

from models.comparing import TOLERANCE, off
from models.test_encoders import LENGTHS, apart, given, steps_of_requests
from ridgeline.backends.model_loader import load_model
from ridgeline.core.models import Fields, ModelRefused, build
from ridgeline.core.models.common.embedder import Embedder
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.from_transformers.class_encoder import ClassEncoder
from ridgeline.core.models.from_transformers.class_family import class_family
from ridgeline.core.models.from_transformers.encoder_probe import OTHER_INPUTS
from ridgeline.core.models.from_transformers.small_config import small_config
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.price.price import Price
from support.checkpoints import fill_random
from support.registered_encoders import EncoderGroup, encoder_group, registered_encoders

_SIZES: dict[str, Any] = {
    "vocab_size": 83,
    "hidden_size": 36,
    "intermediate_size": 44,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "max_position_embeddings": 70,
}
WRITTEN: Mapping[str, dict[str, Any]] = {
    "albert": _SIZES | {"embedding_size": 20, "inner_group_num": 1, "pad_token_id": 0},
    "distilbert": {
        "vocab_size": 83, "dim": 36, "hidden_dim": 44, "n_layers": 3, "n_heads": 6, "max_position_embeddings": 70
    },
    "deberta-v2": _SIZES
    | {
        "relative_attention": True, "position_buckets": 20, "norm_rel_ebd": "layer_norm", "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"], "position_biased_input": False, "type_vocab_size": 0,
    },
    "electra": _SIZES | {"embedding_size": 20},
    "esm": _SIZES
    | {"pad_token_id": 1, "mask_token_id": 32, "position_embedding_type": "rotary", "token_dropout": True},
    "mobilebert": _SIZES | {"embedding_size": 12, "intra_bottleneck_size": 24, "true_hidden_size": 24},
    "mpnet": _SIZES | {"max_position_embeddings": 72, "pad_token_id": 1},
    "squeezebert": _SIZES
    | {"hidden_size": 48, "embedding_size": 48, "intermediate_size": 64, "num_attention_heads": 4},
}  # fmt: skip
"""Configs of DeBERTa v3, MPNet and others as releases have them, but small. Other types have a small default."""
PACKED = (
    "albert", "camembert", "data2vec-text", "distilbert", "electra", "ernie", "esmc", "eurobert", "gte",
    "jina_embeddings_v3", "neomme", "nomic_bert", "roberta-prelayernorm", "roc_bert", "ultrabert", "xlm-roberta-xl",
)  # fmt: skip
"""The types whose texts run as one sequence, with our attention."""
BY_LENGTH = (
    "convbert", "deberta", "deberta-v2", "esm", "flaubert", "fnet", "ibert", "layoutlm", "luke", "megatron-bert",
    "mobilebert", "mpnet", "nystromformer", "rembert", "roformer", "squeezebert", "xlm", "yoso",
)  # fmt: skip
"""The types that attend by themselves, or whose code looks at the rows of a text in another way."""
FP32_ONLY = ("deberta", "fnet")
NATIVE = ("bert", "roberta", "xlm-roberta", "modernbert")
NOT_RUN = {
    **OTHER_INPUTS,
    "big_bird": "change with the texts before",
    "longformer": "depends on the values of tensors",
    "modernvbert": "its text model",
    "ultravbert": "its text model",
}
"""The types that the engine refuses or only prices, with a part of the reason."""


@dataclass(frozen=True)
class Written:
    """A small random encoder of transformers, saved bare and with its head for masked tokens, and ours of both."""

    model_type: str
    theirs: PreTrainedModel
    bare: Path
    masked: Path
    ours: Model
    texts: list[list[int]]

    def answers(self) -> list[Tensor]:
        """Return transformers' states of each text, one at a time; ids beyond the vocabulary are of a second text."""
        vocabulary, answers = self.theirs.config.vocab_size, []
        for text in self.texts:
            ids_1T = torch.tensor([text])
            types = {"token_type_ids": ids_1T // vocabulary} if max(text) >= vocabulary else {}
            with torch.no_grad():
                answers.append(self.theirs(ids_1T % vocabulary, **types)[0][0])
        return answers


def texts_of(config: Any, token_types: int) -> list[list[int]]:
    """Return texts without padding tokens; where two are told apart, some are pairs."""
    generator = torch.Generator().manual_seed(3)
    ids_V = torch.tensor([token for token in range(3, config.vocab_size) if token != config.pad_token_id])
    texts = []
    for index, length in enumerate(LENGTHS):
        ids = ids_V[torch.randint(len(ids_V), (length,), generator=generator)].tolist()
        paired = token_types > 1 and index % 2 == 0
        texts.append([token + config.vocab_size * (paired and place >= 4) for place, token in enumerate(ids)])
    return texts


def config_of(model_type: str) -> Any:
    """Return the config of a small encoder, which attends by its own code."""
    if model_type in WRITTEN:
        config = CONFIG_MAPPING[model_type](**WRITTEN[model_type])
    else:
        config = small_config(CONFIG_MAPPING[model_type]())
    config._attn_implementation = "eager"
    return config


def made(model_type: str, folder: Path) -> Written:
    """Return a random encoder in both layouts."""
    whole = cast(PreTrainedModel, AutoModelForMaskedLM.from_config(config_of(model_type), dtype=torch.float32)).eval()
    fill_random(whole, 7)
    theirs = whole.base_model
    bare, masked = folder / "bare", folder / "masked"
    theirs.save_pretrained(bare)
    whole.save_pretrained(masked)
    ours = load_model(str(bare))
    return Written(model_type, theirs, bare, masked, ours, texts_of(theirs.config, ours.token_types))


@pytest.fixture(scope="module", params=(*PACKED, *BY_LENGTH))
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    return made(request.param, tmp_path_factory.mktemp(request.param))


def test_the_lists_cover_every_encoder() -> None:
    """Check that each encoder that transformers registers stands in one list."""
    listed = [*PACKED, *BY_LENGTH, *NATIVE, *NOT_RUN]
    assert sorted(listed) == sorted(registered_encoders())


def test_states_of_texts_together(written: Written) -> None:
    """Compare all texts of one step with what the class gives for each alone, run in the way that the probe found."""
    assert isinstance(written.ours, ClassEncoder)
    assert written.ours.run.packed == (written.model_type in PACKED)
    assert bool(written.ours.ops_of(Attention)) == written.ours.run.packed
    answers = written.answers()
    for text, ours, theirs in zip(written.texts, given(written.ours, written.texts), answers, strict=True):
        assert apart(ours, theirs, answers) <= TOLERANCE, f"{len(text)} tokens"


def test_states_of_the_layout_with_a_head(written: Written) -> None:
    """Load a checkpoint for masked tokens, with other names and further tensors; the states are the same."""
    masked = load_model(str(written.masked))
    for ours, theirs in zip(given(masked, written.texts), given(written.ours, written.texts), strict=True):
        assert off(ours, theirs) <= TOLERANCE


def test_texts_through_the_engine(written: Written) -> None:
    """Run steps of at most 48 positions, with as many whole texts as fit, whatever a chunk is."""
    assert 2 <= steps_of_requests(written.ours, written.texts, written.answers()) < len(LENGTHS)


def test_price(written: Written) -> None:
    """Check that every parameter counts, and that the price is that of the config alone."""
    theirs = (p.numel() for name, p in written.theirs.state_dict().items() if not name.startswith("pooler."))
    assert sum(theirs) == sum(p.numel() for p in written.ours.parameters())
    values = json.loads((written.bare / "config.json").read_text(encoding="utf-8"))
    built = build(Fields(values, "config.json"))
    work = Work.of([StepSegment(9, 9), StepSegment(4, 4)], built.attention_patterns)
    assert Price(built).step(work) == Price(written.ours).step(work)
    assert not built.kv_specs
    assert built.traced_from.startswith("transformers 5.")


def test_products(written: Written) -> None:
    """Compare the FLOPs of all matrix products of a text with those that torch counts in the class's own run.

    In bf16 they are apart from the FLOPs of norms and activations, which a price has in fp32.
    """
    if written.model_type in FP32_ONLY:
        pytest.skip("transformers runs the class in fp32 only")
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        written.theirs(torch.arange(3, 40)[None])
    values = json.loads((written.masked / "config.json").read_text(encoding="utf-8"))
    built = build(Fields(values, "config.json"), torch.bfloat16)
    flops = Price(built).step(Work.of([StepSegment(37, 37)], built.attention_patterns)).flops["bf16"]
    pooler = sum(2 * p.numel() for name, p in written.theirs.named_parameters() if name == "pooler.dense.weight")
    pooler += sum(2 * p.numel() for name, p in written.theirs.named_parameters() if name == "pooler.weight")
    products = counted.get_total_flops() - pooler
    if any(pattern.kind == "local" for pattern in built.attention_patterns):  # the class computes masked pairs too
        assert 0.9 * products < flops < products
    else:
        assert flops == products


@pytest.mark.parametrize("model_type", NOT_RUN)
def test_what_does_not_run_is_refused_or_priced_only(model_type: str) -> None:
    """Check the reason."""
    config = CONFIG_MAPPING[model_type]()
    values = json.loads(config.to_json_string(use_diff=False)) | {"architectures": [registered_encoders()[model_type]]}
    fields = Fields(values, "config.json")
    try:
        reason = build(fields, family=class_family(fields)).priced_only
    except ModelRefused as error:
        reason = str(error)
    assert NOT_RUN[model_type] in reason


@pytest.mark.parametrize("labels", [1, 5])
@pytest.mark.parametrize("model_type", ["albert", "camembert", "deberta-v2", "distilbert", "electra", "mpnet"])
def test_scores_of_a_classifier(model_type: str, labels: int, tmp_path: Path) -> None:
    """Run the head that the release has: a score for each label of each text."""
    config = config_of(model_type)
    config.num_labels = labels
    theirs: Any = AutoModelForSequenceClassification.from_config(config, dtype=torch.float32).eval()
    fill_random(theirs, 9)
    theirs.save_pretrained(tmp_path)
    ours = load_model(str(tmp_path))
    assert isinstance(ours, Embedder)
    assert (ours.labels, ours.applies_sigmoid) == (labels, labels == 1)
    written = Written(model_type, theirs, tmp_path, tmp_path, ours, texts_of(config, ours.token_types))
    answers = [scores[None] for scores in written.answers()]
    for text, scores, wanted in zip(written.texts, given(ours, written.texts), answers, strict=True):
        assert apart(scores, wanted, answers) <= TOLERANCE, f"{len(text)} tokens"
    built = build(Fields(json.loads((tmp_path / "config.json").read_text(encoding="utf-8")), "config.json"))
    assert Price(built).step(Work.of([StepSegment(9, 9)], built.attention_patterns)).total_flops > 0


@pytest.mark.parametrize(
    ("model_type", "expected"),
    [
        ("distilbert", EncoderGroup("DistilBertModel", "generic", packed=True)),
        ("mpnet", EncoderGroup("MPNetModel", "generic")),
        ("tapas", EncoderGroup("TapasModel", "refused", reason=OTHER_INPUTS["tapas"])),
    ],
)
def test_the_group_of_a_registered_encoder(model_type: str, expected: EncoderGroup) -> None:
    """Check the groups that the documentation lists."""
    found = encoder_group(model_type, registered_encoders()[model_type])
    assert found.reason.endswith(expected.reason)
    assert replace(found, reason=expected.reason) == expected
