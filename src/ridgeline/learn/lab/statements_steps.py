"""Textbook statements about steps: of one user, of many users, and of prompts."""

from collections.abc import Iterator

from ridgeline.learn.lab.cost_calculator import CostCalculator
from ridgeline.learn.lab.statement import Statement
from ridgeline.util.document.humanize import gb, percent, say, say_gb, say_seconds, three_digits

_SMALL, _LARGE = "llama-3-8b", "llama-3-70b"
_CONTEXTS = (128, 256, 512, 700)


def one_user(ledger: CostCalculator) -> Iterator[Statement]:
    """Yield the textbook statements 1, 6, 7 and 8 on the steps of one user."""
    gpu = ledger.gpu("h100-sxm")
    ridge = gpu.ridge("bf16")
    yield Statement(
        "ops-per-byte", 1, "An H100 does 989 TFLOP/s over 3.35 TB/s: 295 operations per byte.",
        f"{say(gpu.peak('bf16'), 'FLOP/s')} over {say(gpu.bandwidth, 'B/s')}: {ridge:.1f}.",
        "The same, for dense matrices. Data sheets often print twice the rate, which holds for 2:4 sparse matrices.",
        {"ridge": ridge},
    )  # fmt: skip
    step = ledger.decode(_SMALL, "a100")
    times = step.memory / step.arithmetic
    yield Statement(
        "one-user", 6,
        "One user decodes with an 8B on an A100: 16 GB in 8 ms, 125 tok/s; 16 GFLOP take 0.05 ms: 160 times less.",
        f"{say_gb(gb(step.weights))} in {say_seconds(step.memory)}, {1 / step.floor:.0f} tok/s; "
        f"{say(step.flops, 'FLOP')} take {say_seconds(step.arithmetic)}: {times:.0f} times less.",
        "A token reads only one row of the embedding table, so a step reads 7.5 of 8 billion parameters.",
        {"weights": step.weights, "seconds": step.memory, "rate": 1 / step.floor, "arithmetic": step.arithmetic,
         "times": times},
    )  # fmt: skip
    step = ledger.decode(_LARGE, "h100-sxm")
    share = step.arithmetic / step.memory
    yield Statement(
        "large-model", 7, "70B in FP16 on an H100: 140 GB in 42 ms, 140 GFLOP in 0.28 ms: over 150 times less, under "
        "half a percent.",
        f"{say_gb(gb(step.weights))} in {say_seconds(step.memory)}, arithmetic {say_seconds(step.arithmetic)}: "
        f"{1 / share:.0f} times less, {percent(share)}.",
        "0.28 ms assumes the 500 TFLOP/s that kernels achieve; the peak is 989. At 500 it would be 149 times, not over "
        "150.",
        {"weights": step.weights, "seconds": step.memory, "arithmetic": step.arithmetic, "share": share},
    )  # fmt: skip
    first = ledger.prefill(_SMALL, "h100-sxm", 8)
    whole = ledger.request(_SMALL, "h100-sxm", 8, 30)
    yield Statement(
        "haiku", 8, "8B on an H100, 8 tokens in, 30 out: a prefill of 128 GFLOP, 5 ms; then 30 x 8 ms: 245 ms; TTFT "
        "13 ms.",
        f"The prefill is memory-bound: {say_seconds(first.memory)} against {say_seconds(first.arithmetic)} of "
        f"arithmetic. It gives the first token, so 29 steps follow: {say_seconds(whole)} at best, and TTFT is the "
        "prefill.",
        "Eight tokens are too few to be compute-bound. And 8 ms per step is an A100's time; an H100 reads the "
        "weights faster.",
        {"memory": first.memory, "arithmetic": first.arithmetic, "whole": whole, "intensity": first.intensity},
    )  # fmt: skip


def many_users(ledger: CostCalculator) -> Iterator[Statement]:
    """Yield the textbook statements 2, 5, 16, 17 and 18 on batches and concurrency."""
    batches = {context: ledger.critical_batch(_SMALL, "a100", context) for context in (1, *_CONTEXTS)}
    never = {gpu: ledger.never_from(_SMALL, gpu) for gpu in ("a100", "h100-sxm")}
    endless = ledger.endless_batch(_SMALL, "a100", 2000)
    batches_text = ", ".join(f"{batches[context]:,.0f} at {context}" for context in _CONTEXTS)
    yield Statement(
        "batch-150", 2, "The ridge of an A100 is 312 / 2 = 156: a batch of about 150 saturates it.",
        f"{batches[1]:.0f} without context; with context {batches_text} tokens, and no batch from {never['a100']} "
        f"tokens on (H100: from {never['h100-sxm']}). At 2,000 tokens the intensity stays below {endless:.0f} "
        "FLOP/byte.",
        "A batch shares the weights, but each user's keys and values are read for that user only.",
        {"never": never["a100"], "never_h100": never["h100-sxm"], "endless": endless,
         **{f"at_{context}": batch or 0.0 for context, batch in batches.items()}},
    )  # fmt: skip
    users = ledger.users(_SMALL, "rtx-4090", 2000)
    steps = ", ".join(f"{step.name} {step.takes / 2**30:.2f}" for step in users.steps)
    yield Statement(
        "users-on-24-gb", 5,
        "24 GB hold an 8B in bf16 and leave 8 GB; a user of 2,000 tokens takes 256 MB: about 30 users.",
        f"{users.users}: {users.total / 2**30:.2f} GiB less {steps} leaves {users.steps[-1].left / 2**30:.2f}.",
        "A reserve, activations, the driver and CUDA graphs take memory too. The units help a little: 16 GB are 15 "
        "GiB.",
        {"users": users.users, "left": users.steps[-1].left, "texts": users.texts.users},
    )  # fmt: skip
    load = ledger.plan(_SMALL, "a100-sxm-80gb", 1500, 1000).serving.load(32)
    rate, stay = load.requests_per_second.expected, load.ttft.expected + 999 * load.tpot.expected
    yield Statement(
        "little", 16, "Little's law: concurrent requests N = rate X times seconds L that each request stays.",
        f"In the plan of 32 users (1,500 tokens in, 1,000 out): {three_digits(rate)} per second x {three_digits(stay)} "
        f"s = {rate * stay:.1f}.",
        "It holds for every queue that neither grows nor shrinks in the long run.",
        {"under_way": rate * stay},
    )  # fmt: skip
    yield Statement(
        "concurrency", 17, "An engine's log: maximum concurrency for 2,048 tokens per request is 68.65x.",
        f"140,595 tokens of KV cache are {140_595 // 16:,} pages of 16; over the 128 pages of a request that is "
        f"{140_595 // 16 / 128:.2f}.",
        "It is the free KV memory divided by that of a request of full length. It says neither how many requests "
        "are admitted nor how fast they are.",
        {"pages": 140_595 // 16, "times": 140_595 // 16 / 128},
    )  # fmt: skip
    gains = [ledger.batching(_SMALL, "a100", 32, context) for context in (128, 512, 2000)]
    yield Statement(
        "batching-32", 18, "Batching 32 users gives 32 times the throughput.",
        f"{gains[0]:.1f} times at 128 tokens of context, {gains[1]:.1f} at 512, {gains[2]:.1f} at 2,000.",
        "The step takes longer, because it reads the keys and values of 32 users.",
        dict(zip(("at_128", "at_512", "at_2000"), gains, strict=True)),
    )  # fmt: skip


def prompts(ledger: CostCalculator) -> Iterator[Statement]:
    """Yield three statements on prompts: number 26 of the textbook list (prefill), and two on the cost of attention."""
    lengths = {gpu: ledger.compute_bound_prompt(_SMALL, gpu) or 0 for gpu in ("a100", "h100-sxm")}
    layer = sum(count for part, count in ledger.bill(_SMALL).layer.items() if part in ("attention", "feed-forward"))
    yield Statement(
        "prefill", 26, "Prefill is compute-bound.",
        f"Only from {lengths['a100']} tokens on an A100, {lengths['h100-sxm']} on an H100; attention does as many "
        f"FLOPs as the 8B's matrices at {layer / 4096 - 1:,.0f} tokens, and more from {layer / 4096:,.0f} on.",
        "A short prompt reads all weights for a few tokens, as decoding does.",
        {"a100": lengths["a100"], "h100": lengths["h100-sxm"], "overtakes": layer / 4096},
    )  # fmt: skip
    step = ledger.prefill(_SMALL, "a100", 1024)
    shares = {name: ledger.attention_of_a_pass(name) for name in (
        "z-image", "flux.2-klein-4b", "flux.1-dev", "pixart-sigma-xl-2-1024-ms", "wan2.2-ti2v-5b", "wan2.1-t2v-14b"
    )}  # fmt: skip
    yield Statement(
        "attention-dearest", None, "Attention is the most expensive operation.",
        f"For a prompt of 1,024 tokens (8B, A100) it takes {say_seconds(step.attention)} of {say_seconds(step.bound)}. "
        "Its share of a denoiser pass: "
        + ", ".join(f"{name} {percent(share)}" for name, share in shares.items()) + ".",
        "It grows with the square of the length but is small at first. Video models reach such lengths, chats do not.",
        {"attention": step.attention, "all": step.bound, **shares},
    )  # fmt: skip
    step = ledger.prefill(_SMALL, "h100-sxm", 8)
    yield Statement(
        "attention-of-eight", None, "A prompt of 8 tokens is dominated by attention.",
        f"Attention takes {say_seconds(step.attention)} of {say_seconds(step.bound)} (8B, H100).",
        "Eight tokens make few query-key pairs, but the step reads the matrices in full.",
        {"attention": step.attention, "all": step.bound},
    )  # fmt: skip


def steps(ledger: CostCalculator) -> Iterator[Statement]:
    """Yield all textbook statements about steps."""
    yield from one_user(ledger)
    yield from many_users(ledger)
    yield from prompts(ledger)
