"""The run itself: haystack by haystack, each committed whole, so that a killed run goes on where it was."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from evalgate.backends.base import PROMPT_ARMS, Answer, Ask, Group, Question, TokenizerPort
from evalgate.errors import InvalidRunError
from evalgate.records import Manifest, Outcome, Trial
from evalgate.runner.identity import check_same, new_manifest, now
from evalgate.runner.looks import Looks, Task, planned
from evalgate.runner.request import Bench, check_seeds
from evalgate.store import RunFolder
from evalgate.tasks.haystack import Haystack, Probe
from evalgate.tasks.packing import Stream
from evalgate.tasks.scoring import score
from evalgate.tasks.stopping import cut
from evalgate.tasks.suite import Suite


class Progress(NamedTuple):
    """How far a run is, in haystacks; ``fresh``, ``tokens`` and ``seconds`` are of this process only."""

    done: int
    total: int
    fresh: int
    tokens: int
    seconds: float


def run_suite(
    bench: Bench, out: Path, report: Callable[[Progress], None] = lambda _: None, looks: Looks | None = None
) -> RunFolder:
    """Run ``bench`` into folder ``out``, going on with what a run killed earlier left there.

    With ``looks`` seeds are drawn look by look, up to the last that any cell needs, whatever the request's number.
    Raises RefusedError (more seeds than the user's own questions last for), MismatchError (``out`` holds another run),
    StorageError (disk), what the backend raises and, with ``looks``, what judging raises.
    """
    check_seeds(bench, bench.request.seeds if looks is None else looks.most_seeds)
    asked, streams = new_manifest(bench), bench.streams
    if looks is not None:
        asked = looks.begin(asked, streams)
    folder, manifest = _begin(out, asked)
    if manifest.status == "complete":
        folder.verify()
        return folder
    with folder.exclusive():
        started, fresh = time.monotonic(), Progress(0, 0, 0, 0, 0.0)
        longer: Manifest | None = manifest
        while longer is not None:
            manifest = longer
            fresh = _ask_planned(bench, folder, manifest, report, fresh, started)
            longer = None if looks is None else looks.extend(folder, streams)
            if longer is not None:
                folder.write_manifest(longer)
        wall = (manifest.wall_s or 0.0) + time.monotonic() - started
        finished = manifest.model_copy(update={"finished": now(), "wall_s": round(wall, 3)})
        folder.finish(finished, bench.backend.counters())
    return folder


def _ask_planned(
    bench: Bench,
    folder: RunFolder,
    manifest: Manifest,
    report: Callable[[Progress], None],
    before: Progress,
    started: float,
) -> Progress:
    """Ask every haystack that ``manifest`` plans and ``folder`` lacks; ``before`` is how far this process was."""
    done = folder.done()
    tasks = list(planned(manifest, bench.streams))
    work = [task for task in tasks if (task.seed, task.stream.index) not in done]
    state = before._replace(done=len(tasks) - len(work), total=len(tasks))
    report(state)
    for tokens in _asked(bench, folder, work):
        state = state._replace(done=state.done + 1, fresh=state.fresh + 1, tokens=state.tokens + tokens)
        state = state._replace(seconds=time.monotonic() - started)
        report(state)
    return state


def _begin(out: Path, asked: Manifest) -> tuple[RunFolder, Manifest]:
    if not (out / "manifest.json").exists():
        return RunFolder.create(out, asked), asked
    folder = RunFolder.open(out)
    kept = folder.manifest()
    check_same(kept, asked, str(out))
    return folder, kept


def _asked(bench: Bench, folder: RunFolder, work: Sequence[Task]) -> Iterator[int]:
    """Ask and commit haystack by haystack; yields the tokens of each prompt."""
    guarded = set() if bench.guards is None else {stream.index for stream in bench.guards.streams}
    under_way: deque[tuple[Stream, Haystack]] = deque()

    def groups() -> Iterator[Group]:
        for task in work:
            if task.stream.index not in guarded:
                haystack = bench.source.build(task.seed, task.stream).only(task.cells)
                under_way.append((task.stream, haystack))
                yield group_of(bench.suite, bench.backend.tokenizer, haystack)

    for answers in bench.backend.answer_all(groups()):
        stream, haystack = under_way.popleft()
        folder.write_part(haystack.seed, stream.index, haystack.contexts, trials_of(bench, haystack, stream, answers))
        yield len(haystack.tokens)
    for task in work:
        if task.stream.index in guarded:
            yield _ask_guard(bench, folder, task)


def _ask_guard(bench: Bench, folder: RunFolder, task: Task) -> int:
    assert bench.guards is not None, "there are guards to ask"
    contexts, guarded = bench.guards.ask(task.seed, task.stream)
    kept = [dataclasses.replace(trial, answer=bench.kept(trial.answer, ())) for trial in guarded]
    folder.write_part(task.seed, task.stream.index, contexts, kept)
    return sum(trial.prompt_tokens for trial in kept)


def ask_haystack(bench: Bench, haystack: Haystack, stream: Stream) -> list[Trial]:
    """Ask every question of one haystack.  Raises InvalidRunError unless each is answered exactly once."""
    return trials_of(
        bench, haystack, stream, bench.backend.answer(group_of(bench.suite, bench.backend.tokenizer, haystack))
    )


def trials_of(bench: Bench, haystack: Haystack, stream: Stream, answered: Sequence[Answer]) -> list[Trial]:
    """The answers to one haystack as trials.  Raises InvalidRunError unless each question is answered exactly once."""
    answers = {answer.trial_id: answer for answer in answered}
    if len(answered) != len(answers) or answers.keys() != {probe.trial_id for probe in haystack.probes}:
        raise InvalidRunError(
            f"backend {bench.request.backend} gave {len(answered)} answers to the {len(haystack.probes)} questions of "
            f"haystack {haystack.seed}-{haystack.stream}; nothing of it was kept, run again"
        )
    rows = _rows(answered)
    return [
        _trial(bench, haystack, stream, probe, answers[probe.trial_id], rows[probe.trial_id])
        for probe in haystack.probes
    ]


def _rows(answers: Sequence[Answer]) -> dict[str, int]:
    """Trial -> its place in the batch that it was answered in, in the order of the answers."""
    seen: Counter[str] = Counter()
    rows = {}
    for answer in answers:
        rows[answer.trial_id] = seen[answer.batch_id]
        seen[answer.batch_id] += 1
    return rows


def group_of(suite: Suite, tokenizer: TokenizerPort, haystack: Haystack) -> Group:
    """Everything that is asked of one haystack, as backends take it."""
    asks = [
        Ask(
            end,
            [
                Question(probe.tail, end + len(probe.tail), probe.trial_id)
                for probe in haystack.probes
                if (probe.cell.length, probe.cell.arm) == (length, arm)
            ],
            "default" if arm in PROMPT_ARMS else arm,
        )
        for length, end in sorted(haystack.ends.items())
        for arm in suite.arms
    ]
    asks = [ask for ask in asks if ask.questions]
    return Group(
        tokens=haystack.tokens,
        context_start=haystack.context_start,
        asks=asks,
        max_tokens=suite.decoding.thinking_tokens + suite.decoding.max_tokens,
        stop_ids=tokenizer.eos_ids,
    )


def _trial(bench: Bench, haystack: Haystack, stream: Stream, probe: Probe, answer: Answer, row: int) -> Trial:
    expected_tokens = haystack.ends[probe.cell.length] + len(probe.tail)
    expected = str(probe.wanted)
    # A prompt of another length than planned was cut or changed on the way: its answer says nothing about recall.
    whole = answer.prompt_tokens == expected_tokens
    said = cut(answer.text, answer.finish_reason, bench.suite.stops)
    return Trial(
        trial_id=probe.trial_id,
        context_id=bench.source.context_id(haystack.seed, stream, probe.cell.length),
        seed=haystack.seed,
        stream=haystack.stream,
        task=probe.cell.task,
        form=probe.form,
        length=probe.cell.length,
        band=probe.cell.band,
        depth=probe.depth,
        needle_start=probe.start,
        needle_end=probe.end,
        arm=probe.cell.arm,
        same_form_in_context=probe.same_form,
        facts_in_context=probe.facts,
        prompt_sha256=probe.prompt_sha256,
        expected=expected,
        scorer=probe.wanted.scorer,
        answer=bench.kept(said.text, {value for other in haystack.probes for value in other.wanted.values}),
        outcome=score(*said, expected, probe.wanted.scorer) if whole else Outcome.ERROR,
        prompt_tokens=answer.prompt_tokens,
        cached_tokens=answer.cached_tokens,
        completion_tokens=len(answer.token_ids),
        finish_reason=said.finish_reason,
        latency_s=answer.latency_s,
        batch_id=answer.batch_id,
        batch_row=row,
        error=answer.error_code or ("tokens-off-plan" if not whole else "backend" if answer.error else ""),
        first_token_s=answer.first_token_s,
        attempt=1,
    )
