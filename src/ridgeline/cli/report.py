"""What a command says of a finished run: an account for people, an object for programs."""

import dataclasses
from typing import Any

from ridgeline.engine.result import Choice, Completion
from ridgeline.trace.account import Account, Phase


def account_lines(account: Account) -> list[str]:
    """What prefill and decode took: tokens, seconds, tokens a second, and the bandwidth and arithmetic reached."""
    phases = {"prefill": account.prefill, "decode": account.decode}
    return [_phase_line(name, phase) for name, phase in phases.items() if phase.steps]


def _phase_line(name: str, phase: Phase) -> str:
    return (
        f"{name:8}{phase.tokens:7,} tokens {phase.seconds:8.3f} s {phase.tokens_per_second:9.1f} tok/s "
        f"{phase.bytes_per_second / 1e9:8.2f} GB/s {phase.flops_per_second / 1e9:9.1f} GFLOP/s"
    )


def completion_json(completion: Completion, account: Account, *, logprobs: bool) -> dict[str, Any]:
    """The first choice's fields at the top, as the contract has it; all choices beside it where there are several."""
    choices = [_choice_json(choice, logprobs=logprobs) for choice in completion.choices]
    fields = {
        **choices[0],
        "prompt_tokens": len(completion.prompt_ids),
        "timing": {"prefill": _phase_json(account.prefill), "decode": _phase_json(account.decode)},
    }
    return fields | ({"choices": choices} if len(choices) > 1 else {})


def _phase_json(phase: Phase) -> dict[str, float]:
    return {
        "tokens": phase.tokens,
        "seconds": phase.seconds,
        "tokens_per_second": phase.tokens_per_second,
        "bytes_per_second": phase.bytes_per_second,
        "flops_per_second": phase.flops_per_second,
    }


def _choice_json(choice: Choice, *, logprobs: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "text": choice.text,
        "token_ids": choice.token_ids,
        "finish_reason": choice.finish,
    }
    if choice.reasoning_tokens:
        fields |= {"reasoning": choice.reasoning, "reasoning_tokens": choice.reasoning_tokens}
    if choice.error is not None:
        fields["error"] = choice.error
    if logprobs:
        fields["logprobs"] = [dataclasses.asdict(sampled) for sampled in choice.tokens]
    return fields
