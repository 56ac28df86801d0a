"""Versions of documents: what changed is named, and a weaker one is locked only with an approval on evidence."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from evalgate.errors import ExitCode
from evalgate.gates import policy as policies
from evalgate.gates import profile as profiles
from evalgate.gates.policy import Policy, load_policy
from evalgate.gates.policy_changes import policy_changes
from evalgate.gates.profile import Profile, load_profile
from evalgate.gates.profile_changes import profile_changes
from evalgate.tasks.suite import LIBRARY, Suite, load_suite
from evalgate.tasks.suite_changes import suite_changes

Evalgate = Callable[..., Any]


def altered(document: Any, path: str, value: object) -> Any:
    """The document with another value at ``a.b`` or ``cells.0.min``."""
    body = document.model_dump(mode="json", by_alias=True)
    *parents, last = path.split(".")
    place = body
    for part in parents:
        place = place[int(part) if part.isdigit() else part]
    place[last] = value
    return type(document).model_validate(body)


LOOSER = [
    ("cells.0.min", 0.85, "bar of every cell: 0.9 -> 0.85"),
    ("cells.0.band", ["front", "back"], "no longer judged: middle of every task"),
    ("cells.0.task", ["single"], "no longer judged: task multikey@8 in every band"),
    ("cells.0.break_margin", 0.1, "break margin of every cell: 0.08 -> 0.1"),
    ("baseline.break_margin", 0.1, "break margin of every cell: 0.08 -> 0.1"),
    ("baseline.use", "none", "baseline.use: optional -> none"),
    ("alpha.pass", 0.1, "alpha.pass: 0.05 -> 0.1"),
    ("alpha.block.absolute", 0.01, "alpha.block.absolute: 0.02 -> 0.01"),
    ("alpha.block.paired", 0.01, "alpha.block.paired: 0.02 -> 0.01"),
    ("alpha.block.guard", 0.005, "alpha.block.guard: 0.01 -> 0.005"),
    ("looks", [90], "seeds at the last look: 100 -> 90"),
    ("looks", [50, 100], "seeds at the first look: 100 -> 50"),
    ("n_guard", 40, "n_guard: 60 -> 40"),
    ("churn_margin", 0.02, "churn_margin: 0.01 -> 0.02"),
    ("kind", "smoke", "kind: release -> smoke"),
    ("validity.max_error_share", 0.02, "validity.max_error_share: 0.01 -> 0.02"),
    ("validity.max_truncated_share", 0.05, "validity.max_truncated_share: 0.02 -> 0.05"),
    ("validity.max_empty_share", 0.05, "validity.max_empty_share: 0.02 -> 0.05"),
    ("validity.floor", None, "validity.floor: 0.95 -> null"),
    ("validity.floor", 0.9, "validity.floor: 0.95 -> 0.9"),
    ("validity.require_effective_profile", False, "validity.require_effective_profile: true -> false"),
    ("suite", "smoke@1.0.0", "suite: demo@1.0.0 -> smoke@1.0.0"),
]


@pytest.mark.parametrize(("path", "value", "words"), LOOSER)
def test_every_loosening_is_named_and_its_reverse_tightens(path: str, value: object, words: str) -> None:
    """A field that lets more through is looser one way and, but for another suite, tighter the other way."""
    old = load_policy("demo")
    new = altered(old, path, value)

    looser = [change.words for change in policy_changes(old, new) if change.direction == "weaker"]
    back = {change.direction for change in policy_changes(new, old)}
    assert any(words in told for told in looser), policy_changes(old, new)
    assert "stronger" in back or path == "suite"


@pytest.mark.parametrize(
    ("path", "strict", "loose"),
    [
        ("on_inconclusive", "block", "hold"),
        ("privacy.answers", "drop", "redact"),
        ("privacy.answers", "redact", "keep"),
        ("privacy.keep_days", 7, 30),
        ("privacy.keep_days", 0, None),
        ("privacy.redact", ["PAT-[0-9]+"], []),
        ("baseline.use", "required", "optional"),
    ],
)
def test_softer_words_are_loosenings(path: str, strict: object, loose: object) -> None:
    """Orders of words are known: what holds less, keeps more or asks for no baseline is looser."""
    old, new = altered(load_policy("demo"), path, strict), altered(load_policy("demo"), path, loose)

    assert [change.direction for change in policy_changes(old, new)] == ["weaker"]
    assert [change.direction for change in policy_changes(new, old)] == ["stronger"]


def test_no_field_of_a_policy_is_overlooked() -> None:
    """Every field that a policy can state is either compared or known to demand nothing."""
    demands_nothing = {"schema_version", "name", "version", "owner", "reason", "approver", "evidence"}
    compared = {path.split(".")[0] for path, _, _ in LOOSER} | {"on_inconclusive", "privacy", "stop_on_block"}

    assert set(Policy.model_fields) == demands_nothing | {name.rstrip("_") for name in compared}
    for section in ("validity", "privacy", "baseline"):
        fields = set(type(getattr(load_policy("demo"), section)).model_fields)
        tried = {path.split(".")[1] for path, _, _ in LOOSER if path.startswith(section)}
        assert fields == tried | ({"answers", "keep_days", "redact"} if section == "privacy" else set())


def test_lower_tier_and_moved_bars_are_told_cell_by_cell() -> None:
    """Primary to guard is looser; a bar that moves in one band is named by that band."""
    old = load_policy("demo")
    rule = old.cells[0].model_dump(mode="json")
    split = [rule | {"band": ["front", "back"]}, rule | {"band": ["middle"], "min": 0.8, "tier": "guard"}]
    told = [change.words for change in policy_changes(old, altered(old, "cells", split))]

    assert told == ["bar of middle of every task: 0.9 -> 0.8", "tier of middle of every task: primary -> guard"]


def test_same_policies_differ_in_nothing() -> None:
    """Two writings of one policy, and two versions that differ only in words, have no change."""
    old = load_policy("demo")

    assert policy_changes(old, altered(old, "reason", "said better")) == []


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("full", "state-bf16", ["state.dtype: fp32 -> bf16"]),
        ("state-int8", "state-int4", ["state.dtype: int8 -> int4"]),
        ("state-rank-8", "state-rank-4", ["state.rank: 8 -> 4"]),
        ("full", "state-rank-1", ["state.rank: null -> 1"]),
        ("kv-keep-90", "kv-keep-50", ["kv.keep: 0.9 -> 0.5"]),
        ("full", "kv-window-512", ["kv.window: null -> 512"]),
        ("full", "snapshot-int8", ["snapshot.dtype: fp32 -> int8"]),
        ("kv-int8", "kv-fp8", ["kv.dtype: int8 -> fp8"]),
        ("state-int8-feedback", "state-int8", ["state.error_feedback: true -> false"]),
    ],
)
def test_harsher_profiles_are_told(old: str, new: str, words: list[str]) -> None:
    """What keeps less or rounds more is harsher, and what cannot be ordered counts as harsher."""
    told = [change.words for change in profile_changes(load_profile(old), load_profile(new))]
    back = [change.direction for change in profile_changes(load_profile(new), load_profile(old))]

    assert [one for one in told if one in words] == words
    assert profile_changes(load_profile(old), load_profile(new))[0].direction == "weaker"
    assert ("weaker" in back) is (old == "kv-int8")


@pytest.mark.parametrize(
    ("path", "value", "direction"),
    [
        ("state.codec_every", 64, "stronger"),
        ("cache.snapshot_interval", 4096, "other"),
        ("cache.eviction", "lru", "other"),
        ("cache.page", 32, "other"),
        ("cache.prefill_chunk", 512, "other"),
        ("cache.prefix", False, "stronger"),
    ],
)
def test_settings_of_the_cache_are_told(path: str, value: object, direction: str) -> None:
    """Every setting that differs is in the list, with what it means for recall where that is known."""
    base = altered(load_profile("state-int8"), "state.codec_every", None)
    old, new = (altered(base, path, 64), base) if path.startswith("state") else (base, altered(base, path, value))

    assert [change.direction for change in profile_changes(old, new)] == [direction]


def test_shorter_interval_of_a_lossy_store_is_harsher() -> None:
    """Where stored states are rounded, storing and restoring more often rounds more often."""
    old = load_profile("snapshot-int8")

    assert profile_changes(old, altered(old, "cache.snapshot_interval", 64))[0].direction == "weaker"


def test_no_setting_of_a_profile_is_overlooked() -> None:
    """Every setting of every section shows up when it alone is changed."""
    values: dict[str, dict[str, object]] = {
        "state": {"dtype": "bf16", "rank": 2, "codec_every": 64, "error_feedback": True, "scales": "per-channel"},
        "snapshot": {"dtype": "bf16"},
        "kv": {"dtype": "int8", "keep": 0.5, "window": 64},
        "cache": {"prefix": False, "snapshot_interval": 64, "eviction": "lru", "page": 8, "prefill_chunk": 64},
    }
    old = load_profile("full")
    assert {name: set(keys) for name, keys in old.sections.items()} == {n: set(v) for n, v in values.items()}
    for section, settings in values.items():
        for field, value in settings.items():
            part = getattr(old, section).model_copy(update={field: value})
            (change,) = profile_changes(old, old.model_copy(update={section: part}))
            assert change.words.startswith(f"{section}.{field}: ")


def test_easier_suites_are_told() -> None:
    """A suite that asks less is easier: fewer lengths, tasks, bands; a lower rung is another task."""
    old = load_suite("needle")
    told = [
        suite_changes(old, altered(old, path, value))[0]
        for path, value in (
            ("lengths", [1024, 2048]),
            ("tasks", ["single", "multikey@4", "overwrite@3"]),
            ("bands", {"front": [0, 0.5], "back": [0.5, 1]}),
            ("arms", ["cold"]),
        )
    ]

    assert [change.direction for change in told] == ["weaker"] * 4
    assert told[0].words == "lengths: no longer asked: 4096, 8192"
    assert told[1].words == "tasks: no longer asked: multikey@8"
    assert suite_changes(old, altered(old, "decoding.max_tokens", 20))[0].direction == "other"


@pytest.mark.parametrize(
    ("kind", "old", "new", "weaker", "words"),
    [
        ("policy", "serving-default@1.0.0", "serving-default@1.1.0", "looser", "seeds at the first look: 400 -> 100"),
        ("profile", "full", "state-int8", "harsher", "state.dtype: fp32 -> int8"),
        ("suite", "needle", "smoke", "easier", "lengths: no longer asked: 2048, 4096, 8192"),
    ],
)
def test_diff_says_it_and_fails_when_asked_to(
    evalgate: Evalgate, kind: str, old: str, new: str, weaker: str, words: str
) -> None:
    """`diff` is news and exits 0; with --fail-on-loosening it is a check and exits 1, but not the other way round."""
    told = evalgate(kind, "diff", old, new)
    body = json.loads(evalgate(kind, "diff", old, new, "--json").out)

    assert told.code == ExitCode.PASS
    assert f"{weaker}: {words}" in told.out
    assert body[weaker] is True
    assert {"change": weaker, "words": words} in body["changes"]
    assert evalgate(kind, "diff", old, new, "--fail-on-loosening").code == ExitCode.BLOCK
    assert evalgate(kind, "diff", new, new, "--fail-on-loosening").code == ExitCode.PASS


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    """A folder of one's own with the released policy demo@1.0.0."""
    return Path(shutil.copytree(policies.library().root / "demo", tmp_path / "policies" / "demo"))


def next_version(old: Path, new: str, *edits: tuple[str, str]) -> Path:
    """The next version beside ``old``: a copy with other words."""
    text = old.read_text().replace(f"version: {old.stem}", f"version: {new}", 1)
    for before, after in edits:
        assert before in text
        text = text.replace(before, after)
    path = old.with_name(f"{new}.yaml")
    path.write_text(text)
    return path


@pytest.fixture
def judged(kept_runs: dict[str, Path], evalgate: Evalgate, tmp_path: Path) -> Path:
    """A run that policy demo@1.0.0 blocks in the middle, with its verdict."""
    run = Path(shutil.copytree(kept_runs["bad"], tmp_path / "bad"))
    assert evalgate("gate", run, "--policy", "demo@1.0.0").code == ExitCode.BLOCK
    return run


WHO = ("--reason", "the middle is rarely asked", "--approver", "Ada")


def test_looser_version_needs_an_approval(evalgate: Evalgate, demo: Path, judged: Path) -> None:
    """Refused with what is looser and what is missing; approved with evidence, then locked, loaded and visible."""
    path = next_version(demo / "1.0.0.yaml", "1.1.0", ("min: 0.90", "min: 0.50"))
    refused = evalgate("policy", "lock", path)

    assert refused.code == ExitCode.REFUSED
    assert "looser than demo@1.0.0: bar of every cell: 0.9 -> 0.5. It lacks approver, evidence" in refused.err
    assert "1.1.0" not in (demo / "lock.json").read_text()
    approved = evalgate("policy", "approve", path, *WHO, "--evidence", judged)
    assert approved.code == ExitCode.PASS, approved.err
    assert "approved by Ada on run bad (demo@1.0.0: BLOCK)" in approved.out
    document = policies.library().load(Policy, str(path))
    assert document.evidence is not None
    assert (document.approver, document.evidence.run) == ("Ada", "bad")
    assert document.evidence.changes == ["bar of every cell: 0.9 -> 0.5"]
    assert json.loads((demo / "lock.json").read_text())["1.1.0"] == document.digest
    assert "# at 100 seeds a cell passes" in path.read_text(), "comments stay"
    again = evalgate("policy", "approve", path, *WHO, "--evidence", judged)
    assert "locked already" in again.err


def test_verdict_under_an_approved_loosening_says_so(evalgate: Evalgate, demo: Path, judged: Path) -> None:
    """Who loosened what, why and on which run stays in every verdict, in its JSON, Markdown and report."""
    path = next_version(demo / "1.0.0.yaml", "1.1.0", ("min: 0.90", "min: 0.50"))
    evalgate("policy", "approve", path, *WHO, "--evidence", judged)
    summary, page = judged.parent / "summary.md", judged.parent / "page.html"
    ended = evalgate("gate", judged, "--policy", path, "--markdown", summary, "--json")
    evalgate("report", judged, "--policy", "demo@1.1.0", "--out", page)

    notice = next(one for one in json.loads(ended.out)["warnings"] if one["code"] == "policy-loosened")
    for words in ("bar of every cell: 0.9 -> 0.5", "Ada", "the middle is rarely asked", "run bad"):
        assert words in notice["detail"]
        assert words in unescape(summary.read_text())
        assert words in unescape(page.read_text())


def test_approval_holds_for_what_was_approved(evalgate: Evalgate, demo: Path, judged: Path) -> None:
    """A bar that is lowered further after its approval is tampering once locked, and refused before."""
    path = next_version(demo / "1.0.0.yaml", "1.1.0", ("min: 0.90", "min: 0.80"))
    evalgate("policy", "approve", path, *WHO, "--evidence", judged)
    path.write_text(path.read_text().replace("min: 0.80", "min: 0.10"))
    assert evalgate("policy", "lock", path).code == ExitCode.TAMPERED
    (demo / "lock.json").write_text(json.dumps({"1.0.0": load_policy("demo@1.0.0").digest}))
    refused = evalgate("policy", "lock", path)

    assert refused.code == ExitCode.REFUSED
    assert "approved for others" in refused.err


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (("--reason", " ", "--approver", "Ada"), "--reason is empty"),
        (("--reason", "x", "--approver", ""), "--approver is empty"),
    ],
)
def test_empty_approvals_are_refused(
    evalgate: Evalgate, demo: Path, judged: Path, spoil: tuple[str, ...], words: str
) -> None:
    """Nobody and nothing is no approver and no reason."""
    path = next_version(demo / "1.0.0.yaml", "1.1.0", ("min: 0.90", "min: 0.80"))
    refused = evalgate("policy", "approve", path, *spoil, "--evidence", judged)

    assert refused.code == ExitCode.REFUSED
    assert words in refused.err


def test_evidence_must_speak_of_the_bar(
    evalgate: Evalgate, demo: Path, judged: Path, kept_runs: dict[str, Path]
) -> None:
    """A run that was never judged under the old bar shows nothing; one that was changed is tampering."""
    path = next_version(demo / "1.0.0.yaml", "1.1.0", ("min: 0.90", "min: 0.80"))
    before = path.read_text()
    never = evalgate("policy", "approve", path, *WHO, "--evidence", kept_runs["good"])
    (judged / "counters.json").write_text('{"prefilled_tokens": 2}')
    changed = evalgate("policy", "approve", path, *WHO, "--evidence", judged)

    assert (never.code, changed.code) == (ExitCode.REFUSED, ExitCode.TAMPERED)
    assert "expected a verdict (no ERROR) under demo@1.0.0" in never.err
    assert path.read_text() == before


def test_tighter_version_needs_no_approval(evalgate: Evalgate, demo: Path, judged: Path) -> None:
    """A higher bar is locked as it is, and there is nothing to approve in it."""
    path = next_version(demo / "1.0.0.yaml", "1.0.1", ("min: 0.90", "min: 0.91"))

    assert "is not looser" in evalgate("policy", "approve", path, *WHO, "--evidence", judged).err
    assert evalgate("policy", "lock", path).code == ExitCode.PASS
    assert evalgate("policy", "lock", path).code == ExitCode.PASS, "again changes nothing"
    below = next_version(demo / "1.0.0.yaml", "0.9.0", ("min: 0.90", "min: 0.80"))
    assert "looser than demo@1.0.0" in evalgate("policy", "lock", below).err, "a lower number is no way around"


def test_documents_are_locked_in_their_place(evalgate: Evalgate, demo: Path) -> None:
    """A file elsewhere has no versions beside it, so it is sent to its place; a lost version is asked back."""
    path = next_version(demo / "1.0.0.yaml", "1.0.1")
    elsewhere = Path(shutil.copy(path, demo / "mine.yaml"))

    assert "move it to demo/1.0.1.yaml" in evalgate("policy", "lock", elsewhere).err
    (demo / "1.0.0.yaml").unlink()
    assert "put it back" in evalgate("policy", "lock", path).err


def test_harsher_profile_needs_a_run_of_its_settings(
    evalgate: Evalgate, tmp_path: Path, kept_runs: dict[str, Path], judged: Path
) -> None:
    """A harsher profile is approved on a run that ran exactly it, and on no other."""
    folder = Path(shutil.copytree(profiles.library().root / "full", tmp_path / "profiles" / "full"))
    settings = re.search(r"(?m)^state: .*$", (profiles.library().root / "state-int8" / "1.0.0.yaml").read_text())
    before = re.search(r"(?m)^state: .*$", (folder / "1.0.0.yaml").read_text())
    assert settings is not None
    assert before is not None
    path = next_version(folder / "1.0.0.yaml", "1.1.0", (before[0], settings[0]))
    good = Path(shutil.copytree(kept_runs["good"], tmp_path / "good"))
    evalgate("gate", good, "--policy", "demo")

    assert "harsher than full@1.0.0: state.dtype: fp32 -> int8" in evalgate("profile", "lock", path).err
    assert "exactly the settings" in evalgate("profile", "approve", path, *WHO, "--evidence", good).err
    assert evalgate("profile", "approve", path, *WHO, "--evidence", judged).code == ExitCode.PASS
    assert profiles.library().load(Profile, str(path)).approver == "Ada"


def test_easier_suite_needs_an_approval(evalgate: Evalgate, tmp_path: Path) -> None:
    """Suites are governed as policies and profiles are."""
    folder = Path(shutil.copytree(LIBRARY.root / "needle", tmp_path / "suites" / "needle"))
    path = next_version(folder / "1.0.0.yaml", "1.1.0", ("[1024, 2048, 4096, 8192]", "[1024]"))

    assert "easier than needle@1.0.0" in evalgate("suite", "lock", path).err
    assert LIBRARY.load(Suite, str(path)).evidence is None


def test_released_documents_pass_their_own_rule(evalgate: Evalgate) -> None:
    """Locking what evalgate ships changes nothing: every version is locked already."""
    for kind, root in (
        ("policy", policies.library().root),
        ("profile", profiles.library().root),
        ("suite", LIBRARY.root),
    ):
        for path in sorted(root.glob("*/*.yaml")):
            before = path.with_name("lock.json").read_text()
            assert evalgate(kind, "lock", path).code == ExitCode.PASS
            assert path.with_name("lock.json").read_text() == before
