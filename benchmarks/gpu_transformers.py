"""The shapes of the benchmark of a card in transformers."""

import statistics
import time
from collections.abc import Callable, Iterator

import torch

from gpu_steps import CONTEXT
from ridgeline.core.checkpoint.source import open_source

_CALLS = 7  # the first two to get ready


class Transformers:
    """The same shape in transformers, op by op, with SDPA and a static cache."""

    def __init__(self, name: str) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM

        values = dict(open_source(name).config.values)
        self.config = AutoConfig.for_model(values.pop("model_type"), **values)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(self.config, dtype=torch.bfloat16, attn_implementation="sdpa")
        model = model.to_empty(device="cuda").eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.02)
        for module in model.modules():  # what was computed on meta is nothing
            if hasattr(module, "inv_freq") and hasattr(module, "rope_init_fn"):
                module.inv_freq, _ = module.rope_init_fn(self.config, torch.device("cuda"))
        self.model = model

    @torch.inference_mode()
    def seconds(self, batch: int, queries: int, past: int) -> float:
        """Of a forward: `queries` positions of each sequence after `past` others, and after those of the calls before;
        where there are no others, each call begins anew."""
        from transformers import StaticCache

        cache = StaticCache(config=self.config, max_cache_len=past + queries * (_CALLS if past else 1))
        ids = torch.randint(0, self.config.vocab_size, (batch, max(past, queries)), device="cuda")

        def call(count: int) -> None:
            self.model(ids[:, :count], past_key_values=cache, use_cache=True, logits_to_keep=1)

        if past:
            call(past)
        return timed(lambda: call(queries), (lambda: None) if past else cache.reset)


def timed(call: Callable[[], object], before: Callable[[], object]) -> float:
    """Median seconds of a call that the card is waited for, without what is done before each."""
    seconds = []
    for _ in range(_CALLS):
        before()
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[2:])


def theirs(name: str) -> Iterator[tuple[str, float]]:
    """Transformers' seconds by our names of the steps, of those that say the most."""
    model = Transformers(name)
    for batch in (1, 16, 64):
        yield f"decode {batch} x 1 of {CONTEXT}", model.seconds(batch, 1, CONTEXT - 1)
    for length in (512, 2048):
        yield f"prefill {length}", model.seconds(1, length, 0)
