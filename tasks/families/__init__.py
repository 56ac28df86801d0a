"""The table of task families; a task is a family at a rung, such as ``multikey@8``."""

from __future__ import annotations

from evalgate.tasks.families.absent import Absent
from evalgate.tasks.families.chat import Chat
from evalgate.tasks.families.code import Code
from evalgate.tasks.families.common_words import Common
from evalgate.tasks.families.compose import Compose
from evalgate.tasks.families.count import Count
from evalgate.tasks.families.coverage import Coverage
from evalgate.tasks.families.distance import Distance
from evalgate.tasks.families.docqa import Docqa, DocqaHop
from evalgate.tasks.families.family import WHOLE, Bands, Cast, Family, Query, Script, Statement
from evalgate.tasks.families.frequent_words import Frequent
from evalgate.tasks.families.interference import Interference
from evalgate.tasks.families.latent import Latent
from evalgate.tasks.families.multikey import Load, Multikey, MultikeyUuid
from evalgate.tasks.families.multiquery import Multiquery
from evalgate.tasks.families.multivalue import Multivalue
from evalgate.tasks.families.ordinal import Ordinal
from evalgate.tasks.families.overwrite import Overwrite
from evalgate.tasks.families.ownqa import Ownqa
from evalgate.tasks.families.single import Single
from evalgate.tasks.families.speaker import Speaker
from evalgate.tasks.families.trace import Trace

__all__ = ["FAMILIES", "WHOLE", "Bands", "Cast", "Family", "Query", "Script", "Statement"]

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Single("number"),
        Single("word"),
        Single("uuid"),
        Multikey(),
        MultikeyUuid(),
        Multivalue(),
        Multiquery(),
        Overwrite(),
        Interference(),
        Load(),
        Distance(),
        Count(),
        Ordinal(),
        Absent(),
        Trace(),
        Compose(),
        Latent(),
        Frequent(),
        Common(),
        Code(),
        Chat(),
        Speaker(),
        Coverage(),
        Docqa(),
        DocqaHop(),
        Ownqa(),
    )
}
