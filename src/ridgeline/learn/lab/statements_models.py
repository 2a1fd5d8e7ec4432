"""Textbook statements about models, their configs, and their keys and values."""

from collections.abc import Iterator

from ridgeline.core.models.common.architecture_name import parse
from ridgeline.core.ops.work import Work
from ridgeline.learn.lab.cost_calculator import CostCalculator
from ridgeline.learn.lab.statement import Statement
from ridgeline.util.document.humanize import gb, percent, say_gb

_SMALL, _LARGE, _HUGE, _MIXTURE = "llama-3-8b", "llama-3-70b", "llama-3.1-405b", "qwen3-235b-a22b"


def keys_and_values(ledger: CostCalculator) -> Iterator[Statement]:
    """Yield the textbook statements 3, 4 and 15 on keys and values, and one on attention with a cache."""
    token, grouped, single = (ledger.kv(_SMALL, heads) for heads in (None, 32, 1))
    yield Statement(
        "kv-of-a-token", 3, "Llama-3-8B keeps 2 x 32 x 8 x 128 x 2 = 131,072 bytes per token; 2,000 tokens are 256 MB.",
        f"{token:,.0f} bytes; 2,000 tokens are {2000 * token / 1e6:.0f} MB = {2000 * token / 2**20:.0f} MiB. With a KV "
        f"head for each of 32 query heads it would be {grouped:,.0f}, with one for all {single:,.0f}.",
        "The 256 MB are really 250 MiB, rounded to a power of two.",
        {"token": token, "mha": grouped, "mqa": single, "mib": 2000 * token / 2**20},
    )  # fmt: skip
    token, counted = ledger.kv(_LARGE), ledger.bill(_LARGE)
    fits = counted.nbytes <= ledger.gpu("h100-sxm").memory
    yield Statement(
        "kv-of-70b", 4, "Llama-3-70B: 320 KB per token, 2.6 GB for 8k tokens; its 140 GB do not fit into 80 GB.",
        f"{token:,.0f} bytes per token; 8,192 tokens take {say_gb(gb(8192 * token))}; {counted.total / 1e9:.3f} "
        f"billion parameters, {say_gb(gb(counted.nbytes))}: {'they fit' if fits else 'they do not fit'}.",
        "The 320 KB are KiB of 1,024 bytes, but the GB are not GiB.",
        {"token": token, "total": counted.total, "nbytes": counted.nbytes, "fits": fits},
    )  # fmt: skip
    price, reaches = ledger.price(_SMALL), ledger.price(_SMALL).reaches
    read = [price.step(Work.decode([context], reaches)).kv_read_bytes for context in range(1, 2001)]
    count = 1000
    again = sum(range(1, count + 1))
    yield Statement(
        "kv-cache", 15,
        "Without a KV cache, N tokens take N(N+1)/2 positions instead of N: 500 times as many for 1,000 tokens.",
        f"{again:,} positions instead of {count:,}: {again / count:.1f} times. The factor in seconds is smaller: "
        "`ridgeline lab kv-cache` measures it.",
        "All positions of a step share the weights that it reads, so a short step takes as long as a single token.",
        {"positions": again, "times": again / count},
    )  # fmt: skip
    yield Statement(
        "linear-with-cache", None, "With the cache, attention is linear.",
        f"One step is linear: at 2,000 tokens it reads {read[1999] / read[999]:.2f} times as much as at 1,000. "
        f"All steps up to 2,000 tokens together read {sum(read) / sum(read[:1000]):.2f} times as much as those "
        f"up to 1,000.",
        "The work of a step grows linearly, so the sum over all steps grows quadratically. The cache saves a "
        "constant factor only.",
        {"step": read[1999] / read[999], "all": sum(read) / sum(read[:1000])},
    )  # fmt: skip


def configs(ledger: CostCalculator) -> Iterator[Statement]:
    """Yield the textbook statements 9, 10 and 11 on what a config and an architecture's name tell."""
    counted = ledger.bill(_HUGE)
    attention, ffn, layer = counted.layer["attention"], counted.layer["feed-forward"], sum(counted.layer.values())
    hidden, width, vocabulary, layers = 16384, 53248, 128256, 126
    walked = 2 * vocabulary * hidden + layers * (4 * hidden * hidden + 3 * hidden * width + 2 * hidden) + hidden
    yield Statement(
        "405b", 9, "Llama-3.1-405B from its config: a layer has 5.7 + 26.17 = 31.87 billion; 126 layers 401.6, in all "
        "405.8; 810 GB; the FFN has 82 %.",
        f"A layer has {attention / 1e9:.3f} + {ffn / 1e9:.3f} and norms = {layer / 1e9:.3f} billion; in all "
        f"{counted.total:,}, {say_gb(gb(counted.nbytes))}; the FFN has {ffn / layer:.0%} of a layer.",
        "Within a layer the textbook is off by a factor of ten. Its K and V matrices of 16384 x 16384 would give a "
        f"model of {walked / 1e9:.0f} billion.",
        {"attention": attention, "ffn": ffn, "layer": layer, "total": counted.total, "nbytes": counted.nbytes,
         "embedding": counted.parameters["embedding"], "walked": walked},
    )  # fmt: skip
    mixture = ledger.bill(_MIXTURE)
    touched = {rows: ledger.touched(_MIXTURE, rows) for rows in (1, 8, 32, 64)}
    yield Statement(
        "active-experts", 10, "Qwen3-235B-A22B: 22 of 235 billion parameters are active, so it is as light as a 22B.",
        f"{mixture.total / 1e9:.2f} and {mixture.active / 1e9:.2f} billion. A batch of 1, 8, 32, 64 activates "
        f"{', '.join(f'{count:.1f}' for count in touched.values())} of 128 experts.",
        "Each user activates other experts, so the mixture saves arithmetic, hardly any memory traffic, and no memory.",
        {"total": mixture.total, "active": mixture.active, **{f"touched_{n}": count for n, count in touched.items()}},
    )  # fmt: skip
    name = parse("Qwen3MoeForCausalLM")
    yield Statement(
        "name", 11, "Qwen3MoeForCausalLM: family Qwen, version 3, mixture of experts, causal language model.",
        f"{name.family}, {name.version}, {name.kind}, {name.task}.",
        "The name says no more. The config states how many experts there are.",
        {"version": float(name.version)},
    )  # fmt: skip


def weights(ledger: CostCalculator) -> Iterator[Statement]:
    """Yield the textbook statements 21, 22 and 25 on where a model's parameters are, and one on small models."""
    small = ledger.bill(_SMALL)
    share, of_layer = (
        small.parameters["feed-forward"] / small.total,
        small.layer["feed-forward"] / sum(small.layer.values()),
    )
    yield Statement(
        "feed-forward", 21, "Feed-forward layers have about two thirds of the weights.",
        f"Of Llama-3-8B {percent(share)}, of one layer {percent(of_layer)}; with two matrices it would be "
        f"{percent(share * 2 / 3)}.",
        "Two thirds is right for two matrices of four times the width and attention without grouped heads. Gated "
        "layers have three matrices.",
        {"share": share, "of_layer": of_layer, "with_two": share * 2 / 3},
    )  # fmt: skip
    yield Statement(
        "embedding", 22, "The embedding of Llama-3-8B has about 525 million parameters.",
        f"{small.parameters['embedding']:,}; the head is another table of that size.",
        "128,256 tokens of 4,096 numbers. A step reads one row of the embedding per token, but the whole head.",
        {"embedding": small.parameters["embedding"]},
    )  # fmt: skip
    tied = {which: ledger.model(which).tied for which in ("gpt2", "llama-2-7b")}
    yield Statement(
        "tying", 25, "GPT-2 and Llama 2 tie the embedding to the head.",
        f"GPT-2 {'does' if tied['gpt2'] else 'does not'}; Llama 2 {'does' if tied['llama-2-7b'] else 'does not'}.",
        "Each config states it (tie_word_embeddings). Earlier models of a family do not tell.",
        {which: float(is_tied) for which, is_tied in tied.items()},
    )  # fmt: skip
    light = ledger.bill("qwen3-30b-a3b")
    yield Statement(
        "small-are-dense", None, "Models under 32 billion parameters are dense.",
        f"Qwen3-30B-A3B has {light.total / 1e9:.2f} billion, of which a token uses {light.active / 1e9:.2f}.",
        "The config states whether a model is a mixture of experts; the size does not tell.",
        {"total": light.total, "active": light.active},
    )  # fmt: skip


def models(ledger: CostCalculator) -> Iterator[Statement]:
    """Yield all textbook statements about models."""
    yield from keys_and_values(ledger)
    yield from configs(ledger)
    yield from weights(ledger)
