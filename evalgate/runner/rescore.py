"""Judging stored answers by the scorer of today; the model is not asked again, and the old run stays as it is."""

from __future__ import annotations

import dataclasses
import hashlib
import uuid
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from evalgate.errors import RefusedError
from evalgate.records import Context, Flip, Manifest, Outcome, Rescored, Trial
from evalgate.redaction import NOT_KEPT, REMOVED, is_redacted
from evalgate.runner.identity import now
from evalgate.store import RunFolder
from evalgate.tasks.scoring import SCORER_VERSION, score
from evalgate.tasks.suite import GUARD_SCORER


class Rescoring(NamedTuple):
    """What another scorer makes of a run."""

    before: str
    """Version of the scorer that judged it."""
    after: str
    trials: list[Trial]
    """With their new outcomes."""
    flips: list[Flip]
    left: int
    """Trials that stay as they were judged: something was redacted from their answers."""


def rescore(folder: RunFolder) -> Rescoring:
    """Score every answer of a complete run anew.

    Raises as :meth:`RunFolder.verify`, and RefusedError where the answers were not kept.
    """
    manifest = folder.verify()
    old = folder.trials()
    if any(trial.answer in (NOT_KEPT, REMOVED) for trial in old):
        raise RefusedError(
            f"{folder.path} holds no answers to judge anew: they were not kept, or their time is over; ask the model "
            "again with --answers redact"
        )
    left = [trial for trial in old if is_redacted(trial.answer)]
    new = [_judged(trial) for trial in old]
    flips = [
        Flip(trial_id=a.trial_id, before=str(a.outcome), after=str(b.outcome))
        for a, b in zip(old, new, strict=True)
        if a.outcome is not b.outcome
    ]
    return Rescoring(manifest.versions.get("scorer", "1"), SCORER_VERSION, new, flips, len(left))


def write_rescored(folder: RunFolder, made: Rescoring, out: Path) -> RunFolder:
    """Write ``made`` as a run of its own, which names the one it was made of.

    Raises RefusedError (``out`` is that run), MismatchError (``out`` holds a run) and StorageError.
    """
    if out.resolve() == folder.path.resolve():
        raise RefusedError(f"--out {out} is the run itself, whose first verdicts must stay; choose another folder")
    kept = folder.manifest()
    contexts: dict[tuple[int, int], list[Context]] = defaultdict(list)
    trials: dict[tuple[int, int], list[Trial]] = defaultdict(list)
    for context in folder.contexts():
        contexts[context.seed, context.stream].append(context)
    for trial in made.trials:
        trials[trial.seed, trial.stream].append(trial)
    manifest = _manifest(kept, made)
    new = RunFolder.create(out, manifest)
    with new.exclusive():
        for place, own in trials.items():
            new.write_part(*place, contexts[place], own)
        new.finish(manifest, folder.counters())
    return new


def _judged(trial: Trial) -> Trial:
    # An error is no answer, whatever its text; what a mark stands for may have been a second value; guards are judged
    # by their own metric.
    if trial.outcome is Outcome.ERROR or is_redacted(trial.answer) or trial.scorer == GUARD_SCORER:
        return trial
    outcome = score(trial.answer, trial.finish_reason, trial.expected, trial.scorer)
    return dataclasses.replace(trial, outcome=outcome)


def _manifest(kept: Manifest, made: Rescoring) -> Manifest:
    origin = Rescored(
        run_id=kept.run_id,
        scorer=made.before,
        trials_sha256=kept.files["trials.parquet"],
        flips=made.flips,
        left=made.left,
        at=now(),
    )
    # The same answers judged by the same scorer are the same run, however often that is done.
    named = hashlib.sha256(f"{kept.run_id} {made.after}".encode()).hexdigest()
    return kept.model_copy(
        update={
            "run_id": uuid.UUID(named[:32]).hex,
            "status": "running",
            "files": {},
            "versions": kept.versions | {"scorer": made.after},
            "rescored": origin,
        }
    )
