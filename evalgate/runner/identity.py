"""The manifest of a run: full identity of what is run, and on what."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from evalgate import __version__
from evalgate.errors import MismatchError
from evalgate.gates.schedule import told_schedule
from evalgate.records import Cell, DocumentId, EngineId, Manifest, ModelId
from evalgate.runner.request import Bench
from evalgate.tasks.names import GENERATOR_VERSION
from evalgate.tasks.scoring import SCORER_VERSION
from evalgate.versioned import Document

IDENTITY = {
    "suite": "suite",
    "profile": "profile",
    "model": "model",
    "engine": "engine",
    "generator_version": "generator version",
    "seed_set": "seed set",
    "corpus": "text of its haystacks",
    "questions": "file of questions",
    "packages": "version of a package",
    "schedule": "plan of looks",
    "seeds": "number of seeds",
    "text": "rule for answers",
    "cells": "set of cells",
}
"""Fields of a manifest that make a run what it is -> what they are called; the first that differs is told."""
MISSING = "nothing"
"""What a setting is called that one of two runs does not have."""
DETAILS = 4
"""Differences that an error names before it counts the rest."""
SHORT = 80
"""Characters of a value that an error shows."""
DIGEST = re.compile(r"[0-9a-f]{64}")
PACKAGES = ("torch", "transformers", "tokenizers", "numpy")


def new_manifest(bench: Bench) -> Manifest:
    """The manifest of a run that is about to start."""
    suite, request = bench.suite, bench.request
    return Manifest(
        run_id=uuid.uuid4().hex,
        status="running",
        suite=_document(suite),
        suite_body=suite.model_dump(mode="json", by_alias=True),
        profile=_document(bench.profile),
        profile_body=bench.profile.model_dump(mode="json", by_alias=True, exclude_unset=True),
        model=bench.backend.identity(),
        engine=bench.backend.engine_id(suite.lengths[-1], tuple(suite.arms)),
        generator_version=GENERATOR_VERSION,
        reserve_tokens=bench.source.reserve,
        seed_set=bench.source.seed_set,
        seeds=request.seeds,
        haystacks=request.seeds * len(bench.streams),
        corpus=bench.source.corpus_id,
        questions=bench.source.questions_id,
        compiled=bench.source.compiled,
        packages=suite.packages,
        cells=[(*cell,) for cell in suite.cells()],
        data_class=suite.haystack.data_class,
        text=bench.text,
        versions=_versions(),
        hardware=_hardware() | ({} if request.server is None else {"server": request.server.base_url}),
        started=now(),
    )


def check_same(kept: Manifest, asked: Manifest, where: str) -> None:
    """Raise MismatchError unless a run that goes on is the run that was begun."""
    if kept.text is None:
        raise MismatchError(
            f"{where} was begun by an earlier version of evalgate, which did not record what becomes of answers, so "
            "it cannot go on; choose another --out"
        )
    there, wanted = _comparable(kept), _comparable(asked)
    for what, called in IDENTITY.items():
        if what == "seeds" and kept.schedule is not None:
            continue  # what it has come to so far
        differences = differing(there[what], wanted[what])
        if what == "model":
            differences.pop("name", None)  # the same weights may be reached by another name
        if differences:
            raise MismatchError(
                f"{where} holds a run of another {called}: found {_named(_value(kept, what))}, "
                f"asked for {_named(_value(asked, what))}{_details(differences)}; "
                "choose another --out, or repeat the command that began it"
            )
    if kept.versions.get("scorer") != asked.versions["scorer"]:
        raise MismatchError(f"{where} was scored by another scorer version; choose another --out")


def differing(old: object, new: object, path: str = "") -> dict[str, tuple[object, object]]:
    """Dotted name of every setting in which two values of a manifest differ -> (old, new)."""
    if isinstance(old, dict) and isinstance(new, dict):
        found: dict[str, tuple[object, object]] = {}
        for name in dict.fromkeys([*old, *new]):
            found |= differing(old.get(name, MISSING), new.get(name, MISSING), f"{path}.{name}".removeprefix("."))
        return found
    return {} if old == new else {path: (old, new)}


def now() -> str:
    """UTC time in ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _document(document: Document) -> DocumentId:
    return DocumentId(name=document.name, version=document.version, digest=document.digest)


def _comparable(manifest: Manifest) -> dict[str, Any]:
    cells = {str(Cell(*cell)): "planned" for cell in manifest.cells}
    schedule = manifest.schedule
    looks = {} if schedule is None else schedule.model_dump(mode="json", exclude={"asked"})
    return manifest.model_dump(mode="json") | {"cells": cells, "schedule": looks}


def _value(manifest: Manifest, what: str) -> object:
    return told_schedule(manifest.schedule) if what == "schedule" else getattr(manifest, what)


def _named(value: object) -> str:
    if isinstance(value, DocumentId):
        return f"{value.name}@{value.version}"
    if isinstance(value, ModelId):
        return value.name
    if isinstance(value, EngineId):
        return value.backend
    return str(len(value)) if isinstance(value, list) else _short(value)


def _details(differences: dict[str, tuple[object, object]]) -> str:
    """The settings that differ, by name; nothing where the whole value was named already."""
    told = [f"{path} {_short(old)} and {_short(new)}" for path, (old, new) in differences.items() if path]
    shown = "; ".join(told[:DETAILS]) + (f"; and {len(told) - DETAILS} more" if len(told) > DETAILS else "")
    return f" (they differ in {shown})" if told else ""


def _short(value: object) -> str:
    text = str(value)
    if DIGEST.fullmatch(text):
        return text[:12]
    return text if len(text) <= SHORT else f"{text[:SHORT]}..."


def _versions() -> dict[str, str]:
    packages = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"evalgate": __version__, "python": platform.python_version(), "scorer": SCORER_VERSION, **packages}


def _hardware() -> dict[str, str]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"machine": platform.machine(), "system": sys.platform, "processor": _processor(), "cores": str(cores)}


def _processor() -> str:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"
