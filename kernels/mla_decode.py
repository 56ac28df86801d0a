"""Multi-head latent attention of one new token for each row, in the absorbed form.

``q . [W_k c_s ; r_s] = [W_k^T q_nope ; q_shared] . [c_s ; r_s]``, so a decode step reads the latents as they lie in the
cache and expands nothing but its own query and its own result.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from evalgate.kernels.lse_merge import Part, merge
from evalgate.kernels.mla_prefill import MlaWeights, reference_mla
from evalgate.kernels.rms_norm import widened

TILE = 16384
"""Tokens scored at a time, so that scores stay small however long the context is."""


def reference_mla_decode(q: Tensor, rows: Sequence[Tensor], weights: MlaWeights, scale: float) -> Tensor:
    """Row by row through :func:`reference_mla`; same contract as :func:`mla_decode` without ``shared``."""
    outputs = []
    for row, latents in enumerate(rows):
        everything = torch.ones(1, len(latents), dtype=torch.bool)
        outputs.append(reference_mla(q[row, None, None], latents[None], weights, scale, everything)[0])
    return torch.cat(outputs)


def mla_decode(
    q: Tensor, rows: Sequence[Tensor], weights: MlaWeights, scale: float, *, shared: Tensor | None = None
) -> Tensor:
    """Attend with one query for each row over latents of unequal number, ``[B, H, N + R]`` -> ``[B, H, V]``.

    ``rows[b]`` is ``[S_b, L + R]``.  ``shared`` is ``[S, L + R]``: tokens that every row also sees (a common
    prefix), read once for all of them.
    """
    batch, heads, _ = q.shape
    nope = weights.key.shape[1]
    absorbed = torch.cat([torch.einsum("bhn,hnl->bhl", q[..., :nope], weights.key), q[..., nope:]], dim=-1) * scale
    width = weights.latent
    common = [] if shared is None else _parts(absorbed.flatten(0, 1), shared, width)
    own = [merge(_parts(absorbed[row], latents, width)) for row, latents in enumerate(rows)]
    joined = Part(torch.stack([part.output for part in own]), torch.stack([part.lse for part in own]))
    common = [Part(part.output.view(batch, heads, -1), part.lse.view(batch, heads)) for part in common]
    mean = merge([*common, joined]).output
    return torch.einsum("bhl,hvl->bhv", mean, weights.value)


def _parts(q: Tensor, latents: Tensor, width: int) -> list[Part]:
    """``[Q, L + R]`` absorbed queries over ``[S, L + R]`` latents, in tiles."""
    return [_part(q, latents[start : start + TILE], width) for start in range(0, len(latents), TILE)]


def _part(q: Tensor, latents: Tensor, width: int) -> Part:
    scores = widened(q @ latents.T)
    lse = scores.logsumexp(dim=-1)
    weights = (scores - lse.unsqueeze(-1)).exp().to(q.dtype)
    return Part(weights @ latents[:, :width], lse)
