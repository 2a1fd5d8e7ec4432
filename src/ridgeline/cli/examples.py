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
