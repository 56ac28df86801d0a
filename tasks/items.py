"""Questions that people wrote about documents of their own, and how they are dealt over seeds and bands.

A question asked twice in one cell is one piece of evidence, not two: dealing gives each cell every question at most
once, and says how many seeds that lasts for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from evalgate.errors import DoesNotFitError, RefusedError
from evalgate.tasks.corpus import split_lines
from evalgate.tasks.draw import Draw
from evalgate.tasks.finding import bare
from evalgate.tasks.scoring import normalise

UNBROKEN = 1 << 30
"""Characters of a line that is not split."""


class Item(BaseModel):
    """One line of a questions file: a document, a question that it answers, and every answer that will do."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    text: Annotated[str, Field(min_length=1)]
    question: Annotated[str, Field(min_length=1)]
    answers: Annotated[tuple[str, ...], Field(min_length=1)]

    def said(self) -> list[str]:
        """Every answer as :func:`plain` makes it, to be looked for in what it makes of a text."""
        return [plain(answer) for answer in self.answers]


@dataclass(frozen=True, slots=True)
class Items:
    """All lines of a questions file."""

    items: tuple[Item, ...]
    sha256: str


class Deck:
    """Items dealt for one task: which are asked, one in each band, and which lie beside them."""

    def __init__(self, items: Items, bands: int, rivals: int, order: Draw) -> None:
        """Raises DoesNotFitError where no haystack can be dealt without a second answer to one of its questions."""
        self._items = items.items
        self._plain = [plain(item.text) for item in self._items]
        self._said = [item.said() for item in self._items]
        self._rivals = rivals
        self._bands = bands
        self._groups = [group for group in self._grouped(order) if len(self._beside(group)) >= rivals]
        if not self._groups:
            raise DoesNotFitError(
                f"of {len(self._items)} questions no {bands} can be asked of one context with {rivals} more documents "
                "in it that give none of their answers; add questions about other documents, or lower the rung"
            )

    @property
    def seeds(self) -> int:
        """Seeds for which no cell is asked a question twice."""
        return len(self._groups) * self._bands

    def deal(self, seed: int, draw: Draw) -> list[Item]:
        """The items asked by ``seed``, one for each band in their order, then the documents beside them."""
        group = self._groups[seed % len(self._groups)]
        turned = seed // len(self._groups)
        asked = [group[(band + turned) % self._bands] for band in range(self._bands)]
        beside = draw.permutation(self._beside(group))[: self._rivals]
        return [self._items[i] for i in [*asked, *beside]]

    def _grouped(self, order: Draw) -> list[list[int]]:
        """Groups of as many items as there are bands; no document of a group answers another's question."""
        groups: list[list[int]] = []
        for i in order.permutation(range(len(self._items))):
            for group in groups:
                if len(group) < self._bands and not any(self._clash(i, j) or self._clash(j, i) for j in group):
                    group.append(i)
                    break
            else:
                groups.append([i])
        return [group for group in groups if len(group) == self._bands]

    def _beside(self, group: Sequence[int]) -> list[int]:
        """Items whose documents answer no question of ``group``, each document once."""
        seen = {self._plain[i] for i in group}
        found = []
        for i, text in enumerate(self._plain):
            if text not in seen and not any(said in text for j in group for said in self._said[j]):
                seen.add(text)
                found.append(i)
        return found

    def _clash(self, asked: int, other: int) -> bool:
        return self._plain[asked] == self._plain[other] or any(said in self._plain[other] for said in self._said[asked])


def plain(text: str) -> str:
    """Words alone, as free texts are compared, with a blank before and after."""
    return f" {' '.join(bare(normalise(text)))} "


def read_items(path: str) -> Items:
    """Read a JSON lines file with ``text``, ``question`` and ``answers`` in each line.

    Raises RefusedError for a file that cannot be read, a line that lacks one of them, or an answer without a word.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RefusedError(f"questions.path {path!r} cannot be read ({error}); name a JSON lines file") from error
    items = tuple(_item(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip())
    if not items:
        raise RefusedError(f"questions.path {path!r} holds no question; expected text, question and answers in a line")
    body = json.dumps([item.model_dump() for item in items], ensure_ascii=False)
    return Items(items, hashlib.sha256(body.encode()).hexdigest())


def _item(line: str, where: str) -> Item:
    try:
        given = json.loads(line)
        if isinstance(given, dict) and isinstance(given.get("answers"), str):
            given["answers"] = [given["answers"]]
        item = Item.model_validate(given)
        item = Item(text=tidy(item.text), question=" ".join(item.question.split()), answers=item.answers)
    except (json.JSONDecodeError, ValidationError) as error:
        raise RefusedError(
            f"{where}: expected an object with text, question and answers, all filled; found {line[:60]!r}"
        ) from error
    for answer in item.answers:
        if not answer.isprintable() or not plain(answer).strip():
            raise RefusedError(f"{where}: answer {answer!r} has no word that an answer could be compared by")
    return item


def tidy(text: str) -> str:
    """The same lines without control characters, blank lines and repeated blanks."""
    return "\n".join(split_lines(text, UNBROKEN))
