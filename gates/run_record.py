"""What one run says about each cell, seed by seed: the only view of trials that the rules use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from evalgate.gates.profile import Profile
from evalgate.gates.schedule import told_schedule
from evalgate.gates.verdict import RunRef
from evalgate.records import Cell, Manifest, Outcome, Trial


class Tally(NamedTuple):
    """Counts of one cell over its first n seeds."""

    n: int
    outcomes: Counter[Outcome]
    missing: int

    @property
    def k(self) -> int:
        """Trials that are correct."""
        return self.outcomes[Outcome.CORRECT]

    @property
    def errors(self) -> int:
        """Trials whose outcome is an error."""
        return self.outcomes[Outcome.ERROR]

    @property
    def by_name(self) -> dict[str, int]:
        """Outcomes that occurred, by name."""
        return {str(outcome): count for outcome, count in sorted(self.outcomes.items())}

    @property
    def unknown(self) -> int:
        """Errors and missing trials: worst case in both directions."""
        return self.errors + self.missing


class RunRecord:
    """A manifest and its trials, indexed by cell and seed; the first of two trials of a place is kept."""

    def __init__(self, manifest: Manifest, trials: Sequence[Trial], profile: Profile | None) -> None:
        self.manifest = manifest
        self.profile = profile
        self.size = len(trials)
        self.planned = [Cell(*parts) for parts in manifest.cells]
        twice = [name for name, count in Counter(trial.trial_id for trial in trials).items() if count > 1]
        self.unplanned: list[Trial] = []
        self._by_cell: dict[Cell, dict[int, Trial]] = {}
        schedule = manifest.schedule
        seeds = [manifest.seeds] * len(self.planned) if schedule is None else schedule.asked
        self._asked = dict(zip(self.planned, seeds, strict=True))
        for trial in trials:
            if not 0 <= trial.seed < self.asked(trial.cell):
                self.unplanned.append(trial)
            elif trial.seed in self._by_cell.setdefault(trial.cell, {}):
                twice.append(trial.trial_id)
            else:
                self._by_cell[trial.cell][trial.seed] = trial
        self.duplicates = list(dict.fromkeys(twice))
        """Ids of trials that share their id, or their cell and seed, with another."""

    def __contains__(self, cell: Cell) -> bool:
        return cell in self._by_cell

    def asked(self, cell: Cell) -> int:
        """Seeds 0 .. this - 1 are those that the run's plan asks ``cell``; 0 where it does not ask it."""
        return self._asked.get(cell, 0)

    @property
    def drawn_for(self) -> str:
        """What decided how long each cell was asked."""
        return told_schedule(self.manifest.schedule)

    def trial(self, cell: Cell, seed: int) -> Trial | None:
        """The trial of ``cell`` on haystack ``seed``, or None where the run holds none."""
        return self._by_cell.get(cell, {}).get(seed)

    def trials(self, cell: Cell, n: int) -> list[Trial]:
        """The trials of ``cell`` on seeds 0 .. n-1 that the run holds."""
        return [trial for seed in range(n) if (trial := self.trial(cell, seed)) is not None]

    def tally(self, cell: Cell, n: int) -> Tally:
        """Count the outcomes of ``cell`` over seeds 0 .. n-1; a seed without a trial is missing, not left out."""
        found = self.trials(cell, n)
        return Tally(n, Counter(trial.outcome for trial in found), n - len(found))

    def pairs(self, baseline: RunRecord, cell: Cell, n: int) -> Iterator[tuple[Trial | None, Trial | None]]:
        """(own trial, baseline's trial) of ``cell`` over seeds 0 .. n-1."""
        return ((self.trial(cell, seed), baseline.trial(cell, seed)) for seed in range(n))

    @property
    def ref(self) -> RunRef:
        """Which run this is, for the verdict."""
        manifest = self.manifest
        return RunRef(
            run_id=manifest.run_id,
            suite=manifest.suite,
            profile=manifest.profile,
            model=manifest.model.name,
            weights_sha256=manifest.model.weights_sha256,
            tokenizer_sha256=manifest.model.tokenizer_sha256,
            backend=manifest.engine.backend,
            seed_set=manifest.seed_set,
            seeds=manifest.seeds,
        )
