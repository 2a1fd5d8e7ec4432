"""`ridgeline plan` of a pipeline: the answer, its JSON, its comparison, and one line for what it does not take."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from cli.test_plan import plan  # noqa: F401
from ridgeline.core.models import ModelRefused
from ridgeline.media.diffusion.pipeline_loader import load_pipeline
from ridgeline.media.diffusion.pipeline_plan_page import SECTIONS

TURBO, CARD = "Tongyi-MAI/Z-Image-Turbo", ("--device", "h100-sxm")


def test_the_answer_comes_first(plan: Any) -> None:  # noqa: F811
    """Seconds, pictures an hour and dollars, then passes, memory and what would help; then stages."""
    code, out, err = plan(TURBO, *CARD)
    assert (code, err) == (0, "")
    title, answer, cost = out.splitlines()[:3]
    assert title == "z-image-turbo on 1 x NVIDIA H100 SXM 80GB: 1024x1024, 8 steps"
    around = r"\[[^]]+ \.\. [^]]+\]"
    assert re.match(rf"image +\d+ ms {around} \(floor \d+ ms, bound \d+ ms\); [\d,]+ {around} per hour", answer)
    assert cost.startswith("cost")
    passes = (
        "128 x 128 latents, 64 times fewer than pixels, which are 4,096 tokens; "
        "8 steps, one pass each: 8 passes of 56.0 TFLOP"
    )
    assert f"{passes}, 15% of that in attention" in " ".join(out.split())
    assert re.search(r"\nencode .*memory\ndenoise .*compute\nper pass .*\ndecode .*\nall ", out)
    assert max(map(len, out.splitlines())) <= 100


def test_the_fields_of_json_are_a_contract(plan: Any) -> None:  # noqa: F811
    shown = json.loads(plan("z-image", *CARD, "--price", "3.6", "--count", "2", "--devices", "2", "--json")[1])
    assert set(shown) == {
        "pipeline", "device", "request", "answer", "stages", "memory", "changes", "cards", "beside_picture", "notes",
        "trust",
    }  # fmt: skip
    request, answer = shown["request"], shown["answer"]
    assert (request["steps"], request["passes"], request["tokens"]) == (50, 100, 4096)
    assert (request["latents"], request["size"], request["count"]) == ([16, 128, 128], [1024, 1024], 2)
    assert [stage["name"] for stage in shown["stages"]] == ["encode", "denoise", "decode"]
    assert [stage["runs"] for stage in shown["stages"]] == [4, 100, 2]  # a text, and what the denoiser makes of it
    for figure in ("floor", "bound", "expected"):
        total = sum(stage["seconds"][figure] for stage in shown["stages"])
        assert answer["seconds"][figure] * 2 == pytest.approx(total)
    assert answer["dollars"] == pytest.approx(3.6 * 2 * answer["seconds"]["expected"] / 3600)
    assert answer["division"] == {"guidance": 2, "sequence": 1}
    assert shown["pipeline"]["parameters"]["denoisers"] == 6_154_908_736


def test_compiled_is_what_is_priced_anyway(plan: Any) -> None:  # noqa: F811
    said = [plan(TURBO, *CARD, *words, "--json")[1] for words in ((), ("--compile",), ("--eager",))]
    assert said[0] == said[1] != said[2]


def test_every_section_and_all_of_them(plan: Any) -> None:  # noqa: F811
    full = plan("z-image", "--device", "l40s", "--full")[1]
    assert all(heading in full for heading, _ in SECTIONS.values())
    assert "-84%" in full
    assert "-92%" in full
    assert "guidance 2 x sequence 4" in full
    memory = plan(TURBO, *CARD, "--section", "memory")[1]
    assert [heading in memory for heading, _ in SECTIONS.values()] == [name == "memory" for name in SECTIONS]
    code, _, err = plan(TURBO, *CARD, "--section", "users")
    assert (code, "stages, memory" in err) == (2, True)


def test_a_folder_is_asked_for_what_it_states(plan: Any) -> None:  # noqa: F811
    """The built-in one: 64 tokens of 32 x 32 pixels, and texts of 32."""
    shown = json.loads(plan("digits", *CARD, "--json")[1])
    request = shown["request"]
    assert (request["size"], request["tokens"], request["texts"]) == ([32, 32], 64, [32, 32])
    assert (request["steps"], request["guidance"], request["passes"]) == (20, 3.0, 40)
    assert "eager" not in " ".join(shown["notes"])
    assert shown["changes"]["side_by_side"]["8"] > 4  # far under the ridge
    code, _, err = plan("digits", *CARD, "--size", "64x64")
    assert (code, "this model cannot make size 64x64; give one of 32x32" in err) == (2, True)
    code, _, err = plan("digits", *CARD, "--eager")
    assert (code, "leave --eager out" in err) == (2, True)


def test_cards_are_compared(plan: Any) -> None:  # noqa: F811
    words = (TURBO, "--compare-devices", "l40s,h100-sxm,rtx-3060", "--seller", "nebius")
    out = plan(*words)[1]
    assert out.index("h100-sxm ") < out.index("l40s ")
    assert "do not fit, missing GiB per GPU: rtx-3060 by" in out
    shown = json.loads(plan(*words, "--json")[1])["cards"]
    assert [card["name"] for card in shown] == ["h100-sxm", "l40s", "rtx-3060"]
    assert [card["fits"] for card in shown] == ["yes", "yes", "no"]
    assert shown[0]["dollars"] < shown[1]["dollars"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((TURBO, *CARD, "--batch", "8", "--input", "2k"), "--input and --batch are for language models"),
        ((TURBO, *CARD, "--kv", "fp8"), "--kv is for language models"),
        ((TURBO, *CARD, "--weights", "int4"), "for a diffusion pipeline it must be one of fp32, fp16, bf16"),
        ((TURBO, *CARD, "--size", "1000x1000"), "this model cannot make size 1000x1000; give one of 1024x1024"),
        ((TURBO, *CARD, "--size", "large"), "width x height in pixels"),
        ((TURBO, *CARD, "--guidance", "nan"), "guidance is nan"),
        ((TURBO, *CARD, "--frames", "81"), "it makes only images"),
        ((TURBO, *CARD, "--eager", "--compile"), "give one of them"),
        ((TURBO, *CARD, "--step-cache", "0.1"), "predicts full passes as an upper limit"),
        ((TURBO, *CARD, "--cfg-parallel"), "give --devices 2 and --section cards"),
        (("gpt2", *CARD, "--compile"), "--compile is for diffusion pipelines"),
        (("gpt2", *CARD, "--steps", "4", "--size", "1024x1024"), "--size and --steps are for diffusion pipelines"),
        (("bert-base-uncased", *CARD, "--count", "4"), "--count is for diffusion pipelines"),
        ((TURBO, "--device", "tpu-v4", "--devices", "0"), "devices is 0"),
    ],
)
def test_what_does_not_apply_is_refused_in_one_line(plan: Any, words: tuple[str, ...], said: str) -> None:  # noqa: F811
    code, out, err = plan(*words)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"_class_name": "DDIMScheduler"},
        {"use_karras_sigmas": True},
        {"use_dynamic_shifting": True, "time_shift_type": "cubic"},
        {"stray": 1},
    ],
)
def test_a_scheduler_that_image_refuses_is_said(
    changes: dict[str, Any],
    z_image_folder: Path,
    tmp_path: Path,
    plan: Any,  # noqa: F811
) -> None:
    """Expect the reason that loading gives, in one line of every form of the plan, and nothing of a good folder."""
    folder = shutil.copytree(z_image_folder, tmp_path / "copy")
    path = folder / "scheduler" / "scheduler_config.json"
    words = (*CARD, "--json")
    good = json.loads(plan(str(folder), *words)[1])
    assert "does not support" not in " ".join(good["notes"])
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ModelRefused) as refused:
        load_pipeline(str(folder))
    said = f"`ridgeline image` does not support this folder's scheduler: {refused.value}"
    shown = json.loads(plan(str(folder), *words)[1])
    assert shown["notes"] == [*good["notes"], said]
    assert shown["answer"] == good["answer"]
    assert json.loads(plan(str(folder), "--compare-devices", "l40s,h100-sxm", "--json")[1])["notes"] == [said]
    for options in (CARD, ("--compare-devices", "l40s,h100-sxm")):
        assert "".join(said.split()) in "".join(plan(str(folder), *options)[1].split())
    shutil.rmtree(folder / "scheduler")  # a folder to plan with, without what only drawing reads
    assert "does not support" not in plan(str(folder), *CARD)[1]
