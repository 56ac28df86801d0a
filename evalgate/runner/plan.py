"""What a run will cost, said before it starts: packing, tokens, and the same trials asked one by one."""

from __future__ import annotations

from dataclasses import dataclass

from evalgate.backends.base import check_arms
from evalgate.runner.request import Bench
from evalgate.tasks.packing import Stream
from evalgate.tasks.suite import Suite
from evalgate.tasks.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamCost:
    """One stream's entries and what one of its haystacks costs, in tokens."""

    stream: int
    entries: list[str]
    prefilled: int
    asked: int

    @property
    def tokens(self) -> int:
        """All tokens that one haystack takes in."""
        return self.prefilled + self.asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast a plan's tokens were taken in, and what that was measured on."""

    tokens_per_second: float
    """Median over the haystacks."""
    haystacks: int
    """Haystacks that were timed."""
    stream: int
    tokens: int
    """Tokens of each, as the plan counts them."""
    seconds: float
    """What all of it took, with one haystack to warm up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Cost of a run; token counts are upper bounds for one seed unless their name says otherwise."""

    suite: str
    model: str
    profile: str
    backend: str
    arm_paths: dict[str, str]
    seeds: int
    cells: int
    trials: int
    reserve_tokens: int
    needle_tokens: int
    streams: list[StreamCost]
    prefilled_per_seed: int
    asked_per_seed: int
    one_by_one_per_seed: int
    forks_per_seed: int
    """Sessions that go on from a context that is there; 0 where a backend cannot."""
    longest: int
    """Tokens of the longest prompt and answer."""
    window: int | None
    """Tokens that the model was made for; None: it does not say."""
    bytes_per_session: dict[str, int]
    speed: Speed | None = None
    """None where nothing was measured."""
    rate: float | None = None
    """Tokens per second as they were given; None: they were measured, if at all."""

    @property
    def tokens(self) -> int:
        """All tokens that the run takes in."""
        return self.seeds * (self.prefilled_per_seed + self.asked_per_seed)

    @property
    def seconds(self) -> float | None:
        """Estimated wall time; None where no rate is known."""
        rate = self.rate if self.speed is None else self.speed.tokens_per_second
        return None if rate is None else self.tokens / rate

    @property
    def saving(self) -> float:
        """How many times fewer tokens than one prompt per trial."""
        return self.one_by_one_per_seed / (self.prefilled_per_seed + self.asked_per_seed)


GRID = 64


PROMPTS_PER_TRIAL = {"preempted-twice": 3}
"""Most prompts that a trial takes in on a path; every other one that does not fork takes it in once."""


def _cost(stream: Stream, paths: list[str], suite: Suite, tail: int) -> StreamCost:
    """What one haystack of a stream costs at most, over the paths of the arms that ask it."""
    entries = [f"{entry.task}·{entry.length}" for entry in stream.entries]
    questions = {
        entry: 1 if stream.isolated else len(Task(entry.task).family.asked(suite.bands)) for entry in stream.entries
    }
    # A fork goes back to the grid, so it takes in up to one grid step of context with its question.
    question = sum(questions.values()) * (tail + GRID)
    prefilled = asked = 0
    for path in paths:
        if path == "fork":
            asked += question
        elif path == "stored-prefix":
            # One prompt of each length is stored, and every question is asked on it twice.
            prefilled += sum(entry.length for entry in stream.entries)
            asked += 2 * question
        else:
            prompts = PROMPTS_PER_TRIAL.get(path, 1)
            prefilled += prompts * sum(count * entry.length for entry, count in questions.items())
    if "fork" in paths:
        prefilled += stream.longest
    return StreamCost(stream=stream.index, entries=entries, prefilled=prefilled, asked=asked)


def make_plan(bench: Bench) -> Plan:
    """Work out the plan of ``bench``; nothing is run."""
    suite, source = bench.suite, bench.source
    tail = source.tail_tokens + suite.decoding.thinking_tokens + suite.decoding.max_tokens
    paths = check_arms(suite.arms, bench.backend.arms())
    streams = [
        _cost(stream, [paths[arm] for arm in suite.arms if (arm == "isolated") == stream.isolated], suite, tail)
        for stream in source.streams
    ]
    cells = suite.cells()
    return Plan(
        suite=suite.ref,
        model=bench.request.model,
        profile=bench.profile.ref,
        backend=bench.request.backend,
        arm_paths=paths,
        seeds=bench.request.seeds,
        cells=len(cells),
        trials=len(cells) * bench.request.seeds,
        reserve_tokens=source.reserve,
        needle_tokens=source.needle_tokens,
        streams=streams,
        prefilled_per_seed=sum(s.prefilled for s in streams),
        asked_per_seed=sum(s.asked for s in streams),
        one_by_one_per_seed=sum(cell.length for cell in cells),
        forks_per_seed=sum(paths[cell.arm] == "fork" for cell in cells),
        longest=suite.lengths[-1],
        window=bench.backend.model_window,
        bytes_per_session=bench.backend.engine_id(suite.lengths[-1], tuple(suite.arms)).bytes_per_session,
    )
