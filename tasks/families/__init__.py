"""The table of needle families; a task is a family at a rung, such as ``multikey@8``."""

from __future__ import annotations

from evalgate.tasks.families.family import Bands, Family, Plant
from evalgate.tasks.families.multikey import Multikey
from evalgate.tasks.families.overwrite import Overwrite
from evalgate.tasks.families.single import Single

__all__ = ["FAMILIES", "Bands", "Family", "Plant"]

FAMILIES: dict[str, Family] = {family.name: family for family in (Single(), Multikey(), Overwrite())}
