"""Policies: versioned bars, sampling plan and validity limits; what is promised before a run is seen.

A policy knows what would pass and block, and nothing of any run.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Sequence
from importlib.resources import files
from itertools import pairwise, product
from pathlib import Path
from string import Template
from typing import Annotated, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from evalgate.errors import RefusedError
from evalgate.records import AnswerRule, Cell, DocumentId
from evalgate.versioned import Document, Library, parse, parse_yaml

SUITE_PATTERN = r"^[a-z0-9][a-z0-9.-]*@(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)$"
TASK_PATTERN = r"^([a-z][a-z0-9_-]*(@[a-z0-9.-]+)?(\+[a-z]+)?|lm_eval:[\w.-]+)$"
WORD_PATTERN = r"^[a-z][a-z0-9_-]*$"

H = TypeVar("H", bound=Hashable)


def _listed(value: object) -> object:
    return value if isinstance(value, list) else [value]


def _distinct(values: list[H]) -> list[H]:
    twice = [value for value, count in Counter(values).items() if count > 1]
    if twice:
        raise ValueError(f"{twice[0]!r} is given twice; keep one of them")
    return values


def _ascending(values: list[int]) -> list[int]:
    if any(later <= earlier for earlier, later in pairwise(values)):
        raise ValueError("looks must ascend, each seed count larger than the one before")
    return values


def _removable(patterns: list[str]) -> list[str]:
    """Patterns that can be applied: a slip is told when the policy is read, not when a run is over."""
    from evalgate.redaction import Redactor

    try:
        Redactor(patterns)
    except RefusedError as error:
        raise ValueError(str(error).removeprefix("--redact ")) from error
    return patterns


OneOrMore = Annotated[
    list[H],
    BeforeValidator(_listed, json_schema_input_type=list[str | int] | str | int),
    AfterValidator(_distinct),
    Field(min_length=1),
]
Share = Annotated[float, Field(ge=0, lt=1)]
Bar = Annotated[float, Field(gt=0, le=1)]
Alpha = Annotated[float, Field(gt=0, le=0.5)]
Margin = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
Task = Annotated[str, Field(pattern=TASK_PATTERN)]
Word = Annotated[str, Field(pattern=WORD_PATTERN)]


class _Section(BaseModel):
    # Strict: "400" is no number and true is no count, so a quoting slip is refused and not guessed at.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


class BlockBudget(_Section):
    """Chance of a false BLOCK over the whole policy, by kind of test; each part is split over its cells."""

    absolute: Alpha = 0.02
    paired: Alpha = 0.02
    guard: Alpha = 0.01


class AlphaBudget(_Section):
    """Error rates: ``pass`` per cell, ``block`` for the whole policy."""

    pass_: Alpha = Field(default=0.05, alias="pass")
    block: BlockBudget = BlockBudget()


class CellRule(_Section):
    """A bar for every combination of the tasks, lengths, bands and arms named."""

    task: OneOrMore[Task]
    length: OneOrMore[Count]
    band: OneOrMore[Word]
    arm: OneOrMore[Word] = ["default"]
    min: Bar
    tier: Literal["primary", "guard"] = "primary"
    break_margin: Margin | None = None
    """Overrides ``baseline.break_margin`` for these cells."""

    @property
    def cells(self) -> list[Cell]:
        """Every cell that the rule speaks of."""
        return [Cell(*parts) for parts in product(self.task, self.length, self.band, self.arm)]


class BaselineRule(_Section):
    """Whether a baseline run is compared with, and the share of broken trials that is still no regression."""

    use: Literal["required", "optional", "none"] = "optional"
    break_margin: Margin = 0.03


class Validity(_Section):
    """Conditions that a run must meet before its recall means anything."""

    max_error_share: Share = 0.01
    """Of any cell; errors and missing trials together."""
    max_truncated_share: Share = 0.02
    """Of any cell; above it the run is ERROR only where the baseline is above it too."""
    max_empty_share: Share = 0.02
    """As ``max_truncated_share``, for empty answers."""
    floor: Bar | None = 0.95
    """Recall of ``single`` at the shortest length without compression; null where the suite has no ``single``."""
    require_effective_profile: bool = True
    """The engine must report the profile's settings as it was asked for them."""


class Privacy(_Section):
    """What `evalgate check` keeps of answers, at most: options of the command can only keep less."""

    answers: AnswerRule = "keep"
    """``keep`` leaves it to the command, which redacts by itself; ``redact`` and ``drop`` forbid to keep more."""
    keep_days: int | None = Field(default=None, ge=0)
    """Days after which `evalgate runs prune` removes the answers."""
    redact: Annotated[list[str], AfterValidator(_removable)] = []
    """Regular expressions of what answers must not keep, beside secrets and personal data."""

    def strictest(self, asked: AnswerRule | None) -> AnswerRule | None:
        """The rule that keeps less: the policy's or the one that was asked for."""
        if self.answers == "keep":
            return asked
        return "drop" if "drop" in {asked, self.answers} else "redact"

    def shortest(self, asked: int | None) -> int | None:
        """The fewer days: the policy's or those that were asked for."""
        return min((days for days in (self.keep_days, asked) if days is not None), default=None)


class Policy(Document):
    """A versioned policy, ``NAME/VERSION.yaml``."""

    model_config = ConfigDict(strict=True)

    kind: Literal["release", "smoke"]
    """``smoke`` policies only block; their best word is INCONCLUSIVE."""
    suite: str = Field(pattern=SUITE_PATTERN)
    """``name@1.0.0``: bars and seed counts are promised for this suite and no other."""
    looks: Annotated[list[Count], AfterValidator(_ascending)] = Field(min_length=1)
    """Seed counts at which the run may be judged; one look is a fixed n."""
    alpha: AlphaBudget = AlphaBudget()
    stop_on_block: bool = True
    n_guard: Count = 60
    churn_margin: Share = 0.01
    cells: list[CellRule] = Field(min_length=1)
    baseline: BaselineRule = BaselineRule()
    validity: Validity = Validity()
    privacy: Privacy = Privacy()
    on_inconclusive: Literal["hold", "block", "warn"] = "hold"

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if self.on_inconclusive == "warn" and self.kind != "smoke":
            raise ValueError("on_inconclusive: warn is for kind: smoke; a release policy holds or blocks")
        twice = [
            cell for cell, count in Counter(cell for rule in self.cells for cell in rule.cells).items() if count > 1
        ]
        if twice:
            raise ValueError(f"cell {twice[0]} is given by two rules; keep one of them")
        if not any(rule.tier == "primary" for rule in self.cells):
            raise ValueError("no primary cell: guard cells only block, so nothing could pass")
        return self

    @property
    def id(self) -> DocumentId:
        """Name, version and digest."""
        return DocumentId(name=self.name, version=self.version, digest=self.digest)

    @property
    def rules(self) -> dict[Cell, CellRule]:
        """The rule of every cell, in the order of the document."""
        return {cell: rule for rule in self.cells for cell in rule.cells}

    def margin(self, rule: CellRule) -> float:
        """Break margin that holds for the cells of ``rule``."""
        return self.baseline.break_margin if rule.break_margin is None else rule.break_margin


def library() -> Library:
    """Policies that come with evalgate."""
    return Library("policy", Path(str(files("evalgate.gates"))) / "policies")


def load_policy(ref: str) -> Policy:
    """Load a policy by ``name``, ``name@version`` or file; raises as ``Library.load`` does."""
    return library().load(Policy, ref)


def template(
    name: str,
    suite: str,
    *,
    tasks: Sequence[str] = ("single", "multikey@8"),
    lengths: Sequence[int] = (1024,),
    bands: Sequence[str] = ("front", "middle", "back"),
) -> str:
    """Return commented YAML of a new policy for ``suite`` (``name@1.0.0``) with its tasks, lengths and bands.

    Raises InvalidDocumentError: ``name``, ``suite`` or a task is not of a form that a policy may hold.
    """
    raw = files("evalgate.gates").joinpath("templates/policy.yaml").read_text(encoding="utf-8")
    text = Template(raw).substitute(
        name=json.dumps(name),
        suite=json.dumps(suite),
        tasks=json.dumps(list(tasks)),
        lengths=json.dumps(list(lengths)),
        bands=json.dumps(list(bands)),
        floor="0.95" if any(task.partition("@")[0] == "single" for task in tasks) else "null",
    )
    parse(Policy, parse_yaml(text, "new policy"), "new policy")
    return text
