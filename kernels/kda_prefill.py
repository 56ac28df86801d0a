"""Kimi Delta Attention over a stretch of tokens: the paper's recurrence and its chunk form.

Per head, with decay alpha_t = exp(g_t) per key channel (Kimi Linear, arXiv 2510.26692, eq. 1-3)::

    S_t = (I - beta_t k_t k_t^T) Diag(alpha_t) S_{t-1} + beta_t k_t v_t^T
    o_t = S_t^T q_t

The chunk form works on 64 tokens at a time, and no exponent is ever positive, so that any gate from -1e-4 to -40 per
step can underflow but never overflow.
It is made of differentiable torch operations; it knows nothing of layers, slots or profiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

CHUNK = 64

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
    q, k, v, g, b = (_chunked(x, pad) for x in (q, k, v, g, beta[..., None]))
    given = torch.unflatten(v * b, 0, (batch * heads, -1))
    rows, columns, fade, inner = (torch.unflatten(x, 0, (batch * heads, -1)) for x in _within_chunks(q, k, g, b))

    s, outputs, states = state.flatten(0, 1), [], {0: state}
    for n in range(given.shape[1]):
        seen = torch.unflatten(torch.bmm(rows[:, n].flatten(1, 2), s), 1, (CHUNK, 2))
        written = torch.bmm(inner[:, n, :, 0], given[:, n] + seen[:, :, 0])
        outputs.append(torch.baddbmm(seen[:, :, 1], inner[:, n, :, 1], written))
        s = (fade[:, n] * s).baddbmm_(columns[:, n].transpose(1, 2), written)
        tokens = (n + 1) * CHUNK
        if at_grid is not None and tokens <= length:
            s = at_grid(tokens, s.view_as(state)).flatten(0, 1)
        if tokens in snapshot_at:
            states[tokens] = s.view_as(state)
    output = torch.stack(outputs, dim=1).view(batch, heads, length + pad, -1)[:, :, :length].transpose(1, 2)
    return KdaResult(output, s.view_as(state), {t: states[t].clone() for t in snapshot_at})


def _chunked(x: Tensor, pad: int) -> Tensor:
    """``[B, T, H, D]`` -> ``[B * H * N, 64, D]``; the padding writes nothing and decays nothing (k = beta = g = 0)."""
    x = x.transpose(1, 2)
    if pad:
        x = torch.nn.functional.pad(x, (0, 0, 0, pad))
    return x.reshape(-1, CHUNK, x.shape[-1]).contiguous()


class Within(NamedTuple):
    """What X chunks do to the states S before them and to their own values, whatever those are.

    A chunk writes ``u = inner_k @ (beta v + rows_k @ S)``, puts out ``rows_q @ S + inner_q @ u``, and leaves the state
    ``fade * S + columns^T @ u``; ``_k`` and ``_q`` are the two entries of the dimension of 2.
    """

    rows: Tensor
    """``[X, 64, 2, K]``: ``-beta_i k_i`` and ``q_i``, decayed since the chunk began."""
    columns: Tensor
    """``[X, 64, K]``: ``k_j``, decayed until the chunk ends."""
    fade: Tensor
    """``[X, K, 1]``: the decay of the whole chunk."""
    inner: Tensor
    """``[X, 64, 2, 64]``: inverse of the unit lower triangle of keys on keys, lower triangle of queries on keys."""


def _within_chunks(q: Tensor, k: Tensor, g: Tensor, b: Tensor) -> Within:
    """By doubling: blocks of one token, then two neighbours at a time become one block, up to the whole chunk.

    A product of token i in the right block and token j in the left one decays from j to i: from j until the left block
    ends, and since the right one began until i.  Both are products of ``exp(g) <= 1``: they can underflow to the 0
    that they are, never overflow.
    """
    width = k.shape[-1]
    fade = g.exp()
    rows, columns = torch.stack([k * -b, q], dim=2) * fade.unsqueeze(2), k.clone()
    inner = torch.stack([torch.ones_like(b), (q * k).sum(dim=-1, keepdim=True)], dim=2)
    size = 1
    while size < CHUNK:
        rows, inner = rows.view(-1, 2, size, 2, width), inner.view(-1, 2, size, 2, size)
        columns, fade = columns.view(-1, 2, size, width), fade.view(-1, 2, 1, width)
        low = torch.bmm(rows[:, 1].flatten(1, 2), columns[:, 0].transpose(1, 2)).view(-1, size, 2, size)
        inner = _joined(inner, low)
        recorded = low.requires_grad
        rows = _faded(rows, 1, fade[:, 0].unsqueeze(1), recorded)
        columns = _faded(columns, 0, fade[:, 1], recorded)
        fade = fade[:, 0] * fade[:, 1]
        size *= 2
    return Within(rows.view(-1, CHUNK, 2, width), columns.view_as(k), fade.transpose(1, 2), inner)


def _joined(inner: Tensor, low: Tensor) -> Tensor:
    """Two blocks ``[P, 2, s, 2, s]`` and the products between them ``[P, s, 2, s]`` -> ``[P, 2 s, 2, 2 s]``."""
    left, right = inner[:, 0], inner[:, 1]
    solved = torch.bmm(right[:, :, 0], torch.bmm(low[:, :, 0], left[:, :, 0]))
    below = torch.cat([torch.stack([solved, low[:, :, 1]], dim=2), right], dim=-1)
    return torch.cat([torch.nn.functional.pad(left, (0, low.shape[-1])), below], dim=1)


def _faded(x: Tensor, half: int, factor: Tensor, recorded: bool) -> Tensor:
    """``[P, 2, ...]`` with one half of each pair multiplied by ``factor`` ``[P, ...]``."""
    if recorded:
        halves = [x[:, 0], x[:, 1]]
        halves[half] = halves[half] * factor
        return torch.stack(halves, dim=1)
    # Where no gradient needs the old values, in place: half the time of making a copy.
    x[:, half].mul_(factor)
    return x
