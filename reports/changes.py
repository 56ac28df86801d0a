"""What is different between candidate and baseline, setting by setting as the engines report them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from evalgate.records import Manifest
from evalgate.reports import figures

_DIGEST = 12
"""Hex digits shown of a digest in a comparison; the identity table has all of them."""
_ABSENT = "not set"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One setting that differs."""

    part: str
    setting: str
    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Every difference, and what was found equal."""

    rows: tuple[Change, ...]
    same: str
    """The parts that are equal in every setting, in words."""
    compared: int
    sentence: str


def flatten(body: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    """``{"state": {"dtype": "int8"}}`` -> ``{"state.dtype": "int8"}``; other values as JSON."""
    flat: dict[str, str] = {}
    for key, value in body.items():
        if isinstance(value, dict) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = written(value)
    return flat


def written(value: object) -> str:
    """A setting as the YAML of a profile would say it."""
    if isinstance(value, str):
        return value
    if value is None:
        return "none"
    if isinstance(value, list):
        return ", ".join(written(item) for item in value)
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def settings(manifest: Manifest) -> dict[str, dict[str, str]]:
    """Part -> setting -> value of everything that can change recall, and of where it ran."""
    model, engine = manifest.model, manifest.engine
    return {
        "weights": {
            "model": model.name,
            "architecture": model.architecture,
            "parameters": figures.count(model.parameters),
            "weights sha256": model.weights_sha256[:_DIGEST],
            "config sha256": model.config_sha256[:_DIGEST],
        },
        "tokenizer": {"tokenizer sha256": model.tokenizer_sha256[:_DIGEST]},
        "profile": {
            "document": f"{manifest.profile.name}@{manifest.profile.version}",
            **flatten(engine.effective_profile),
        },
        "engine": {
            "backend": f"{engine.backend} {engine.version}",
            "dtype": engine.dtype,
            **{f"arm {arm}": path for arm, path in sorted(engine.arm_paths.items())},
        },
        "suite and seeds": {
            "suite": f"{manifest.suite.name}@{manifest.suite.version}",
            "suite sha256": manifest.suite.digest[:_DIGEST],
            "generator": manifest.generator_version,
            "seed set": manifest.seed_set,
        },
        "environment": {**manifest.versions, **manifest.hardware},
    }


def compare(new: Manifest, old: Manifest) -> Changes:
    """List every setting that differs from the baseline, part by part."""
    news, olds = settings(new), settings(old)
    rows: list[Change] = []
    same: list[str] = []
    compared = 0
    for part, values in news.items():
        names = list(dict.fromkeys([*values, *olds[part]]))
        compared += len(names)
        found = [
            Change(part=part, setting=name, old=olds[part].get(name, _ABSENT), new=values.get(name, _ABSENT))
            for name in names
            if values.get(name) != olds[part].get(name)
        ]
        rows += found
        if not found:
            same.append(part)
    return Changes(rows=tuple(rows), same=figures.listing(same, len(same)), compared=compared, sentence=_sentence(rows))


def _sentence(rows: list[Change]) -> str:
    if not rows:
        return "Nothing: every setting that is compared is the same."
    effective = [row for row in rows if row.part == "profile" and row.setting != "document"]
    parts = list(dict.fromkeys(row.part for row in rows))
    if parts == ["profile"] and effective:
        named = [f"{row.setting} {row.old} → {row.new}" for row in effective]
        return f"Only the compression profile: {figures.listing(named)}."
    return f"{figures.plural(len(rows), 'setting')} in {figures.listing(parts, len(parts))}."
