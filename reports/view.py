"""The whole report as frozen values: every number counted and every word written, nothing left to a template."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from evalgate.errors import MismatchError
from evalgate.gates.verdict import Verdict
from evalgate.records import Cell, Manifest
from evalgate.reports import cells, changes, deciding, figures, headline, heatmap, identity, losses, overview, proof
from evalgate.reports import reach as reaching
from evalgate.reports import validity as checking
from evalgate.reports.source import Group, Source, groups, judged, pairs, partners, planned, tally


@dataclass(frozen=True, slots=True, kw_only=True)
class BandTable:
    """All cells of one task."""

    title: str
    anchor: str
    rows: tuple[cells.CellRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportView:
    """One report, ready to print, in reading order."""

    title: str
    subject: str
    """``hybrid at state-int8@1.0.0 · suite needle@1.0.0``"""
    against: str
    headline: headline.Headline
    cards: tuple[overview.TaskCard, ...]
    changes: changes.Changes | None
    deciding: deciding.Deciding
    reaches: tuple[reaching.Reach, ...]
    heat: tuple[heatmap.HeatPair, ...]
    heat_note: str
    legend: tuple[tuple[str, str], ...]
    standings: tuple[overview.Standing, ...]
    """What the marks of the first look mean; empty where nothing was judged."""
    bands: tuple[BandTable, ...]
    axis: Markup
    compared: bool
    """Some cell has a baseline beside it."""
    judged: bool
    losses: losses.Losses
    validity: checking.Validity
    identity: identity.Identity
    policy: proof.PolicyPanel | None
    proof: proof.Proof


def build_view(run: Source, verdict: Verdict | None = None, baseline: Source | None = None) -> ReportView:
    """Count, compare and word everything.

    Raises MismatchError where the verdict is of another run or another baseline.
    """
    _check_same(run, verdict, baseline)
    trials = judged(run.trials, verdict)
    olds = judged(baseline.trials, verdict) if baseline else None
    partnered = partners(trials, olds) if olds is not None else None
    table = cells.table(planned(run.manifest), trials, verdict, pairs(partnered or []))
    every = groups(table.rows)
    reaches = reaching.reaches(every, verdict)
    lost = losses.losses(trials, verdict, partnered, table.rows)
    who = identity.identify(run, baseline)
    shares = {cell: found.k / found.n for cell, found in tally(trials).items() if found.n and cell in table.rows}
    return ReportView(
        title=f"{verdict.status.value if verdict else 'No verdict'} · {_subject(run.manifest)}",
        subject=_subject(run.manifest),
        against=_against(verdict, baseline),
        headline=headline.headline(verdict, _facts(verdict, run, lost, who, len(table.rows))),
        cards=tuple(overview.card(group, at, table.rows, reaches[at]) for at, group in enumerate(every)),
        changes=changes.compare(run.manifest, baseline.manifest) if baseline else None,
        deciding=deciding.deciding(verdict, table.rows, shares),
        reaches=tuple(reaches),
        heat=tuple(heatmap.pair(group, at, trials, olds) for at, group in enumerate(every)),
        heat_note=_heat_note(run.manifest),
        legend=heatmap.LEGEND,
        standings=overview.standings(table.rows) if verdict else (),
        bands=tuple(_bands(group, at, table.rows) for at, group in enumerate(every)),
        axis=table.axis if any(row.chart for row in table.rows.values()) else Markup(""),
        compared=any(row.against for row in table.rows.values()),
        judged=verdict is not None,
        losses=lost,
        validity=checking.validity(verdict),
        identity=who,
        policy=proof.policy(verdict),
        proof=proof.proof(run, verdict, baseline),
    )


def _check_same(run: Source, verdict: Verdict | None, baseline: Source | None) -> None:
    if verdict is None:
        return
    pairs_ = [("run", verdict.run.run_id, run.manifest.run_id)]
    if baseline is not None and verdict.baseline_run is not None:
        pairs_.append(("baseline", verdict.baseline_run.run_id, baseline.manifest.run_id))
    for what, judged_id, given_id in pairs_:
        if judged_id != given_id:
            raise MismatchError(
                f"the verdict is of {what} {judged_id}, but {what} {given_id} was given; "
                "report the run that was judged, or judge this one with `evalgate gate`"
            )


def _subject(manifest: Manifest) -> str:
    profile, suite = manifest.profile, manifest.suite
    return f"{manifest.model.name} at {profile.name}@{profile.version} · suite {suite.name}@{suite.version}"


def _against(verdict: Verdict | None, baseline: Source | None) -> str:
    if baseline is not None:
        profile = baseline.manifest.profile
        unused = verdict is not None and verdict.baseline_run is None
        note = " (shown beside; the verdict did not use it)" if unused else ""
        return f"against {baseline.manifest.model.name} at {profile.name}@{profile.version}{note}"
    if verdict is not None and verdict.baseline_run is not None:
        profile = verdict.baseline_run.profile
        return f"against {verdict.baseline_run.model} at {profile.name}@{profile.version}"
    return "judged on its own, without a baseline"


def _facts(
    verdict: Verdict | None, run: Source, lost: losses.Losses, who: identity.Identity, asked: int
) -> tuple[headline.Fact, ...]:
    looks = figures.listing([figures.count(look) for look in verdict.looks], 6) if verdict else ""
    seeds = verdict.n if verdict else run.manifest.seeds
    facts = [
        headline.Fact(
            label="Cells (task × length × band)",
            value=headline.tallied(verdict) if verdict else f"{asked} asked",
            note=headline.rule(verdict) if verdict else "none judged",
        ),
        headline.Fact(
            label="Haystacks in each cell",
            value=figures.count(seeds),
            note=f"the policy looks at {looks}" if looks else f"seed set {run.manifest.seed_set}",
        ),
        headline.Fact(
            label="Needles",
            value=lost.short,
            note="against the baseline, over all cells" if lost.compared else "over all cells",
        ),
    ]
    if who.memory_sentence:
        facts.append(
            headline.Fact(
                label="Bytes per session",
                value=who.memory_sentence,
                note=f"measured at {who.memory_at} tokens" + (", against the baseline" if who.compared else ""),
            )
        )
    return tuple(facts)


def _bands(group: Group, at: int, rows: dict[Cell, cells.CellRow]) -> BandTable:
    found = tuple(rows[cell] for cell in group.cells() if cell in rows)
    return BandTable(title=group.title, anchor=f"bands-{at}", rows=found)


def _heat_note(manifest: Manifest) -> str:
    """Where the bands lie on the depth scale, as the suite sets them."""
    edges = manifest.suite_body.get("bands")
    if not isinstance(edges, dict):
        return ""
    pairs = [(band, edge) for band, edge in edges.items() if isinstance(edge, list | tuple) and len(edge) == 2]
    # A mapping's order is no part of a document; depth is.
    ordered = sorted(pairs, key=lambda pair: float(pair[1][0]))
    named = [f"{band} {figures.share(edge[0])} to {figures.share(edge[1])}" for band, edge in ordered]
    return f"Bands: {', '.join(named)}." if named else ""
