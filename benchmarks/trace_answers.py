"""How much the answers of a trace would be found again, were their blocks named: a bound, for traces that name prompts.

    python benchmarks/trace_answers.py mooncake_conversation_trace.jsonl

A prompt goes on with the latest one before it whose full blocks, two or more, it begins with: the first block alone is
what all conversations begin with. Where it is longer by that one's answer
or more, the answer is taken to be in it, word for word: the blocks that it fills are then the most that its names could
add to what is found.
"""

import argparse
from pathlib import Path

from ridgeline.insight.traffic.workload_trace import TraceRequest, read_trace


def pairs(path: Path) -> list[tuple[TraceRequest, TraceRequest]]:
    """Each prompt that goes on with an earlier one, after that one."""
    by_last: dict[str, TraceRequest] = {}  # by the name of the last full block, which stands for all before it
    found = []
    for request in read_trace(path):
        before = next((by_last[name] for name in reversed(request.blocks) if name in by_last), None)
        if before is not None:
            found.append((before, request))
        full = request.input // request.block
        if full > 1:
            by_last[request.blocks[full - 1]] = request
    return found


def added(before: TraceRequest, after: TraceRequest) -> int:
    """Tokens in the full blocks that end in an answer which the next prompt has room for; else 0."""
    end = before.input + before.output
    if after.input < end:
        return 0
    return end // before.block * before.block - before.input // before.block * before.block


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    args = parser.parse_args()
    prompts = [request.input for request in read_trace(args.trace)]
    found = pairs(args.trace)
    holding = sum(after.input >= before.input + before.output for before, after in found)
    tokens = sum(added(before, after) for before, after in found)
    print(f"{len(found):,} of {len(prompts):,} prompts go on with an earlier one")
    print(f"{holding / len(found):.0%} of them are longer by its answer or more")
    print(f"the blocks that those answers fill have {tokens:,} tokens, {tokens / sum(prompts):.1%} of all prompts'")


if __name__ == "__main__":
    main()
