"""Running a suite on an embedded model: whole, resumable, the same through either backend, refused before it starts."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from evalgate.errors import (
    DoesNotFitError,
    InvalidDocumentError,
    InvalidRunError,
    MismatchError,
    RefusedError,
    StorageError,
    TamperedError,
    UnknownNameError,
    UnsupportedError,
)
from evalgate.records import Outcome, Trial
from evalgate.runner import RunRequest, make_plan, prepare, run_suite
from evalgate.store import RunFolder
from evalgate.tasks.suite import load_suite

REQUEST = RunRequest(suite="smoke", model="builtin:hybrid", seeds=2, seed_set="tests")
MEASURED = ("latency_s",)


def known(trials: list[Trial]) -> list[dict[str, Any]]:
    """Trials without what a clock measured."""
    return [{k: v for k, v in dataclasses.asdict(trial).items() if k not in MEASURED} for trial in trials]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A complete two-seed smoke run on the native engine."""
    return run_suite(prepare(REQUEST), tmp_path_factory.mktemp("runs") / "smoke")


def suite_file(tmp_path: Path, **fields: Any) -> str:
    """A smoke suite with other fields, as a file."""
    body = load_suite("smoke").model_dump(by_alias=True, mode="json", exclude_unset=True) | {"name": "mine"} | fields
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(body), encoding="utf-8")
    return str(path)


def test_a_run_holds_every_cell_once_per_seed(finished: RunFolder) -> None:
    """Trials are exactly the planned cells times the seeds, and the manifest says so."""
    manifest, trials = finished.verify(), finished.trials()
    cells = {(*trial.cell,) for trial in trials}

    assert manifest.status == "complete"
    assert cells == set(manifest.cells)
    assert len(trials) == len(manifest.cells) * 2 == len({trial.trial_id for trial in trials})
    assert all(trial.prompt_tokens + 12 <= trial.length for trial in trials)
    assert all(trial.outcome is not Outcome.ERROR for trial in trials)
    batches: dict[str, list[int]] = {}
    for trial in trials:
        batches.setdefault(trial.batch_id, []).append(trial.batch_row)
    assert all(sorted(rows) == list(range(len(rows))) for rows in batches.values())
    assert max(len(rows) for rows in batches.values()) > 1


def test_contexts_name_every_needle(finished: RunFolder) -> None:
    """Each trial's context is there, with the trial's needle among its spans."""
    import json

    contexts = {context.context_id: json.loads(context.needle_spans) for context in finished.contexts()}

    for trial in finished.trials():
        spans = contexts[trial.context_id]
        assert [trial.needle_start, trial.needle_end] in [span[:2] for span in spans]
        assert len(spans) == trial.facts_in_context


def test_a_finished_run_is_returned_as_it_is(finished: RunFolder) -> None:
    """The same command again asks nothing and changes nothing."""
    before = (finished.path / "trials.parquet").read_bytes()
    again = run_suite(prepare(REQUEST), finished.path)

    assert (again.path / "trials.parquet").read_bytes() == before


@pytest.mark.parametrize(
    "change",
    [{"suite": "demo"}, {"profile": "state-bf16"}, {"seeds": 3}, {"seed_set": "other"}, {"dtype": "bf16"}],
    ids=lambda change: next(iter(change)),
)
def test_another_run_never_mixes_in(finished: RunFolder, change: dict[str, Any]) -> None:
    """A folder that holds another run is refused and left as it was."""
    before = (finished.path / "manifest.json").read_bytes()

    with pytest.raises(MismatchError, match="another"):
        run_suite(prepare(dataclasses.replace(REQUEST, **change)), finished.path)
    assert (finished.path / "manifest.json").read_bytes() == before


def test_either_backend_gives_the_same_answers(finished: RunFolder, tmp_path: Path) -> None:
    """transformers, prompt by prompt, agrees with the engine's forks answer for answer."""
    other = run_suite(prepare(dataclasses.replace(REQUEST, backend="hf", seeds=1)), tmp_path / "hf")
    ours = {trial.trial_id: trial for trial in finished.trials()}

    assert other.manifest().engine.arm_paths == {"default": "fork"}
    for trial in other.trials():
        assert (trial.answer, trial.prompt_sha256, trial.outcome) == (
            ours[trial.trial_id].answer,
            ours[trial.trial_id].prompt_sha256,
            ours[trial.trial_id].outcome,
        )


def test_a_killed_run_goes_on(finished: RunFolder, tmp_path: Path) -> None:
    """Kill -9 in the middle: what was committed is kept, and the resumed run equals one that was never killed."""
    out = tmp_path / "killed"
    command = [sys.executable, "-m", "evalgate", "run", "smoke", "--model", "builtin:hybrid", "--seeds", "2"]
    command += ["--seed-set", "tests", "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list(out.glob("parts/*.parquet")) and process.poll() is None:
        assert time.monotonic() < deadline, "no haystack was committed"
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = len(list(out.glob("parts/*.parquet")))

    with pytest.raises(InvalidRunError, match="interrupted"):
        RunFolder.open(out).verify()
    resumed = subprocess.run(command, capture_output=True, text=True, check=True)

    assert 1 <= kept < 4, "the process was killed too late to test anything"
    assert "18 trials" in resumed.stdout
    assert known(RunFolder.open(out).trials()) == known(finished.trials())


def test_a_run_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    """An output folder that cannot be made is a storage error before anything is asked."""
    (tmp_path / "file").write_text("in the way", encoding="utf-8")

    with pytest.raises(StorageError, match="file"):
        run_suite(prepare(REQUEST), tmp_path / "file" / "run")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"suite": "smok"}, UnknownNameError, "did you mean smoke"),
        ({"profile": "state-int9"}, UnknownNameError, "state-int"),
        ({"model": "builtin:hybird"}, UnknownNameError, "hybrid"),
        ({"backend": "natve"}, UnknownNameError, "native"),
        ({"suite": "smoke@9.9.9"}, UnknownNameError, "no version"),
        ({"backend": "hf", "profile": "state-int8"}, UnsupportedError, "state"),
        ({"seed_set": "train"}, RefusedError, "reserved"),
    ],
    ids=str,
)
def test_wrong_requests_are_refused_before_the_first_token(
    change: dict[str, Any], error: type[Exception], message: str
) -> None:
    """Unknown names offer the nearest ones; what a backend cannot do is refused, never ignored."""
    with pytest.raises(error, match=message):
        prepare(dataclasses.replace(REQUEST, **change))


@pytest.mark.parametrize("seeds", [0, -1])
def test_a_run_needs_a_seed(seeds: int) -> None:
    """Nothing is not a run."""
    with pytest.raises(RefusedError, match="at least 1"):
        dataclasses.replace(REQUEST, seeds=seeds)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"lengths": [2097152]}, DoesNotFitError, "1,?048,?576|window"),
        ({"lengths": [128]}, DoesNotFitError, "shortest length that fits"),
        ({"lengths": [2048, 1024]}, InvalidDocumentError, "ascend"),
        ({"lengths": []}, InvalidDocumentError, "lengths"),
        ({"tasks": ["singel"]}, InvalidDocumentError, "single"),
        ({"tasks": ["multikey"]}, InvalidDocumentError, "rung"),
        ({"tasks": ["single", "single"]}, InvalidDocumentError, "twice"),
        ({"bands": {"front": [0, 0.5], "back": [0.6, 1]}}, InvalidDocumentError, "tile"),
        ({"arms": ["load"]}, UnsupportedError, "load"),
        ({"arms": ["default", "load"]}, UnsupportedError, "load"),
        ({"lenghts": [1024]}, InvalidDocumentError, "did you mean lengths"),
        ({"decoding": {"max_tokens": 12, "temperature": 0.7}}, InvalidDocumentError, "temperature"),
    ],
    ids=str,
)
def test_impossible_suites_are_refused(
    fields: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    """Each fault of a suite is named before a token is spent."""
    with pytest.raises(error, match=message):
        prepare(dataclasses.replace(REQUEST, suite=suite_file(tmp_path, **fields)))


def test_an_edited_release_is_tampered(tmp_path: Path, repository: Path) -> None:
    """A released suite that was changed in place is not run."""
    folder = tmp_path / "smoke"
    folder.mkdir()
    source = repository / "tasks" / "suites" / "smoke"
    text = (source / "1.0.0.yaml").read_text(encoding="utf-8").replace("0.20", "0.25")
    (folder / "1.0.0.yaml").write_text(text, encoding="utf-8")
    (folder / "lock.json").write_bytes((source / "lock.json").read_bytes())

    with pytest.raises(TamperedError, match=r"smoke@1\.0\.0"):
        prepare(dataclasses.replace(REQUEST, suite=str(folder / "1.0.0.yaml")))


def test_the_plan_bounds_what_a_run_takes(finished: RunFolder) -> None:
    """Planned tokens are no fewer than those that the run took in, and not much more."""
    plan = make_plan(prepare(REQUEST))
    counters = finished.counters()
    taken = counters["prefilled_tokens"] + counters["fork_tokens"] + counters["decoded_tokens"]

    assert 0.75 * plan.tokens < taken <= plan.tokens
    assert plan.trials == len(finished.trials())
    assert plan.saving > 2


def test_arms_of_a_suite_are_cells_of_their_own_and_agree(tmp_path: Path) -> None:
    """The same questions by every way that the engine has: a trial in each arm's cell, the same answers, as planned."""
    arms = ["default", "cold", "chunked", "warm", "resumed"]
    bench = prepare(dataclasses.replace(REQUEST, suite=suite_file(tmp_path, arms=arms), seeds=1))
    folder = run_suite(bench, tmp_path / "run")

    by_arm: dict[str, dict[tuple[Any, ...], str]] = {arm: {} for arm in arms}
    for trial in folder.trials():
        by_arm[trial.arm][trial.task, trial.length, trial.band] = trial.answer
        assert trial.outcome != Outcome.ERROR
        assert (trial.cached_tokens > 0) == (trial.arm in {"default", "warm"})
    assert all(answers == by_arm["default"] for answers in by_arm.values())
    counters, plan = folder.counters(), make_plan(bench)
    assert counters["prefilled_tokens"] + counters["fork_tokens"] <= plan.tokens
    assert counters["engine.preemptions.asked"] >= len(by_arm["resumed"])
    assert folder.manifest().engine.arm_paths["resumed"] == "preempted-twice"


@pytest.mark.parametrize("backend", ["native", "hf"])
def test_questions_alone_and_in_a_conversation(backend: str, tmp_path: Path) -> None:
    """Arms that change the prompt: the same questions on a needle alone, and after others in one conversation."""
    arms = ["default", "isolated", "turns"]
    suite = suite_file(tmp_path, arms=arms, tasks=["single", "multikey@8"])
    bench = prepare(dataclasses.replace(REQUEST, suite=suite, seeds=1, backend=backend))
    trials = run_suite(bench, tmp_path / "run").trials()
    by_arm = {arm: {t.cell._replace(arm="default"): t for t in trials if t.arm == arm} for arm in arms}

    assert by_arm["default"].keys() == by_arm["isolated"].keys() == by_arm["turns"].keys()
    assert all(trial.outcome is Outcome.CORRECT for trial in trials)
    assert {t.facts_in_context for t in by_arm["isolated"].values()} == {1}
    for cell, trial in by_arm["turns"].items():
        alone, plain = by_arm["isolated"][cell], by_arm["default"][cell]
        assert (trial.expected, trial.depth) == (plain.expected, plain.depth)
        assert trial.prompt_tokens >= plain.prompt_tokens
        assert alone.context_id != plain.context_id
    asked_last = max(by_arm["turns"].values(), key=lambda trial: trial.prompt_tokens)
    assert asked_last.prompt_tokens > by_arm["default"][asked_last.cell._replace(arm="default")].prompt_tokens + 60


def test_progress_is_told(tmp_path: Path) -> None:
    """The last word of a run's progress is that all is done."""
    told: list[Any] = []
    run_suite(prepare(dataclasses.replace(REQUEST, seeds=1)), tmp_path / "run", told.append)

    assert [state.done for state in told] == list(range(told[-1].total + 1))
    assert told[-1].tokens > 0


@pytest.mark.parametrize("profile", ["state-int8", "state-rank-1", "kv-keep-90", "kv-window-512"])
def test_a_profile_is_in_force(profile: str, finished: RunFolder, tmp_path: Path, gate: Callable[..., Any]) -> None:
    """Asked settings come back as effective ones, and the gate accepts them."""
    run = run_suite(prepare(dataclasses.replace(REQUEST, profile=profile)), tmp_path / profile)

    assert run.manifest().engine.bytes_per_session != finished.manifest().engine.bytes_per_session
    assert gate(run, "smoke").exit_code == 0


@pytest.fixture
def gate() -> Callable[..., Any]:
    """Judge a run folder under a policy by name."""
    from evalgate.gates.judge_run import gate_run
    from evalgate.gates.policy import load_policy

    return lambda run, policy: gate_run(run, load_policy(policy))


def test_interrupting_leaves_a_run_that_goes_on(tmp_path: Path) -> None:
    """Ctrl-C exits 130 and says how to go on; no traceback."""
    out = tmp_path / "run"
    command = [sys.executable, "-m", "evalgate", "run", "smoke", "--model", "builtin:hybrid", "--seeds", "50"]
    process = subprocess.Popen(
        [*command, "--out", str(out)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ}
    )
    deadline = time.monotonic() + 120
    while not list(out.glob("parts/*.parquet")) and process.poll() is None:
        assert time.monotonic() < deadline, "no haystack was committed"
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)

    assert process.returncode == 130
    assert "resumes" in stderr
    assert "Traceback" not in stderr


def test_a_prompt_of_another_length_is_an_error() -> None:
    """An answer to a prompt that was cut on the way is neither right nor wrong."""
    from evalgate.runner.run import ask_haystack

    bench = prepare(REQUEST)
    stream = bench.source.streams[0]
    answer = bench.backend.answer

    class Cutting:
        tokenizer = bench.backend.tokenizer

        def answer(self, group: Any) -> list[Any]:
            return [one._replace(prompt_tokens=one.prompt_tokens - (i == 0)) for i, one in enumerate(answer(group))]

    cutting = dataclasses.replace(bench, backend=Cutting())  # type: ignore[arg-type]  # the two parts that asking needs
    first, *others = ask_haystack(cutting, bench.source.build(0, stream), stream)

    assert (first.outcome, first.error) == (Outcome.ERROR, "tokens-off-plan")
    assert {(trial.outcome is Outcome.ERROR, trial.error) for trial in others} == {(False, "")}
