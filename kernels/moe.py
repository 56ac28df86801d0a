"""Gated MLP, and a mixture of experts: a sigmoid router with a correction bias, group by group.

Each token goes to its k best experts.  The bias steers who is chosen and never how much an expert counts; experts lie
in groups, and only those of the best groups (by the sum of their two best) may be chosen.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from evalgate.kernels.rms_norm import widened

grouped_mm = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm  # noqa: SLF001 - its name before 2.10


class Router(NamedTuple):
    """How tokens choose experts: ``weight`` is ``[E, D]`` and ``bias`` is ``[E]``, both in at least float32."""

    weight: Tensor
    bias: Tensor
    top_k: int
    groups: int
    top_groups: int
    normalise: bool
    """Whether the weights of a token's experts are made to sum to 1 before scaling."""
    scaling: float


class Experts(NamedTuple):
    """``gate_up`` is ``[E, 2 I, D]`` (gate first) and ``down`` is ``[E, D, I]``."""

    gate_up: Tensor
    down: Tensor


class Choice(NamedTuple):
    """Experts of each token ``[T, k]`` (int64) and how much each counts ``[T, k]``."""

    experts: Tensor
    weights: Tensor


def gated_mlp(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """``W_down (silu(W_gate x) * W_up x)``; ``gate_up`` is ``[2 I, D]`` (gate first), ``down`` is ``[D, I]``."""
    gate, up = linear(x, gate_up).chunk(2, dim=-1)
    return linear(silu(gate, inplace=True).mul_(up), down)


def route(x: Tensor, router: Router) -> Choice:
    """Choose experts for ``[T, D]`` tokens."""
    scores = linear(widened(x), router.weight).sigmoid()
    preference = scores + router.bias
    grouped = torch.unflatten(preference, -1, (router.groups, -1))
    if router.top_groups < router.groups:
        merit = grouped.topk(min(2, grouped.shape[-1]), dim=-1).values.sum(dim=-1)
        kept = merit.topk(router.top_groups, dim=-1).indices
        barred = torch.ones_like(merit, dtype=torch.bool).scatter_(1, kept, value=False)
        grouped = grouped.masked_fill(barred.unsqueeze(-1), -torch.inf)
    experts = grouped.flatten(-2).topk(router.top_k, dim=-1).indices
    weights = scores.gather(1, experts)
    if router.normalise:
        weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
    return Choice(experts, weights * router.scaling)


def reference_moe(x: Tensor, router: Router, experts: Experts) -> Tensor:
    """Token by token, expert by expert: ``sum_e weight_e MLP_e(x)`` for ``[T, D]`` tokens."""
    choice = route(x, router)
    outputs = []
    for token, chosen, weights in zip(x, choice.experts.tolist(), choice.weights, strict=True):
        each = [gated_mlp(token, experts.gate_up[e], experts.down[e]) for e in chosen]
        outputs.append((torch.stack(each) * weights[:, None]).sum(dim=0))
    return torch.stack(outputs).to(x.dtype)


def moe(x: Tensor, router: Router, experts: Experts) -> Tensor:
    """The same, one expert after another with all of its tokens; ``[T, D]`` -> ``[T, D]``."""
    choice = route(x, router)
    flat = choice.experts.flatten()
    order = flat.argsort(stable=True)
    tokens = order // choice.experts.shape[1]
    weights = choice.weights.flatten()[order, None]
    output = torch.zeros_like(x, dtype=weights.dtype)
    start = 0
    for expert, count in enumerate(flat.bincount(minlength=len(experts.down)).tolist()):
        if count:
            run = slice(start, start + count)
            result = gated_mlp(x[tokens[run]], experts.gate_up[expert], experts.down[expert])
            output.index_add_(0, tokens[run], result * weights[run])
            start += count
    return output.to(x.dtype)


def grouped_moe(x: Tensor, router: Router, experts: Experts) -> Tensor:
    """The same in two grouped matrix products, without waiting for the counts of tokens; ``[T, D]`` -> ``[T, D]``.

    ``x`` and the experts are bfloat16, the one type that grouped products take on a GPU.
    """
    choice = route(x, router)
    flat = choice.experts.flatten()
    order = flat.argsort(stable=True)
    tokens = order // choice.experts.shape[1]
    counts = flat.new_zeros(len(experts.down)).scatter_add_(0, flat, torch.ones_like(flat))
    ends = counts.cumsum(0).to(torch.int32)
    gate, up = grouped_mm(x[tokens], experts.gate_up.transpose(1, 2), offs=ends).chunk(2, dim=-1)
    result = grouped_mm(silu(gate) * up, experts.down.transpose(1, 2), offs=ends)
    weights = choice.weights.flatten()[order, None]
    output = torch.zeros_like(x, dtype=weights.dtype)
    return output.index_add_(0, tokens, result * weights).to(x.dtype)
