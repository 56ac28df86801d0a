"""Muon: momentum whose matrix updates are orthogonalised (Jordan et al., 2024); for 2-D hidden weights only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


def orthogonalise(matrix: Tensor, steps: int = 5) -> Tensor:
    """Push all singular values of each matrix ``[..., M, N]`` towards 1 by quintic Newton-Schulz iterations."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x: Tensor = matrix / (matrix.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """SGD with Nesterov momentum and orthogonalised updates.

    A group with ``rows`` holds fused projections: each block of so many rows is a matrix of its own, or the part with
    the largest gradient would leave nothing to the others.
    """

    def __init__(self, params: Iterable[dict[str, Any]], lr: float, momentum: float) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "rows": None})

    @torch.no_grad()
    def step(self, _closure: Any = None) -> None:  # type: ignore[override]  # no closure is ever passed
        """Apply one update to every parameter that has a gradient."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                buffer = self.state[p].setdefault("momentum", torch.zeros_like(p))
                buffer.lerp_(p.grad, 1 - group["momentum"])
                update = p.grad.lerp(buffer, group["momentum"])
                rows = group["rows"] or p.shape[0]
                scale = max(1.0, rows / p.shape[1]) ** 0.5
                turned = orthogonalise(update.view(-1, rows, p.shape[1])).reshape(p.shape)
                p.add_(turned, alpha=-group["lr"] * scale)
