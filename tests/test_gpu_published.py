"""Every GPU kernel of the project at the published shapes, compiled for every chip."""

from __future__ import annotations

from evalgate.kernels.gpu import published
from evalgate.kernels.gpu.builds import build_all
from evalgate.kernels.gpu.chips import CHIPS


def test_published_kernels_compile_for_every_chip() -> None:
    """No kernel fails, spills without a written reason, or fits nowhere; results are kept in the user's cache."""
    rows = build_all(published.MODULES, list(CHIPS))

    assert {row.module for row in rows} == set(published.MODULES)
    assert [f"{row.module}: {row.name} on {row.chip}: {row.fault}" for row in rows if row.fault] == []
