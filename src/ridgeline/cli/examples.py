"""Example commands that work as typed, for the output of a bare `ridgeline` and for error messages."""

TAGLINE = "An inference engine that predicts, measures and explains its own speed."

EXAMPLES = {
    "bench engine": "ridgeline bench engine tales --workloads benchmarks/workloads.json",
    "bench serve": "ridgeline bench serve http://127.0.0.1:8000",
    "chat": "ridgeline chat tales",
    "completion": "ridgeline completion bash",
    "embed": 'ridgeline embed "a cat" "a dog" --model ./all-MiniLM-L6-v2',
    "image": 'ridgeline image digits "a handwritten seven"',
    "page export": "ridgeline page export --out page.html",
    "page tables": "ridgeline page tables llama-3-8b",
    "plan": "ridgeline plan llama-3-8b --device h100-sxm",
    "quantize": "ridgeline quantize ./Qwen3-0.6B ./Qwen3-0.6B-int8 --weights int8",
    "run": 'ridgeline run tales "Once upon a time"',
    "serve": "ridgeline serve tales",
    "show": "ridgeline show llama-3-8b",
    "check": "ridgeline check tales",
    "simulate": "ridgeline simulate llama-3-8b --device h100-sxm --rate 4",
    "tokenize": 'ridgeline tokenize tales "Once upon a time"',
    "trace": 'ridgeline trace tales "Once upon a time"',
    "transcribe": "ridgeline transcribe talk.wav --model ./whisper-base",
    "translate": 'ridgeline translate "I am cold."',
    "video": 'ridgeline video digits-video "a handwritten seven"',
}
"""An example of each command that needs arguments."""

_FURTHER: dict[str, tuple[tuple[str, str], ...]] = {
    "bench engine": (("--probe", "measure the roofs meanwhile"), ("--rounds 3 --json", "medians, as JSON")),
    "bench serve": (("--rate 4 --duration 60s", "an open load"), ("--sweep", "look for the knee")),
    "calibrate": (("--show", "show the last result"), ("--device cuda", "measure the GPU")),
    "chat": (('--system "Be brief."', "with a system message"), ("--temperature 0", "always the likeliest token")),
    "check": (("--json", "for a script"),),
    "completion": (),
    "embed": (("--json", "with the vectors"),),
    "env": (("--json", "for a script"),),
    "guide": (("--path", "print where it is"),),
    "image": (("-n 4 --seed 7 -o sevens", "four, repeatable"), ("--steps 10 --quiet", "fewer steps, no report")),
    "lab exercise": (("--check", "check your solution"),),
    "page cards": (),
    "page devices": (),
    "page export": (("--models llama-3-8b --force", "one model, replace the file"),),
    "page tables": (("--weights int8 --devices 2", "quantized, on two GPUs"),),
    "plan": (("--weights fp8 --json", "quantized, as JSON"), ("--users 100 --tpot 50ms", "how many GPUs?")),
    "quantize": (("--force", "replace the folder"),),
    "quiz": (),
    "run": (("--temperature 0 --max-tokens 50", "short and repeatable"), ("--quiet", "the text alone")),
    "serve": (("--port 9000 --api-key SECRET", "with a key"), ("--log-format json", "a log for programs")),
    "show": (("--json", "for a script"),),
    "simulate": (("--slo ttft=1s --json", "with a target, as JSON"), ("--devices 2", "on two GPUs")),
    "tokenize": (("--json", "for a script"),),
    "trace": (("--layer 0", "op by op"), ("--roofline -", "draw the roofline")),
    "transcribe": (("--timestamps", "with times"), ("--srt", "as subtitles")),
    "translate": (("--json", "for a script"),),
    "video": (("--frames 8 -o seven", "a short one"), ("--seed 7 --quiet", "repeatable, no report")),
}
"""The options that further examples add to a command's first one, each with a comment."""

_FIRST_COMMENTS = {
    "completion": "for ~/.bashrc",
    "serve": "http://127.0.0.1:8000",
}
_WITHOUT_ARGUMENTS = {"lab exercise": "ridgeline lab exercise attention", "quiz": "ridgeline quiz roofline"}


def help_examples(name: str) -> list[tuple[str, str]]:
    """Return the examples at the end of a command's help, each with a comment of a few words."""
    first = EXAMPLES.get(name) or _WITHOUT_ARGUMENTS.get(name) or f"ridgeline {name}"
    further = _FURTHER.get(name, (("--json", "as JSON"),))
    found = [(first, _FIRST_COMMENTS.get(name, "the defaults")), *((f"{first} {more}", why) for more, why in further)]
    return found if len(found) > 1 else [*found, (f"{first} --print-config", "show its options and values")]


PURPOSES = (
    ("choose hardware", EXAMPLES["plan"], "users and cost"),
    ("run a model", EXAMPLES["run"], "text and speed"),
    ("serve it", EXAMPLES["serve"], "API and page"),
    ("learn", "ridgeline lab", "experiments"),
)
"""The purposes of users, each with a command that works without a GPU or a download, and its output."""


def first_lines() -> str:
    """Return the output of `ridgeline` without a command: a line per purpose, and how to list all commands."""
    name, example = (max(len(purpose[column]) for purpose in PURPOSES) for column in (0, 1))
    lines = (f"{purpose:{name}}  {command:{example}}  # {shows}" for purpose, command, shows in PURPOSES)
    return "\n".join([TAGLINE, "", *lines, f"{'all commands':{name}}  ridgeline --help"])
