"""Who runs next: requests are admitted, prefilled in passes on the grid, decoded together, and preempted.

One step is at most one prefill pass and one decode pass, so a long prompt does not hold up the answers of others.
A preempted request gives back all its memory; later it takes its prompt in again and then what it had produced, by
decode steps, so that it goes on exactly where it was.
"""

from __future__ import annotations

from evalgate.engine.counters import Counters
from evalgate.engine.job import Job
from evalgate.engine.memory import SessionMemory
from evalgate.engine.prefix_cache import Hit
from evalgate.engine.request import Result
from evalgate.engine.runner import Runner
from evalgate.engine.session import Session
from evalgate.errors import DoesNotFitError


class Scheduler:
    """Requests of one engine; ``prefix`` says whether prefixes are looked up and stored."""

    def __init__(self, runner: Runner, memory: SessionMemory, counters: Counters, *, prefix: bool) -> None:
        self._runner, self._memory, self._counters = runner, memory, counters
        self.prefix = prefix
        self._waiting: list[Job] = []
        self._running: list[Job] = []
        self._shared: tuple[list[int], int] = ([], 0)

    @property
    def busy(self) -> bool:
        """Whether any request is on its way."""
        return bool(self._waiting or self._running)

    def add(self, job: Job) -> None:
        """Take a request on; one that brings a session of its own is ready to decode."""
        if job.session is None:
            self._waiting.append(job)
            return
        self._running.append(job)
        self._sample([job])

    def step(self) -> list[Result]:
        """Admit, one prefill pass, one decode pass; returns the requests that are done."""
        self._admit()
        self._prefill()
        self._decode()
        return self._collect()

    def cancel(self, number: int) -> bool:
        """End a request where it stands; its memory is free when this returns.  False when it is not there."""
        for job in (*self._waiting, *self._running):
            if job.id == number and job.finish is None:
                job.finish = "cancelled"
                self._counters.add("cancelled")
                self._let_go(job)
                return True
        return False

    def preempt(self, number: int) -> bool:
        """Take a running request's memory away; it will go on by itself.  False when it is not running."""
        for job in self._running:
            if job.id == number and not job.adopted and job.finish is None:
                self._preempt(job, "asked")
                return True
        return False

    def produced(self, number: int) -> int:
        """Tokens that a request on its way has produced so far; 0 when it is not there."""
        return next((len(job.produced) for job in (*self._waiting, *self._running) if job.id == number), 0)

    def _collect(self) -> list[Result]:
        done = [job for job in (*self._waiting, *self._running) if job.finish is not None]
        for job in done:
            self._let_go(job)
        self._waiting = [job for job in self._waiting if job.finish is None]
        self._running = [job for job in self._running if job.finish is None]
        return [job.result() for job in done]

    def _let_go(self, job: Job) -> None:
        if job.session is not None and not job.adopted:
            self._memory.release(job.session)
            job.session = None

    # Admission

    def _admit(self) -> None:
        for job in sorted(self._waiting, key=lambda job: job.order):
            if job.finish is not None:
                continue
            try:
                if not self._start(job):
                    return
            except DoesNotFitError:
                # Nobody is left to wait for. Left in the queue it would raise at every step.
                self.cancel(job.id)
                raise

    def _start(self, job: Job) -> bool:
        """Give a waiting request a session; False when it has to wait."""
        if not self._memory.states.free:
            lower = [other for other in self._preemptible() if other.request.priority < job.request.priority]
            if not lower:
                return False
            self._preempt(max(lower, key=lambda other: other.order), "priority")
        ahead = any(other.order < job.order for other in self._running)
        if ahead and not self._memory.pages_for(job.prompt + len(job.produced) + 1, job.request.parent):
            return False
        if not self._room_for_copy(job):
            return False
        job.session = self._session(job)
        job.started_at = job.session.tokens
        if job.cached is None:
            job.cached = job.session.tokens
        else:
            self._counters.add("resumed")
        self._waiting.remove(job)
        self._running.append(job)
        self._settle(job)
        return True

    def _room_for_copy(self, job: Job) -> bool:
        """Whether the partly filled page of a parent can be copied; requests that come later make way for it."""
        wanted = self._memory.pages_to_copy(job.request.parent)
        self._memory.prefixes.free_pages(wanted)
        while wanted > self._memory.pages.free:
            later = [other for other in self._preemptible() if other.order > job.order]
            if not later:
                # Without anybody to wait for, the fork itself says what is missing.
                return not self._running
            self._preempt(max(later, key=lambda other: other.order), "memory")
        return True

    def _session(self, job: Job) -> Session:
        request = job.request
        if request.parent is not None:
            job.turned = True
            return self._memory.fork(request.parent, 1, request.context)[0]
        hit = Hit(None, 0)
        job.keep_at = job.keep_point(self._memory.prefixes.grid)
        if self.prefix and request.reuse:
            hit = self._memory.prefixes.lookup(request.tokens, job.keep_at, request.priority)
        job.branch = hit.branch
        return self._memory.open() if hit.prefix is None else self._memory.restore(hit.prefix)

    def _settle(self, job: Job) -> None:
        """What has to happen at the token where a request stands, between two passes."""
        session = job.session
        assert session is not None, "only requests with a session stand at a token"
        if not job.turned and session.tokens in {job.branch, job.keep_at}:
            self._store(job, session)
        if not job.turned and session.tokens >= job.turn_at:
            self._memory.turn(session, job.request.context)
            job.turned = True
        if session.tokens == job.prompt:
            self._memory.cut_hole(session)
            job.ready = True

    def _store(self, job: Job, session: Session) -> None:
        request, tokens = job.request, session.tokens
        # A prompt shorter than the grid has nothing to store, which is counted too.
        if self.prefix and request.reuse and (tokens > job.started_at or not job.keep_at):
            pin = request.pin and tokens == job.keep_at
            self._memory.prefixes.store(session, request.tokens[:tokens], priority=request.priority, pin=pin)

    # Prefill

    def _prefill(self) -> None:
        """One pass over the first request that has prompt left, and those that can share its pass."""
        jobs = [job for job in sorted(self._running, key=lambda job: job.order) if self._open(job)]
        if not jobs:
            return
        first = _place(jobs[0])
        group = self._make_room({job: self._stretch(job) for job in jobs if _place(job) == first})
        if not group:
            return
        self._runner.prefill_pass([_session(job) for job in group], list(group.values()))
        for job, tokens in group.items():
            self._counters.add("prefilled_tokens", len(tokens))
            self._settle(job)
        self._sample([job for job in group if job.ready and not job.produced])

    @staticmethod
    def _open(job: Job) -> bool:
        return job.finish is None and not job.ready

    def _stretch(self, job: Job) -> list[int]:
        """The tokens that the next pass takes in: up to whatever comes first."""
        start = _session(job).tokens
        ends = (self._runner.pass_end(start), job.prompt, job.branch, *job.request.cuts)
        if not job.turned:
            ends = (*ends, job.keep_at, job.turn_at)
        end = min(end for end in ends if end > start)
        return list(job.request.tokens[start - job.base : end - job.base])

    # Decode

    def _decode(self) -> None:
        """One token for every request that has one to take in."""
        jobs = [job for job in self._running if job.finish is None and job.ready and job.taken < len(job.produced)]
        rows = self._make_room({job: [job.produced[job.taken]] for job in jobs})
        if not rows:
            return
        sessions = [_session(job) for job in rows]
        self._runner.decode(sessions, [token for (token,) in rows.values()], self._common_rows(sessions))
        for job in rows:
            job.taken += 1
            again = job.taken < len(job.produced)
            self._counters.add("replayed_tokens" if again else "decoded_tokens")
        self._sample([job for job in rows if job.taken == len(job.produced)])

    def _common_rows(self, sessions: list[Session]) -> int:
        """Rows that all share; worked out again only when somebody joined."""
        ids = [session.id for session in sessions]
        if not set(ids) <= set(self._shared[0]):
            self._shared = (ids, self._runner.common_rows(sessions))
        return self._shared[1]

    def _sample(self, jobs: list[Job]) -> None:
        """Choose the next token of each, greedily; a row whose logits are not finite ends with ``error``."""
        for job in jobs:
            if job.request.max_tokens == 0:
                job.finish = "length"
        jobs = [job for job in jobs if job.finish is None]
        if not jobs:
            return
        logits = self._runner.logits([_session(job) for job in jobs])
        sound = logits.isfinite().all(dim=-1).tolist()
        best = logits.log_softmax(dim=-1).max(dim=-1)
        for job, token, logprob, ok in zip(jobs, best.indices.tolist(), best.values.tolist(), sound, strict=True):
            if not ok:
                job.finish = "error"
                self._counters.add("nonfinite_logits")
            elif token in job.request.stop_ids:
                job.finish = "stop"
            else:
                job.produced.append(token)
                job.logprobs.append(logprob)
                if len(job.produced) == job.request.max_tokens:
                    job.finish = "length"

    # Memory

    def _make_room(self, rows: dict[Job, list[int]]) -> dict[Job, list[int]]:
        """The rows whose new tokens have pages; others are preempted, the last in order first."""
        while True:
            wanted = sum(self._memory.pages_wanted(_session(job), len(tokens)) for job, tokens in rows.items())
            self._memory.prefixes.free_pages(wanted)
            if wanted <= self._memory.pages.free:
                return rows
            victims = self._preemptible()
            if not victims or (len(victims) == 1 and victims[0] in rows):
                for job in victims:
                    self.cancel(job.id)
                raise DoesNotFitError(
                    f"{wanted} more pages wanted, {self._memory.pages.free} of {self._memory.pages.size} free, the "
                    "others held by open sessions and pinned prefixes; release some, or give the engine more pages"
                )
            victim = max(victims, key=lambda job: job.order)
            self._preempt(victim, "memory")
            rows = {job: tokens for job, tokens in rows.items() if job is not victim}

    def _preemptible(self) -> list[Job]:
        return [job for job in self._running if not job.adopted and job.finish is None]

    def _preempt(self, job: Job, reason: str) -> None:
        self._let_go(job)
        job.turned = job.ready = False
        job.taken = 0
        job.preemptions += 1
        self._running.remove(job)
        self._waiting.append(job)
        self._counters.add(f"preemptions.{reason}")


def _session(job: Job) -> Session:
    assert job.session is not None, f"request {job.id} is not running"
    return job.session


def _place(job: Job) -> tuple[object, ...]:
    """Requests at like places can share a prefill pass."""
    session = _session(job)
    return session.tokens, session.cached, session.visibility
