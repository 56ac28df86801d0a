"""The page of a measured state: how half-lives are counted and written, what is drawn, and that nothing acts."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from fixtures_state import MakeState
from hypothesis import given
from hypothesis import strategies as st

from evalgate.reports import curves, figures, half_lives, measures
from evalgate.reports.html import MAX_BYTES, render_state
from evalgate.reports.state_curves import kept_by_third
from evalgate.reports.state_view import build_state_view
from evalgate.state_record import StateRecord


@pytest.fixture(scope="module")
def page(make_state: MakeState) -> str:
    """A page with two layers, two heads and two profiles."""
    return render_state(build_state_view(make_state()))


def plain(text: str) -> str:
    """With breaking blanks."""
    return text.replace("\u00a0", " ")


def test_page_is_one_silent_file(page: str) -> None:
    """No script, no load, no style of its own, and a name that tries to be markup is text."""
    assert "default-src 'none'" in page
    assert not re.search(r"<script|\ssrc=|\sstyle=|@import|url\(", page)
    assert set(re.findall(r"""href=["'](.)""", page)) == {"#"}
    assert "&lt;/title&gt;" in page
    assert "\u202e" not in page


def test_every_link_has_its_place(page: str, make_state: MakeState) -> None:
    """What the page points to is there, with profiles and without."""
    for text in (page, render_state(build_state_view(make_state(profiles=())))):
        targets = set(re.findall(r'href="#([^"]+)"', text))
        ids = re.findall(r'\sid="([^"]+)"', text)
        assert targets <= set(ids)
        assert len(ids) == len(set(ids))
    assert 'href="#codecs"' in page
    assert 'href="#codecs"' not in text


def test_numbers_stand_beside_the_drawings(make_state: MakeState) -> None:
    """Each head's spread, each position and each profile is text in a table; a drawing is hidden from readers."""
    view = build_state_view(make_state())
    text = render_state(view)
    drawings = re.findall(r"<svg[^>]*>", text)

    assert (view.layers[1].label, plain(view.layers[1].kept)) == ("layer 4", "20% / 20% / 60%")
    assert plain(view.layers[0].seen) == "70% / 61% / 48%"
    assert view.heads[0].rows[1].seen == half_lives.Spread(
        low="16.0", median="65,536", high="536.9 M", outlive="72%\u00a0/ 62%\u00a0/ 50%"
    )
    assert plain(view.heads[0].rows[0].rest.outlive) == "100% / 0% / 0%"
    assert [row.tokens for row in view.curves[0].rows] == ["64", "128", "192", "256", "320", "384"]
    assert view.curves[0].rows[-1].ranks == "6.0–7.0"
    assert [(row.name, row.held, row.share) for row in view.codecs] == [
        ("state-int8", "4.8%", "25%"),
        ("state-rank-4", "4.8%", "25%"),
    ]
    assert [row.held for row in view.panels[0].rows] == [figures.NONE, "4.8%", "4.8%"]
    for word in ("65,536", "6.0–7.0", "4.8%", "one round trip", "every 64 tokens"):
        assert word in text or word in text.lower()
    assert len(drawings) == 2 * (2 + 2) + 2 * (4 + 2)
    assert all('aria-hidden="true"' in drawing for drawing in drawings)


def test_page_of_a_large_model_stays_small(make_state: MakeState) -> None:
    """20 layers of 32 heads with 128 channels, under eight profiles, fit into one page."""
    names = [f"state-rank-{rank}" for rank in (1, 2, 4, 7, 8)] + ["state-bf16", "state-int8", "state-int4"]
    record = make_state(layers=20, heads=32, width=128, positions=16, profiles=tuple(names))

    assert len(render_state(build_state_view(record)).encode()) < MAX_BYTES


def test_record_survives_json(make_state: MakeState) -> None:
    """What `--json` prints is the whole record; channels without decay are null."""
    record = make_state()
    text = record.model_dump_json()

    assert StateRecord.model_validate_json(text) == record
    assert '"seen":[1.0,2.0,' in text
    assert ",null]" in text


@given(st.lists(st.one_of(st.none(), st.floats(1.0, 1e12)), min_size=1, max_size=64))
def test_every_channel_is_in_one_bin(values: list[float | None]) -> None:
    """Counts add up; a power of two opens its bin; what outlives a long context outlives a short one."""
    counts = half_lives.counts(values)
    found = half_lives.spread(values)

    assert sum(counts) == len(values)
    for value in values:
        at = half_lives.bin_of(value)
        assert value is None or 2.0**at <= value
        assert at == half_lives.BINS - 1 or (value is not None and value < 2.0 ** (at + 1))
    shares = [int(share.rstrip("%")) for share in plain(found.outlive).split(" / ")]
    assert shares == sorted(shares, reverse=True)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1024.0], "100% / 0% / 0%"),
        ([1023.9], "0% / 0% / 0%"),
        ([131_072.0, None, 8192.0], "100% / 100% / 67%"),
        ([None] * 999 + [1.0], "99% / 99% / 99%"),
        ([1.0] * 999 + [None], "1% / 1% / 1%"),
    ],
)
def test_shares_that_outlive(values: list[float | None], expected: str) -> None:
    """At least the horizon counts; all and none are written only where they are meant."""
    assert plain(half_lives.outlive(values)) == expected


@pytest.mark.parametrize(
    ("value", "words"),
    [(1.0, "1.0"), (99.44, "99.4"), (99.6, "100"), (5382.4, "5,382"), (1.6e6, "1.6 M"), (2e9, "over 1,000 M")],
)
def test_half_lives_in_words(value: float, words: str) -> None:
    """Tokens with as many digits as they deserve."""
    assert half_lives.tokens(value) == words


def test_stretches_belong_to_the_third_of_their_middle() -> None:
    """Thirds are of the stream; a stretch that was not written says nothing; a third may be empty."""
    found = kept_by_third([0.1, 0.2, None, 0.4, 0.5, 1.0], [64, 128, 192, 256, 320, 384])

    assert tuple(found) == pytest.approx((0.15, 0.4, 0.75))
    assert kept_by_third([1.0], [64]) == (None, 1.0, None)


@pytest.mark.parametrize(
    ("values", "words"),
    [([0.13, 0.51], "13–51%"), ([0.0077, 0.0088], "0.77–0.88%"), ([0.02, 0.02], "2.0%"), ([None], "–"), ([0.0], "0%")],
)
def test_extents_in_words(values: list[float | None], words: str) -> None:
    """From least to most, the sign of percent once."""
    assert measures.extent(values, measures.share) == words


@given(st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=20))
def test_axes_hold_what_they_show(values: list[float]) -> None:
    """Every value lies inside the drawing, on round ticks that run from the foot to the top."""
    for scale in (curves.linear(values), curves.decades(values)):
        heights = [scale.y(value) for value in values]
        assert all(curves.TOP - 1e-6 <= y <= curves.HEIGHT - curves.BOTTOM + 1e-6 for y in heights)
        assert (scale.ticks[0][0], scale.ticks[-1][0]) == (scale.low, scale.high)
        assert 2 <= len(scale.ticks) <= 20
        order = sorted(range(len(values)), key=lambda i: values[i])
        assert all(heights[a] >= heights[b] - 1e-6 for a, b in pairwise(order))


@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=8))
def test_names_of_lines_stand_clear(ends: list[float]) -> None:
    """However close lines end, their names don't lie over each other and don't leave the drawing at its foot."""
    lines = [curves.Line([end, end], f"line {at}", "along") for at, end in enumerate(ends)]
    drawn = curves.chart([64.0, 128.0], lines, curves.linear([1.0]), end=128)
    heights = sorted(float(y) for y in re.findall(r'class="name along" x="[\d.]+" y="([\d.]+)"', drawn))

    assert len(heights) == len(ends)
    assert all(b - a >= curves.LABEL - 0.11 for a, b in pairwise(heights))
    assert heights[-1] <= curves.HEIGHT


def test_gaps_stay_gaps() -> None:
    """A value that is not known is not drawn, and a range without values is none."""
    nothing: list[float | None] = [None, None]
    drawn = curves.chart([64.0, 128.0], [curves.Line([None, 0.5], "one", "layer")], curves.linear([1.0]), end=128)
    empty = curves.chart([64.0, 128.0], [], curves.linear(nothing), end=128, around=(nothing, nothing))

    assert len(re.findall(r'class="line layer" d="M[\d. ]+"', drawn)) == 1
    assert "around" not in empty
