"""Whether the settings that a profile asks for are the ones that the engine says it ran with."""

from __future__ import annotations

from collections.abc import Mapping

from evalgate.gates.profile import Profile
from evalgate.records import Manifest

OPTIONAL_SECTIONS = frozenset({"cache"})
"""Sections that a backend without such a thing may leave unreported; they change speed, not what is remembered."""


def profile_faults(manifest: Manifest, profile: Profile | None) -> list[str]:
    """Say every way in which the effective profile of ``manifest`` is not ``profile``; an empty list: it is.

    A field that the engine does not report, and one that no profile has, are faults.
    ``auto`` is met by ``auto`` and by the compute dtype.
    """
    asked = manifest.profile
    if profile is None:
        return [f"profile {asked.name}@{asked.version} is not at hand to compare with; pass its file"]
    if profile.id != asked:
        return [f"the run used profile {asked.name}@{asked.version} ({asked.digest[:12]}), found {_tell(profile)}"]
    effective = manifest.engine.effective_profile
    faults = [f"{name}: reported, but no profile has it" for name in effective if name not in profile.sections]
    for name, section in profile.sections.items():
        reported = effective.get(name)
        if reported is None and name in OPTIONAL_SECTIONS:
            continue
        faults += _section_faults(name, section, reported, manifest.engine.dtype)
    return faults


def _section_faults(name: str, asked: Mapping[str, object], reported: object, dtype: str) -> list[str]:
    if not isinstance(reported, Mapping):
        return [f"{name}: not reported by the engine"]
    faults = [f"{name}.{field}: reported, but no profile has it" for field in reported if field not in asked]
    for field, value in asked.items():
        if field not in reported:
            faults.append(f"{name}.{field}: not reported by the engine")
        elif reported[field] != value and not (value == "auto" and reported[field] == dtype):
            faults.append(f"{name}.{field}: asked {value!r}, ran {reported[field]!r}")
    return faults


def _tell(profile: Profile) -> str:
    return f"{profile.ref} ({profile.digest[:12]})"
