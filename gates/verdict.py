"""The verdict: one object that feeds the exit code, JSON, JUnit, Markdown and the HTML report.

It holds numbers and words, and no rule: how a cell is decided is in ``rules.py`` and its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from evalgate.errors import ExitCode
from evalgate.records import Cell, DocumentId
from evalgate.stats import Interval


class Status(StrEnum):
    """What a verdict, or one cell of it, says; worst first."""

    TAMPERED = "TAMPERED"
    ERROR = "ERROR"
    BLOCK = "BLOCK"
    INCONCLUSIVE = "INCONCLUSIVE"
    PASS = "PASS"


class Reason(StrEnum):
    """Why the verdict is what it is, for machines; ``Verdict.reason`` says it in words."""

    ALL_PASSED = "all-passed"
    BELOW_BAR = "below-bar"
    REGRESSION = "regression"
    UNDECIDED = "undecided"
    NO_REGRESSION_SEEN = "no-regression-seen"
    RUN_INCOMPLETE = "run-incomplete"
    EMPTY_RUN = "empty-run"
    NO_RULES = "no-rules"
    DUPLICATE_TRIALS = "duplicate-trials"
    UNPLANNED_TRIALS = "unplanned-trials"
    MISSING_CELLS = "missing-cells"
    NOT_DRAWN = "not-drawn"
    TOO_FEW_SEEDS = "too-few-seeds"
    TOKENS_OFF_PLAN = "tokens-off-plan"
    WARM_WITHOUT_HITS = "warm-without-hits"
    TOO_MANY_ERRORS = "too-many-errors"
    TOO_MANY_TRUNCATED = "too-many-truncated"
    TOO_MANY_EMPTY = "too-many-empty"
    FLOOR_BROKEN = "floor-broken"
    PROFILE_NOT_EFFECTIVE = "profile-not-effective"
    BASELINE_REQUIRED = "baseline-required"
    BASELINE_NOT_COMPARABLE = "baseline-not-comparable"
    BASELINE_INVALID = "baseline-invalid"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class RunRef(_Part):
    """Which run was judged, bound to what it ran."""

    run_id: str
    suite: DocumentId
    profile: DocumentId
    model: str
    weights_sha256: str
    tokenizer_sha256: str
    backend: str
    seed_set: str
    seeds: int
    """Seeds that the run planned; the verdict's ``n`` says how many were counted."""


class PolicySource(_Part):
    """The git ref that the policy was read from, in place of the working tree."""

    ref: str
    commit: str
    path: str
    """Of the policy's file, from the top of the repository."""


class EffectiveContext(_Part):
    """The longest length up to which every band of a task is shown to pass."""

    task: str
    arm: str
    tokens: int | None
    """None: not even the shortest length that was judged is shown to pass."""
    judged_to: int
    """The longest length that a bar speaks of; the effective context may be longer where ``tokens`` is this."""
    blocked_at: int | None
    """The length after ``tokens`` where a band is shown to fail; None: it is open there, or all was passed."""

    @property
    def title(self) -> str:
        """The task, with its arm where that is not the default."""
        return self.task if self.arm == "default" else f"{self.task} · {self.arm}"

    def __str__(self) -> str:
        """``4,096 tokens``, ``at least 8,192 tokens`` or ``none shown``."""
        if self.tokens is None:
            return "none" if self.blocked_at is not None else "none shown"
        return f"{'at least ' if self.tokens == self.judged_to else ''}{self.tokens:,} tokens"


class PairedLook(_Part):
    """What decides against the baseline at one look; all looks are fixed before the first seed."""

    n: int
    breaks_max: int | None
    alpha: float
    """What McNemar may spend at this look."""


class PairedResult(_Part):
    """A cell of the candidate against the same trials of the baseline."""

    n: int
    """Seeds that count: those of the look at which the break bound passed or McNemar blocked, else of the last."""
    k_baseline: int
    """Trials that the baseline has right."""
    b: int
    """Breaks (baseline right, candidate wrong) as the BLOCK test counts them: an error is no break."""
    c: int
    """Gains (baseline wrong, candidate right) as the BLOCK test counts them: an error is a gain."""
    p_value: float
    """Exact one-sided McNemar: P(Bin(b + c, 1/2) >= b)."""
    alpha: float
    """The paired budget over the number of cells, of it what this look may spend."""
    b_min: int | None
    """BLOCK iff b >= this, which says the same as ``p_value`` <= ``alpha``; None: no b of these b + c blocks."""
    breaks: int
    """Breaks as the PASS test counts them: an error is a break."""
    breaks_max: int | None
    """PASS needs ``breaks`` <= this; None: no outcome can pass at this n and margin."""
    margin: float
    """d of the break bound: PASS shows that at most this share of trials breaks."""
    status: Status
    """PASS (the break bound holds), BLOCK (McNemar) or INCONCLUSIVE."""
    looks: list[PairedLook] = Field(default_factory=list)
    """Every look of the cell; empty in a verdict that does not say."""


class CellLook(_Part):
    """The integers that decide a cell at one look; all looks are fixed before the first seed."""

    n: int
    pass_min: int | None
    block_max: int | None


class CellVerdict(_Part):
    """One cell: the counts, the integers that decide, and what they decided."""

    cell: Cell
    tier: Literal["primary", "guard"]
    status: Status
    reason: str
    """Plain words: ``recalled 71/100; PASS needs at least 96, BLOCK is at most 82``."""
    n: int
    """Seeds that count: those of the look at which the bar passed or blocked, else of the last that was reached;
    ``n_guard`` in a guard cell."""
    k: int
    """Trials that are correct."""
    errors: int
    """Trials with outcome ``error``: failures in the PASS test, successes in the BLOCK test."""
    missing: int
    """Seeds of n that the run holds no trial of; they count as errors do."""
    outcomes: dict[str, int]
    """How many trials had each outcome; outcomes that did not occur are absent."""
    bar: float
    interval: Interval | None
    """Two-sided 95% Clopper-Pearson interval of k/n, for display only; None where n is 0 or nothing was judged."""
    lower_bound: float | None
    """One-sided Clopper-Pearson lower bound at the policy's ``alpha.pass``; None as for ``interval``."""
    pass_min: int | None
    """PASS needs k >= this; None: no k passes at this n, or the cell is a guard, which never passes."""
    block_max: int | None
    """BLOCK iff k + errors + missing <= this; None: no k blocks at this n."""
    absolute: Status
    """What the bar alone says, before the baseline is looked at."""
    n_needed: int | None = None
    """Seeds at which the observed share would pass, where the cell is INCONCLUSIVE and any number would do."""
    looks: list[CellLook] = Field(default_factory=list)
    """Every look of the cell, in a guard its only one; empty where nothing was judged or a verdict does not say."""
    baseline: PairedResult | None = None


class Check(_Part):
    """One condition that the run must meet before its recall means anything."""

    name: str
    status: Literal["ok", "failed", "not-applicable"]
    detail: str


class FloorBand(_Part):
    """``single`` at the shortest length in one band; broken iff ``k + errors`` <= ``k_max``."""

    band: str
    n: int
    k: int
    errors: int
    """Errors and missing trials; they count as recalled."""
    k_max: int | None
    broken: bool


class Floor(_Part):
    """Whether the set-up can retrieve at all, judged on a run without compression."""

    status: Literal["ok", "broken", "not-judged", "off"]
    judged_on: Literal["baseline", "run"] | None
    task: str | None
    length: int | None
    bar: float | None
    bands: list[FloorBand] = Field(default_factory=list)
    detail: str


class Flip(_Part):
    """One trial whose answer changed between right and wrong from baseline to candidate."""

    trial_id: str
    seed: int
    cell: Cell
    depth: float
    expected: str
    baseline_answer: str
    candidate_answer: str
    candidate_outcome: str
    kind: Literal["lost", "gained"]


class Churn(_Part):
    """How many trials changed between right and wrong, over all judged cells (clustered: display only)."""

    n: int
    lost: int
    gained: int
    limit: float
    """Share above which the verdict carries the warning ``churn``."""


class Notice(_Part):
    """Something the reader should know that does not decide."""

    code: str
    detail: str


class Verdict(_Part):
    """What the gate says about one run under one policy, with everything needed to show why."""

    schema_version: Literal[1] = 1
    status: Status
    reason: str
    """One sentence that names the deciding cells."""
    reason_code: Reason
    on_inconclusive: Literal["hold", "block", "warn"]
    policy: DocumentId
    policy_body: dict[str, object]
    """The policy with every default filled in, as it was applied."""
    policy_source: PolicySource | None = None
    """None where the policy was not read from a git ref."""
    run: RunRef
    baseline_run: RunRef | None
    n: int | None
    """Seeds of the last look that was judged, at which no cell was open or the seeds ran out; None: there is none."""
    looks: list[int]
    cells: list[CellVerdict]
    effective_context: list[EffectiveContext] = Field(default_factory=list)
    """Of each task and arm that a primary cell judges; empty where the run is not valid, or a verdict does not say."""
    validity: list[Check]
    floor: Floor | None
    """None where the run is too broken to ask."""
    churn: Churn | None = None
    """None without a baseline, as ``flips`` is empty."""
    flips: list[Flip] = Field(default_factory=list)
    warnings: list[Notice] = Field(default_factory=list)

    @property
    def exit_code(self) -> ExitCode:
        """Exit code that the verdict means under the policy's ``on_inconclusive``."""
        if self.status is Status.INCONCLUSIVE:
            return {"hold": ExitCode.INCONCLUSIVE, "block": ExitCode.BLOCK, "warn": ExitCode.PASS}[self.on_inconclusive]
        return ExitCode[self.status]


def worst(statuses: Iterable[Status]) -> Status:
    """Return the status that wins: TAMPERED > ERROR > BLOCK > INCONCLUSIVE > PASS; nothing at all is ERROR."""
    order = list(Status)
    return min(statuses, key=order.index, default=Status.ERROR)
