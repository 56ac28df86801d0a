"""Joining attention over parts of the keys into attention over all of them, in one place for every kernel.

A part is a softmax-weighted mean and the log of its sum of exponentials (natural log).  A part that saw no key has
``lse = -inf`` and counts nothing, whatever its output holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Part(NamedTuple):
    """Attention over some of the keys: ``output`` is ``[..., V]``, ``lse`` is ``[...]`` in at least float32."""

    output: Tensor
    lse: Tensor


def reference_merge(parts: Sequence[Part]) -> Part:
    """``o = sum_p exp(lse_p) o_p / sum_p exp(lse_p)``, for scores small enough to exponentiate as they are."""
    weights = [part.lse.exp().unsqueeze(-1) for part in parts]
    total = torch.stack(weights).sum(dim=0)
    output = torch.stack([w * part.output for w, part in zip(weights, parts, strict=True)]).sum(dim=0) / total
    return Part(output, total.squeeze(-1).log())


def merge(parts: Sequence[Part]) -> Part:
    """The same for scores of any size; a query that no part gave a key to has output 0 and ``lse`` -inf."""
    if len(parts) == 1:
        return parts[0]
    lse = torch.stack([part.lse for part in parts])
    top = lse.amax(dim=0)
    # exp(-inf - -inf) would be NaN: where no part saw a key, any finite reference gives weights of 0.
    weights = (lse - top.masked_fill(top == -torch.inf, 0.0)).exp()
    total = weights.sum(dim=0)
    shares = (weights / total.masked_fill(total == 0.0, 1.0)).unsqueeze(-1)
    output = torch.zeros_like(parts[0].output, dtype=lse.dtype)
    for share, part in zip(shares, parts, strict=True):
        output += torch.where(share > 0, share * part.output, 0.0)
    return Part(output.to(parts[0].output.dtype), top + total.log())
