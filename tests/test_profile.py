"""Profiles: which settings make sense together, and the ones that come with evalgate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evalgate.errors import InvalidDocumentError, UnknownNameError
from evalgate.gates.profile import Profile, library, load_profile, template
from evalgate.versioned import parse, parse_yaml, read_lock

SHIPPED = [
    *("full", "state-bf16", "state-int8", "state-int4", "state-rank-8", "state-rank-7", "state-rank-4", "state-rank-2"),
    *("state-rank-1", "kv-int8", "kv-keep-90", "kv-keep-75", "kv-keep-50", "kv-window-512"),
    *("state-int8-feedback", "state-int4-feedback", "kv-bf16", "kv-fp8", "snapshot-bf16", "snapshot-int8"),
]
FEEDBACK = {"error_feedback": True}


@pytest.fixture
def body() -> dict[str, Any]:
    """Fields of the profile that compresses nothing."""
    return load_profile("full").model_dump(mode="json")


def test_shipped_profiles_are_locked() -> None:
    """Every profile of the list is there, and its digest is in its lock file."""
    assert library().names() == sorted(SHIPPED)
    for name in SHIPPED:
        assert read_lock(library().root / name / "lock.json") == {"1.0.0": load_profile(name).digest}


@pytest.mark.parametrize(
    ("name", "section", "settings"),
    [
        ("state-bf16", "state", {"dtype": "bf16", "codec_every": 64}),
        ("state-int8", "state", {"dtype": "int8", "scales": "per-channel", "codec_every": 64}),
        ("state-int4", "state", {"dtype": "int4", "scales": "per-channel", "codec_every": 64}),
        *(
            (f"state-{d}-feedback", "state", {"dtype": d, "scales": "per-channel", "codec_every": 64, **FEEDBACK})
            for d in ("int8", "int4")
        ),
        ("snapshot-bf16", "snapshot", {"dtype": "bf16"}),
        ("snapshot-int8", "snapshot", {"dtype": "int8"}),
        ("kv-bf16", "kv", {"dtype": "bf16"}),
        ("kv-fp8", "kv", {"dtype": "fp8"}),
        ("state-rank-8", "state", {"rank": 8}),
        ("state-rank-4", "state", {"rank": 4}),
        ("state-rank-2", "state", {"rank": 2}),
        ("state-rank-1", "state", {"rank": 1}),
        ("kv-int8", "kv", {"dtype": "int8"}),
        ("kv-keep-90", "kv", {"keep": 0.9}),
        ("kv-keep-75", "kv", {"keep": 0.75}),
        ("kv-keep-50", "kv", {"keep": 0.5}),
        ("kv-window-512", "kv", {"window": 512}),
    ],
)
def test_a_profile_changes_only_what_its_name_says(name: str, section: str, settings: dict[str, object]) -> None:
    """Every shipped profile is ``full`` but for the settings that it is named after."""
    expected = load_profile("full").sections
    expected[section] |= settings

    assert load_profile(name).sections == expected


def test_full_compresses_nothing() -> None:
    """``full`` is an fp32 state with everything else left alone."""
    full = load_profile("full")

    assert full.state.lossless
    assert (full.kv.dtype, full.kv.keep, full.kv.window) == ("auto", 1.0, None)


@pytest.mark.parametrize(
    ("section", "settings", "message"),
    [
        ("state", {"dtype": "int8"}, "needs scales: per-channel"),
        ("state", {"scales": "per-channel"}, "needs dtype: int8 or int4"),
        ("state", {"dtype": "int8", "rank": 4}, "needs scales: per-channel"),
        ("state", {"dtype": "bf16", "rank": 4, "scales": "per-channel"}, "needs dtype: int8 or int4"),
        ("state", {"rank": 0}, "greater than or equal to 1"),
        ("state", {"rank": 4, "codec_every": 100}, "multiple of 64"),
        ("state", {"rank": 4, "codec_every": 0}, "greater than or equal to 64"),
        ("state", {"codec_every": 64}, "without a codec"),
        ("state", FEEDBACK, r"error_feedback needs dtype: int8 or int4 \(found fp32\)"),
        ("state", {"dtype": "bf16", **FEEDBACK}, r"error_feedback needs dtype: int8 or int4 \(found bf16\)"),
        ("state", {"rank": 4, **FEEDBACK}, "error_feedback needs dtype: int8 or int4"),
        ("state", {"dtype": "int4", "scales": "per-channel", "rank": 4, **FEEDBACK}, "exclude each other"),
        ("state", {"dtype": "int3"}, "'fp32', 'bf16', 'int8' or 'int4'"),
        ("state", {"dytpe": "int8"}, "unknown field; did you mean dtype"),
        ("snapshot", {"dtype": "fp64"}, "'fp32', 'bf16', 'int8' or 'int4'"),
        ("snapshot", {"scales": "per-channel"}, "unknown field"),
        ("kv", {"dtype": "fp64"}, "'fp8', 'int8' or 'int4'"),
        ("kv", {"keep": 0}, "greater than 0"),
        ("kv", {"keep": 1.5}, "less than or equal to 1"),
        ("kv", {"keep": float("nan")}, "finite"),
        ("kv", {"window": 0}, "greater than or equal to 1"),
        ("kv", {"window": 512, "keep": 0.5}, "exclude each other"),
        ("cache", {"snapshot_interval": 100}, "multiple of 64"),
        ("cache", {"prefill_chunk": 1000}, "multiple of 64"),
        ("cache", {"prefix": "no"}, "valid boolean"),
    ],
)
def test_impossible_profile_is_refused(
    body: dict[str, Any], section: str, settings: dict[str, object], message: str
) -> None:
    """A setting that is unknown, impossible or would be ignored is refused at load."""
    body[section] |= settings

    with pytest.raises(InvalidDocumentError, match=message):
        parse(Profile, body, "profile")


@pytest.mark.parametrize("settings", [{"dtype": "bf16"}, {"dtype": "int8", "scales": "per-channel"}], ids=str)
def test_factors_of_a_rank_may_have_a_dtype(body: dict[str, Any], settings: dict[str, object]) -> None:
    """A rank goes together with every dtype that its factors may have."""
    body["state"] |= {"rank": 4, **settings}

    assert parse(Profile, body, "profile").state.rank == 4


def test_snapshots_need_a_store(body: dict[str, Any]) -> None:
    """A dtype of stored states is refused where nothing is stored, and taken as soon as something is."""
    body["snapshot"]["dtype"] = "int4"
    assert parse(Profile, body, "profile").snapshot.dtype == "int4"

    body["cache"]["prefix"] = False
    with pytest.raises(InvalidDocumentError, match=r"snapshot\.dtype: int4 with cache\.prefix: false"):
        parse(Profile, body, "profile")


def test_unknown_profile_offers_the_nearest() -> None:
    """A misspelt name is refused with the names that exist."""
    with pytest.raises(UnknownNameError, match="did you mean state-int8"):
        load_profile("state-int-8")


def test_profile_from_a_file(tmp_path: Path) -> None:
    """A new profile from the template loads from its file and compresses nothing yet."""
    path = tmp_path / "mine.yaml"
    path.write_text(template("mine"))

    profile = load_profile(str(path))

    assert profile.name == "mine"
    assert profile.sections == load_profile("full").sections
    assert profile.model_fields_set == set(Profile.model_fields)


def test_template_refuses_an_impossible_name() -> None:
    """A name that no document may have is refused when it is asked for."""
    with pytest.raises(InvalidDocumentError, match="name"):
        template("No Such\nName")


def test_defaults_are_the_template() -> None:
    """A document that states nothing means the same settings as the template spells out."""
    bare = parse(Profile, parse_yaml("schema_version: 1\nname: bare\nversion: 1.0.0\n", "bare"), "bare")

    assert bare.sections == load_profile("full").sections
