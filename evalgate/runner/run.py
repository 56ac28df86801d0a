"""The run itself: haystack by haystack, each committed whole, so that a killed run goes on where it was."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from evalgate.backends.base import Answer, Ask, Group, Question
from evalgate.errors import InvalidRunError
from evalgate.records import Manifest, Outcome, Trial
from evalgate.runner.identity import check_same, new_manifest, now
from evalgate.runner.request import Bench
from evalgate.store import RunFolder
from evalgate.tasks import words
from evalgate.tasks.haystack import Haystack, Probe
from evalgate.tasks.packing import Stream
from evalgate.tasks.scoring import score


class Progress(NamedTuple):
    """How far a run is, in haystacks; ``fresh``, ``tokens`` and ``seconds`` are of this process only."""

    done: int
    total: int
    fresh: int
    tokens: int
    seconds: float


def run_suite(bench: Bench, out: Path, report: Callable[[Progress], None] = lambda _: None) -> RunFolder:
    """Run ``bench`` into folder ``out``, going on with what a run killed earlier left there.

    Raises MismatchError (``out`` holds another run), StorageError (disk) and what the backend raises.
    """
    asked = new_manifest(bench)
    folder, manifest = _begin(out, asked)
    if manifest.status == "complete":
        folder.verify()
        return folder
    with folder.exclusive():
        done = folder.done()
        work = [
            (seed, stream)
            for seed in range(bench.request.seeds)
            for stream in bench.builder.streams
            if (seed, stream.index) not in done
        ]
        total = bench.request.seeds * len(bench.builder.streams)
        started, tokens = time.monotonic(), 0
        for i, (seed, stream) in enumerate(work):
            report(Progress(total - len(work) + i, total, i, tokens, time.monotonic() - started))
            tokens += _run_haystack(bench, folder, seed, stream)
        report(Progress(total, total, len(work), tokens, time.monotonic() - started))
        wall = (manifest.wall_s or 0.0) + time.monotonic() - started
        finished = manifest.model_copy(update={"finished": now(), "wall_s": round(wall, 3)})
        folder.finish(finished, bench.backend.counters())
    return folder


def _begin(out: Path, asked: Manifest) -> tuple[RunFolder, Manifest]:
    if not (out / "manifest.json").exists():
        return RunFolder.create(out, asked), asked
    folder = RunFolder.open(out)
    kept = folder.manifest()
    check_same(kept, asked, str(out))
    return folder, kept


def _run_haystack(bench: Bench, folder: RunFolder, seed: int, stream: Stream) -> int:
    """Ask one haystack and commit it; returns the tokens of its prompt."""
    haystack = bench.builder.build(seed, stream)
    trials = ask_haystack(bench, haystack, stream)
    folder.write_part(seed, stream.index, haystack.contexts, trials)
    return len(haystack.tokens)


def ask_haystack(bench: Bench, haystack: Haystack, stream: Stream) -> list[Trial]:
    """Ask every question of one haystack.  Raises InvalidRunError unless each is answered exactly once."""
    answered = bench.backend.answer(_group(bench, haystack))
    answers = {answer.trial_id: answer for answer in answered}
    if len(answered) != len(answers) or answers.keys() != {probe.trial_id for probe in haystack.probes}:
        raise InvalidRunError(
            f"backend {bench.request.backend} gave {len(answered)} answers to the {len(haystack.probes)} questions of "
            f"haystack {haystack.seed}-{haystack.stream}; nothing of it was kept, run again"
        )
    return [_trial(bench, haystack, stream, probe, answers[probe.trial_id]) for probe in haystack.probes]


def _group(bench: Bench, haystack: Haystack) -> Group:
    arms = bench.suite.arms
    asks = [
        Ask(
            end,
            [
                Question(probe.tail, end + len(probe.tail), probe.trial_id)
                for probe in haystack.probes
                if (probe.cell.length, probe.cell.arm) == (length, arm)
            ],
            arm,
        )
        for length, end in sorted(haystack.ends.items())
        for arm in arms
    ]
    return Group(
        tokens=haystack.tokens,
        context_start=haystack.context_start,
        asks=asks,
        max_tokens=bench.suite.decoding.max_tokens,
        stop_ids=bench.backend.tokenizer.eos_ids,
    )


def _trial(bench: Bench, haystack: Haystack, stream: Stream, probe: Probe, answer: Answer) -> Trial:
    planned = haystack.ends[probe.cell.length] + len(probe.tail)
    expected = str(probe.needle.fact.value)
    # A prompt of another length than planned was cut or changed on the way: its answer says nothing about recall.
    whole = answer.prompt_tokens == planned
    return Trial(
        trial_id=probe.trial_id,
        context_id=bench.builder.context_id(haystack.seed, stream, probe.cell.length),
        seed=haystack.seed,
        stream=haystack.stream,
        task=probe.cell.task,
        form=words.ATTRIBUTES[probe.needle.fact.form],
        length=probe.cell.length,
        band=probe.cell.band,
        depth=probe.depth,
        needle_start=probe.needle.start,
        needle_end=probe.needle.end,
        arm=probe.cell.arm,
        same_form_in_context=probe.same_form,
        facts_in_context=probe.facts,
        prompt_sha256=probe.prompt_sha256,
        expected=expected,
        answer=answer.text,
        outcome=score(answer.text, answer.finish_reason, expected) if whole else Outcome.ERROR,
        prompt_tokens=answer.prompt_tokens,
        cached_tokens=answer.cached_tokens,
        completion_tokens=len(answer.token_ids),
        finish_reason=answer.finish_reason,
        latency_s=answer.latency_s,
        batch_id=answer.batch_id,
        attempt=1,
    )
