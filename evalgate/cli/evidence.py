"""`evalgate evidence keygen|sign|verify|ledger`: verdicts that others can check, offline."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evalgate.cli import console
from evalgate.cli.age import parse_age
from evalgate.errors import MismatchError, RefusedError

if TYPE_CHECKING:
    from evalgate.gates.evidence_check import Finding, Wanted
    from evalgate.gates.verdict import Verdict
    from evalgate.store import RunFolder

app = typer.Typer(help="Evidence: signed verdicts, and the ledger of all attempts.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(help="Evidence, as `sign` wrote it.", show_default=False)]
Book = Annotated[Path, typer.Argument(help="The ledger's file.", show_default=False)]
Signers = Annotated[list[Path], typer.Option("--signer", help="Public key of a trusted signer; may be repeated.")]
Head = Annotated[str | None, typer.Option(help="Digest of an entry that the ledger is known to have had.")]


@app.command("keygen")
def keygen(
    out: Annotated[Path, typer.Option(help="File for the private key; the public one goes to FILE.pub.")],
    json: console.Json = False,
) -> None:
    """Make an Ed25519 key pair: keep the private one secret, give the public one to those who verify."""
    from evalgate.gates.evidence_key import new_key, public_path

    key = new_key(out)
    if json:
        console.emit({"private": str(out), "public": str(public_path(out)), "keyid": key})
    else:
        console.say(f"{out}: private key, keep it secret", f"{public_path(out)}: public key {key}")


@app.command("sign")
def sign(
    run: console.Run,
    policy: Annotated[str, typer.Option(help="Policy of the verdict: NAME, NAME@1.0.0, or a YAML file.")],
    key: Annotated[Path, typer.Option(help="Private key, as `keygen` wrote it.")],
    out: Annotated[Path, typer.Option(help="File to write; it must not be there yet.")],
    baseline: console.Baseline = None,
    ledger: Annotated[Path | None, typer.Option(help="Ledger to enter it in; made where there is none.")] = None,
    json: console.Json = False,
) -> None:
    """Sign the verdict that `evalgate gate` gave RUN, whatever it says."""
    from evalgate import disk
    from evalgate.gates import evidence
    from evalgate.gates.evidence_key import read_signer
    from evalgate.store import RunFolder

    signer = read_signer(key)
    console.existing_file_is_kept(out)
    console.results_are_kept(out, run, baseline)
    folder = RunFolder.open(run)
    verdict = _verdict(folder, policy, None if baseline is None else RunFolder.open(baseline))
    disk.make_folder(out.parent)
    signed = evidence.sign(folder, verdict, signer, signed=_now(), ledger=ledger)
    signed.evidence.write(out)
    head = None if signed.entry is None else signed.entry.digest
    if json:
        body = {"file": str(out), "verdict": signed.status, "keyid": signer.public_key.keyid, "head": head}
        console.emit(body | {"entry": signed.entry and signed.entry.number, "attempt": signed.attempts})
        return
    console.say(f"{out}: {signed.status}, signed by {signer.public_key.keyid[:12]}")
    if signed.entry is not None:
        console.say(
            f"{ledger}: entry {signed.entry.number}, attempt {signed.attempts} on seed set {signed.entry.seed_set}"
        )
        console.say(f"head {head}")


@app.command("verify")
def verify(
    file: File,
    signer: Signers,
    subject: Annotated[
        list[str] | None, typer.Option(help="What will be deployed: a sha256, NAME=sha256, or a file; may be repeated.")
    ] = None,
    policy: Annotated[str | None, typer.Option(help="Policy that must hold: NAME, NAME@1.0.0, or a YAML file.")] = None,
    policy_digest: Annotated[str | None, typer.Option(help="The same by its digest.")] = None,
    max_age: Annotated[str | None, typer.Option(help="How old the run may be: 12h, 30d.")] = None,
    ledger: Annotated[Path | None, typer.Option(help="Ledger in which it must stand.")] = None,
    head: Head = None,
    json: console.Json = False,
) -> None:
    """Check FILE: signature, signer, predicate, subject, policy, age and result. Exits 0 only for a PASS that fits."""
    from evalgate.gates.evidence import Evidence
    from evalgate.gates.evidence_check import Demands, check_evidence, exit_code
    from evalgate.gates.evidence_key import read_pin

    if head is not None and ledger is None:
        raise RefusedError("--head is of a ledger; name it with --ledger")
    demands = Demands(
        signers=[read_pin(path) for path in signer],
        now=datetime.now(UTC),
        subjects=[_subject(text) for text in subject or []],
        policy_digest=_policy_digest(policy, policy_digest),
        max_age=None if max_age is None else parse_age("--max-age", max_age),
        ledger=ledger,
        head=head,
    )
    findings = check_evidence(Evidence.read(file), demands)
    code = exit_code(findings)
    if json:
        body = [finding._asdict() | {"code": int(finding.code)} for finding in findings]
        console.emit({"file": str(file), "exit_code": int(code), "checks": body})
    else:
        console.say(*(line for finding in findings for line in _lines(finding)))
    raise typer.Exit(code)


@app.command("ledger")
def check_ledger(book: Book, signer: Signers, head: Head = None, json: console.Json = False) -> None:
    """Check that no entry was removed, edited, reordered or rewritten, and list the attempts on each seed set."""
    from evalgate.gates.evidence_key import read_pin
    from evalgate.gates.evidence_ledger import Ledger

    ledger = Ledger.read(book, [read_pin(path) for path in signer], head=head)
    entries = [line.entry for line in ledger.lines]
    seeds = list(dict.fromkeys((entry.suite, entry.seed_set) for entry in entries))
    attempts = [
        {"suite": f"{suite.name}@{suite.version}", "seed_set": name, "runs": ledger.attempts(suite, name)}
        for suite, name in seeds
    ]
    if json:
        rows = [entry.model_dump(mode="json") for entry in entries]
        console.emit({"file": str(book), "head": ledger.head, "entries": rows, "attempts": attempts})
        return
    from rich.table import Table

    table = Table("entry", "time", "run", "suite", "seed set", "profile", "policy", "verdict")
    for entry in entries:
        documents = [f"{document.name}@{document.version}" for document in (entry.suite, entry.profile, entry.policy)]
        words = [str(entry.number), entry.time, entry.run_id[:12], documents[0], entry.seed_set, *documents[1:]]
        table.add_row(*words, entry.status)
    console.say(table)
    for tried in attempts:
        console.say(f"{len(tried['runs'])} attempts on seed set {tried['seed_set']} of {tried['suite']}")
    console.say(f"unbroken: {len(entries)} entries, head {ledger.head}")


def _verdict(run: RunFolder, policy: str, baseline: RunFolder | None) -> Verdict:
    """The stored verdict of this policy, by its digest. Raises MismatchError: another policy of the same version."""
    from evalgate.gates.policy import load_policy
    from evalgate.gates.stored import stored_verdict

    document = load_policy(policy)
    verdict = stored_verdict(run, document.ref, baseline)
    assert verdict is not None, "with a policy to look for, none is refused"
    if verdict.policy != document.id:
        raise MismatchError(
            f"{run.path} was judged under another policy {document.ref} (digest {verdict.policy.digest[:12]}, asked "
            f"for {document.digest[:12]}); judge it under this one first"
        )
    return verdict


def _policy_digest(policy: str | None, digest: str | None) -> str | None:
    from evalgate.gates.evidence_check import parse_digest

    if policy is None:
        return None if digest is None else parse_digest("--policy-digest", digest)
    if digest is not None:
        raise RefusedError("--policy and --policy-digest say the same; give one of them")
    from evalgate.gates.policy import load_policy

    return load_policy(policy).digest


def _subject(text: str) -> Wanted:
    """A digest, or the digest of a file that is there."""
    import hashlib

    from evalgate import disk
    from evalgate.gates.evidence_check import Wanted, parse_subject

    path = Path(text)
    if "=" in text or not path.is_file():
        return parse_subject(text)
    with disk.told("read", path), path.open("rb") as file:
        return Wanted(None, hashlib.file_digest(file, "sha256").hexdigest())


def _lines(finding: Finding) -> list[str]:
    if finding.status == "failed":
        lines = [f"FAILED     {finding.check}: found {finding.found}"]
        lines += [f"           expected {finding.expected}"] if finding.expected else []
        return lines + ([f"           {finding.advice}"] if finding.advice else [])
    if finding.status == "not-asked":
        return [f"not asked  {finding.check}: {finding.found} ({finding.advice})"]
    return [f"ok         {finding.check}: {finding.found}"]


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
