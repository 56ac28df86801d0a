"""The report's colours: readable in light and dark, and a ramp that needs no hue."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

TEXT = [
    ("ink", "page"),
    ("soft", "page"),
    ("link", "page"),
    ("ink", "faint"),
    ("soft", "faint"),
    ("pass-ink", "pass-tint"),
    ("block-ink", "block"),
    ("open-ink", "open-tint"),
    *((f"t{i}", f"h{i}") for i in range(6)),
    *((word, f"{kind}-tint") for kind in ("pass", "block", "open", "error") for word in ("ink", "soft", kind)),
]
"""(text, ground) of everything that is read."""


@pytest.fixture(scope="module")
def schemes(repository: Path) -> dict[str, dict[str, str]]:
    """Colour name -> hex digits, for each scheme."""
    style = (repository / "reports" / "templates" / "report.css").read_text(encoding="utf-8")
    light, dark = re.findall(r":root \{(.*?)\}", style, re.DOTALL)[:2]
    found = [dict(re.findall(r"--([\w-]+): #([0-9a-f]{6})", block)) for block in (light, dark)]
    return {"light": found[0], "dark": found[1]}


def luminance(color: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    parts = [int(color[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("text", "ground"), TEXT)
def test_text_has_contrast(schemes: dict[str, dict[str, str]], scheme: str, text: str, ground: str) -> None:
    """All text has a contrast of at least 4.5 (WCAG 2, level AA) on its ground."""
    dark, light = sorted(luminance(schemes[scheme][name]) for name in (text, ground))

    assert (light + 0.05) / (dark + 0.05) >= 4.5


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_shading_of_losses_is_a_ramp(schemes: dict[str, dict[str, str]], scheme: str) -> None:
    """From the first loss to the worst, each step is further from the page in lightness alone."""
    steps = [luminance(schemes[scheme][f"h{i}"]) for i in (3, 2, 1, 0)]
    page = luminance(schemes[scheme]["page"])

    assert all(abs(worse - page) > abs(better - page) for better, worse in pairwise(steps))


def test_schemes_name_the_same_colors(schemes: dict[str, dict[str, str]]) -> None:
    """Nothing keeps its light colour in the dark by oversight."""
    assert set(schemes["light"]) == set(schemes["dark"])
