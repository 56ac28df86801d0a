"""The manifest of a run: full identity of what is run, and on what."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import uuid
from datetime import UTC, datetime
from pathlib import Path

from evalgate import __version__
from evalgate.errors import MismatchError
from evalgate.records import DocumentId, Manifest
from evalgate.runner.request import Bench
from evalgate.tasks.language import GENERATOR_VERSION
from evalgate.tasks.scoring import SCORER_VERSION
from evalgate.versioned import Document

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
        reserve_tokens=bench.builder.reserve,
        seed_set=request.seed_set,
        seeds=request.seeds,
        haystacks=request.seeds * len(bench.builder.streams),
        cells=[(*cell,) for cell in suite.cells()],
        data_class=suite.haystack.data_class,
        versions=_versions(),
        hardware=_hardware(),
        started=now(),
    )


def check_same(kept: Manifest, asked: Manifest, where: str) -> None:
    """Raise MismatchError unless a run that goes on is the run that was begun."""
    for what in ("suite", "profile", "model", "engine", "generator_version", "seed_set", "seeds", "cells"):
        old, new = getattr(kept, what), getattr(asked, what)
        if what == "model":  # the same weights may be reached by another name
            old, new = old.model_copy(update={"name": ""}), new.model_copy(update={"name": ""})
        if old != new:
            raise MismatchError(
                f"{where} holds a run of another {what.replace('_', ' ')}: found {_told(old)}, asked for {_told(new)}; "
                "choose another --out, or repeat the command that began it"
            )
    if kept.versions.get("scorer") != asked.versions["scorer"]:
        raise MismatchError(f"{where} was scored by another scorer version; choose another --out")


def now() -> str:
    """UTC time in ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _document(document: Document) -> DocumentId:
    return DocumentId(name=document.name, version=document.version, digest=document.digest)


def _told(value: object) -> str:
    if isinstance(value, DocumentId):
        return f"{value.name}@{value.version} ({value.digest[:8]})"
    text = str(value)
    return text if len(text) < 200 else text[:200] + "..."


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
