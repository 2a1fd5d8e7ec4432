"""A llama.cpp server in a process of its own, from an unpacked wheel of xllamacpp.

As a program (`python -m real.llama_cpp FILE`) this module is that process: it prints the address of the server and runs
until its standard input ends.
"""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

CONTEXT = 2048
_CERTAIN = 1e4  # a bias that no logit outweighs
_TESTS = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class LlamaCpp:
    """A server of one model on one thread."""

    url: str

    @classmethod
    @contextmanager
    def start(cls, library: Path, model: Path) -> Iterator[Self]:
        """Start a server and end it afterwards. library: the folder in which xllamacpp lies."""
        environment = os.environ | {"PYTHONPATH": f"{library}{os.pathsep}{_TESTS}"}
        command = [sys.executable, "-m", "real.llama_cpp", str(model)]
        with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                url = next((line for line in process.stdout if line.startswith(b"http://")), b"").decode().strip()
                assert url, "llama.cpp did not start"
                yield cls(url)
            finally:
                process.stdin.close()

    def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        """Return the ids of a text, without a start token. special: whether literals of control tokens are these."""
        tokens: list[int] = self._post("/tokenize", content=text, parse_special=special)["tokens"]
        return tokens

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""
        text: str = self._post("/detokenize", tokens=list(tokens))["content"]
        return text

    def render(self, messages: Sequence[dict[str, Any]]) -> str:
        """Return the prompt that the chat template makes of a conversation."""
        prompt: str = self._post("/apply-template", messages=list(messages))["prompt"]
        return prompt

    def greedy(self, prompt: Sequence[int], count: int) -> tuple[list[int], list[float]]:
        """Return the likeliest tokens after a prompt, and their log-probabilities."""
        response = self._complete(prompt, count, n_probs=1)
        return response["tokens"], [each["logprob"] for each in response["completion_probabilities"]]

    def logprobs(self, tokens: Sequence[int]) -> list[float]:
        """Return the log-probability of each token but the first, given those before it.

        The server does not score prompts. A bias makes it choose the token; log-probabilities are those without it.
        """
        found = []
        for place in range(1, len(tokens)):
            token = tokens[place]
            response = self._complete(tokens[:place], 1, n_probs=1, logit_bias=[[token, _CERTAIN]])
            assert response["tokens"] == [token]
            found.append(response["completion_probabilities"][0]["logprob"])
        return found

    def _complete(self, prompt: Sequence[int], count: int, **fields: Any) -> Any:
        fields |= {"prompt": list(prompt), "n_predict": count, "temperature": 0, "return_tokens": True}
        return self._post("/completion", cache_prompt=True, samplers=["temperature"], **fields)

    def _post(self, path: str, **fields: Any) -> Any:
        request = urllib.request.Request(
            self.url + path, json.dumps(fields).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            return json.load(response)


def _serve(model: str) -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_ctx, params.n_parallel, params.warmup, params.verbosity = CONTEXT, 1, False, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()
    del server


if __name__ == "__main__":
    _serve(sys.argv[1])
