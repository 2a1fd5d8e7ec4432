"""The logits that transformers gives token ids, and a check that a greedy text of ours follows them."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

CLOSE = 1e-3
"""The gap between the two largest logits under which rounding may choose either."""


def logits_of(theirs: PreTrainedModel, ids: Sequence[int]) -> Tensor:
    """Return the logits of every position: fp32 [length, vocabulary]."""
    with torch.inference_mode():
        logits_TV: Tensor = theirs(torch.tensor([ids]), use_cache=False).logits[0]
    return logits_TV


def logprobs_of(logits_TV: Tensor, ids: Sequence[int]) -> Tensor:
    """Return the log-probability of each token but the first: float64 [length - 1]."""
    logprobs_TV = torch.log_softmax(logits_TV[:-1].double(), dim=1)
    return logprobs_TV.gather(1, torch.tensor(ids)[1:, None])[:, 0]


def assert_greedy(logits_TV: Tensor, prompt: Sequence[int], found: Sequence[int]) -> None:
    """Check that each token found after a prompt is the likeliest after all before it, by the logits of the whole.

    That is what a greedy loop of the reference writes too: it begins at the same prompt, and each step has one result.
    Where two tokens are nearly as likely, either will do; such places are rare.
    """
    values_TK, tokens_TK = logits_TV[len(prompt) - 1 : -1].topk(2)
    clear_T = values_TK[:, 0] - values_TK[:, 1] > CLOSE
    assert len(clear_T) == len(found)
    assert float(clear_T.float().mean()) >= 0.95
    assert torch.tensor(found)[clear_T].tolist() == tokens_TK[:, 0][clear_T].tolist()
    for (first, second), token in zip(
        tokens_TK[~clear_T].tolist(), torch.tensor(found)[~clear_T].tolist(), strict=True
    ):
        assert token in (first, second)
