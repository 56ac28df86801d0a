"""Joining attention over parts of the keys into attention over all of them, in one place for every kernel.

A part is a softmax-weighted mean and the log of its sum of exponentials (natural log).  A part that saw no key has
``lse = -inf`` and counts nothing, whatever its output holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
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


def merge(parts: Iterable[Part]) -> Part:
    """The same for scores of any size; a query that no part gave a key to has output 0 and ``lse`` -inf.

    Parts are taken one at a time and not kept.
    """
    remaining = iter(parts)
    first = next(remaining)
    second = next(remaining, None)
    if second is None:
        return first
    top, total = torch.full_like(first.lse, -torch.inf), torch.zeros_like(first.lse)
    output = torch.zeros_like(first.output, dtype=total.dtype)
    for part in chain((first, second), remaining):
        before, top = top, torch.maximum(top, part.lse)
        # exp(-inf - -inf) would be NaN: where no part saw a key yet, any finite reference gives weights of 0.
        reference = top.masked_fill(top == -torch.inf, 0.0)
        faded, weight = (before - reference).exp(), (part.lse - reference).exp()
        total = total * faded + weight
        faded, weight = faded.unsqueeze(-1), weight.unsqueeze(-1)
        # Selecting what counts takes another pass over the output, and nearly always all of it counts.
        seen = part.output if weight.all() else torch.where(weight > 0, part.output, 0.0)
        output.mul_(faded).addcmul_(seen, weight)
    output /= total.masked_fill(total == 0.0, 1.0).unsqueeze(-1)
    return Part(output.to(first.output.dtype), top + total.log())
