"""An explanation of a step's duration: its slowest part, and the limit that this part is at."""

from ridgeline.insight.trace.trace_ledger import LedgerStep, LedgerTotal, OpGroup, Overhead, StepLedger
from ridgeline.price.roof_share import explains
from ridgeline.util.document import humanize

# Work below SMALL_SECONDS ends before the next launch.
SMALL_SECONDS = 50e-6
_FARTHEST = 3


def slowest(ledger: StepLedger, name: str) -> str:
    """Return one sentence that names the slowest part of a step (an op over all layers, or an overhead) and why.

    The reason for an op depends on the roofs of the machine that measured it, so it is omitted for another device's
    ledger.
    """
    step, whole = ledger.step(name), ledger.whole(name)
    group = max(ledger.groups(), key=lambda group: group.totals[name].measured)
    overhead = max(step.overheads, key=lambda overhead: overhead.seconds, default=Overhead("", 0.0))
    total = group.totals[name]
    if overhead.seconds > total.measured:
        took = _share(overhead.seconds, whole)
        return f"slowest in {name}: {overhead.name}, {took}: {_overhead_reason(overhead, ledger)}"
    why = f": {reason(total, step)}" if ledger.at_hand else ""
    return f"slowest in {name}: {_name(group, total)}, {_share(total.measured, whole)}{why}"


def above_roofs(ledger: StepLedger, name: str) -> str:
    """Return a phrase on how close a step's ops come to hardware limits, and which lose most time against them.

    A better kernel would gain most for these.
    """
    ops = ledger.ops(name)
    far = sorted(ledger.groups(), key=lambda group: group.totals[name].bound - group.totals[name].measured)
    most = (
        f"{_name(group, total)} {humanize.say_seconds(total.measured - total.bound)} "
        f"(at {humanize.percent(total.bound / total.measured)})"
        for group in far[:_FARTHEST]
        if (total := group.totals[name]).measured > total.bound
    )
    reached = f"ops in {name} reach {humanize.percent(ops.bound / ops.measured)} of their roofs"
    return "; most time lost: ".join(filter(None, (reached, ", ".join(most))))


def reason(total: LedgerTotal, step: LedgerStep) -> str:
    """Return a phrase on what limits an op: the overhead of its calls, memory bandwidth, peak FLOP/s, or its kernel.

    For all but the first, it contains the share of the bandwidth or of the peak that the op reached.
    """
    explained = explains(total.bound, total.measured)
    each, work = total.measured / total.count, total.bound / total.count
    if not explained and work < SMALL_SECONDS:
        calls = f"{total.count} calls" if total.count > 1 else "one call"
        asking = "kernel launches" if step.recorded else "Python and torch's dispatch"
        taken = f"{calls} of {humanize.say_seconds(each)} for {humanize.say_seconds(work)} of work"
        return f"{taken}: most of the time is the overhead of {asking}"
    if explained:
        return f"{'compute' if total.limit == 'compute' else 'memory'}-bound, {_rate(total, step)}"
    return f"limited by neither memory nor arithmetic, {_rate(total, step)}: a better kernel would help"


def _rate(total: LedgerTotal, step: LedgerStep) -> str:
    """Return an op's work, its rate and the share of the peak or bandwidth, whichever takes longer."""
    share, moved, flops = total.bound / total.measured, total.cost.total_bytes, total.cost.total_flops
    if total.limit == "compute":
        rate = humanize.say(flops / total.measured, "FLOP/s")
        return f"{humanize.say(flops, 'FLOP')} at {rate}, {humanize.percent(share)} of the peak"
    rate = humanize.say(moved / total.measured, "B/s")
    place = "the main memory" if step.memory_level == "memory" else step.memory_level
    return f"{humanize.say(moved, 'B')} at {rate}, {humanize.percent(share)} of the bandwidth of {place}"


def _share(seconds: float, whole: float) -> str:
    return f"{humanize.say_seconds(seconds)}, {seconds / whole:.0%} of the step"


def _name(group: OpGroup, total: LedgerTotal) -> str:
    return group.first.path if total.count == 1 else f"{group.label} ({total.count} times)"


def _overhead_reason(overhead: Overhead, ledger: StepLedger) -> str:
    if overhead.name == "between ops":
        each = humanize.say_seconds(overhead.seconds / max(1, len(ledger.rows)))
        return f"{each} of Python around each of {len(ledger.rows)} ops, which a larger batch would share"
    return "work that does not grow with the model"
