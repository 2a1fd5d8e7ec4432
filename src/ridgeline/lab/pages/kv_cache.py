"""The page of `lab kv-cache`."""

from ridgeline.lab import kv_cache
from ridgeline.lab.kv_cache import Comparison, Run
from ridgeline.lab.page import Lines, Page, Table

_HEAD = ("tokens", "positions without", "with", "ratio", "seconds without", "with", "ratio")


def page(found: Comparison) -> Page:
    """Positions and seconds at some lengths, and the curves of the seconds."""
    without, kept = found.without, found.kept
    count = len(kept.positions)
    shown = [n for n in (8 << i for i in range(20)) if n < count] + [count]
    return Page(
        "Generation with and without a KV cache",
        "How much work does it save to keep keys and values?",
        (Table(_HEAD, tuple(_row(n, without, kept) for n in shown)),),
        Lines(
            "Seconds until the n-th token",
            "tokens",
            "seconds",
            {
                "without a cache": list(enumerate(without.seconds, 1)),
                "with a cache": list(enumerate(kept.seconds, 1)),
            },
        ),
        _words(found, count),
        kv_cache.__file__,
        {
            "tokens": count,
            "same_tokens": found.same,
            "bytes_per_token": found.kept_bytes,
            "without": _data(without, found.flops_without),
            "with": _data(kept, found.flops_kept),
        },
    )


def _row(n: int, without: Run, kept: Run) -> tuple[str, ...]:
    cells = [f"{n:,}"]
    for a, b, digits in (
        (without.positions[n - 1], kept.positions[n - 1], ",d"),
        (without.seconds[n - 1], kept.seconds[n - 1], ".3f"),
    ):
        cells += [format(a, digits), format(b, digits), f"{a / b:.4g}"]
    return tuple(cells)


def _words(found: Comparison, count: int) -> tuple[str, ...]:
    without, kept = found.without, found.kept
    fewer, faster = without.positions[-1] / kept.positions[-1], without.seconds[-1] / kept.seconds[-1]
    ratio = found.flops_without / found.flops_kept
    same = f"All {count:,} tokens are the same both ways."
    if found.same < count:
        same = (
            f"The first {found.same:,} tokens are the same both ways. Then two candidates were nearly equal, and a row "
            "among many is rounded otherwise than a lone one; after that the texts go on from different words."
        )
    return (
        f"Without a cache {count:,} tokens took N(N+1)/2 = {without.positions[-1]:,} positions, with one "
        f"N = {kept.positions[-1]:,}: {fewer:.4g} times fewer. The texts' 1,000 tokens would make it 500 times.",
        f"In seconds it is {faster:.1f} times, not {fewer:.4g}: a step of many positions reads the weights once and "
        "pays once for what every step costs, so that each of its positions is cheaper than a lone one.",
        f"In arithmetic it is {ratio:.4g} times: {found.flops_without / 1e9:.3g} GFLOP against "
        f"{found.flops_kept / 1e9:.3g}. Every position still attends to all before it, with a cache or without.",
        f"What it costs is memory: {found.kept_bytes:,.0f} bytes for each token that is kept, "
        f"{found.kept_bytes * count / 1e6:.3g} MB here. `lab memory` says how many users that leaves room for.",
        same,
    )


def _data(run: Run, flops: float) -> dict[str, object]:
    return {"token_ids": run.tokens[1:], "positions": run.positions, "seconds": run.seconds, "flops": flops}
