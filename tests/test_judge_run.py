"""Judging run folders: what is read, what is refused, and the verdict that is kept."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import pytest
from fixtures_judged import MakeRun, changed

from evalgate.errors import ExitCode, InvalidRunError, MismatchError, TamperedError
from evalgate.gates.judge_run import asked_profile, gate_run, verdict_name
from evalgate.gates.policy import Policy, load_policy
from evalgate.gates.profile import load_profile, template
from evalgate.gates.verdict import Reason, Status, Verdict
from evalgate.records import Context, Outcome
from evalgate.store import RunFolder

Stored = Callable[..., RunFolder]
# Forty seeds: the fewest tens at which a cell can pass and its break margin of .08 be shown.
POLICY = Policy.model_validate({**load_policy("demo").model_dump(mode="json", by_alias=True), "looks": [40]})


@pytest.fixture
def stored(tmp_path: Path, make_judged_run: MakeRun) -> Stored:
    """``stored(name, without=None, finish=True, **run)``: a synthetic run written through the store."""

    def store(name: str, *, without: str | None = None, finish: bool = True, **run: object) -> RunFolder:
        manifest, trials = make_judged_run(POLICY, run_id=name, **run)
        folder = RunFolder.create(tmp_path / name, manifest.model_copy(update={"status": "running"}))
        kept = sorted((t for t in trials if t.band != without), key=lambda trial: trial.seed)
        for seed, group in groupby(kept, key=lambda trial: trial.seed):
            folder.write_part(seed, 0, [context(seed)], list(group))
        if finish:
            folder.finish(manifest, {"prefilled_tokens": 1})
        return folder

    return store


def context(seed: int) -> Context:
    """The context that all trials of a haystack ask."""
    return Context(
        context_id=f"context-{seed}-1024",
        seed=seed,
        stream=0,
        length=1024,
        context_start=4,
        context_tokens=980,
        needle_spans="[]",
    )


def test_verdict_is_kept_beside_the_run(stored: Stored) -> None:
    """The verdict is returned and written under the policy's name; judging again gives the same bytes."""
    run = stored("run")

    verdict = gate_run(run, POLICY)

    path = run.path / "verdicts" / "demo@1.0.0.json"
    first = path.read_bytes()
    assert verdict.status is Status.PASS
    assert Verdict.model_validate_json(first) == verdict
    assert gate_run(run, POLICY) == verdict
    assert path.read_bytes() == first


def test_verdict_against_a_baseline_has_its_own_name(stored: Stored) -> None:
    """Each baseline has a verdict of its own, so none replaces another."""
    run = stored("run", profile="state-int8", answers={("middle",): {Outcome.WRONG: range(30)}})
    base = stored("base")

    verdict = gate_run(run, POLICY, base)

    assert verdict.status is Status.BLOCK
    assert len(verdict.flips) == 60  # thirty in each of two tasks
    assert [path.name for path in (run.path / "verdicts").iterdir()] == ["demo@1.0.0-base.json"]
    assert not (base.path / "verdicts").exists()


def test_baseline_names_make_file_names(make_judged_run: MakeRun) -> None:
    """A run id that holds a slash cannot lead out of the folder."""
    manifest, _ = make_judged_run(POLICY, run_id="../../etc/x y")

    assert verdict_name(POLICY, manifest) == "demo@1.0.0-.._.._etc_x_y"


def test_edited_results_are_tampered(stored: Stored) -> None:
    """A result file that still parses and is not what the run wrote is TAMPERED: exit 5, no verdict."""
    run, other = stored("run"), stored("other", answers={("middle",): {Outcome.WRONG: range(50)}})
    (other.path / "trials.parquet").write_bytes((run.path / "trials.parquet").read_bytes())

    with pytest.raises(TamperedError) as refused:
        gate_run(other, POLICY)

    assert refused.value.exit_code is ExitCode.TAMPERED
    assert not (other.path / "verdicts").exists()


def test_edited_manifest_is_tampered(stored: Stored) -> None:
    """Fewer planned cells in the manifest would hide a missing one; its own digest tells."""
    run = stored("run")
    path = run.path / "manifest.json"
    body = json.loads(path.read_text())
    body["cells"] = body["cells"][:3]
    path.write_text(json.dumps(body))

    with pytest.raises(TamperedError):
        gate_run(run, POLICY)


def test_tampered_wins_over_everything(stored: Stored) -> None:
    """An edited run is TAMPERED even where it would be an error for another reason too."""
    run = stored("run", without="back")
    (run.path / "trials.parquet").write_bytes((stored("whole").path / "trials.parquet").read_bytes())

    with pytest.raises(TamperedError):
        gate_run(run, POLICY)


def test_tampered_baseline(stored: Stored) -> None:
    """A baseline that was replaced to look worse is found before it is compared with."""
    run, base = stored("run"), stored("base")
    worse = stored("worse", answers={("middle",): {Outcome.WRONG: range(9)}})
    (base.path / "trials.parquet").write_bytes((worse.path / "trials.parquet").read_bytes())

    with pytest.raises(TamperedError):
        gate_run(run, POLICY, base)


@pytest.mark.parametrize("name", ["trials.parquet", "contexts.parquet", "manifest.json"])
def test_missing_file(stored: Stored, name: str) -> None:
    """A run folder that lost a file is an invalid run: exit 4."""
    run = stored("run")
    (run.path / name).unlink()

    with pytest.raises(InvalidRunError) as refused:
        gate_run(run, POLICY)

    assert refused.value.exit_code is ExitCode.ERROR


def test_unfinished_run(stored: Stored) -> None:
    """A run that is still in parts is not judged."""
    run = stored("run", finish=False)

    with pytest.raises(InvalidRunError):
        gate_run(run, POLICY)


def test_missing_band_in_the_folder(stored: Stored) -> None:
    """A complete folder that lacks a whole band is ERROR and names it; the verdict is kept."""
    run = stored("run", without="middle")

    verdict = gate_run(run, POLICY)

    assert (verdict.status, verdict.reason_code) == (Status.ERROR, Reason.MISSING_CELLS)
    assert "no trial of band middle" in verdict.reason
    assert (run.path / "verdicts" / "demo@1.0.0.json").is_file()


def test_profile_that_does_not_come_with_evalgate(tmp_path: Path, stored: Stored) -> None:
    """A profile from a file of the user's is judged from the manifest; another body than recorded is TAMPERED."""
    path = tmp_path / "mine.yaml"
    path.write_text(template("mine"))
    mine = load_profile(str(path))
    body = mine.model_dump(mode="json", exclude_unset=True)
    run = stored("run", finish=False)
    run.finish(run.manifest().model_copy(update={"profile": mine.id, "profile_body": body}), {})
    edited = run.manifest().model_copy(update={"profile_body": body | {"owner": "someone"}})

    assert gate_run(run, POLICY).status is Status.PASS
    with pytest.raises(TamperedError, match="mine"):
        asked_profile(edited)
    with pytest.raises(InvalidRunError, match="not a valid profile"):
        asked_profile(edited.model_copy(update={"profile_body": {}}))


def test_the_judge_starts_light() -> None:
    """Judging imports neither torch, transformers, triton, pandas nor lm_eval."""
    code = (
        "import sys, evalgate.gates.judge_run, evalgate.gates.junit_xml, evalgate.gates.markdown\n"
        "print(sorted({'torch', 'transformers', 'triton', 'pandas', 'lm_eval', 'scipy.stats'} & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert answer.stdout.strip() == "[]"


def test_other_bars_under_the_same_name_replace_no_verdict(stored: Stored) -> None:
    """A policy edited in place does not take the place of the verdict that it was edited after."""
    run = stored("run", answers={("multikey@8", "middle"): {Outcome.WRONG: range(30)}})
    assert gate_run(run, POLICY).status is Status.BLOCK
    lax = changed(POLICY, cells=[rule | {"min": 0.5} for rule in POLICY.model_dump(mode="json")["cells"]])

    with pytest.raises(MismatchError, match="new version"):
        gate_run(run, lax)
    assert gate_run(run, changed(lax, version="1.0.1")).policy.version == "1.0.1"
    assert gate_run(run, POLICY).status is Status.BLOCK
