"""Kimi Delta Attention over a stretch of tokens: the paper's recurrence and its chunk form.

Per head, with decay alpha_t = exp(g_t) per key channel (Kimi Linear, arXiv 2510.26692, eq. 1-3)::

    S_t = (I - beta_t k_t k_t^T) Diag(alpha_t) S_{t-1} + beta_t k_t v_t^T
    o_t = S_t^T q_t

The chunk form works on 64 tokens at a time, in sub-blocks of 16, and no exponent is ever positive, so that any
gate from -1e-4 to -40 per step can underflow but never overflow.
It is made of differentiable torch operations; it knows nothing of layers, slots or profiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

CHUNK = 64
SUB = 16

AtGrid = Callable[[int, Tensor], Tensor]
"""Called as ``at_grid(tokens, state)`` after each whole chunk; what it returns is the state from there on."""


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
    at_grid: AtGrid | None = None,
) -> KdaResult:
    """The chunk form of :func:`reference_kda`; same shapes and meaning.

    Chunks start at token 0 of the stretch, so a stretch that starts on the 64-grid gives bitwise the states of a
    longer one that holds it.  ``snapshot_at`` names token counts (multiples of 64, at most T) whose states are
    returned as copies.  ``at_grid`` may replace the state at each multiple of 64 up to T (a lossy codec does).
    Raises ValueError for a snapshot off the grid.
    """
    batch, length, heads, width = k.shape
    off_grid = [t for t in snapshot_at if t % CHUNK or not 0 <= t <= length]
    if off_grid:
        raise ValueError(f"snapshots at {off_grid}: expected multiples of {CHUNK} between 0 and {length}")
    state = v.new_zeros(batch, heads, width, v.shape[-1]) if initial_state is None else initial_state
    if not length:
        return KdaResult(v.new_zeros(batch, 0, heads, v.shape[-1]), state, {t: state.clone() for t in snapshot_at})
    pad = -length % CHUNK
    q, k, v, g = (_chunked(x, pad) for x in (q, k, v, g))
    b = _chunked(beta[..., None], pad)

    decay = g.cumsum(dim=-2)
    grown = decay.exp()
    scores_k, scores_q = _scores(q, k, g, decay)
    solved = torch.linalg.solve_triangular(
        scores_k * b, torch.cat([k * grown * b, v * b], dim=-1), upper=False, unitriangular=True
    )
    w, u = solved[..., :width], solved[..., width:]
    last = decay[..., -1:, :]
    keep = (k * (last - decay).exp()).transpose(-1, -2)
    fade = last.exp().transpose(-1, -2)

    states, writes = [state], []
    for n in range(u.shape[2]):
        written = u[:, :, n] - w[:, :, n] @ state
        state = fade[:, :, n] * state + keep[:, :, n] @ written
        if at_grid is not None and (n + 1) * CHUNK <= length:
            state = at_grid((n + 1) * CHUNK, state)
        states.append(state)
        writes.append(written)
    output = (q * grown) @ torch.stack(states[:-1], dim=2) + scores_q @ torch.stack(writes, dim=2)
    output = output.flatten(2, 3)[:, :, :length].transpose(1, 2)
    return KdaResult(output, state, {t: states[t // CHUNK].clone() for t in snapshot_at})


def _chunked(x: Tensor, pad: int) -> Tensor:
    """``[B, T, H, D]`` -> ``[B, H, N, 64, D]``; the padding writes nothing and decays nothing (k = beta = g = 0)."""
    x = x.transpose(1, 2)
    if pad:
        x = torch.nn.functional.pad(x, (0, 0, 0, pad))
    return x.reshape(x.shape[0], x.shape[1], -1, CHUNK, x.shape[-1])


def _scores(q: Tensor, k: Tensor, g: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    """Decayed products within a chunk, ``[..., 64, 64]``: k·k and q·k, lower triangle with diagonal.

    Entry (i, j) is sum_d x_id k_jd exp(G_id - G_jd).  Off-diagonal sub-blocks factor it at the last token before
    the row block, where both exponents are <= 0; diagonal sub-blocks multiply the decays between i and j.
    """
    diagonal = _diagonal(*(torch.unflatten(x, -2, (CHUNK // SUB, SUB)) for x in (q, k, g)))
    both = torch.stack([k, q], dim=-3)
    rows = []
    for block, start in enumerate(range(0, CHUNK, SUB)):
        row = slice(start, start + SUB)
        parts = [diagonal[..., block, :, :]]
        if start:
            anchor = decay[..., start - 1 : start, :]
            left = both[..., row, :] * (decay[..., row, :] - anchor).exp().unsqueeze(-3)
            right = k[..., :start, :] * (anchor - decay[..., :start, :]).exp()
            parts.insert(0, torch.unflatten(left.flatten(-3, -2) @ right.transpose(-1, -2), -2, (2, SUB)))
        if start + SUB < CHUNK:
            parts.append(k.new_zeros(*k.shape[:-2], 2, SUB, CHUNK - SUB - start))
        rows.append(torch.cat(parts, dim=-1))
    whole = torch.cat(rows, dim=-2)
    return whole[..., 0, :, :], whole[..., 1, :, :]


def _diagonal(q: Tensor, k: Tensor, g: Tensor) -> Tensor:
    """Rows k and q against the columns k of each sub-block: ``[..., S, 16, D]`` -> ``[..., 2, S, 16, 16]``.

    Column by column below the diagonal, the decay between i and j = i - offset is a product of exp(g) <= 1: it can
    underflow to the 0 that it is, never overflow, and takes one exp for each gate.
    """
    alpha = g.exp()
    both = torch.stack([k, q], dim=-4)
    bands = [(both * k.unsqueeze(-4)).sum(-1)]
    fall = alpha[..., 1:, :]
    for offset in range(1, SUB):
        column = fall * k[..., : SUB - offset, :]
        bands.append((both[..., offset:, :] * column.unsqueeze(-4)).sum(-1))
        fall = fall[..., 1:, :] * alpha[..., 1 : SUB - offset, :]
    bands.append(torch.zeros_like(bands[-1]))
    return torch.unflatten(torch.cat(bands, dim=-1).index_select(-1, _skew(q.device)), -1, (SUB, SUB))


def _skew(device: torch.device) -> Tensor:
    """Where entry (i, j) of a sub-block lies in a row of bands 0..15, each 16 - band long, and one zero."""
    i = torch.arange(SUB, device=device)[:, None]
    j = torch.arange(SUB, device=device)[None, :]
    band = i - j
    start = band * SUB - band * (band - 1) // 2
    return torch.where(band >= 0, start + j, SUB * (SUB + 1) // 2).flatten()
