"""Muon: momentum whose matrix updates are orthogonalised (Jordan et al., 2024); for 2-D hidden weights only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


def orthogonalise(matrix: Tensor, steps: int = 5) -> Tensor:
    """Push all singular values of ``matrix`` towards 1 by quintic Newton-Schulz iterations."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x: Tensor = matrix / (matrix.norm() + 1e-7)
    tall = x.shape[0] > x.shape[1]
    if tall:
        x = x.T
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


class Muon(torch.optim.Optimizer):
    """SGD with Nesterov momentum and orthogonalised updates."""

    def __init__(self, params: Iterable[Tensor], lr: float, momentum: float) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

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
                scale = max(1.0, p.shape[0] / p.shape[1]) ** 0.5
                p.add_(orthogonalise(update), alpha=-group["lr"] * scale)
