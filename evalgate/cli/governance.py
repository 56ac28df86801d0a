"""`evalgate suite|policy|profile diff|lock|approve`: what changed between versions, and who stands for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evalgate.cli import console
from evalgate.errors import ExitCode, RefusedError

if TYPE_CHECKING:
    from evalgate.release import Change, Kind

DIFF = {
    "suite": "Say what a suite asks less and more than another: what is easier first.",
    "policy": "Say what a policy demands less and more than another: every loosening first.",
    "profile": "Say what a profile compresses more and less than another: what is harsher first.",
}
LOCK = {
    "suite": "Release NAME/VERSION.yaml: write its digest to lock.json beside it; an easier one needs an approval.",
    "policy": "Release NAME/VERSION.yaml: write its digest to lock.json beside it; a looser one needs an approval.",
    "profile": "Release NAME/VERSION.yaml: write its digest to lock.json beside it; a harsher one needs an approval.",
}
APPROVE = {
    "suite": "Write reason, approver and evidence run into an easier version, and lock it.",
    "policy": "Write reason, approver and evidence run into a looser version, and lock it.",
    "profile": "Write reason, approver and evidence run into a harsher version, and lock it.",
}

Old = Annotated[str, typer.Argument(help="The old one: NAME (newest), NAME@1.0.0, or a YAML file.", show_default=False)]
New = Annotated[str, typer.Argument(help="The new one, likewise.", show_default=False)]
File = Annotated[Path, typer.Argument(help="NAME/VERSION.yaml, beside the versions before it.", show_default=False)]


def add_to(group: typer.Typer, name: str) -> None:
    """Give the group of one kind of document its commands `diff`, `lock` and `approve`."""

    def diff(
        old: Old,
        new: New,
        fail_on_weaker: Annotated[
            bool,
            typer.Option("--fail-on-loosening", help="Exit 1 where anything is looser, harsher or easier."),
        ] = False,
        json: console.Json = False,
    ) -> None:
        raise typer.Exit(_diff(kind_of(name), old, new, fail_on_weaker=fail_on_weaker, json=json))

    def lock(file: File, json: console.Json = False) -> None:
        _lock(kind_of(name), file, json=json)

    def approve(
        file: File,
        reason: Annotated[str, typer.Option(help="Why it may be weaker.", show_default=False)],
        approver: Annotated[str, typer.Option(help="Who stands for it.", show_default=False)],
        evidence: Annotated[Path, typer.Option(help="The judged run that it is approved on.", show_default=False)],
        json: console.Json = False,
    ) -> None:
        _approve(kind_of(name), file, reason=reason, approver=approver, run=evidence, json=json)

    group.command("diff", help=DIFF[name])(diff)
    group.command("lock", help=LOCK[name])(lock)
    group.command("approve", help=APPROVE[name])(approve)


def kind_of(name: str) -> Kind[Any]:
    """How documents of one kind are read and compared: ``suite``, ``policy`` or ``profile``."""
    from evalgate.release import Kind

    if name == "suite":
        from evalgate.tasks import suite
        from evalgate.tasks.suite_changes import suite_changes

        return Kind(suite.LIBRARY, suite.Suite, suite_changes, "easier", "harder")
    if name == "profile":
        from evalgate.gates import profile
        from evalgate.gates.profile_changes import profile_changes

        return Kind(profile.library(), profile.Profile, profile_changes, "harsher", "milder")
    from evalgate.gates import policy
    from evalgate.gates.policy_changes import policy_changes

    return Kind(policy.library(), policy.Policy, policy_changes, "looser", "tighter")


def _diff(kind: Kind[Any], old: str, new: str, *, fail_on_weaker: bool, json: bool) -> ExitCode:
    before, after = kind.load(old), kind.load(new)
    changes: list[Change] = kind.changes(before, after)
    called = {"weaker": kind.weaker, "stronger": kind.stronger, "other": "other"}
    weaker = any(change.direction == "weaker" for change in changes)
    if json:
        told = [{"change": called[change.direction], "words": change.words} for change in changes]
        console.emit({"old": before.ref, "new": after.ref, kind.weaker: weaker, "changes": told})
    else:
        lines = [f"{called[change.direction]}: {change.words}" for change in changes]
        verdict = f"{after.ref} is {kind.weaker} than" if weaker else f"nothing is {kind.weaker} than in"
        console.say(f"{kind.library.kind} {before.ref} -> {after.ref}", *lines, f"{verdict} {before.ref}")
    return ExitCode.BLOCK if weaker and fail_on_weaker else ExitCode.PASS


def _lock(kind: Kind[Any], file: Path, *, json: bool) -> None:
    from evalgate import release

    found = release.lock(kind, file)
    document, before = found.document, found.before
    if json:
        body = {kind.library.kind: document.ref, "digest": document.digest, kind.weaker: found.weakened}
        console.emit(body | {"before": None if before is None else before.ref})
        return
    said = "first release" if before is None else f"nothing {kind.weaker} than {before.ref}"
    lines = [f"{kind.weaker} than {before.ref}, approved: {words}" for words in found.weakened if before is not None]
    console.say(f"locked {kind.library.kind} {document.ref}", *(lines or [said]), f"digest {document.digest}")


def _approve(kind: Kind[Any], file: Path, *, reason: str, approver: str, run: Path, json: bool) -> None:
    from evalgate import disk, release
    from evalgate.gates.approval import evidence_run
    from evalgate.store import RunFolder

    for option, text in (("--reason", reason), ("--approver", approver)):
        if not text.strip():
            raise RefusedError(f"{option} is empty; an approval says why, and who stands for it")
    found = release.standing(kind, file)
    name = kind.library.kind
    if release.is_locked(file, found.document):
        raise RefusedError(f"{name} {found.document.ref} is locked already; release the change as a new version")
    if not found.weakened:
        raise RefusedError(
            f"{name} {found.document.ref} is not {kind.weaker} than a version before; lock it with `{name} lock`"
        )
    evidence = evidence_run(RunFolder.open(run), found)
    text = (disk.read(file) or b"").decode("utf-8")
    disk.replace(file, release.approved_text(kind, text, reason=reason, approver=approver, evidence=evidence).encode())
    if not json:
        console.say(f"approved by {approver} on run {evidence.run} ({evidence.verdict}: {evidence.status})")
    _lock(kind, file, json=json)
