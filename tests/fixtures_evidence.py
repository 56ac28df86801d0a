"""Fixtures: keys, judged runs and evidence of them."""

from __future__ import annotations

import base64
import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from evalgate.gates.evidence import Evidence, sign
from evalgate.gates.evidence_envelope import Envelope, seal
from evalgate.gates.evidence_key import new_key, public_path, read_pin, read_signer
from evalgate.gates.judge_run import gate_run
from evalgate.gates.policy import load_policy
from evalgate.gates.verdict import Verdict
from evalgate.store import RunFolder

STARTED = "2025-01-01T00:00:00+00:00"
FINISHED = "2025-01-01T12:00:00+00:00"
SIGNED = "2025-01-02T00:00:00Z"
NOW = datetime(2025, 1, 3, tzinfo=UTC)
"""When tests look at what the fixtures signed; later than all of it, and in the past on any machine."""


class Pair(NamedTuple):
    """A key pair on the disk, and what signs and trusts with it."""

    private: Path
    public: Path
    signer: Any
    pin: Any


def make_pair(path: Path) -> Pair:
    """A new key pair at ``path``."""
    new_key(path)
    return Pair(path, public_path(path), read_signer(path), read_pin(public_path(path)))


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    """Two key pairs: ``ours``, and ``theirs``, which nobody trusts."""
    root = tmp_path_factory.mktemp("keys")
    return {name: make_pair(root / name) for name in ("ours", "theirs")}


@pytest.fixture(scope="session")
def judged_runs(
    tmp_path_factory: pytest.TempPathFactory, kept_runs: dict[str, Path]
) -> dict[str, tuple[RunFolder, Verdict]]:
    """Run folders with their verdicts, to read: ``good`` passes policy demo, ``bad`` blocks, ``tiny`` decides nothing.

    ``paired`` is ``bad`` judged against ``good``, so its verdict has trials that were lost.
    """
    root = tmp_path_factory.mktemp("judged")
    judged: dict[str, tuple[RunFolder, Verdict]] = {}
    for name, source in (("good", "good"), ("bad", "bad"), ("tiny", "tiny"), ("paired", "bad")):
        run = RunFolder(Path(shutil.copytree(kept_runs[source], root / name)))
        run.write_manifest(run.manifest().model_copy(update={"started": STARTED, "finished": FINISHED}))
        policy = load_policy("smoke" if name == "tiny" else "demo")
        judged[name] = (run, gate_run(run, policy, judged["good"][0] if name == "paired" else None))
    return judged


@pytest.fixture(scope="session")
def evidence(judged_runs: dict[str, tuple[RunFolder, Verdict]], keys: dict[str, Pair]) -> dict[str, Evidence]:
    """Evidence of every judged run, signed by ``ours``, without a ledger."""
    return {name: sign(*judged, keys["ours"].signer, signed=SIGNED).evidence for name, judged in judged_runs.items()}


@pytest.fixture
def own_runs(judged_runs: dict[str, tuple[RunFolder, Verdict]], tmp_path: Path) -> dict[str, Path]:
    """Copies of the judged runs, to spoil."""
    return {name: Path(shutil.copytree(run.path, tmp_path / name)) for name, (run, _) in judged_runs.items()}


def payload(envelope: Envelope) -> Any:
    """What an envelope says, as JSON."""
    return json.loads(envelope.content)


def forged(envelope: Envelope, body: Any) -> Envelope:
    """The envelope with another payload under the old signature."""
    return envelope.model_copy(update={"payload": base64.b64encode(json.dumps(body).encode()).decode()})


def sealed(body: Any, pair: Pair, kind: str = "application/vnd.in-toto+json") -> Envelope:
    """An envelope that ``pair`` really signed."""
    return seal(json.dumps(body).encode(), kind, pair.signer)
