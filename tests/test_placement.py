"""Placement: needles on a grid of depths, at the edges of what an engine cuts at, and near both ends."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from evalgate.errors import DoesNotFitError, InvalidDocumentError
from evalgate.tasks.haystack import Builder, Haystack
from evalgate.tasks.suite import Suite, band_of, load_suite
from evalgate.versioned import parse

SEEDS = 30


def suite_of(placement: dict[str, Any], tasks: list[str], length: int = 4096) -> Suite:
    """A suite with one length and this placement."""
    body = load_suite("needle").model_dump(by_alias=True, exclude_unset=True)
    body |= {"name": "placed", "lengths": [length], "tasks": tasks, "placement": placement}
    return parse(Suite, body, "placed")


def built(suite: Suite, tokenizer: Any) -> list[Haystack]:
    """Haystacks of some seeds."""
    builder = Builder(suite, tokenizer, "main")
    return [builder.build(seed, stream) for seed in range(SEEDS) for stream in builder.streams]


def test_grid_depths_are_those_that_are_named(builtin_tokenizer: Any) -> None:
    """Each needle lies within a line of one of the depths, in its band, and every depth comes up, 1 as well."""
    depths = [i / 10 for i in range(11)]
    found = Counter[float]()
    for haystack in built(suite_of({"mode": "grid", "depths": depths}, ["single"]), builtin_tokenizer):
        tokens = haystack.contexts[0].context_tokens
        for probe in haystack.probes:
            nearest = min(depths, key=lambda depth: abs(depth - probe.depth))
            assert abs(nearest - probe.depth) * tokens <= 28
            assert band_of(probe.depth, {"front": (0, 0.3333), "middle": (0.3333, 0.6667), "back": (0.6667, 1)}) == (
                probe.cell.band
            )
            found[nearest] += 1

    assert found.keys() == set(depths)


def test_ends_are_the_first_and_the_last_tokens(builtin_tokenizer: Any) -> None:
    """The front needle begins within the first 128 tokens, the back one ends within the last 128 and a line."""
    for haystack in built(suite_of({"mode": "ends", "tokens": 128}, ["single"]), builtin_tokenizer):
        end = haystack.ends[4096]
        places = {probe.cell.band: probe for probe in haystack.probes}
        assert places["front"].start - haystack.context_start <= 128 + 16
        assert end - places["back"].start <= 128 + 32
        assert places["back"].end <= end


@pytest.mark.parametrize(("every", "task"), [(64, "multikey@8"), (256, "multikey@8"), (1024, "single")])
def test_edges_are_met_to_the_token(every: int, task: str, builtin_tokenizer: Any) -> None:
    """Needles end just before, straddle, or begin just after a multiple, counted from prompt token 0."""
    met = Counter[str]()
    for haystack in built(suite_of({"mode": "edges", "every": [every]}, [task]), builtin_tokenizer):
        bands = {probe.start: probe.cell.band for probe in haystack.probes}
        for start, end, *_ in json.loads(haystack.contexts[0].needle_spans):
            place = "missed"
            if start % every == 0:
                place = "after"
            elif end % every == 0:
                place = "before"
            elif (start + (end - start) // 2) % every == 0:
                place = "across"
            met[place] += 1
            if start in bands:
                depth = (start - haystack.context_start) / haystack.contexts[0].context_tokens
                assert band_of(depth, load_suite("needle").bands) == bands[start]

    assert min(met["before"], met["across"], met["after"]) > 0.2 * met.total()
    # Where two needles are drawn to one edge, the second has to make way.
    assert met["missed"] <= {64: 0.05, 256: 0.1, 1024: 0.0}[every] * met.total()


def test_a_lone_needle_always_meets_its_edge(builtin_tokenizer: Any) -> None:
    """With nothing in its way no needle misses, whatever the filler's lengths."""
    for haystack in built(
        suite_of({"mode": "edges", "every": [1024], "offsets": ["after"]}, ["single"]), builtin_tokenizer
    ):
        assert all(probe.start % 1024 == 0 for probe in haystack.probes)


def test_lengths_around_a_chunk_can_be_asked(builtin_tokenizer: Any) -> None:
    """One token less and more than one and two prefill chunks: each context stays inside its own length."""
    body = load_suite("needle").model_dump(by_alias=True, exclude_unset=True)
    lengths = [1023, 1024, 1025, 2047, 2048, 2049]
    builder = Builder(
        parse(Suite, body | {"name": "around", "lengths": lengths, "tasks": ["single"]}, "around"),
        builtin_tokenizer,
        "main",
    )
    for stream in builder.streams:
        haystack = builder.build(0, stream)
        for length, end in haystack.ends.items():
            assert 0.98 * (length - builder.reserve) <= end - haystack.context_start <= length - builder.reserve


@pytest.mark.parametrize(
    "placement",
    [
        {"mode": "grid", "depths": []},
        {"mode": "grid", "depths": [1.5]},
        {"mode": "edges", "every": [4]},
        {"mode": "ends", "tokens": 0},
        {"mode": "somewhere"},
        {"mode": "uniform", "depths": [0.5]},
    ],
    ids=str,
)
def test_impossible_placements_are_refused(placement: dict[str, Any]) -> None:
    """When the suite is read."""
    with pytest.raises(InvalidDocumentError, match="placement"):
        suite_of(placement, ["single"])


@pytest.mark.parametrize(("every", "band"), [([100_000], "front"), ([2048], "front"), ([1024, 2048], None)])
def test_edges_that_no_band_holds_are_refused(every: list[int], band: str | None, builtin_tokenizer: Any) -> None:
    """Never placed elsewhere in silence; where one multiple fits and another does not, the one is used."""
    suite = suite_of({"mode": "edges", "every": every}, ["single"])
    if band is not None:
        with pytest.raises(DoesNotFitError, match=f"no multiple lies in band '{band}' of length 4096"):
            Builder(suite, builtin_tokenizer, "main")
        return
    for haystack in built(suite, builtin_tokenizer):
        for probe in haystack.probes:
            half = (probe.start + (probe.end - probe.start) // 2) % 1024 == 0
            assert probe.start % 1024 == 0 or probe.end % 1024 == 0 or half


def test_a_grid_names_a_depth_in_every_band() -> None:
    """A band without one would be asked elsewhere."""
    with pytest.raises(InvalidDocumentError, match=r"none of \[0.5\] lies in band 'front'"):
        suite_of({"mode": "grid", "depths": [0.5]}, ["single"])
