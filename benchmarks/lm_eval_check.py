"""lm-evaluation-harness against the server, beside the same log-likelihoods through transformers.

    pip install -e '.[dev]'          # here: transformers, which the reference is computed with
    pip install 'lm-eval[api]'       # here, or in an environment of its own
    python benchmarks/lm_eval_check.py [--python ITS_PYTHON]

A small task of its own (which of two endings follows a beginning) is run with `lm_eval --model local-completions` on
the built-in model, its weights widened to fp32. Each log-likelihood is compared with transformers' on the same folder.
"""

import argparse
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import ridgeline
from serving import serving

BUILTIN = Path(ridgeline.__file__).parent / "data" / "builtin" / "tales"
WITHIN = 1e-3  # nats of a whole ending; both sides round fp32 sums in their own order

QUESTIONS = [
    ("Once upon a time there was a little girl named", " Lily.", " Table."),
    ("The dog was happy. He wagged his", " tail.", " house."),
    ("She was tired, so she went to", " sleep.", " swim fast and far."),
    ("Tom wanted to play with his", " ball.", " rain because."),
    ("They lived happily ever", " after.", " before it."),
    ("It was a sunny day, and the sky was", " blue.", " a spoon."),
    ("The bird could", " fly.", " bread."),
    ("Mom said, \"Do not be", " sad.\"", " under.\""),
]  # fmt: skip
TASK = """task: endings
dataset_path: json
dataset_kwargs:
  data_files: {data}
test_split: train
output_type: multiple_choice
doc_to_text: "{{{{begins}}}}"
doc_to_choice: "{{{{[right, wrong]}}}}"
doc_to_target: 0
target_delimiter: ""
metric_list:
  - metric: acc
"""


def write_model(folder: Path) -> Path:
    """The built-in model in fp32."""
    shutil.copytree(BUILTIN, folder)
    weights = {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"torch_dtype": "float32"}), encoding="utf-8")
    return folder


def write_task(folder: Path) -> None:
    folder.mkdir()
    data = folder / "endings.jsonl"
    rows = [dict(zip(("begins", "right", "wrong"), row, strict=True)) for row in QUESTIONS]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "endings.yaml").write_text(TASK.format(data=data), encoding="utf-8")


def through_server(python: str, model: Path, tasks: Path, url: str, out: Path) -> dict[str, list[float]]:
    """Log-likelihoods of the endings by beginning, as lm_eval had them of the server."""
    arguments = f"model=tales,base_url={url}/v1/completions,tokenizer={model},tokenizer_backend=huggingface"
    command = [
        python, "-m", "lm_eval", "--model", "local-completions",
        "--model_args", f"{arguments},num_concurrent=4,max_length=512,tokenized_requests=True",
        "--tasks", "endings", "--include_path", str(tasks), "--output_path", str(out), "--log_samples",
    ]  # fmt: skip
    subprocess.run(command, check=True)
    (samples,) = out.rglob("samples_endings_*.jsonl")
    rows = [json.loads(line) for line in samples.read_text(encoding="utf-8").splitlines()]
    return {row["doc"]["begins"]: [float(one[0][0]) for one in row["resps"]] for row in rows}


@torch.inference_mode()
def through_transformers(model: Path) -> dict[str, list[float]]:
    """The same, computed here."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, lm = AutoTokenizer.from_pretrained(model), AutoModelForCausalLM.from_pretrained(model)
    found: dict[str, list[float]] = {}
    for begins, *endings in QUESTIONS:
        found[begins] = []
        for ending in endings:
            # as lm_eval does with a model that it does not run itself
            ids = [tokenizer.encode(text, add_special_tokens=False) for text in (begins + ending, begins)]
            whole, first = ids[0], len(ids[1])
            logprobs = lm(torch.tensor([whole])).logits[0].log_softmax(-1)
            found[begins].append(sum(logprobs[at - 1, whole[at]].item() for at in range(first, len(whole))))
    return found


def main() -> int:
    """Exit code 0 if every log-likelihood is the same, 2 where what it needs is not installed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="a Python that has lm_eval; by default this one")
    python = parser.parse_args().python
    if importlib.util.find_spec("transformers") is None:
        print("the reference needs transformers in this environment: pip install -e '.[dev]'", file=sys.stderr)
        return 2
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('lm_eval') is None)"
    if subprocess.run([python, "-c", look], check=False).returncode:
        print(f"{python} has no lm_eval: pip install 'lm-eval[api]' there, or name another --python", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        model, tasks = write_model(Path(folder) / "tales"), Path(folder) / "tasks"
        write_task(tasks)
        with serving([str(model), "--served-model-name", "tales"]) as server:
            served = through_server(python, model, tasks, server.url, Path(folder) / "out")
        reference = through_transformers(model)
    assert len(served) == len(QUESTIONS)
    apart = [abs(a - b) for begins in served for a, b in zip(served[begins], reference[begins], strict=True)]
    right = sum(pair[0] > pair[1] for pair in served.values())
    print(f"{len(apart)} log-likelihoods, at most {max(apart):.2e} nats apart (limit {WITHIN})")
    print(f"{right} of {len(served)} endings right")
    return 0 if max(apart) < WITHIN else 1


if __name__ == "__main__":
    sys.exit(main())
