"""One token of Kimi Delta Attention for a batch of state slots: the recurrence itself.

The states live in a pool ``[slots, H, K, V]``; a step reads and writes only the slots that it is given.
"""

from __future__ import annotations

import torch
from torch import Tensor

from evalgate.kernels.kda_prefill import reference_kda


def reference_kda_decode(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, pool: Tensor, slots: Tensor
) -> Tensor:
    """Row by row through :func:`reference_kda`; same contract as :func:`kda_decode`."""
    outputs = []
    for row, slot in enumerate(slots.tolist()):
        q1, k1, v1, g1, b1 = (x[row : row + 1, None] for x in (q, k, v, g, beta))
        result = reference_kda(q1, k1, v1, g1, b1, pool[slot : slot + 1])
        pool[slot] = result.final_state[0]
        outputs.append(result.output[:, 0])
    return torch.cat(outputs)


def kda_decode(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, pool: Tensor, slots: Tensor) -> Tensor:
    """Advance the slots by one token each and return the output ``[B, H, V]``.

    ``q``, ``k``, ``g`` are ``[B, H, K]`` (q scaled, q and k l2-normalised, g = log decay <= 0), ``v`` is
    ``[B, H, V]``, ``beta`` is ``[B, H]``; all in the dtype of ``pool`` ``[slots, H, K, V]``, which is written in
    place at ``slots`` (int64 ``[B]``, distinct).
    """
    state = pool.index_select(0, slots) * g.exp().unsqueeze(-1)
    recalled = (k.unsqueeze(-2) @ state).squeeze(-2)
    written = beta.unsqueeze(-1) * (v - recalled)
    state += k.unsqueeze(-1) * written.unsqueeze(-2)
    pool.index_copy_(0, slots, state)
    return (q.unsqueeze(-2) @ state).squeeze(-2)
