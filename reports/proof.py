"""The policy as it was applied, the digests, and the commands that check this report against its run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from evalgate.gates.verdict import Verdict
from evalgate.records import DocumentId
from evalgate.reports.changes import flatten, written
from evalgate.reports.source import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class BarRow:
    """One rule of the policy: which cells, which bar."""

    task: str
    length: str
    band: str
    arm: str
    least: str
    tier: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPanel:
    """The policy with every default filled in."""

    name: str
    reason: str
    bars: tuple[BarRow, ...]
    settings: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What to compare, and how."""

    commands: tuple[str, ...]
    digests: tuple[tuple[str, str], ...]


def policy(verdict: Verdict | None) -> PolicyPanel | None:
    """The policy of a verdict; None where none was applied."""
    if verdict is None:
        return None
    body = {key: value for key, value in verdict.policy_body.items() if key not in {"name", "version", "cells"}}
    rules = verdict.policy_body.get("cells")
    return PolicyPanel(
        name=_ref(verdict.policy),
        reason=written(body.get("reason", "")),
        bars=tuple(_bar(rule) for rule in rules if isinstance(rule, Mapping)) if isinstance(rules, list) else (),
        settings=tuple(flatten(body).items()),
    )


def _bar(rule: Mapping[str, object]) -> BarRow:
    return BarRow(
        task=_words(rule, "task"),
        length=_words(rule, "length"),
        band=_words(rule, "band"),
        arm=_words(rule, "arm"),
        least=_words(rule, "min"),
        tier=_words(rule, "tier"),
    )


def _words(rule: Mapping[str, object], key: str) -> str:
    return written(rule[key]) if key in rule else "any"


def _ref(document: DocumentId) -> str:
    return f"{document.name}@{document.version}"


def proof(run: Source, verdict: Verdict | None, baseline: Source | None) -> Proof:
    """The commands that repeat the verdict, and the digests of everything it stands on."""
    manifest = run.manifest
    against = baseline is not None or (verdict is not None and verdict.baseline_run is not None)
    tail = " --baseline BASELINE" if against else ""
    chosen = _ref(verdict.policy) if verdict else "POLICY"
    digests = [(f"suite {_ref(manifest.suite)}", manifest.suite.digest)]
    digests += [(f"profile {_ref(manifest.profile)}", manifest.profile.digest)]
    if verdict is not None:
        digests.append((f"policy {_ref(verdict.policy)}", verdict.policy.digest))
        if verdict.policy_source is not None:
            source = verdict.policy_source
            digests.append((f"policy file {source.path}: commit of {source.ref}", source.commit))
    digests.append((f"weights of {manifest.model.name}", manifest.model.weights_sha256))
    digests += [(f"run: {name}", digest) for name, digest in sorted(manifest.files.items())]
    if baseline is not None:
        digests += [(f"baseline: {name}", digest) for name, digest in sorted(baseline.manifest.files.items())]
    return Proof(
        commands=(f"evalgate gate RUN --policy {chosen}{tail}", f"evalgate report RUN{tail} --out report.html"),
        digests=tuple(digests),
    )
