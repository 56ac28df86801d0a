"""The suites as lm-eval tasks: by its own command, offline, and trial by trial as `evalgate run` has it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evalgate.errors import ExitCode, RefusedError, UnsupportedError
from evalgate.records import Outcome
from evalgate.store import RunFolder
from evalgate.tasks.suite import LIBRARY, load_suite

Evalgate = Callable[..., Any]
SEEDS = 2
CHANGES = {"tasks": ["single", "multivalue@2"], "decoding": {"max_tokens": 24, "temperature": 0}}


@pytest.fixture(scope="module")
def evaluated(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `lm_eval` writes of suite ``smoke`` with a task that the model half knows."""
    out = tmp_path_factory.mktemp("lm_eval")
    found = subprocess.run([sys.executable, "-m", "evalgate.lm_eval_tasks"], capture_output=True, text=True, check=True)
    model = repository / "evalgate" / "assets" / "hybrid"
    asked = {"seeds": SEEDS, "seed_set": "lm"} | CHANGES
    command = [
        *(sys.executable, "-m", "lm_eval", "--model", "hf", "--device", "cpu", "--apply_chat_template"),
        *("--model_args", f"pretrained={model},dtype=float32,max_length=8192", "--log_samples"),
        *("--include_path", found.stdout.strip(), "--tasks", "evalgate_smoke"),
        *("--metadata", json.dumps(asked), "--output_path", str(out)),
    ]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=out)
    assert done.returncode == 0, done.stderr[-3000:]
    return out


def test_it_agrees_with_evalgate_trial_by_trial(evalgate: Evalgate, evaluated: Path, tmp_path: Path) -> None:
    """Same prompts, same answers, same outcomes, on the same checkpoint; some right and some wrong."""
    suite = tmp_path / "suite.yaml"
    body = load_suite("smoke").model_dump(mode="json", by_alias=True, exclude_unset=True)
    suite.write_text(json.dumps(body | CHANGES))
    words = ("--model", "builtin:hybrid", "--seeds", SEEDS, "--seed-set", "lm", "--out", tmp_path / "run")
    assert evalgate("run", suite, *words, "--answers", "keep").code == ExitCode.PASS
    ours = {trial.trial_id: trial for trial in RunFolder.open(tmp_path / "run").trials()}
    (log,) = evaluated.rglob("samples_*.jsonl")
    theirs = {row["doc"]["trial_id"]: row for row in map(json.loads, log.read_text().splitlines())}

    assert theirs.keys() == ours.keys()
    for name, row in theirs.items():
        assert row["doc"]["prompt_sha256"] == ours[name].prompt_sha256
        assert row["resps"][0][0] == ours[name].answer
        assert (row["recall"] == 1.0) == (ours[name].outcome is Outcome.CORRECT)
    assert 0 < sum(row["recall"] for row in theirs.values()) < len(theirs)


def test_bands_and_cells_have_errors_that_are_not_zero(evaluated: Path) -> None:
    """Per band and per cell, also where all answers are right."""
    (written,) = evaluated.rglob("results_*.json")
    results = json.loads(written.read_text())["results"]["evalgate_smoke"]

    for name in ("recall", "front", "middle", "back", "single/1024/front", "multivalue@2/1024/back"):
        assert 0.0 <= results[f"{name},none"] <= 1.0
        assert 0.0 < results[f"{name}_stderr,none"] < 0.5
    cells = {
        name: value for name, value in results.items() if "/" in name and name.endswith(("front,none", "back,none"))
    }
    assert 1.0 in cells.values(), cells


def test_every_suite_is_a_task() -> None:
    """By name, with nothing read from the network; what cannot be asked this way is refused."""
    from lm_eval.tasks import TaskManager

    from evalgate.lm_eval_tasks import path
    from evalgate.lm_eval_tasks.recall import Recall

    known = TaskManager(include_path=path(), include_defaults=False).all_tasks
    assert set(known) == {f"evalgate_{name}" for name in LIBRARY.names()}
    with pytest.raises(RefusedError, match="--model_args pretrained=MODEL"):
        Recall({"task": "evalgate_smoke", "metadata": {}})
    with pytest.raises(UnsupportedError, match="arm 'warm'"):
        Recall({"task": "evalgate_smoke", "metadata": {"arms": ["warm"], "pretrained": "builtin:hybrid"}})
    task = Recall({"task": "evalgate_smoke", "metadata": {"pretrained": "builtin:hybrid", "seeds": 1}})
    for asked, words in (((0,), "add --apply_chat_template"), ((2,), "a suite has no examples")):
        with pytest.raises(RefusedError, match=words):
            task.fewshot_context(task.test_docs()[0], *asked)
