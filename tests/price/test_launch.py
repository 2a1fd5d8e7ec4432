"""Emitted commands: every flag and value is one that the engine's own argument parser declares."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from ridgeline.core.checkpoint.catalogue import model_names, repository_of
from ridgeline.core.checkpoint.source import catalogue_name, open_source
from ridgeline.price.devices import load_device
from ridgeline.price.engine_profile import offered_engine, with_own_attention
from ridgeline.price.launch import TARGETS, launch_text
from ridgeline.price.launch.launch_config import LaunchConfig, launch_of_plan
from ridgeline.price.launch.llama_cpp_flags import gguf_recipe
from ridgeline.price.launch.vllm_flags import VERSION
from ridgeline.price.plan import Demand, Deployment, DeploymentPlan, PlanWorkload, make_plan

LISTS = Path(__file__).parent / "peer_flags"
NEGATED = "--no-"
# Repositories whose names have a word or a date that the catalogue's name lacks.
OTHER_NAMES = {"command-a-111b", "command-r-35b", "command-r-plus-104b", "command-r7b", "mixtral-8x7b"} | {
    f"olmo-2-{size}" for size in ("7b", "13b", "32b")
}


def known_flags(engine: str) -> dict[str, list[str]]:
    """Return the flags of an engine's server with the values that it lists."""
    lines = (LISTS / f"{engine}.txt").read_text(encoding="utf-8").splitlines()
    return {flag: values for flag, *values in (line.split() for line in lines if not line.startswith("#"))}


def planned(name: str, device: str, engine: str, **more: Any) -> DeploymentPlan:
    """Return a plan of a model of the catalogue."""
    workload = more.pop("workload", PlanWorkload(1024, 256, tpot=0.05))
    demand = more.pop("demand", None)
    profile = offered_engine(engine)
    if more.pop("own_attention", False):
        profile = with_own_attention(profile)
    setup = Deployment(load_device(device), engine=profile, **more)
    return make_plan(name, open_source(name).config, setup, workload, (), demand)


def config_of(name: str, device: str, engine: str, **more: Any) -> LaunchConfig:
    return launch_of_plan(planned(name, device, engine, **more), repository_of(name) or name)


def words_of(text: str) -> list[str]:
    """Return the words of a command as a shell reads them."""
    return shlex.split(text.replace("\\\n", " "), comments=True)


def flags_of(words: list[str]) -> dict[str, str]:
    """Return the flags of a command with their values."""
    found: dict[str, str] = {}
    for at, word in enumerate(words):
        if word.startswith("-"):
            after = words[at + 1] if at + 1 < len(words) else "-"
            found[word] = "" if after.startswith("-") else after
    found.pop("-m", None)  # of python
    return found


def assert_known(flags: dict[str, str], engine: str) -> None:
    """Check that the engine's list has every flag, and every value of a flag with listed values."""
    known = known_flags(engine)
    assert flags
    for flag, value in flags.items():
        plain = f"--{flag.removeprefix(NEGATED)}" if flag.startswith(NEGATED) and flag not in known else flag
        assert plain in known, f"{engine} has no {flag}"
        assert not known[plain] or value in known[plain], f"{engine}: {flag} {value}"


CASES = [
    ("vllm", "qwen3-32b", "h100-sxm", {"devices": 2, "kv": "fp8"}),
    ("vllm", "qwen3-8b", "h100-sxm", {"weights": "fp8", "kv": "int8"}),
    ("vllm", "qwen3-8b", "b200", {"weights": "int8", "kv": "nvfp4"}),
    ("vllm", "qwen3-32b-fp8", "h100-sxm", {}),
    ("vllm", "qwen3-30b-a3b", "h100-sxm", {"devices": 2, "own_attention": True}),
    ("sglang", "qwen3-32b", "h100-sxm", {"devices": 2, "kv": "fp8"}),
    ("sglang", "qwen3-8b", "mi300x", {"weights": "fp8"}),
    ("sglang", "qwen3-8b", "b200", {"kv": "nvfp4"}),
    ("llama.cpp", "qwen3-8b", "rtx-4090", {"weights": "q4_k_m", "kv": "int8"}),
    ("llama.cpp", "qwen3-8b", "rtx-3090", {"devices": 2}),
    ("llama.cpp", "gpt-oss-20b", "rtx-4090", {}),
]


@pytest.mark.parametrize(("target", "name", "device", "more"), CASES)
def test_every_flag_is_one_of_the_engine(target: str, name: str, device: str, more: dict[str, Any]) -> None:
    words = words_of(launch_text(target, config_of(name, device, target, **dict(more))))
    assert_known(flags_of(words), target)


@pytest.mark.parametrize(
    ("target", "more", "expected"),
    [
        ("vllm", {"prefix_cache": False, "chunk": 512, "pages": 999, "page_size": 32}, {
            "--no-enable-prefix-caching": "", "--long-prefill-token-threshold": "512",
            "--num-gpu-blocks-override": "999", "--block-size": "32",
        }),
        ("vllm", {"prefix_cache": True}, {"--enable-prefix-caching": ""}),
        ("sglang", {"prefix_cache": False, "pages": 999, "page_size": 32}, {
            "--disable-radix-cache": "", "--max-total-tokens": str(999 * 32), "--page-size": "32",
        }),
        ("llama.cpp", {"prefix_cache": False}, {"--no-cache-prompt": ""}),
        ("llama.cpp", {"prefix_cache": True}, {"--cache-prompt": ""}),
    ],
)  # fmt: skip
def test_the_limits_of_a_simulation_become_flags(target: str, more: dict[str, Any], expected: dict[str, str]) -> None:
    config = replace(config_of("qwen3-8b", "a100-sxm-40gb", target), **more)
    flags = flags_of(words_of(launch_text(target, config)))
    assert_known(flags, target)
    assert expected.items() <= flags.items()


def test_llama_cpp_refuses_more_slots_than_it_has() -> None:
    config = replace(config_of("qwen3-8b", "h100-sxm", "llama.cpp"), requests=257)
    with pytest.raises(ValueError, match="at most 256 requests at a time, not 257; plan more replicas"):
        launch_text("llama.cpp", config)


def test_llama_cpp_refuses_quantised_kv_on_several_gpus() -> None:
    with pytest.raises(ValueError, match="only over GPUs with an unquantised KV cache; leave out --kv"):
        launch_text("llama.cpp", config_of("qwen3-8b", "h100-sxm", "llama.cpp", devices=2, kv="int8"))


def test_a_local_folder_is_converted_without_a_download(tmp_path: Path) -> None:
    """Check that a shell reads a folder with a space as one word."""
    folder = tmp_path / "my model"
    folder.mkdir()
    config = replace(config_of("qwen3-8b", "rtx-4090", "llama.cpp", weights="q4_k_m"), model=str(folder))
    made, quantised = gguf_recipe(config)
    assert shlex.split(made) == ["convert_hf_to_gguf.py", str(folder), "--outfile", "model.gguf"]
    assert shlex.split(quantised) == ["llama-quantize", "model.gguf", "my model-Q4_K_M.gguf", "Q4_K_M"]


def test_the_limits_are_those_of_the_plan() -> None:
    plan = planned("qwen3-32b", "h100-sxm", "vllm", devices=2, demand=Demand(users=200))
    config = launch_of_plan(plan, "Qwen/Qwen3-32B")
    text = launch_text("vllm", config)
    flags = flags_of(words_of(text))
    assert plan.fleet is not None
    assert flags["--max-num-seqs"] == str(plan.fleet.load.users)
    assert flags["--max-model-len"] == str(1024 + 256)
    assert flags["--max-num-batched-tokens"] == "2048"
    assert flags["--gpu-memory-utilization"] == "0.9"
    assert flags["--tensor-parallel-size"] == "2"
    assert words_of(text)[:3] == ["vllm", "serve", "Qwen/Qwen3-32B"]
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert any("2 x NVIDIA H100" in line and "tensor parallel 2" in line for line in comments)
    assert plan.fleet.replicas == 1 or any(f"replicas: {plan.fleet.replicas}" in line for line in comments)


def test_sglang_gets_the_share_of_weights_and_kv() -> None:
    """Check the static share of SGLang, which is smaller than the share of everything because it has no activations."""
    plan = planned("qwen3-8b", "h100-sxm", "sglang")
    flags = flags_of(words_of(launch_text("sglang", launch_of_plan(plan, "Qwen/Qwen3-8B"))))
    share = (plan.memory.budget - plan.memory.activations - plan.memory.overhead) / plan.memory.total
    assert share - 0.001 <= float(flags["--mem-fraction-static"]) <= share < 0.9


def test_every_slot_of_llama_cpp_has_the_context_of_a_request() -> None:
    config = config_of("qwen3-8b", "rtx-4090", "llama.cpp", weights="q4_k_m")
    flags = flags_of(words_of(launch_text("llama.cpp", config)))
    assert int(flags["--ctx-size"]) == int(flags["--parallel"]) * 1280
    assert flags["--model"] == "Qwen3-8B-Q4_K_M.gguf"


@pytest.mark.parametrize(("device", "resource"), [("h100-sxm", "nvidia.com/gpu"), ("mi300x", "amd.com/gpu")])
def test_the_manifest_is_a_deployment_and_its_service(device: str, resource: str) -> None:
    plan = planned("qwen3-32b", device, "vllm", devices=2, demand=Demand(users=2000))
    deployment, service = yaml.safe_load_all(launch_text("kubernetes", launch_of_plan(plan, "Qwen/Qwen3-32B")))
    assert (deployment["kind"], service["kind"]) == ("Deployment", "Service")
    assert plan.fleet is not None
    assert deployment["spec"]["replicas"] == plan.fleet.replicas > 1
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["limits"] == {resource: 2}
    assert container["image"].endswith(f":v{VERSION}")
    words = [*container["command"], *container["args"]]
    assert words[:3] == ["vllm", "serve", "Qwen/Qwen3-32B"]
    flags = flags_of(words)
    assert_known(flags, "vllm")
    assert flags["--max-num-seqs"] == str(plan.fleet.load.users)
    assert service["spec"]["selector"] == pod["metadata"]["labels"] == deployment["spec"]["selector"]["matchLabels"]
    assert service["spec"]["ports"][0]["targetPort"] == int(flags["--port"])
    assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pod["spec"]["volumes"]}


def test_the_list_of_vllm_is_of_the_version_that_the_manifest_starts() -> None:
    assert (LISTS / "vllm.txt").read_text(encoding="utf-8").startswith(f"# vllm {VERSION},")


@pytest.mark.parametrize(
    ("target", "name", "device", "more", "says"),
    [
        ("vllm", "qwen3-8b", "h100-sxm", {"weights": "int4"}, "does not convert weights to int4"),
        ("vllm", "qwen3-32b-fp8", "h100-sxm", {"weights": "bf16", "devices": 2}, "in its own format"),
        ("vllm", "qwen3-32b-fp8", "h100-sxm", {"weights": "int8"}, "does not convert a checkpoint in fp8"),
        ("vllm", "qwen3-8b", "m3-ultra", {}, "not on Apple M3 Ultra"),
        ("sglang", "qwen3-8b", "h100-sxm", {"kv": "int8"}, "no KV cache in int8"),
        ("sglang", "qwen3-8b", "h100-sxm", {"weights": "int8"}, "give --weights fp8"),
        ("llama.cpp", "qwen3-8b", "h100-sxm", {"kv": "fp8"}, "no KV cache in fp8"),
        ("llama.cpp", "qwen3-8b", "h100-sxm", {"weights": "fp8"}, "no GGUF format that stores weights as fp8"),
        ("kubernetes", "qwen3-8b", "gaudi-3", {}, "knows the GPUs of NVIDIA and AMD"),
    ],
)
def test_what_the_engine_cannot_run_is_refused_in_one_line(
    target: str, name: str, device: str, more: dict[str, Any], says: str
) -> None:
    config = config_of(name, device, TARGETS[target], **more)
    with pytest.raises(ValueError, match=r"^--emit") as refused:
        launch_text(target, config)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_another_engine_than_the_priced_one_is_refused() -> None:
    with pytest.raises(ValueError, match="sglang launches sglang, but vllm was priced"):
        launch_text("sglang", config_of("qwen3-8b", "h100-sxm", "vllm"))


def test_a_model_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        config_of("llama-3.1-405b", "h100-sxm", "vllm")


def test_a_name_cannot_end_a_comment_or_a_word() -> None:
    """Check that the command of a folder with any name runs nothing else."""
    name = "a b\n$(touch x)"
    text = launch_text("vllm", replace(config_of("qwen3-8b", "h100-sxm", "vllm"), title=name, model=name))
    words = words_of(text)
    assert words[2] == name
    assert text.splitlines()[0].startswith("# a b $(touch x) on ")
    loaded = next(yaml.safe_load_all(launch_text("kubernetes", replace(
        config_of("qwen3-8b", "h100-sxm", "vllm"), model='a"b: c'))))  # fmt: skip
    assert loaded["spec"]["template"]["spec"]["containers"][0]["args"][0] == 'a"b: c'


@pytest.mark.parametrize("name", model_names())
def test_a_repository_spells_the_name_of_the_catalogue(name: str) -> None:
    repository = repository_of(name)
    if repository is None:
        return
    assert repository.count("/") == 1
    assert (catalogue_name(repository) == name) is (name not in OTHER_NAMES)
