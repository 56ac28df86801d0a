"""A task: a family at a rung, such as ``multikey@8``, in a register of its own where it names one.

RULER's thirteen configurations (Hsieh et al., 2024) are tasks under their own names.
"""

from __future__ import annotations

import re
from typing import get_args

from evalgate.errors import UnknownNameError, UnsupportedError, nearest
from evalgate.tasks.families import FAMILIES, Family
from evalgate.tasks.plugins import plugin, plugin_names
from evalgate.tasks.registers import RegisterName

TASK_PATTERN = re.compile(r"^([a-z_]+)(?:@([1-9]\d*))?(?:\+([a-z]+))?$")

RULER: dict[str, str] = {
    "niah_single_1": "single+noise",
    "niah_single_2": "single",
    "niah_single_3": "single_uuid",
    "niah_multikey_1": "multikey@4",
    "niah_multikey_2": "multikey@4+needles",
    "niah_multikey_3": "multikey_uuid@4+needles",
    "niah_multivalue": "multivalue@4",
    "niah_multiquery": "multiquery@4",
    "vt": "trace@4",
    "cwe": "common@10",
    "fwe": "frequent@3",
    "qa_1": "docqa@8",
    "qa_2": "docqa_hop",
}
"""Name of a configuration -> the task that it is here: the same kind, with depth under control."""


def find_family(name: str) -> Family | None:
    """A family of evalgate, else of an installed package; None: neither has it.

    Raises UnsupportedError for a package's that is no family, or calls itself otherwise.
    """
    if name in FAMILIES:
        return FAMILIES[name]
    found = plugin("families", name)
    if found is None:
        return None
    family = found.value() if isinstance(found.value, type) else found.value
    if not isinstance(family, Family) or family.name != name:
        raise UnsupportedError(
            f"families {name!r} of package {found.package}: expected a Family of that name, found {found.value!r}"
        )
    return family


class Task:
    """One entry of a suite's tasks.  Raises UnknownNameError, or ValueError for a rung that the family lacks."""

    def __init__(self, name: str) -> None:
        match = TASK_PATTERN.match(RULER.get(name, name))
        family = find_family(match[1]) if match else None
        if match is None or family is None:
            known = [*FAMILIES, *RULER, *plugin_names("families")]
            raise UnknownNameError(f"unknown task {name!r}{nearest(name.partition('@')[0], known)}")
        if match[3] not in (None, *get_args(RegisterName)):
            raise UnknownNameError(f"unknown register {match[3]!r}{nearest(match[3], list(get_args(RegisterName)))}")
        if match[3] and family.own_filler:
            raise ValueError(
                f"task {family.name!r} fills its context itself, found register {match[3]!r}; leave it out"
            )
        self.name = name
        self.family: Family = family
        self.rung = int(match[2]) if match[2] else 1
        self.register: RegisterName | None = match[3]  # type: ignore[assignment]  # checked above
        family.check(self.rung if match[2] else None)
