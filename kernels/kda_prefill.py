"""Kimi Delta Attention over a stretch of tokens: the paper's recurrence and its chunk form.

Per head, with decay alpha_t = exp(g_t) per key channel (Kimi Linear, arXiv 2510.26692, eq. 1-3)::

    S_t = (I - beta_t k_t k_t^T) Diag(alpha_t) S_{t-1} + beta_t k_t v_t^T
    o_t = S_t^T q_t

The chunk form works on 64 tokens at a time, in sub-blocks of 16, and no exponent is ever positive, so that any
gate from -1e-4 to -40 per step can underflow but never overflow.
It is made of differentiable torch operations; it knows nothing of layers, slots or profiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

CHUNK = 64
SUB = 16


class KdaResult(NamedTuple):
    """Output ``[B, T, H, V]``, final state ``[B, H, K, V]`` and the states asked for by ``snapshot_at``."""

    output: Tensor
    final_state: Tensor
    snapshots: dict[int, Tensor]


def reference_kda(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor | None = None) -> KdaResult:
    """Token by token, exactly as the equations above.

    ``q``, ``k``, ``g`` are ``[B, T, H, K]`` (q scaled, q and k l2-normalised, g = log alpha <= 0), ``v`` is
    ``[B, T, H, V]``, ``beta`` is ``[B, T, H]``, ``state`` is ``[B, H, K, V]``; any one floating dtype.
    """
    batch, length, heads, width = k.shape
    s = v.new_zeros(batch, heads, width, v.shape[-1]) if state is None else state
    outputs = []
    for t in range(length):
        s = g[:, t].exp()[..., None] * s
        recalled = torch.einsum("bhk,bhkv->bhv", k[:, t], s)
        written = beta[:, t][..., None] * (v[:, t] - recalled)
        s = s + k[:, t][..., :, None] * written[..., None, :]
        outputs.append(torch.einsum("bhk,bhkv->bhv", q[:, t], s))
    output = torch.stack(outputs, dim=1) if outputs else torch.zeros_like(v)
    return KdaResult(output, s, {})


def chunk_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    *,
    snapshot_at: Sequence[int] = (),
) -> KdaResult:
    """The chunk form of :func:`reference_kda`; same shapes and meaning.

    Chunks start at token 0 of the stretch, so a stretch that starts on the 64-grid gives bitwise the states of a
    longer one that holds it.  ``snapshot_at`` names token counts (multiples of 64, at most T) whose states are
    returned as copies.  Raises ValueError for a snapshot off the grid.
    """
    batch, length, heads, width = k.shape
    off_grid = [t for t in snapshot_at if t % CHUNK or not 0 <= t <= length]
    if off_grid:
        raise ValueError(f"snapshots at {off_grid}: expected multiples of {CHUNK} between 0 and {length}")
    chunks = -(-length // CHUNK)
    pad = chunks * CHUNK - length
    q, k, v, g = (_chunked(x, pad) for x in (q, k, v, g))
    b = _chunked(beta[..., None], pad)

    decay = g.cumsum(dim=-2)
    scores_k, scores_q = _scores(q, k, decay)
    solved = torch.linalg.solve_triangular(
        scores_k * b, torch.cat([k * decay.exp() * b, v * b], dim=-1), upper=False, unitriangular=True
    )
    w, u = solved[..., :width], solved[..., width:]
    read = q * decay.exp()
    last = decay[..., -1:, :]
    keep = (k * (last - decay).exp()).transpose(-1, -2)
    fade = last.exp().transpose(-1, -2)

    state = v.new_zeros(batch, heads, width, v.shape[-1]) if initial_state is None else initial_state
    wanted = set(snapshot_at)
    snapshots = {0: state.clone()} if 0 in wanted else {}
    outputs = []
    for n in range(chunks):
        written = u[:, :, n] - w[:, :, n] @ state
        outputs.append(read[:, :, n] @ state + scores_q[:, :, n] @ written)
        state = fade[:, :, n] * state + keep[:, :, n] @ written
        if (n + 1) * CHUNK in wanted:
            snapshots[(n + 1) * CHUNK] = state.clone()
    if not outputs:
        return KdaResult(v.new_zeros(batch, 0, heads, v.shape[-1]), state, snapshots)
    output = torch.cat(outputs, dim=2)[:, :, :length].transpose(1, 2)
    return KdaResult(output, state, snapshots)


def _chunked(x: Tensor, pad: int) -> Tensor:
    """``[B, T, H, D]`` -> ``[B, H, N, 64, D]``; the padding writes nothing and decays nothing (k = beta = g = 0)."""
    x = x.transpose(1, 2)
    if pad:
        x = torch.nn.functional.pad(x, (0, 0, 0, pad))
    return x.reshape(x.shape[0], x.shape[1], -1, CHUNK, x.shape[-1])


def _scores(q: Tensor, k: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    """Decayed products within a chunk, ``[..., 64, 64]``: k·k (lower triangle with diagonal) and q·k.

    Entry (i, j) is sum_d x_id k_jd exp(G_id - G_jd).  Off-diagonal sub-blocks factor it at the last token before
    the row block, where both exponents are <= 0; diagonal sub-blocks take the difference pair by pair.
    """
    rows_k, rows_q = [], []
    for start in range(0, CHUNK, SUB):
        row = slice(start, start + SUB)
        diagonal = _diagonal(q[..., row, :], k[..., row, :], decay[..., row, :])
        parts = [diagonal]
        if start:
            anchor = decay[..., start - 1 : start, :]
            fall = (decay[..., row, :] - anchor).exp()
            left = torch.cat([k[..., row, :] * fall, q[..., row, :] * fall], dim=-2)
            right = k[..., :start, :] * (anchor - decay[..., :start, :]).exp()
            parts.insert(0, left @ right.transpose(-1, -2))
        if start + SUB < CHUNK:
            parts.append(diagonal.new_zeros(*diagonal.shape[:-1], CHUNK - SUB - start))
        both = torch.cat(parts, dim=-1)
        rows_k.append(both[..., :SUB, :])
        rows_q.append(both[..., SUB:, :])
    return torch.cat(rows_k, dim=-2), torch.cat(rows_q, dim=-2)


def _diagonal(q: Tensor, k: Tensor, decay: Tensor) -> Tensor:
    """Rows k then rows q against the columns k of one sub-block, ``[..., 32, 16]``, zero above the diagonal."""
    above = torch.ones(SUB, SUB, dtype=torch.bool, device=q.device).triu(1)
    gap = (decay.unsqueeze(-2) - decay.unsqueeze(-3)).masked_fill(above[..., None], float("-inf"))
    weighted = gap.exp() * k.unsqueeze(-3)
    rows = torch.stack([k, q], dim=-2)
    both = rows @ weighted.transpose(-1, -2)
    return torch.cat([both[..., 0, :], both[..., 1, :]], dim=-2)
