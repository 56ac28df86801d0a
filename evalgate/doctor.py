"""Is this installation able to do its work? Each check finds out by doing, and none stops the others."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Literal, NamedTuple

from evalgate import __version__, disk
from evalgate.errors import EvalgateError
from evalgate.gates.policy import library as policies
from evalgate.gates.policy import load_policy
from evalgate.gates.profile import library as profiles
from evalgate.gates.profile import load_profile
from evalgate.tasks.suite import LIBRARY as SUITES
from evalgate.tasks.suite import load_suite
from evalgate.versioned import Document, Library, read_lock

OLDEST_PYTHON = (3, 11)
LEAST_MEMORY = 2 * 1024**3
"""Bytes in which the embedded models run every released suite."""
LEAST_DISK = 500 * 1024**2
"""Bytes that the demo's runs and report fit in many times over."""
PROMPT = 128
"""Tokens of the prompt that the embedded model is asked."""
ENGINE = ("torch", "transformers", "tokenizers", "safetensors")
EVERYWHERE_ON_LINUX = "triton"


class Finding(NamedTuple):
    """What one check found; ``note``: worth knowing, and no fault."""

    name: str
    status: Literal["ok", "failed", "note"]
    detail: str


def examine() -> list[Finding]:
    """Run every check, the quick ones first."""
    checks: dict[str, Callable[[], Finding | str]] = {
        "python": _python,
        "processor": _processor,
        "memory": _memory,
        "disk": _disk,
        "working folder": _working_folder,
        **{name: lambda name=name: _package(name) for name in ENGINE},  # type: ignore[misc]  # a default binds the name
        "triton": _triton,
        "kernels": _kernels,
        "suites": lambda: _documents(SUITES, load_suite),
        "profiles": lambda: _documents(profiles(), load_profile),
        "policies": lambda: _documents(policies(), load_policy),
        "embedded models": _assets,
        "engine": _engine,
    }
    return [_examine(name, check) for name, check in checks.items()]


def _examine(name: str, check: Callable[[], Finding | str]) -> Finding:
    try:
        found = check()
    except (EvalgateError, Unwell) as error:
        return Finding(name, "failed", str(error))
    except Exception as error:  # noqa: BLE001 - a broken package may raise anything while it is imported
        return Finding(name, "failed", f"{type(error).__name__}: {error}")
    return found if isinstance(found, Finding) else Finding(name, "ok", found)


class Unwell(Exception):  # noqa: N818 - a finding on its way out, which no caller sees
    """What a check found wrong."""


def _python() -> str:
    if sys.version_info < OLDEST_PYTHON:
        raise Unwell(f"{platform.python_version()}; evalgate needs 3.11 or later")
    return f"{platform.python_version()}, evalgate {__version__}"


def _processor() -> str:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    limit = os.environ.get("OMP_NUM_THREADS")
    return f"{platform.machine()}, {usable} cores" + (f", OMP_NUM_THREADS={limit}" if limit else "")


def _memory() -> Finding | str:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    told = f"{total / 1024**3:.1f} GiB"
    if total < LEAST_MEMORY:
        return Finding("memory", "note", f"{told}; long suites may be refused for want of it")
    return told


def _disk() -> str:
    free = shutil.disk_usage(Path.cwd()).free
    if free < LEAST_DISK:
        raise Unwell(f"{free / 1024**2:.0f} MiB free in {Path.cwd()}; make room, or write runs to another disk")
    return f"{free / 1024**3:.1f} GiB free"


def _working_folder() -> str:
    probe = Path.cwd() / f".evalgate-doctor-{os.getpid()}"
    try:
        disk.replace(probe, b"written by evalgate doctor\n")
    finally:
        probe.unlink(missing_ok=True)
    return f"{Path.cwd()} can be written"


def _package(name: str) -> str:
    importlib.import_module(name)
    return version(name)


def _triton() -> Finding | str:
    if sys.platform != "linux":
        return Finding("triton", "note", "not for this system; kernels run in their CPU form")
    return _package("triton")


def _kernels() -> str:
    from evalgate.kernels.ops import explain

    groups: dict[tuple[str, str], list[str]] = {}
    for choice in explain():
        groups.setdefault((choice.form, choice.why), []).append(choice.op)
    if len(groups) == 1:
        ((form, why), names) = groups.popitem()
        return f"{form} for all {len(names)} operations ({why})"
    return "; ".join(f"{form}: {', '.join(names)} ({why})" for (form, why), names in groups.items())


def _documents(library: Library, load: Callable[[str], Document]) -> str:
    refs = [f"{name}@{number}" for name in library.names() for number in library.versions(name)]
    for ref in refs:
        load(ref)
    unlocked = [ref for ref in refs if not _locked(library, ref)]
    if unlocked:
        raise Unwell(f"released without a lock: {', '.join(unlocked)}")
    return f"{len(refs)} released, all as locked"


def _locked(library: Library, ref: str) -> bool:
    name, _, number = ref.partition("@")
    lock = library.root / name / "lock.json"
    return lock.is_file() and number in read_lock(lock)


def _assets() -> str:
    root = Path(str(files("evalgate"))) / "assets"
    locked: dict[str, str] = json.loads((root / "lock.json").read_text(encoding="utf-8"))
    changed = [name for name, digest in locked.items() if _sha256(root / name) != digest]
    if changed:
        raise Unwell(f"not as released: {', '.join(changed)}; reinstall evalgate-longctx")
    return f"{len(locked)} files, all as locked"


def _sha256(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _engine() -> str:
    # Imported here: without torch this check fails, and the others still speak.
    from evalgate.backends.base import Ask, Group, Question
    from evalgate.backends.registry import open_backend

    started = time.perf_counter()
    sections = load_profile("full").sections
    backend = open_backend("native", "builtin:hybrid", sections, "full", max_tokens=2 * PROMPT)
    pieces = backend.tokenizer.render_chat()
    head, tail = backend.tokenizer.encode(pieces.head), backend.tokenizer.encode(pieces.tail)
    words = backend.tokenizer.encode("The quick brown fox jumps over the lazy dog. " * PROMPT)
    context = [*head, *words[: PROMPT - len(head) - len(tail)]]
    question = Question(tail, PROMPT, "doctor")
    group = Group(context, len(head), [Ask(len(context), [question])], 4, backend.tokenizer.eos_ids)
    (answer,) = backend.answer(group)
    if answer.finish_reason == "error":
        raise Unwell(f"builtin:hybrid could not answer {PROMPT} tokens: {answer.error}")
    return f"builtin:hybrid loaded and answered a prompt of {PROMPT} tokens in {time.perf_counter() - started:.1f} s"
