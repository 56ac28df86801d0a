"""`evalgate profile log`: each change of a profile's settings, who stands for it, and what its runs came to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evalgate.cli import console
from evalgate.errors import EvalgateError, UnknownNameError

if TYPE_CHECKING:
    from evalgate.gates.profile import Profile

Where = Annotated[str, typer.Argument(help="Profile NAME, or a folder of its versions.", show_default=False)]
Runs = Annotated[
    Path | None, typer.Option(help="Folder whose runs are tied to the versions that they ran.", show_default=False)
]


def profile_log(profile: Where, runs: Runs = None, json: console.Json = False) -> None:
    """Tie every change of compression, eviction and cache settings to its reason, its runs and their verdicts."""
    rows = list(_rows(_versions(profile), runs))
    if json:
        console.emit({"versions": rows})
        return
    for row in rows:
        lines = [f"{row['profile']}  {row['digest'][:12]}  {row['reason'] or 'no reason given'}"]
        lines += [f"  {change}" for change in row["changes"]]
        if row["approver"]:
            lines.append(f"  approved by {row['approver']} on run {row['evidence']}")
        lines += [f"  run {run['run']}: {run['verdicts'] or 'not judged'}" for run in row["runs"]]
        console.say(*lines)


def _versions(where: str) -> list[Profile]:
    """Every version, oldest first."""
    from evalgate.gates.profile import library, load_profile
    from evalgate.versioned import Library

    folder = Path(where)
    if folder.is_dir():
        shelf = Library("profile", folder.resolve().parent)
        refs = [str(folder / f"{version}.yaml") for version in shelf.versions(folder.resolve().name)]
    else:
        name = where.partition("@")[0]
        refs = [f"{name}@{version}" for version in library().versions(name)]
        load_profile(name)  # an unknown name is told with the nearest
    if not refs:
        raise UnknownNameError(f"{where} holds no VERSION.yaml; name a profile or a folder of its versions")
    return [load_profile(ref) for ref in refs]


def _rows(versions: list[Profile], runs: Path | None) -> Iterator[dict[str, Any]]:
    from evalgate.gates.profile_changes import profile_changes

    ran = _ran(runs)
    before: Profile | None = None
    for document in versions:
        changes = [] if before is None else profile_changes(before, document)
        called = {"weaker": "harsher", "stronger": "milder", "other": "other"}
        yield {
            "profile": document.ref,
            "digest": document.digest,
            "reason": document.reason,
            "changes": [f"{called[change.direction]}: {change.words}" for change in changes],
            "approver": document.approver,
            "evidence": None if document.evidence is None else document.evidence.run,
            "runs": ran.get(document.digest, []),
        }
        before = document


def _ran(folder: Path | None) -> dict[str, list[dict[str, str]]]:
    """Digest of a profile -> the runs of it, with what they were judged to be."""
    from evalgate.cli.runs import found_runs
    from evalgate.gates.stored import stored_verdicts
    from evalgate.store import RunFolder

    ran: dict[str, list[dict[str, str]]] = {}
    for path in [] if folder is None else found_runs(folder):
        try:
            run = RunFolder.open(path)
            digest = run.manifest().profile.digest
            told = [f"{one.policy.name}@{one.policy.version} {one.status}" for one in stored_verdicts(run)]
        except EvalgateError as error:
            digest, told = "", [str(error)]
        ran.setdefault(digest, []).append({"run": str(path), "verdicts": ", ".join(told)})
    return ran
