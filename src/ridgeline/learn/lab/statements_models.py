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
        "kv-of-a-token", 3, "Llama-3-8B keeps 2 x 32 x 8 x 128 x 2 = 131,072 bytes a token; 2,000 tokens are 256 MB.",
        f"{token:,.0f} bytes; 2,000 tokens are {2000 * token / 1e6:.0f} MB = {2000 * token / 2**20:.0f} MiB. With a "
        f"key "
        f"for each of 32 heads {grouped:,.0f}, with one for all {single:,.0f}.",
        "256 MB are 250 MiB that lost their i and were rounded to a power of two.",
        {"token": token, "mha": grouped, "mqa": single, "mib": 2000 * token / 2**20},
    )  # fmt: skip
    token, counted = ledger.kv(_LARGE), ledger.bill(_LARGE)
    fits = counted.nbytes <= ledger.card("h100-sxm").memory
    yield Statement(
        "kv-of-70b", 4, "Llama-3-70B: 320 KB a token, 8k tokens 2.6 GB; its 140 GB do not fit into 80.",
        f"{token:,.0f} bytes a token, 8,192 tokens {say_gb(gb(8192 * token))}; {counted.total / 1e9:.3f} billion "
        f"parameters, {say_gb(gb(counted.nbytes))}: {'they fit' if fits else 'they do not fit'}.",
        "320 KiB: the text's KB are 1,024 bytes, and its GB are not.",
        {"token": token, "total": counted.total, "nbytes": counted.nbytes, "fits": fits},
    )  # fmt: skip
    price, reaches = ledger.price(_SMALL), ledger.price(_SMALL).reaches
    read = [price.step(Work.decode([context], reaches)).kv_read_bytes for context in range(1, 2001)]
    count = 1000
    again = sum(range(1, count + 1))
    yield Statement(
        "kv-cache", 15, "Without a cache of keys and values N tokens take N(N+1)/2 positions instead of N: 1,000 "
        "take 500 "
        "times as many.",
        f"{again:,} positions instead of {count:,}: {again / count:.1f} times. In seconds less: `ridgeline lab "
        f"kv-cache` "
        "measures it.",
        "Positions of one step share the weights that it reads, so a short step takes as long as a single token.",
        {"positions": again, "times": again / count},
    )  # fmt: skip
    yield Statement(
        "linear-with-cache", None, "With the cache, attention is linear.",
        f"A step is: at 2,000 tokens it reads {read[1999] / read[999]:.2f} times what it reads at 1,000. All steps "
        f"up to "
        f"there read {sum(read) / sum(read[:1000]):.2f} times as much.",
        "The sum of steps that grow by one each is half a square. The cache saves a factor, not the square.",
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
        f"Within a layer the text is off by ten. Its K and V of 16384 x 16384 would be a model of {walked / 1e9:.0f} "
        f"billion.",
        {"attention": attention, "ffn": ffn, "layer": layer, "total": counted.total, "nbytes": counted.nbytes,
         "embedding": counted.parameters["embedding"], "walked": walked},
    )  # fmt: skip
    mixture = ledger.bill(_MIXTURE)
    touched = {rows: ledger.touched(_MIXTURE, rows) for rows in (1, 8, 32, 64)}
    yield Statement(
        "active-experts", 10, "Qwen3-235B-A22B: of 235 billion parameters 22 are active, so it is as light as a 22B.",
        f"{mixture.total / 1e9:.2f} and {mixture.active / 1e9:.2f} billion. A batch of 1, 8, 32, 64 touches "
        f"{', '.join(f'{count:.1f}' for count in touched.values())} of 128 experts.",
        "Each user hits other experts: arithmetic is saved, memory is not, and bytes hardly.",
        {"total": mixture.total, "active": mixture.active, **{f"touched_{n}": count for n, count in touched.items()}},
    )  # fmt: skip
    name = parse("Qwen3MoeForCausalLM")
    yield Statement(
        "name", 11, "Qwen3MoeForCausalLM: family Qwen, version 3, mixture of experts, causal language model.",
        f"{name.family}, {name.version}, {name.kind}, {name.task}.",
        "That is all that a name says. How many experts there are stands in the config beside it.",
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
        f"Of Llama-3-8B {percent(share)}, of a layer {percent(of_layer)}; with two matrices it would be "
        f"{percent(share * 2 / 3)}.",
        "Two thirds are of two matrices, four times as wide, beside attention without groups. Gated ones have three.",
        {"share": share, "of_layer": of_layer, "with_two": share * 2 / 3},
    )  # fmt: skip
    yield Statement(
        "embedding", 22, "The embedding of Llama-3-8B has about 525 million parameters.",
        f"{small.parameters['embedding']:,}; the head is another table of that size.",
        "128,256 tokens of 4,096 numbers. A step reads a row of the embedding and all of the head.",
        {"embedding": small.parameters["embedding"]},
    )  # fmt: skip
    tied = {which: ledger.model(which).tied for which in ("gpt2", "llama-2-7b")}
    yield Statement(
        "tying", 25, "GPT-2 and Llama 2 tie the embedding to the head.",
        f"GPT-2 {'does' if tied['gpt2'] else 'does not'}; Llama 2 {'does' if tied['llama-2-7b'] else 'does not'}.",
        "Each config says it for itself. Read it; what a family did before does not tell.",
        {which: float(is_tied) for which, is_tied in tied.items()},
    )  # fmt: skip
    light = ledger.bill("qwen3-30b-a3b")
    yield Statement(
        "small-are-dense", None, "Models under 32 billion parameters are dense.",
        f"Qwen3-30B-A3B has {light.total / 1e9:.2f} billion, of which a token takes {light.active / 1e9:.2f}.",
        "Whether a model is a mixture stands in its config, not in its size.",
        {"total": light.total, "active": light.active},
    )  # fmt: skip


def models(ledger: CostCalculator) -> Iterator[Statement]:
    """Yield all textbook statements about models."""
    yield from keys_and_values(ledger)
    yield from configs(ledger)
    yield from weights(ledger)
