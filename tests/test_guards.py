"""Guard cells: lm-eval's tasks under the gate, document by document, on the engine and profile that is judged."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from evalgate.errors import ExitCode, RefusedError, UnsupportedError
from evalgate.runner import RunRequest, prepare
from evalgate.store import RunFolder
from evalgate.tasks.draw import Draw
from evalgate.tasks.phrases import LANGUAGES
from evalgate.tasks.suite import load_suite

Evalgate = Callable[..., Any]
SEEDS = 6
TASKS = {
    "pick": "output_type: multiple_choice\ndoc_to_choice: '{{a}}'\ndoc_to_target: gold\nmetric_list: [{metric: acc}]\n",
    "write": "output_type: generate_until\ndoc_to_target: '{{a[0]}}'\nmetric_list: [{metric: exact_match}]\n"
    "generation_kwargs: {until: ['\\n'], max_gen_toks: 4, do_sample: false}\n",
    "share": "output_type: loglikelihood\ndoc_to_target: '{{a[0]}}'\nmetric_list: [{metric: perplexity}]\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of three tasks over eight documents."""
    draw, phrases = Draw("guards"), LANGUAGES["en"]
    path = tmp_path / "tasks"
    path.mkdir()
    rows = [{"q": phrases.filler(draw) + "\nThe", "a": [" report", " 77"], "gold": i % 2} for i in range(8)]
    (path / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    for name, body in TASKS.items():
        head = f"task: {name}\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {path}/rows.jsonl}}}}\n"
        (path / f"{name}.yaml").write_text(
            head + "test_split: test\ndoc_to_text: '{{q}}'\ntarget_delimiter: ''\n" + body
        )
    return path


@pytest.fixture
def write_suite(folder: Path, tmp_path: Path) -> Callable[..., Path]:
    """``write_suite("pick", metric=...)``: suite ``smoke`` with guards."""

    def write(*tasks: str, **fields: Any) -> Path:
        body = load_suite("smoke").model_dump(mode="json", by_alias=True, exclude_unset=True)
        body |= {"name": "guarded", "lm_eval": {"tasks": list(tasks), "include_path": str(folder)} | fields}
        path = tmp_path / "suite.yaml"
        path.write_text(yaml.safe_dump(body, sort_keys=False))
        return path

    return write


@pytest.mark.filterwarnings("ignore")
def test_documents_are_trials_that_a_policy_judges(
    evalgate: Evalgate, write_suite: Callable[..., Path], tmp_path: Path
) -> None:
    """Each document is asked once, by the task's own metric; a guard cell blocks where it falls."""
    suite, out = write_suite("pick", "write"), tmp_path / "run"
    words = ("run", suite, "--model", "builtin:hybrid", "--seeds")
    ended = evalgate(*words, SEEDS, "--out", out)
    assert ended.code == ExitCode.PASS, ended.err
    run = RunFolder.open(out)
    guards = [trial for trial in run.trials() if trial.task.startswith("lm_eval:")]

    assert run.manifest().packages.keys() == {"lm_eval"}
    assert len(guards) == 2 * SEEDS
    assert len({(trial.task, trial.prompt_sha256) for trial in guards}) == 2 * SEEDS
    for trial in guards:
        assert (trial.band, trial.length, trial.scorer) == ("all", 1024, "lm_eval")
        if trial.task == "lm_eval:pick":
            chosen = max(range(2), key=[logprob for logprob, _ in json.loads(trial.answer)].__getitem__)
            assert (trial.outcome == "correct") == (str(chosen) == trial.expected)
        else:
            assert (trial.outcome == "correct") == (trial.answer == trial.expected)
    assert 0 < sum(trial.outcome == "correct" for trial in guards) < len(guards)
    again = evalgate(*words, 1, "--out", tmp_path / "again")
    assert again.code == ExitCode.PASS
    same = [(t.trial_id, t.prompt_sha256, t.outcome) for t in RunFolder.open(tmp_path / "again").trials()]
    assert set(same) <= {(t.trial_id, t.prompt_sha256, t.outcome) for t in run.trials()}
    policy = tmp_path / "policy.yaml"
    cells = [
        {"task": ["single"], "length": [1024], "band": ["front", "middle", "back"], "min": 0.3},
        {"task": ["lm_eval:pick", "lm_eval:write"], "length": [1024], "band": ["all"], "min": 0.99, "tier": "guard"},
    ]
    rules = {"schema_version": 1, "name": "own", "version": "1.0.0", "kind": "release", "suite": "guarded@1.0.0"}
    validity = {"floor": None}
    policy.write_text(
        yaml.safe_dump(rules | {"looks": [SEEDS], "n_guard": SEEDS, "cells": cells, "validity": validity})
    )
    verdict = json.loads(evalgate("gate", out, "--policy", policy, "--json").out)
    status = {
        (cell["cell"][0] if isinstance(cell["cell"], list) else cell["cell"]["task"]): cell for cell in verdict["cells"]
    }

    assert verdict["status"] == "BLOCK", verdict
    assert status["lm_eval:pick"]["status"] == "BLOCK"
    assert status["single"]["status"] == "PASS"
    assert evalgate("rescore", out, "--json").code == ExitCode.PASS


@pytest.mark.filterwarnings("ignore")
def test_seed_set_and_template_decide_what_is_asked(write_suite: Callable[..., Path]) -> None:
    """Another seed set takes the documents in another order; ``chat`` puts the template around each."""

    def prompts(**asked: Any) -> list[str]:
        bench = prepare(RunRequest(suite=str(suite), model="builtin:hybrid", seeds=8, **asked))
        assert bench.guards is not None
        (stream,) = bench.guards.streams
        return [bench.guards.ask(seed, stream)[1][0].prompt_sha256 for seed in range(8)]

    suite = write_suite("pick")
    plain, other = prompts(), prompts(seed_set="other")
    assert plain != other
    assert set(plain) == set(other)
    suite = write_suite("pick", chat=True)
    assert not set(prompts()) & set(plain)


@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_a_guard_is_refused(
    evalgate: Evalgate, write_suite: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A metric that is no 0 or 1, a task that is not there, too many seeds, a backend without likelihoods."""
    from lm_eval.tasks import TaskManager

    words = ("--model", "builtin:hybrid", "--seeds")
    for tasks, fields, seeds, said in (
        (("share",), {}, 2, "expected 0 or 1"),
        (("pick",), {"metric": "f1"}, 2, "has no metric 'f1'"),
        (("pick",), {}, 9, "the smallest has 8"),
    ):
        ended = evalgate("run", write_suite(*tasks, **fields), *words, seeds, "--out", tmp_path / said)
        assert ended.code == ExitCode.REFUSED, ended
        assert said in ended.err
    # Reading all of lm-eval's own tasks takes a quarter of a minute; what is asked here is none of them anyway.
    own = partial(TaskManager, include_defaults=False)
    monkeypatch.setattr("lm_eval.tasks.TaskManager", lambda include_path, **_: own(include_path=include_path))
    request = RunRequest(suite=str(write_suite("nothing_of_that_name")), model="builtin:hybrid")
    with pytest.raises(RefusedError, match="no single task 'nothing_of_that_name'"):
        prepare(request)
    with pytest.raises(UnsupportedError, match="--backend native only"):
        prepare(RunRequest(suite=str(write_suite("pick")), model="builtin:hybrid", backend="hf"))
