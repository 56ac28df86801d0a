"""A folder of another run: the error names both, and the settings in which they differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from evalgate.errors import MismatchError
from evalgate.records import DocumentId, Manifest, TextRule
from evalgate.runner.identity import check_same, differing

MakeManifest = Callable[..., Manifest]


@pytest.fixture
def kept(make_manifest: MakeManifest) -> Manifest:
    """A run that was begun."""
    rule = TextRule(answers="redact")
    return make_manifest().model_copy(update={"versions": {"scorer": "1"}, "text": rule})


def asked(kept: Manifest, what: str, **changes: Any) -> Manifest:
    """The manifest of a command that asks for something else in one part of its identity."""
    return kept.model_copy(update={what: getattr(kept, what).model_copy(update=changes)})


def refusal(kept: Manifest, other: Manifest) -> str:
    """What the user is told."""
    with pytest.raises(MismatchError) as error:
        check_same(kept, other, "runs/x")
    assert str(error.value).endswith("; choose another --out, or repeat the command that began it")
    return str(error.value)


def test_the_same_run_goes_on(kept: Manifest) -> None:
    """Equal identities are the same run, and so are the same weights under another name."""
    check_same(kept, kept, "runs/x")
    check_same(kept, asked(kept, "model", name="evalgate/assets/hybrid"), "runs/x")


@pytest.mark.parametrize(
    ("what", "changes", "words"),
    [
        (
            "model",
            {"name": "other", "weights_sha256": "4" * 64},
            (
                "another model: found builtin:hybrid, asked for other (they differ in weights_sha256 111111111111 and "
                "444444444444)"
            ),
        ),
        (
            "model",
            {"tokenizer_sha256": "5" * 64, "parameters": 7},
            (
                "found builtin:hybrid, asked for builtin:hybrid (they differ in parameters 1000000 and 7; "
                "tokenizer_sha256 333333333333 and 555555555555)"
            ),
        ),
        ("suite", {"version": "1.0.1"}, "found smoke@1.0.0, asked for smoke@1.0.1 (they differ in version 1.0.0 and"),
        (
            "engine",
            {"effective_profile": {"state": {"dtype": "int8"}}},
            (
                "found native, asked for native (they differ in effective_profile.state.dtype fp32 and int8; "
                "effective_profile.state.scales None and nothing; "
            ),
        ),
        ("engine", {"dtype": "bf16"}, "(they differ in dtype fp32 and bf16)"),
    ],
)
def test_both_are_named_with_what_differs(kept: Manifest, what: str, changes: dict[str, Any], words: str) -> None:
    """No name is empty, no digest is cut off before the place where it differs, and settings are named one by one."""
    told = refusal(kept, asked(kept, what, **changes))

    assert words in told
    assert "''" not in told
    assert len(told) < 600


def test_other_seeds_and_cells_are_named(kept: Manifest) -> None:
    """Plain values are shown as they are; of cells, those that one run lacks."""
    fewer = kept.model_copy(update={"cells": kept.cells[1:]})

    assert "another number of seeds: found 3, asked for 4;" in refusal(kept, kept.model_copy(update={"seeds": 4}))
    assert "another seed set: found main, asked for b;" in refusal(kept, kept.model_copy(update={"seed_set": "b"}))
    lacking = "another set of cells: found 3, asked for 2 (they differ in single · 1024 · front planned and nothing)"
    assert lacking in refusal(kept, fewer)


def test_profiles_of_one_name_are_told_apart_by_digest(kept: Manifest) -> None:
    """An edited profile under the same name and version is another one."""
    other = DocumentId(name=kept.profile.name, version=kept.profile.version, digest="9" * 64)

    assert "and 999999999999)" in refusal(kept, kept.model_copy(update={"profile": other}))


def test_differences_are_found_at_any_depth() -> None:
    """Every leaf that differs is named once; what only one side has too."""
    assert differing({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}, "d": 4}) == {"a.c": (2, 3), "d": ("nothing", 4)}
    assert differing({"a": [1, 2]}, {"a": [1, 2]}) == {}


def test_a_run_of_an_earlier_version_does_not_go_on(kept: Manifest) -> None:
    """It did not say what becomes of answers; that is told as what it is, not as a difference of rules."""
    with pytest.raises(MismatchError, match=r"begun by an earlier version of evalgate.*choose another --out"):
        check_same(kept.model_copy(update={"text": None}), kept, "runs/x")
