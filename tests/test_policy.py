"""Policies: what a document may say, what it may not, and the ones that come with evalgate."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from evalgate.errors import ExitCode, InvalidDocumentError, TamperedError, UnknownNameError
from evalgate.gates.policy import Policy, library, load_policy, template
from evalgate.gates.policy_changes import policy_changes
from evalgate.gates.power import expected_haystacks, power
from evalgate.records import Cell
from evalgate.release import Kind, lock
from evalgate.stats import breaks_bounds, breaks_max, pass_min
from evalgate.versioned import Library, parse, parse_yaml, read_lock


@pytest.fixture
def body() -> dict[str, Any]:
    """Fields of the serving policy as its YAML states them."""
    return load_policy("serving-default").model_dump(mode="json", by_alias=True)


def own(library: Library) -> Kind[Policy]:
    """Policies of a library of one's own."""
    return Kind(library, Policy, policy_changes, "looser", "tighter")


@pytest.fixture
def own_library(tmp_path: Path) -> Library:
    """A copy of the library that a test may change."""
    shutil.copytree(library().root, tmp_path / "policies")
    return Library("policy", tmp_path / "policies")


@pytest.mark.parametrize(
    ("ref", "suite", "looks", "cells"),
    [
        ("serving-default@1.0.0", "needle@1.0.0", [400], 36),
        ("serving-default@1.1.0", "needle@1.0.0", [100, 200, 400, 800], 36),
        ("demo@1.0.0", "demo@1.0.0", [100], 6),
        ("smoke@1.0.0", "smoke@1.0.0", [2], 9),
    ],
)
def test_shipped_policies(ref: str, suite: str, looks: list[int], cells: int) -> None:
    """Every shipped policy loads, is for one suite, and has the looks and cells that its comments promise."""
    policy = load_policy(ref)

    assert (policy.ref, policy.suite, policy.looks, len(policy.rules)) == (ref, suite, looks, cells)
    assert {rule.min for rule in policy.rules.values()} == {0.90}
    assert policy.alpha.model_dump(by_alias=True) == {
        "pass": 0.05,
        "block": {"absolute": 0.02, "paired": 0.02, "guard": 0.01},
    }


def test_every_shipped_policy_states_every_field() -> None:
    """Nothing in a shipped policy rests on a default that a later version could change."""
    for name in library().names():
        policy = load_policy(name)

        stated = policy.model_dump(mode="json", by_alias=True, exclude_unset=True)
        full = policy.model_dump(mode="json", by_alias=True)
        for rule in full["cells"]:
            del rule["break_margin"]  # null: as baseline.break_margin
        if "evidence" not in stated:
            del full["evidence"]  # only a version that is weaker than the one before it states any
        if "privacy" not in stated:
            del full["privacy"]  # younger than the policy; it decides nothing of a verdict
        assert stated == full


def test_shipped_policies_are_locked() -> None:
    """Every version of every shipped policy has its digest in the lock file."""
    for name in library().names():
        locked = read_lock(library().root / name / "lock.json")

        assert locked == {v: load_policy(f"{name}@{v}").digest for v in library().versions(name)}


def test_promises_in_the_serving_policy() -> None:
    """The counts and costs that its comments give are those that it decides by."""
    policy = load_policy("serving-default")
    row = power(policy)[0]

    assert (row.pass_at, row.block_at) == ((98, 190, 373, 736), (76, 162, 336, 689))
    assert breaks_bounds(policy.looks, policy.baseline.break_margin, policy.alpha.pass_) == (None, 0, 5, 15)
    assert round(expected_haystacks(policy)[0.99]) == 195


def test_promises_in_the_demo_policy() -> None:
    """At 100 seeds the demo passes with 96 correct and 3 breaks, as its comments say."""
    policy = load_policy("demo")

    assert pass_min(policy.looks[0], 0.90, policy.alpha.pass_) == 96
    assert breaks_max(policy.looks[0], policy.baseline.break_margin, policy.alpha.pass_) == 3
    assert breaks_max(policy.looks[0], 0.03, policy.alpha.pass_) == 0


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("cells.0.min", float("nan"), "cells.0.min: Input should be a finite number"),
        ("cells.0.min", float("inf"), "finite"),
        ("cells.0.min", 0, "greater than 0"),
        ("cells.0.min", 1.01, "less than or equal to 1"),
        ("cells.0.min", "0.9", "valid number"),
        ("cells.0.min", True, "valid number"),
        ("cells.0.mni", 0.9, "unknown field; did you mean min"),
        ("cells", [], "at least 1 item"),
        ("cells.0.band", [], "at least 1 item"),
        ("cells.0.task", ["single", "single"], "'single' is given twice"),
        ("cells.0.task", ["Single Needle"], "pattern"),
        ("cells.0.length", [0], "greater than or equal to 1"),
        ("cells.0.tier", "warn", "'primary' or 'guard'"),
        ("cells.0.tier", "guard", "no primary cell"),
        ("cells.0.break_margin", 0, "greater than 0"),
        ("looks", [], "at least 1 item"),
        ("looks", [0], "greater than or equal to 1"),
        ("looks", [100, 100], "looks must ascend"),
        ("looks", [200, 100], "looks must ascend"),
        ("looks", [True], "valid integer"),
        ("looks", ["400"], "valid integer"),
        ("looks", [400.5], "valid integer"),
        ("alpha.pass", 0, "greater than 0"),
        ("alpha.block.paired", float("nan"), "finite"),
        ("alpha.block.pared", 0.02, "unknown field; did you mean paired"),
        ("suite", "needle", "pattern"),
        ("kind", "nightly", "'release' or 'smoke'"),
        ("on_inconclusive", "warn", "kind: smoke"),
        ("on_inconclusive", "pass", "'hold', 'block' or 'warn'"),
        ("baseline.use", "maybe", "'required', 'optional' or 'none'"),
        ("baseline.break_margin", float("nan"), "finite"),
        ("validity.max_error_share", -0.1, "greater than or equal to 0"),
        ("validity.floor", 0, "greater than 0"),
        ("churn_margin", float("nan"), "finite"),
        ("n_guard", 0, "greater than or equal to 1"),
        ("stop_on_block", "yes", "valid boolean"),
        ("schema_version", 2, "less than or equal to 1"),
        ("lookz", [400], "unknown field; did you mean looks"),
    ],
)
def test_impossible_policy_is_refused(body: dict[str, Any], path: str, value: object, message: str) -> None:
    """A field that is unknown or impossible is refused at load with its name and what was found."""
    *parents, field = (int(part) if part.isdigit() else part for part in path.split("."))
    place: Any = body
    for part in parents:
        place = place[part]
    place[field] = value

    with pytest.raises(InvalidDocumentError, match=message) as refused:
        parse(Policy, body, "policy")

    assert refused.value.exit_code is ExitCode.REFUSED


def test_a_cell_may_have_one_rule(body: dict[str, Any]) -> None:
    """Two rules for one cell would leave it to their order which bar holds."""
    body["cells"].append({"task": "single", "length": 1024, "band": "front", "min": 0.5})

    with pytest.raises(InvalidDocumentError, match="single · 1024 · front is given by two rules"):
        parse(Policy, body, "policy")


@pytest.mark.parametrize("field", ["schema_version", "name", "version", "kind", "suite", "looks", "cells"])
def test_missing_field_is_refused(body: dict[str, Any], field: str) -> None:
    """What a policy is for, and what it holds a run to, has no default."""
    del body[field]

    with pytest.raises(InvalidDocumentError, match=f"{field}: required field is missing"):
        parse(Policy, body, "policy")


def test_nan_bar_in_yaml_is_refused(tmp_path: Path) -> None:
    """``min: .nan`` in a file is refused before any run is looked at."""
    path = tmp_path / "mine.yaml"
    path.write_text(template("mine", "demo@1.0.0").replace("min: 0.90", "min: .nan"))

    with pytest.raises(InvalidDocumentError, match="finite"):
        load_policy(str(path))


def test_duplicate_key_is_refused(tmp_path: Path) -> None:
    """A key given twice would silently lose one of the two."""
    path = tmp_path / "mine.yaml"
    path.write_text(template("mine", "demo@1.0.0") + "looks: [5]\n")

    with pytest.raises(InvalidDocumentError, match="'looks' is given twice"):
        load_policy(str(path))


def test_floor_may_be_off_and_scalars_are_lists(body: dict[str, Any]) -> None:
    """``floor: null`` is allowed, and one task, length or band needs no brackets."""
    body["validity"]["floor"] = None
    body["cells"] = [{"task": "single", "length": 1024, "band": "all", "min": 1}]

    policy = parse(Policy, body, "policy")

    assert policy.validity.floor is None
    assert list(policy.rules) == [Cell("single", 1024, "all", "default")]


def test_break_margin_of_a_cell_wins(body: dict[str, Any]) -> None:
    """A margin on the cells overrides the one of the baseline section."""
    body["cells"][0]["break_margin"] = 0.05
    policy = parse(Policy, body, "policy")

    assert policy.margin(policy.cells[0]) == 0.05
    assert load_policy("serving-default").margin(load_policy("serving-default").cells[0]) == 0.03


def test_unknown_policy_offers_the_nearest() -> None:
    """A misspelt name is refused with the names that exist."""
    with pytest.raises(UnknownNameError, match="did you mean serving-default"):
        load_policy("serving-defualt")
    with pytest.raises(UnknownNameError, match=r"no version '9\.9\.9'; known: 1\.0\.0"):
        load_policy("demo@9.9.9")


def test_edited_release_is_tampered(own_library: Library) -> None:
    """A released version whose bar was lowered no longer matches its lock, and cannot be locked anew."""
    path = own_library.root / "demo" / "1.0.0.yaml"
    path.write_text(path.read_text().replace("min: 0.90", "min: 0.80"))

    with pytest.raises(TamperedError, match="changed after its release"):
        own_library.load(Policy, "demo")
    with pytest.raises(TamperedError, match="changed after its release"):
        lock(own(own_library), path)


def test_comments_do_not_change_a_release(own_library: Library) -> None:
    """The digest is over what a document says, not over how it is written."""
    path = own_library.root / "demo" / "1.0.0.yaml"
    path.write_text("# another comment\n" + path.read_text().replace("looks: [100]", "looks:\n  - 100"))

    assert own_library.load(Policy, "demo").digest == load_policy("demo").digest


def test_lock_adds_a_new_version(own_library: Library) -> None:
    """Releasing a version adds its digest and keeps the old one."""
    folder = own_library.root / "demo"
    old = json.loads((folder / "lock.json").read_text())
    text = (folder / "1.0.0.yaml").read_text()
    (folder / "1.1.0.yaml").write_text(text.replace("version: 1.0.0", "version: 1.1.0", 1).replace("0.90", "0.95"))

    lock(own(own_library), folder / "1.1.0.yaml")

    locked = read_lock(folder / "lock.json")
    assert locked == {**old, "1.1.0": own_library.load(Policy, "demo").digest}
    assert own_library.load(Policy, "demo").version == "1.1.0"


def test_template_loads_back() -> None:
    """A new policy needs nothing but its name, speaks of the suite's own cells, and every line of it is valid."""
    text = template("my-team", "needle@1.0.0", tasks=["multikey@8"], lengths=[2048, 4096], bands=["all"])

    policy = parse(Policy, parse_yaml(text, "new"), "new")

    assert (policy.name, policy.suite, policy.validity.floor) == ("my-team", "needle@1.0.0", None)
    assert list(policy.rules) == [Cell("multikey@8", 2048, "all"), Cell("multikey@8", 4096, "all")]
    assert policy.model_fields_set == set(Policy.model_fields)


def test_template_refuses_an_impossible_name() -> None:
    """A name that no document may have is refused when it is asked for, not when it is used."""
    with pytest.raises(InvalidDocumentError, match="name"):
        template("My Team: [x", "needle@1.0.0")
    with pytest.raises(InvalidDocumentError, match="suite"):
        template("mine", "needle")
