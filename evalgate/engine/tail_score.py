"""How likely a text is after what comes before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class TailScore(NamedTuple):
    """The score of one text."""

    logprob: float
    """Natural logarithm, summed over its tokens."""
    greedy: bool
    """Whether it is what greedy decoding would write."""

    @classmethod
    def of(cls, logits: Tensor, tokens: Sequence[int]) -> TailScore:
        """From the logits ``[T, vocab]`` at the places of its ``T`` tokens."""
        logprobs = logits.log_softmax(dim=-1)
        targets = torch.tensor(tokens, dtype=torch.int64, device=logits.device)
        own = logprobs.gather(1, targets[:, None])[:, 0]
        return cls(float(own.sum()), bool((logprobs.argmax(dim=-1) == targets).all()))
