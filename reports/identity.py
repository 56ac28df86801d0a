"""Who ran what: full identity of both runs side by side, bytes per session, and the lengths that were asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evalgate.records import Context, Manifest
from evalgate.reports import figures
from evalgate.reports.changes import flatten
from evalgate.reports.source import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class IdRow:
    """One fact about a run, the baseline's beside it; ``differs`` marks it for the eye."""

    label: str
    value: str
    baseline: str
    differs: bool
    code: bool
    """A digest or a setting: set in a monospaced face."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRow:
    """Measured bytes of one session at the longest length, for one part of its memory."""

    part: str
    value: str
    baseline: str
    change: str
    total: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthRow:
    """What a length meant in tokens."""

    length: str
    contexts: str
    tokens: str
    """Fewest and most tokens of a context (C_L)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Everything that identifies the run, and the baseline where there is one."""

    rows: tuple[IdRow, ...]
    memory: tuple[MemoryRow, ...]
    memory_at: str
    memory_sentence: str
    lengths: tuple[LengthRow, ...]
    compared: bool


def identify(run: Source, baseline: Source | None) -> Identity:
    """Put both identities side by side."""
    mine = _facts(run.manifest)
    theirs = _facts(baseline.manifest) if baseline else {}
    rows = tuple(
        IdRow(
            label=label,
            value=mine.get(label, figures.NONE),
            baseline=theirs.get(label, figures.NONE) if baseline else "",
            differs=baseline is not None and mine.get(label) != theirs.get(label),
            code="sha256" in label or label.startswith("profile:"),
        )
        for label in dict.fromkeys([*mine, *theirs])
    )
    longest = max((cell[1] for cell in run.manifest.cells), default=0)
    memory = _memory(run.manifest, baseline.manifest if baseline else None)
    return Identity(
        rows=rows,
        memory=memory,
        memory_at=figures.count(longest) if longest else figures.NONE,
        memory_sentence=_sentence(run.manifest, baseline.manifest if baseline else None),
        lengths=_lengths(run.contexts),
        compared=baseline is not None,
    )


def _facts(manifest: Manifest) -> dict[str, str]:
    model, engine = manifest.model, manifest.engine
    return {
        "run": manifest.run_id,
        "model": model.name,
        "architecture": f"{model.architecture}, {figures.count(model.parameters)} parameters",
        "weights sha256": model.weights_sha256,
        "config sha256": model.config_sha256,
        "tokenizer sha256": model.tokenizer_sha256,
        "suite": f"{manifest.suite.name}@{manifest.suite.version}",
        "suite sha256": manifest.suite.digest,
        "generator": f"{manifest.generator_version}, {manifest.reserve_tokens} tokens kept for question and answer",
        "profile": f"{manifest.profile.name}@{manifest.profile.version}",
        "profile sha256": manifest.profile.digest,
        **{f"profile: {name}": value for name, value in flatten(engine.effective_profile).items()},
        "engine": f"{engine.backend} {engine.version}, compute {engine.dtype}",
        "arms": "; ".join(f"{arm} by {path}" for arm, path in sorted(engine.arm_paths.items())) or figures.NONE,
        "seeds": f"{figures.count(manifest.seeds)} of set {manifest.seed_set}",
        "data class": manifest.data_class,
        "versions": ", ".join(f"{name} {version}" for name, version in sorted(manifest.versions.items())),
        "hardware": ", ".join(f"{name} {value}" for name, value in sorted(manifest.hardware.items())),
        "started": manifest.started,
        "finished": manifest.finished or figures.NONE,
        "wall time": figures.seconds(manifest.wall_s) if manifest.wall_s is not None else figures.NONE,
    }


def _memory(new: Manifest, old: Manifest | None) -> tuple[MemoryRow, ...]:
    mine = new.engine.bytes_per_session
    theirs = old.engine.bytes_per_session if old else {}
    names = sorted(dict.fromkeys([*mine, *theirs]), key=lambda name: name == "total")
    return tuple(
        MemoryRow(
            part=name,
            value=_bytes(mine.get(name)),
            baseline=_bytes(theirs.get(name)) if old else "",
            change=figures.change(mine[name], theirs[name]) if name in mine and name in theirs else figures.NONE,
            total=name == "total",
        )
        for name in names
    )


def _bytes(n: int | None) -> str:
    if n is None:
        return figures.NONE
    short = figures.size(n)
    return short if short.endswith(" B") else f"{short} ({n:,} B)"


def _sentence(new: Manifest, old: Manifest | None) -> str:
    mine = new.engine.bytes_per_session.get("total")
    theirs = old.engine.bytes_per_session.get("total") if old else None
    if mine is None:
        return ""
    if theirs is None:
        return figures.size(mine)
    change = figures.change(mine, theirs)
    return f"{figures.size(mine)}, as before" if change == "same" else f"{figures.size(mine)}, {change}"


def _lengths(contexts: Sequence[Context]) -> tuple[LengthRow, ...]:
    found: dict[int, list[int]] = {}
    for context in contexts:
        found.setdefault(context.length, []).append(context.context_tokens)
    return tuple(
        LengthRow(
            length=figures.count(length),
            contexts=figures.count(len(tokens)),
            tokens=figures.count(min(tokens))
            if min(tokens) == max(tokens)
            else f"{figures.count(min(tokens))}–{figures.count(max(tokens))}",
        )
        for length, tokens in sorted(found.items())
    )
