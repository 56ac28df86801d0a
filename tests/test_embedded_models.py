"""The embedded models: genuine, small, and each able to do what it is there to show."""

from __future__ import annotations

from pathlib import Path

import pytest

from evalgate.backends.models import builtin_models
from evalgate.records import Outcome
from evalgate.runner import RunRequest, prepare, run_suite

MOST_BYTES = 12_000_000
"""Of everything under ``assets`` but the model of another kind."""
GDN_BYTES = 3_000_000
BACKENDS = {"gdn-hybrid": "hf"}
"""Which backend asks a model; ``native`` all others."""


def test_all_of_them_take_little_room(repository: Path) -> None:
    """Everything under ``assets``; they travel in the wheel."""
    files = [path for path in (repository / "evalgate" / "assets").rglob("*") if path.is_file()]
    gdn = sum(path.stat().st_size for path in files if path.parent.name == "gdn-hybrid")

    assert gdn <= GDN_BYTES
    assert sum(path.stat().st_size for path in files) - gdn <= MOST_BYTES
    assert builtin_models() == ["gdn-hybrid", "hybrid", "hybrid-small-state", "kda-only", "mostly-attention"]


def test_they_share_one_tokenizer(repository: Path) -> None:
    """The same bytes, so that runs of two of them are asked the same prompts."""
    folders = [repository / "evalgate" / "assets" / name for name in builtin_models()]

    assert len({(folder / "tokenizer.json").read_bytes() for folder in folders}) == 1
    assert len({(folder / "chat_template.jinja").read_bytes() for folder in folders}) == 1


@pytest.mark.parametrize("name", builtin_models())
def test_it_retrieves(name: str, tmp_path: Path) -> None:
    """Lone needles and one of eight, uncompressed; two answers of eighteen may be lost."""
    backend = BACKENDS.get(name, "native")
    asked = RunRequest(suite="demo", model=f"builtin:{name}", backend=backend, seeds=3, seed_set="tests")
    run = run_suite(prepare(asked), tmp_path)

    assert sum(trial.outcome is Outcome.CORRECT for trial in run.trials()) >= 16


def test_states_and_caches_are_what_they_are_called() -> None:
    """The small state is an eighth of the other or less; without attention there is no cache that grows."""
    held = {
        name: prepare(RunRequest(suite="demo", model=f"builtin:{name}", seeds=1)).backend.engine_id(1024, ("default",))
        for name in ("hybrid", "hybrid-small-state", "kda-only")
    }
    sizes = {name: engine.bytes_per_session for name, engine in held.items()}

    assert 8 * sizes["hybrid-small-state"]["state"] <= sizes["hybrid"]["state"]
    assert sizes["kda-only"]["kv"] == 0 < sizes["hybrid"]["kv"]
    assert sizes["kda-only"]["state"] == sizes["hybrid"]["state"]
