"""Drawing seeds look by look: a cell that is decided is no longer asked, and no haystack is read beyond the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from evalgate.gates.judge_run import peek
from evalgate.gates.policy import Policy
from evalgate.gates.schedule import begin, extend
from evalgate.records import Cell, Manifest, Schedule
from evalgate.store import RunFolder
from evalgate.tasks.packing import Stream


class Task(NamedTuple):
    """One haystack to ask, and which cells ask it."""

    seed: int
    stream: Stream
    cells: frozenset[Cell]


@dataclass(frozen=True, slots=True)
class Looks:
    """The policy whose looks a run follows, and the baseline that it is compared with at each."""

    policy: Policy
    baseline: RunFolder | None = None

    @property
    def most_seeds(self) -> int:
        """Seeds of the last look."""
        return max(self.policy.looks[-1], self.policy.n_guard)

    def begin(self, manifest: Manifest, streams: Sequence[Stream]) -> Manifest:
        """``manifest`` planned up to the first look."""
        baseline = None if self.baseline is None else self.baseline.manifest().run_id
        return _planned(manifest, begin(self.policy, _cells(manifest), baseline), streams)

    def extend(self, folder: RunFolder, streams: Sequence[Stream]) -> Manifest | None:
        """The manifest of ``folder`` planned up to the next look, or None where every cell is decided."""
        manifest = folder.manifest()
        assert manifest.schedule is not None, "begun with a schedule"
        verdict = peek(folder, self.policy, self.baseline)
        longer = extend(manifest.schedule, self.policy, _cells(manifest), verdict)
        return None if longer is None else _planned(manifest, longer, streams)


def planned(manifest: Manifest, streams: Sequence[Stream]) -> Iterator[Task]:
    """Every haystack that ``manifest`` plans, seed by seed, with the cells that ask it."""
    cells = _cells(manifest)
    asked = [manifest.seeds] * len(cells) if manifest.schedule is None else manifest.schedule.asked
    for seed in range(manifest.seeds):
        going = [cell for cell, seeds in zip(cells, asked, strict=True) if seed < seeds]
        for stream in streams:
            asking = frozenset(cell for cell in going if stream.asks(cell))
            if asking:
                yield Task(seed, stream, asking)


def _planned(manifest: Manifest, schedule: Schedule, streams: Sequence[Stream]) -> Manifest:
    longer = manifest.model_copy(update={"schedule": schedule, "seeds": max(schedule.asked)})
    return longer.model_copy(update={"haystacks": sum(1 for _ in planned(longer, streams))})


def _cells(manifest: Manifest) -> list[Cell]:
    return [Cell(*parts) for parts in manifest.cells]
