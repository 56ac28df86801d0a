"""The parts of a report: how numbers and foreign text are written, effective context, heat maps, losses."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalgate.errors import InvalidRunError, TamperedError
from evalgate.gates.judge_run import gate_run
from evalgate.gates.policy import Policy, load_policy
from evalgate.gates.profile import load_profile
from evalgate.gates.rules import judge
from evalgate.gates.verdict import Verdict
from evalgate.records import Manifest, Outcome, Trial
from evalgate.reports import charts, figures, heatmap, losses
from evalgate.reports.excerpt import excerpt, slug, visible
from evalgate.reports.page import report_run
from evalgate.reports.source import Group, Source, groups, judged, planned
from evalgate.reports.view import ReportView, build_view
from evalgate.store import RunFolder

MakeSource = Callable[..., Source]


def verdict_of(run: Source, policy: Policy, baseline: Source | None = None) -> Verdict:
    """Judge runs in memory."""
    return judge(
        run.manifest,
        run.trials,
        policy,
        (baseline.manifest, baseline.trials) if baseline else None,
        profile=load_profile(run.manifest.profile.name),
        baseline_profile=load_profile(baseline.manifest.profile.name) if baseline else None,
    )


def test_percent_is_whole_only_when_true() -> None:
    """100% and 0% are written only where all or none are right; no trials have no share."""
    assert figures.percent(400, 400) == "100%"
    assert figures.percent(399, 400) == "99.8%"
    assert figures.percent(99_999, 100_000) == "> 99.9%"
    assert figures.percent(1, 100_000) == "< 0.1%"
    assert figures.percent(0, 400) == "0%"
    assert figures.percent(0, 0) == "–"


@given(n=st.integers(1, 5000), data=st.data())
def test_percent_never_claims_more_than_the_count(n: int, data: st.DataObject) -> None:
    """The written share is within its rounding of k/n, and whole exactly at the ends."""
    k = data.draw(st.integers(0, n))
    text = figures.percent(k, n)
    shown = float(re.sub(r"[<>% ]", "", text))

    assert (text == "100%") == (k == n)
    assert (text == "0%") == (k == 0)
    assert abs(shown - 100 * k / n) <= 0.1001


def test_intervals_are_rounded_outwards() -> None:
    """A written interval contains the real one."""
    assert figures.interval(0.92961, 0.98801) == "92.9–98.9%"
    assert figures.interval(0.0, 1.0) == "0–100%"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (figures.share(0.9), "90%"),
        (figures.share(0.899), "89.9%"),
        (figures.share(1.0), "100%"),
        (figures.probability(0.03125), "0.031"),
        (figures.probability(0.00042), "4.2e-04"),
        (figures.probability(1e-30), "< 1e-6"),
        (figures.size(512), "512 B"),
        (figures.size(67_584), "66.0 KiB"),
        (figures.change(66_000, 135_168), "−51.2%"),
        (figures.change(5, 4), "+25.0%"),
        (figures.change(4, 4), "same"),
        (figures.change(4, 0), "new"),
        (figures.seconds(41.6), "42 s"),
        (figures.seconds(131), "2 min 11 s"),
        (figures.seconds(7500), "2 h 05 min"),
        (figures.plural(1, "cell"), "1 cell"),
        (figures.plural(3, "cell"), "3 cells"),
        (figures.listing([]), "none"),
        (figures.listing(["a", "b", "c"]), "a, b and c"),
        (figures.listing(["a", "b", "c"], 2), "a, b and 1 more"),
        (figures.count(None), "–"),
        (slug("multikey@8"), "multikey-8"),
        (slug("…"), "x"),
    ],
)
def test_figures_are_written(value: str, text: str) -> None:
    """Numbers are written as people read them."""
    assert value == text


@given(st.text(max_size=300))
def test_foreign_text_is_inert(text: str) -> None:
    """Whatever characters an answer has, the excerpt is one short line that encodes and hides nothing."""
    shown = excerpt(text, limit=100)

    shown.encode("utf-8")
    assert shown.isprintable() or not re.search("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", shown)
    assert len(shown) <= 100 * len("‹U+10FFFF›") + 40


def test_excerpts_say_what_is_left_out() -> None:
    """Long answers are cut and counted, empty ones are called so, line ends are shown."""
    assert excerpt("a" * 250, limit=10) == "aaaaaaaaaa… (+240 characters)"
    assert excerpt("") == "(empty)"
    assert excerpt("a\nb\tc") == "a⏎b⇥c"
    assert visible("\u2066x\u2069 \U000e0041") == "‹U+2066›x‹U+2069› ‹U+E0041›"


@pytest.mark.parametrize(("depth", "at"), [(0.0, 0), (0.0999, 0), (0.1, 1), (0.3, 3), (0.7, 7), (0.9999, 9), (1.0, 9)])
def test_depth_bins_are_closed_below(depth: float, at: int) -> None:
    """A bin holds its lower edge; the last one its upper edge too."""
    assert heatmap.depth_bin(depth) == at


@pytest.mark.parametrize(
    ("k", "n", "step"),
    [(40, 40, "h5"), (38, 40, "h4"), (36, 40, "h3"), (30, 40, "h2"), (20, 40, "h1"), (19, 40, "h0"), (0, 0, "hx")],
)
def test_shading_steps_are_decided_on_counts(k: int, n: int, step: str) -> None:
    """A share on an edge has the better step; no trials have a step of their own."""
    assert heatmap.step(k, n) == step


def test_empty_bins_say_so(report_cases: dict[str, Any]) -> None:
    """A bin without trials is called empty, not zero."""
    run = report_cases["pass"].run
    few = [trial for trial in run.trials if trial.depth < 0.5]
    pair = heatmap.pair(groups(planned(run.manifest))[0], 0, few, None)

    assert [cell.ratio for cell in pair.tables[0].rows[7].cells] == ["none"] * 4
    assert {cell.step for cell in pair.tables[0].rows[7].cells} == {"hx"}


def test_tasks_without_depth_have_one_row() -> None:
    """A task whose band is ``all`` needs the whole context: its heat map has no depths."""
    pair = heatmap.pair(Group("count@6", "default", (1024,), ("all",)), 0, [], None)

    assert [row.label for row in pair.tables[0].rows] == ["whole context"]


def test_chart_axis_holds_everything() -> None:
    """The axis starts at a round share below all values, and a mark stays inside the drawing."""
    assert charts.axis_for([0.97, 0.95]).start == 0.9
    assert charts.axis_for([0.9, 0.95]).start == 0.8
    assert charts.axis_for([0.3]).start == 0.0
    assert charts.axis_for([]).start == 0.0
    assert charts.Axis(0.9).x(0.2) == charts.Axis(0.9).x(0.9)
    assert charts.Axis(0.9).x(1.0) == charts.WIDTH - charts.MARGIN


def reach_of(view: ReportView, task: str) -> Any:
    """The effective context of one task."""
    return next(item for item in view.reaches if item.title == task)


def test_effective_context_stops_at_the_first_gap(make_report_source: MakeSource) -> None:
    """A longer length that passes again does not count, and is named; the baseline is held to the same integers."""
    policy = load_policy("serving-default@1.0.0")
    base = make_report_source(policy, run_id="base")
    hole = {("multikey@8", 2048, "middle"): {Outcome.WRONG: range(200)}, ("single", 1024): {Outcome.WRONG: range(9)}}
    run = make_report_source(policy, run_id="run", profile="state-int8", answers=hole)
    view = build_view(run, verdict_of(run, policy, base), base)

    assert reach_of(view, "multikey@8").length == "1,024"
    assert reach_of(view, "multikey@8").stopped_by == "at 2,048: middle blocks; passes again at 4,096 and 8,192"
    assert reach_of(view, "multikey@8").baseline == "8,192"
    assert reach_of(view, "single").length == "none proven"
    assert reach_of(view, "single").stopped_by.startswith("at 1,024: front is open, middle is open and back is open")
    assert reach_of(view, "overwrite@3").whole


def test_seeds_beyond_the_look_are_not_shown(make_report_source: MakeSource) -> None:
    """Only trials that the verdict counted are in the heat maps and losses."""
    policy = load_policy("demo")
    run = make_report_source(policy, run_id="run", seeds=130, answers={("front",): {Outcome.WRONG: range(110, 130)}})
    verdict = verdict_of(run, policy)
    view = build_view(run, verdict)

    assert {trial.seed for trial in judged(run.trials, verdict)} == set(range(100))
    assert view.losses.sentence.startswith("0 needles missed of 600 asked.")
    assert any("counts the first 100" in notice.detail for notice in view.headline.notices)


def test_cells_without_a_bar_are_counted_and_marked(make_report_source: MakeSource) -> None:
    """A cell that the policy does not judge keeps its counts and is called not judged."""
    policy = load_policy("serving-default@1.0.0")
    run = make_report_source(policy, run_id="run")
    narrow = policy.model_copy(update={"cells": [policy.cells[0].model_copy(update={"length": [1024, 2048]})]})
    view = build_view(run, verdict_of(run, narrow))
    rows = {row.cell: row for table in view.bands for row in table.rows}
    silent = [row for cell, row in rows.items() if cell.length > 2048]

    assert len(silent) == 18
    assert {(row.status, row.ratio, row.limits) for row in silent} == {("not judged", "400/400", ())}
    assert reach_of(view, "single").length == "2,048"
    assert reach_of(view, "single").stopped_by == "longer lengths have no bar"


def test_arms_are_told_apart(make_report_source: MakeSource) -> None:
    """The same task in another arm is a group of its own, named with its arm."""
    policy = load_policy("demo")
    rules = [policy.cells[0].model_copy(update={"arm": ["default", "isolated"]})]
    run = make_report_source(policy.model_copy(update={"cells": rules}), run_id="run")

    view = build_view(run)

    assert [card.title for card in view.cards] == [
        "single",
        "single · arm isolated",
        "multikey@8",
        "multikey@8 · arm isolated",
    ]


def test_most_examples_come_from_cells_that_fail(report_cases: dict[str, Any]) -> None:
    """Losses of healthy cells cannot crowd out those of the cells that block."""
    view = build_view(*report_cases["block"])
    kinds = [loss.kind for loss in view.losses.rows]

    assert len(kinds) == losses.CAP
    assert kinds.count("block") >= losses.FAILING_CAP
    assert sum(int(count.listed) for count in view.losses.counts) == losses.CAP


def test_errors_are_neither_lost_nor_missed(report_cases: dict[str, Any]) -> None:
    """A trial without an answer is counted as an error, not as a lost needle."""
    view = build_view(report_cases["error"].run, None, report_cases["error"].baseline)

    assert view.losses.short == "0 lost, 33 gained"


def test_baseline_that_the_verdict_did_not_use_is_marked(report_cases: dict[str, Any]) -> None:
    """A baseline given only to the report stands beside, and the page says so."""
    case = report_cases["open"]
    view = build_view(case.run, case.verdict, report_cases["pass"].baseline)

    assert "the verdict did not use it" in view.against
    assert view.compared


def test_report_of_run_folders(
    make_haystack: Callable[..., Any], make_manifest: Callable[..., Manifest], tmp_path: Path
) -> None:
    """From folders on the disk: verified, judged and rendered; a changed file makes no report."""
    policy = load_policy("smoke")
    folder = RunFolder.create(tmp_path / "run", make_manifest(2))
    for seed in range(2):
        folder.write_part(seed, 0, *make_haystack(seed))
    with pytest.raises(InvalidRunError):
        report_run(folder, None, None)
    folder.finish(make_manifest(2), {})

    verdict = gate_run(folder, policy)
    page = report_run(folder, verdict, None)

    assert verdict.status == "ERROR", "the smoke suite has more tasks than this run"
    assert "What is broken" in page
    (folder.path / "counters.json").write_text('{"prefill": 7}')
    with pytest.raises(TamperedError):
        report_run(folder, verdict, None)


def test_trials_of_other_prompts_are_no_pairs(report_cases: dict[str, Any]) -> None:
    """Without a verdict, only trials of the same prompt are compared."""
    case = report_cases["plain"]
    other: list[Trial] = [dataclasses.replace(trial, prompt_sha256="0" * 64) for trial in case.baseline.trials]
    view = build_view(case.run, None, case.baseline._replace(trials=other))

    assert not view.compared
    assert view.losses.short == "0 lost, 0 gained"


def test_bands_are_told_in_order_of_depth(make_report_source: MakeSource) -> None:
    """The note on the heat map goes from front to back, however the suite's mapping was stored."""
    source = make_report_source(load_policy("demo"))
    bands = {"back": [0.6667, 1.0], "front": [0.0, 0.3333], "middle": [0.3333, 0.6667]}
    shuffled = source._replace(manifest=source.manifest.model_copy(update={"suite_body": {"bands": bands}}))
    note = build_view(shuffled).heat_note

    assert note.index("front") < note.index("middle") < note.index("back")
