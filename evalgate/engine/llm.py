"""The engine's one door: prefill, fork, generate, requests, logprobs, over token ids.

``llm -> scheduler -> runner -> model -> kernels``.  It knows sessions, requests and settings, never text.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from evalgate.engine.budget import Budget, free_memory, plan_pools
from evalgate.engine.compression import Compression, StateCodec
from evalgate.engine.counters import Counters
from evalgate.engine.device import Device, open_device
from evalgate.engine.effective import effective_config
from evalgate.engine.integrity import check_integrity
from evalgate.engine.job import Job
from evalgate.engine.loader import Checkpoint, load_checkpoint
from evalgate.engine.memory import SessionMemory
from evalgate.engine.model import HybridModel
from evalgate.engine.page_pool import PagePool
from evalgate.engine.prefix_cache import PrefixCache
from evalgate.engine.request import Request, Result
from evalgate.engine.runner import Runner
from evalgate.engine.scheduler import Scheduler
from evalgate.engine.session import Session, SessionBytes
from evalgate.engine.snapshot_pool import SnapshotPool
from evalgate.engine.state_pool import StatePool, state_shape
from evalgate.engine.tail_score import TailScore
from evalgate.engine.visibility import ContextSpan
from evalgate.errors import DoesNotFitError, UnsupportedError
from evalgate.kernels.kda_prefill import CHUNK

DtypeName = Literal["fp32", "bf16", "fp64"]
DTYPES: dict[DtypeName, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}
GRID = CHUNK
"""Tokens between two positions at which a session may be forked or its state compressed."""
LOGPROB_ROWS = 512
"""Positions whose logits exist at a time."""


class LLM:
    """A loaded model with its pools. Methods that take sessions change them."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        dtype: DtypeName = "fp32",
        device: str = "cpu",
        compression: Compression | None = None,
        max_tokens: int | None = None,
        max_sessions: int = 16,
        max_snapshots: int = 16,
        max_pages: int | None = None,
        page: int = 64,
        prefill_chunk: int = 1024,
        prefix: bool = True,
        snapshot_interval: int = 8192,
        poison: bool = False,
    ) -> None:
        """Build the model and its pools on ``device`` (``cpu``, ``cuda``, ``cpu-interpret``).

        ``max_tokens`` is the most tokens of one session (None: the model's window, or what memory allows);
        ``max_sessions`` may live at once, ``max_snapshots`` prefixes are stored, both on at most ``max_pages`` pages
        (None: what memory allows).  ``prefix`` says whether requests use stored prefixes; two on one path are at least
        ``snapshot_interval`` tokens apart.  ``poison`` fills freed slots and pages with NaN, for tests.
        Raises UnsupportedError (a setting that this model cannot do), CheckpointError (weights that are not finite) or
        DoesNotFitError (window, memory).
        """
        self.config = checkpoint.config
        self.compression = compression or Compression()
        self.compression.check(self.config)
        if prefill_chunk < CHUNK or prefill_chunk % CHUNK:
            raise UnsupportedError(f"cache.prefill_chunk {prefill_chunk}: expected a multiple of {CHUNK}")
        self.dtype = DTYPES[dtype]
        self.device: Device = open_device(device)
        self.device.check(self.config, self.dtype, page)
        self.model = HybridModel(self.config, checkpoint.tensors, self.dtype, self.device)
        state_dtype = torch.float64 if dtype == "fp64" else torch.float32
        self.budget: Budget = plan_pools(
            self.config,
            self.compression,
            self.dtype,
            state_dtype,
            page=page,
            tokens=max_tokens,
            sessions=max_sessions,
            snapshots=max_snapshots,
            free=free_memory(self.device.place),
        )
        if max_pages is not None:
            self.budget = replace(self.budget, pages=max_pages)
            self._check_pages(page)
        self.states = StatePool(
            self.config,
            self.budget.slots,
            state_dtype=state_dtype,
            conv_dtype=self.dtype,
            error_specs=StateCodec(self.compression).error_specs(state_shape(self.config)),
            device=self.device.place,
            poison=poison,
        )
        self.pages = PagePool(
            self.config.mla_layers,
            self.budget.pages,
            page=page,
            codec=self.compression.latent_codec(self.config, self.dtype),
            device=self.device.place,
            poison=poison,
        )
        self._counters = Counters()
        snapshots = SnapshotPool(self.states, max_snapshots, self.compression.snapshot_form, poison=poison)
        self.prefixes = PrefixCache(self.pages, snapshots, self._counters, interval=snapshot_interval)
        self.memory = SessionMemory(self.states, self.pages, self.prefixes, self.compression, self._counters)
        self.runner = Runner(self.model, self.memory, prefill_chunk)
        self.scheduler = Scheduler(self.runner, self.memory, self._counters, prefix=prefix)
        self._ids = itertools.count(1)

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        dtype: DtypeName = "fp32",
        device: str = "cpu",
        compression: Compression | None = None,
        max_tokens: int | None = None,
        max_sessions: int = 16,
    ) -> LLM:
        """Load a checkpoint folder; raises CheckpointError as well as what the constructor does."""
        return cls(
            load_checkpoint(folder),
            dtype=dtype,
            device=device,
            compression=compression,
            max_tokens=max_tokens,
            max_sessions=max_sessions,
        )

    @property
    def window(self) -> int:
        """Most tokens that a prompt and its answer may have."""
        return self.budget.tokens

    def start(self) -> Session:
        """A session without tokens."""
        return self.memory.open()

    def prefill(self, tokens: Sequence[int]) -> Session:
        """A new session that has taken ``tokens`` in."""
        session = self.start()
        try:
            self.extend(session, tokens)
        except BaseException:
            self.release(session)
            raise
        return session

    @torch.inference_mode()
    def extend(self, session: Session, tokens: Sequence[int]) -> None:
        """Take in more tokens; raises DoesNotFitError before the first of them where they do not fit."""
        self.check_fits(session.tokens + len(tokens))
        if len(tokens):
            self.runner.prefill([session], [tokens])

    @torch.inference_mode()
    def fork(
        self,
        parent: Session,
        tails: Sequence[Sequence[int]] = ((),),
        context: ContextSpan | None = None,
    ) -> list[Session]:
        """One session for each tail, going on from where the parent stands; tails are taken in together.

        ``context`` is the span of tokens that the tails ask about (its end lies in the tails): a profile that drops
        part of a cache needs it.  The parent stays as it is.
        """
        self.check_fits(parent.tokens + max(map(len, tails)))
        forks = self.memory.fork(parent, len(tails), context)
        try:
            asked = [(fork, tail) for fork, tail in zip(forks, tails, strict=True) if len(tail)]
            if asked:
                self.runner.prefill([fork for fork, _ in asked], [tail for _, tail in asked])
            for fork in forks:
                self.memory.cut_hole(fork)
        except BaseException:
            for fork in forks:
                self.release(fork)
            raise
        return forks

    def generate(
        self, sessions: Sequence[Session], max_tokens: int, stop_ids: frozenset[int] = frozenset()
    ) -> list[Result]:
        """Greedy continuation of every session, in one batch; a row that stops leaves it.

        A row whose logits are not finite ends with finish ``error``.  Each session must have taken a token in.
        """
        self.check_fits(max(session.tokens for session in sessions) + max_tokens)
        request = Request(tokens=(), max_tokens=max_tokens, stop_ids=stop_ids)
        jobs = [Job(id=next(self._ids), request=request, session=s, adopted=True, ready=True) for s in sessions]
        return self._finish(jobs)

    def submit(self, request: Request) -> int:
        """Take a request on; returns its number.

        Raises UnsupportedError (no tokens, or an id outside the vocabulary) or DoesNotFitError (longer than a session
        may be, or than the pages that sessions and pins leave), before the first token.
        """
        job = self._job(request)
        self.scheduler.add(job)
        return job.id

    @torch.inference_mode()
    def step(self) -> list[Result]:
        """Go on by one prefill pass and one decode pass; returns the requests that are done."""
        return self.scheduler.step()

    def run(self, requests: Sequence[Request]) -> list[Result]:
        """Results in the order of the requests, which are worked on together."""
        return self._finish([self._job(request) for request in requests])

    def cancel(self, number: int) -> bool:
        """End a request where it stands; the next step returns it.  False when it is not there."""
        return self.scheduler.cancel(number)

    def preempt(self, number: int) -> bool:
        """Take a running request's memory away; it goes on by itself.  False when it is not running."""
        return self.scheduler.preempt(number)

    def produced(self, number: int) -> int:
        """Tokens that a request on its way has produced so far."""
        return self.scheduler.produced(number)

    def unpin(self, request: Request) -> None:
        """Take back the pin of an earlier ``request``; its prefix may be let go from now on."""
        keep = Job(id=0, request=request).keep_point(self.prefixes.grid)
        self.prefixes.unpin(request.tokens[:keep])

    @torch.inference_mode()
    def _finish(self, jobs: list[Job]) -> list[Result]:
        results: dict[int, Result] = {}
        try:
            for job in jobs:
                self.scheduler.add(job)
            while any(job.id not in results for job in jobs):
                results |= {result.id: result for result in self.scheduler.step()}
        except BaseException:
            # The caller will give up its sessions; nothing may go on with them.
            for job in jobs:
                self.scheduler.cancel(job.id)
            raise
        return [results[job.id] for job in jobs]

    def _job(self, request: Request) -> Job:
        job = Job(id=next(self._ids), request=request)
        if not job.prompt:
            raise UnsupportedError("a request without tokens was found; expected at least one token to answer from")
        outside = next((token for token in request.tokens if not 0 <= token < self.config.vocab), None)
        if outside is not None:
            raise UnsupportedError(
                f"token id {outside} was found; expected 0 to {self.config.vocab - 1}, the vocabulary of this model"
            )
        self.check_fits(job.prompt + request.max_tokens)
        return job

    def _check_pages(self, page: int) -> None:
        # A hole is cut by copying what stays, so both copies are there for a moment.
        copies = 1 if self.compression.kv_keep == 1.0 else 2
        wanted = -(-self.budget.tokens // page) * copies
        if wanted > self.budget.pages:
            raise DoesNotFitError(
                f"a session of {self.budget.tokens} tokens needs {wanted} pages of {page} tokens, the engine was given "
                f"{self.budget.pages}; allow more pages or fewer tokens"
            )

    def logits(self, sessions: Sequence[Session]) -> Tensor:
        """``[B, vocab]`` after the last token of each session, in at least float32."""
        with torch.inference_mode():
            return self.runner.logits(sessions)

    def counters(self) -> dict[str, int]:
        """What was counted so far (see ``counters.NAMES``), and how full the pools are now."""
        slots, pages = self.states, self.pages
        snapshots = self.prefixes.snapshots
        unused = sum(len(s.pages) * pages.page - s.cached for s in self.memory.sessions.values())
        return self._counters.as_dict() | {
            "slots.used": slots.size - slots.free,
            "slots.free": slots.free,
            "snapshots.used": snapshots.size - snapshots.free,
            "snapshots.free": snapshots.free,
            "pages.used": pages.size - pages.free,
            "pages.free": pages.free,
            # Rows of pages that are held and will not be filled by anyone else.
            "pages.rows_unused": unused,
        }

    def check_integrity(self) -> None:
        """Assert that the memory adds up; may be called between any two calls."""
        check_integrity(self.memory)

    @torch.inference_mode()
    def score(self, tokens: Sequence[int]) -> Tensor:
        """Logits ``[T, vocab]`` after every token of a prompt; for tests and short texts."""
        self.check_fits(len(tokens))
        session = self.start()
        try:
            return torch.cat([self.model.logits(hidden) for hidden in self.runner.hidden(session, tokens)])
        finally:
            self.release(session)

    @torch.inference_mode()
    def logprobs(self, tokens: Sequence[int]) -> Tensor:
        """``[T - 1]``: log probability of each token after the first, given those before it."""
        self.check_fits(len(tokens))
        session = self.start()
        try:
            found, targets = [], torch.tensor(tokens[1:], dtype=torch.int64, device=self.device.place)
            for hidden in self.runner.hidden(session, tokens):
                for rows in _blocks(hidden):
                    wanted, targets = targets[: len(rows)], targets[len(rows) :]
                    logprobs = self.model.logits(rows[: len(wanted)]).log_softmax(dim=-1)
                    found.append(logprobs.gather(1, wanted[:, None])[:, 0])
            return torch.cat(found)
        finally:
            self.release(session)

    @torch.inference_mode()
    def score_tails(self, parent: Session, tails: Sequence[Sequence[int]], scored: Sequence[int]) -> list[TailScore]:
        """Take ``tails`` in on forks of ``parent``, and score the last ``scored`` tokens of each.

        What a profile does to a fork is done before the tail.  A tail has more tokens than are scored of it, as the
        first that is scored needs one before it.
        """
        self.check_fits(parent.tokens + max(map(len, tails)))
        found = []
        for tail, count in zip(tails, scored, strict=True):
            assert 0 < count < len(tail), f"of a tail of {len(tail)} tokens {count} cannot be scored"
            (fork,) = self.fork(parent)
            try:
                hidden = torch.cat(list(self.runner.hidden(fork, tail[:-1])))[-count:]
                found.append(TailScore.of(self.model.logits(hidden), tail[-count:]))
            finally:
                self.release(fork)
        return found

    def release(self, *sessions: Session) -> None:
        """Give back what sessions hold; a session may be released twice."""
        for session in sessions:
            self.memory.release(session)

    def check_fits(self, tokens: int) -> None:
        """Raise DoesNotFitError when a session of that many tokens does not fit."""
        if tokens > self.window:
            raise DoesNotFitError(
                f"{tokens} tokens asked for, at most {self.window} fit ({self.budget.limit}); ask for shorter contexts"
            )

    @torch.inference_mode()
    def measure(self, tokens: int) -> SessionBytes:
        """Bytes that a session of that many tokens holds under this engine's settings.

        Counted on a real session that goes through allocation, fork and trimming without being computed.
        """
        self.check_fits(tokens)
        parent = self.start()
        forks: list[Session] = []
        try:
            self.memory.reserve(parent, tokens)
            self.memory.advance(parent, tokens)
            forks = self.memory.fork(parent, 1, ContextSpan(0, tokens))
            self.memory.advance(forks[0], 0)
            self.memory.cut_hole(forks[0])
            return self.memory.measure(forks[0])
        finally:
            self.release(parent, *forks)

    def effective_config(self) -> dict[str, dict[str, object]]:
        """Settings as the live objects have them, in the sections of a profile."""
        return effective_config(self.memory, self.runner, self.scheduler)


def _blocks(rows: Tensor) -> list[Tensor]:
    return [rows[start : start + LOGPROB_ROWS] for start in range(0, len(rows), LOGPROB_ROWS)]
