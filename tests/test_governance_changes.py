"""What changed between two versions of a policy, a profile or a suite, in words, and whether that made it weaker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from evalgate.gates.policy import Policy, load_policy
from evalgate.gates.policy_changes import policy_changes
from evalgate.gates.profile import load_profile
from evalgate.gates.profile_changes import profile_changes
from evalgate.tasks.suite import load_suite
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
