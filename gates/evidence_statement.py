"""What evidence says: an in-toto Statement about what was judged, and a SLSA summary for those who know only that.

Subjects are what a deployment consists of: weights, config, tokenizer and profile. All numbers come from the stored
verdict and the manifest; no model's answer is part of it, so text that is removed later breaks no evidence.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field

from evalgate import __version__
from evalgate.gates.verdict import Status, Verdict
from evalgate.records import DocumentId, Manifest, ModelId, Trial

__all__ = ["PAYLOAD_TYPE", "PREDICATE", "STATEMENT", "SUMMARY", "Statement", "statement", "summary"]

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "urn:evalgate:verdict:v1"
"""Predicate type of the statement: what was measured, and what the gate said."""
SUMMARY = "https://slsa.dev/verification_summary/v1"
"""Predicate type of the summary."""
VERIFIER = "urn:evalgate:gate"

TEXT = frozenset({"answer"})
"""Fields of a trial that hold text of a model; no digest is over them."""
NOT_TOLD = {"schema_version", "status", "suite_body", "cells", "files"}
"""Fields of a manifest that the statement leaves out: they are in the verdict, or digests of files with text."""


class Subject(BaseModel):
    """A part of the deployment, by its digest."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    digest: dict[str, str]

    @property
    def sha256(self) -> str:
        """Its digest; empty where it has another kind."""
        return self.digest.get("sha256", "")


class _Said(BaseModel):
    """The parts of a verdict that a check of evidence looks at."""

    status: Status
    reason: str
    policy: DocumentId
    on_inconclusive: str


class _Ran(BaseModel):
    run_id: str
    suite: DocumentId
    profile: DocumentId
    model: ModelId
    seed_set: str
    started: str
    finished: str | None


class _Before(BaseModel):
    """The ledger as it was when the statement was signed."""

    entries: int
    head: str | None
    attempt: int


class _Predicate(BaseModel):
    signed: str
    verdict: _Said
    run: _Ran
    ledger: _Before | None = None


class Statement(BaseModel):
    """A signed statement as it is read back; fields that no check needs are left out."""

    model_config = ConfigDict(frozen=True)

    type_: str = Field(alias="_type")
    subject: list[Subject]
    predicate_type: str = Field(alias="predicateType")
    predicate: _Predicate


def statement(
    manifest: Manifest,
    verdict: Verdict,
    trials: Sequence[Trial],
    counters: dict[str, int],
    *,
    signed: str,
    ledger: dict[str, object] | None,
) -> dict[str, Any]:
    """The Statement of ``verdict``, signed at ``signed`` (RFC 3339); ``ledger`` is what stood in the ledger before."""
    return {
        "_type": STATEMENT,
        "subject": subjects(manifest),
        "predicateType": PREDICATE,
        "predicate": {
            "signed": signed,
            "verdict": verdict.model_dump(mode="json", exclude={"flips"}),
            "run": {
                **manifest.model_dump(mode="json", exclude=NOT_TOLD),
                "counters": counters,
                "trials": len(trials),
                "trials_sha256": trials_digest(trials),
            },
            "ledger": ledger,
        },
    }


def summary(evidence: dict[str, Any], digest: str) -> dict[str, Any]:
    """The SLSA Verification Summary of ``evidence``, whose envelope has ``digest``.

    A verdict that is not PASS is FAILED: the summary knows no third word.
    """
    predicate = evidence["predicate"]
    policy, passed = predicate["verdict"]["policy"], predicate["verdict"]["status"] == Status.PASS
    return {
        "_type": STATEMENT,
        "subject": evidence["subject"],
        "predicateType": SUMMARY,
        "predicate": {
            "verifier": {"id": VERIFIER, "version": {"evalgate": __version__}},
            "timeVerified": predicate["signed"],
            "resourceUri": f"urn:evalgate:model:{quote(predicate['run']['model']['name'], safe='')}",
            "policy": {
                "uri": f"urn:evalgate:policy:{policy['name']}@{policy['version']}",
                "digest": {"sha256": policy["digest"]},
            },
            "inputAttestations": [{"uri": PREDICATE, "digest": {"sha256": digest}}],
            "verificationResult": "PASSED" if passed else "FAILED",
            "verifiedLevels": ["EVALGATE_PASS" if passed else "FAILED"],
            "slsaVersion": "1.0",
        },
    }


def subjects(manifest: Manifest) -> list[dict[str, Any]]:
    """What was judged, by name and sha256."""
    model = manifest.model
    digests = {
        "weights": model.weights_sha256,
        "config": model.config_sha256,
        "tokenizer": model.tokenizer_sha256,
        "profile": manifest.profile.digest,
    }
    return [{"name": name, "digest": {"sha256": digest}} for name, digest in digests.items()]


def trials_digest(trials: Sequence[Trial]) -> str:
    """sha256 over one line of JSON for each trial, keys sorted, without the model's text.

    It is the same before and after that text is removed.
    """
    digest = hashlib.sha256()
    for trial in trials:
        fields = {name: value for name, value in dataclasses.asdict(trial).items() if name not in TEXT}
        digest.update(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode() + b"\n")
    return digest.hexdigest()
