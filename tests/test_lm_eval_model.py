"""The native engine as an lm-eval model: the numbers of lm-eval's own, and a profile that changes them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evalgate.errors import UnsupportedError
from evalgate.tasks.draw import Draw
from evalgate.tasks.phrases import LANGUAGES

HERE = Path(__file__).parents[1] / "evalgate" / "assets" / "hybrid"


def lines(count: int, name: str) -> str:
    """Some lines of the grammar, which the embedded models were trained on."""
    draw = Draw("lm-eval", name)
    return "\n".join(LANGUAGES["en"].filler(draw) for _ in range(count))


@pytest.fixture(scope="module")
def requests() -> dict[str, list[tuple[Any, ...]]]:
    """Requests of each kind: contexts of none, few and many tokens, shared and not, with blanks at their ends."""
    from lm_eval.api.instance import Instance

    long = lines(30, "long")
    pairs = [
        (long, " The"),
        (long, " 123456"),
        (lines(3, "short"), "\nThe harbour"),
        ("", "The report"),
        ("A ", "note"),
    ]
    texts = [long, "The report."]
    asked = [(long + "\n", {"until": ["\n"], "max_gen_toks": 12}), (lines(2, "few"), {"until": [], "max_gen_toks": 6})]

    def instances(kind: str, arguments: list[Any]) -> list[Any]:
        return [Instance(kind, {}, one if isinstance(one, tuple) else (one,), i) for i, one in enumerate(arguments)]

    return {
        "loglikelihood": instances("loglikelihood", pairs),
        "loglikelihood_rolling": instances("loglikelihood_rolling", texts),
        "generate_until": instances("generate_until", asked),
    }


@pytest.fixture(scope="module")
def ours() -> Any:
    """The engine, uncompressed."""
    from evalgate.lm_eval_tasks.model import EvalgateLM

    return EvalgateLM(pretrained="builtin:hybrid", max_length=2048)


@pytest.mark.filterwarnings("ignore")
def test_the_numbers_are_those_of_hf(ours: Any, requests: dict[str, Any]) -> None:
    """Likelihoods to a thousandth, the same greedy marks, the same texts."""
    from lm_eval.models.huggingface import HFLM

    theirs = HFLM(pretrained=str(HERE), dtype="float32", device="cpu", max_length=2048, batch_size=1)
    own, other = (lm.loglikelihood(requests["loglikelihood"]) for lm in (ours, theirs))
    assert [value for value, _ in own] == pytest.approx([value for value, _ in other], abs=1e-3)
    assert [bool(greedy) for _, greedy in own] == [bool(greedy) for _, greedy in other]
    rolled = [lm.loglikelihood_rolling(requests["loglikelihood_rolling"]) for lm in (ours, theirs)]
    assert rolled[0] == pytest.approx(rolled[1], abs=1e-2)
    said = [lm.generate_until(requests["generate_until"]) for lm in (ours, theirs)]
    assert said[0] == said[1]
    messages = [{"role": "user", "content": "What?"}]
    assert ours.apply_chat_template(messages) == theirs.apply_chat_template(messages)


def test_a_profile_acts_and_what_is_shared_changes_nothing(ours: Any, requests: dict[str, Any]) -> None:
    """Under a rank the likelihoods of long contexts differ and those of short ones do not; alone is as together."""
    from evalgate.lm_eval_tasks.model import EvalgateLM

    asked = requests["loglikelihood"]
    cut = EvalgateLM(pretrained="builtin:hybrid", profile="state-rank-1", max_length=2048)
    full, compressed = ours.loglikelihood(asked), cut.loglikelihood(asked)
    alone = [ours.loglikelihood([one])[0] for one in asked]

    assert abs(full[0][0] - compressed[0][0]) > 1e-4
    assert full[3][0] == pytest.approx(compressed[3][0], abs=1e-5)
    assert [value for value, _ in alone] == pytest.approx([value for value, _ in full], abs=1e-4)


@pytest.mark.parametrize("profile", ["full", "state-rank-2"])
def test_answers_side_by_side_are_those_alone(profile: str) -> None:
    """Twenty prompts over one long beginning, two kinds of settings in turns: the texts of each alone, in their order.

    What they begin with alike is taken in once.
    """
    from lm_eval.api.instance import Instance

    from evalgate.lm_eval_tasks.model import EvalgateLM

    shots = lines(40, "shots")
    kinds = [{"until": ["\n"], "max_gen_toks": 8}, {"until": [], "max_gen_toks": 5}]
    asked = [
        Instance("generate_until", {}, (f"{shots}\n{lines(1, str(i))}\nThe", dict(kinds[i % 2])), i) for i in range(20)
    ]
    together, alone = (EvalgateLM(pretrained="builtin:hybrid", profile=profile, max_length=2048) for _ in range(2))
    texts = together.generate_until(asked)

    assert texts == [alone.generate_until([one])[0] for one in asked]
    assert len(set(texts)) > 3
    shared = len(together.tok_encode(shots)) // 64 * 64
    assert together._native.counters()["engine.prefix.tokens_reused"] >= 16 * shared


def test_what_it_cannot_do_is_refused(ours: Any) -> None:
    """Sampling, unknown settings, no model."""
    from lm_eval.api.instance import Instance

    from evalgate.lm_eval_tasks.model import EvalgateLM

    with pytest.raises(UnsupportedError, match="answers greedily"):
        ours.generate_until([Instance("generate_until", {}, ("A", {"temperature": 0.7}), 0)])
    with pytest.raises(UnsupportedError, match="no setting 'tensor_parallel'"):
        EvalgateLM(pretrained="builtin:hybrid", tensor_parallel=2)
    with pytest.raises(UnsupportedError, match="pretrained=MODEL"):
        EvalgateLM()


def test_lm_eval_runs_it_by_name(tmp_path: Path) -> None:
    """A task of the user's own, by lm-eval's command line, with nothing from the network."""
    rows = [{"q": f"{lines(2, str(i))}\nThe", "a": [" harbour", " 7"], "gold": i % 2} for i in range(4)]
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    (tmp_path / "own.yaml").write_text(
        "task: own\ndataset_path: json\n"
        f"dataset_kwargs: {{data_files: {{test: {tmp_path}/rows.jsonl}}}}\n"
        "output_type: multiple_choice\ntest_split: test\ndoc_to_text: '{{q}}'\ndoc_to_target: gold\n"
        "doc_to_choice: '{{a}}'\ntarget_delimiter: ''\nmetric_list: [{metric: acc}]\n"
    )
    command = [
        *(sys.executable, "-m", "evalgate.lm_eval_tasks", "--model", "evalgate", "--tasks", "own"),
        *("--model_args", "pretrained=builtin:hybrid,profile=state-int8,max_length=1024"),
        *("--include_path", str(tmp_path), "--output_path", str(tmp_path / "out")),
    ]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)

    assert done.returncode == 0, done.stderr[-3000:]
    (written,) = (tmp_path / "out").rglob("results_*.json")
    assert 0.0 <= json.loads(written.read_text())["results"]["own"]["acc,none"] <= 1.0
