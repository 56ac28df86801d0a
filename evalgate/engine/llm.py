"""The engine's one door: prefill, fork, generate, logprobs, over token ids.

``llm -> runner -> model -> kernels``.  It knows sessions and settings, never text.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from evalgate.engine.budget import Budget, plan_pools
from evalgate.engine.compression import Compression
from evalgate.engine.loader import Checkpoint, load_checkpoint
from evalgate.engine.memory import SessionMemory
from evalgate.engine.model import HybridModel
from evalgate.engine.page_pool import PagePool
from evalgate.engine.runner import Runner
from evalgate.engine.session import Generation, Session, SessionBytes
from evalgate.engine.state_pool import StatePool
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
        compression: Compression | None = None,
        max_tokens: int | None = None,
        max_sessions: int = 16,
        page: int = 64,
        prefill_chunk: int = 1024,
        poison: bool = False,
    ) -> None:
        """Build the model and its pools.

        ``max_tokens`` is the most tokens of one session (None: the model's window, or what memory allows);
        ``max_sessions`` may live at once.  ``poison`` fills freed slots and pages with NaN, for tests.
        Raises UnsupportedError (a setting that this model cannot do) or DoesNotFitError (window, memory).
        """
        self.config = checkpoint.config
        self.compression = compression or Compression()
        self.compression.check(self.config)
        if prefill_chunk < CHUNK or prefill_chunk % CHUNK:
            raise UnsupportedError(f"cache.prefill_chunk {prefill_chunk}: expected a multiple of {CHUNK}")
        self.dtype = DTYPES[dtype]
        self.model = HybridModel(self.config, checkpoint.tensors, self.dtype)
        state_dtype = torch.float64 if dtype == "fp64" else torch.float32
        self.budget: Budget = plan_pools(
            self.config, self.compression, self.dtype, state_dtype, page=page, tokens=max_tokens, sessions=max_sessions
        )
        self.states = StatePool(
            self.config, self.budget.slots, state_dtype=state_dtype, conv_dtype=self.dtype, poison=poison
        )
        self.pages = PagePool(
            self.config,
            self.budget.pages,
            page=page,
            dtype=self.dtype,
            quantised=self.compression.kv_int8,
            poison=poison,
        )
        self.memory = SessionMemory(self.states, self.pages, self.compression)
        self.runner = Runner(self.model, self.memory, prefill_chunk)

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        dtype: DtypeName = "fp32",
        compression: Compression | None = None,
        max_tokens: int | None = None,
        max_sessions: int = 16,
    ) -> LLM:
        """Load a checkpoint folder; raises CheckpointError as well as what the constructor does."""
        return cls(
            load_checkpoint(folder),
            dtype=dtype,
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

    @torch.inference_mode()
    def generate(
        self, sessions: Sequence[Session], max_tokens: int, stop_ids: frozenset[int] = frozenset()
    ) -> list[Generation]:
        """Greedy continuation of every session, in one batch; a row that stops leaves it.

        A row whose logits are not finite ends with finish ``error``.  Each session must have taken a token in.
        """
        self.check_fits(max(session.tokens for session in sessions) + max_tokens)
        shared = self.runner.common_rows(sessions)
        produced: list[list[int]] = [[] for _ in sessions]
        finish: list[Literal["stop", "length", "error"]] = ["length"] * len(sessions)
        live = list(range(len(sessions)))
        for step in range(max_tokens):
            if step:
                self.runner.decode([sessions[row] for row in live], [produced[row][-1] for row in live], shared)
            logits = self.logits([sessions[row] for row in live])
            sound = logits.isfinite().all(dim=-1).tolist()
            still = []
            for row, token, ok in zip(live, logits.argmax(dim=-1).tolist(), sound, strict=True):
                if not ok:
                    finish[row] = "error"
                elif token in stop_ids:
                    finish[row] = "stop"
                else:
                    produced[row].append(token)
                    still.append(row)
            live = still
            if not live:
                break
        return [Generation(tokens, how) for tokens, how in zip(produced, finish, strict=True)]

    @torch.inference_mode()
    def logits(self, sessions: Sequence[Session]) -> Tensor:
        """``[B, vocab]`` after the last token of each session, in at least float32."""
        last = []
        for session in sessions:
            assert session.last is not None, f"session {session.id} has no tokens yet"
            last.append(session.last)
        return self.model.logits(torch.stack(last))

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
            found, targets = [], torch.tensor(tokens[1:], dtype=torch.int64)
            for hidden in self.runner.hidden(session, tokens):
                for rows in _blocks(hidden):
                    wanted, targets = targets[: len(rows)], targets[len(rows) :]
                    logprobs = self.model.logits(rows[: len(wanted)]).log_softmax(dim=-1)
                    found.append(logprobs.gather(1, wanted[:, None])[:, 0])
            return torch.cat(found)
        finally:
            self.release(session)

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
        """Settings as the live objects have them, in the sections of a profile (without those of a prefix cache)."""
        codec, pages = self.memory.codec, self.pages
        names = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float64: "fp64", torch.int8: "int8"}
        quantised_state = codec.dtype in {"int8", "int4"}
        return {
            "state": {
                "dtype": codec.dtype if not codec.lossless else names[self.states.recurrent.dtype],
                "scales": "per-channel" if quantised_state else None,
                "rank": codec.rank,
                "codec_every": codec.every,
                "error_feedback": False,
            },
            "snapshot": {"dtype": names[self.states.recurrent.dtype]},
            "kv": {
                "dtype": names[pages.store.dtype],
                "keep": self.memory.compression.kv_keep,
                "window": self.memory.compression.kv_window,
            },
            "cache": {"page": pages.page, "prefill_chunk": self.runner.chunk},
        }


def _blocks(rows: Tensor) -> list[Tensor]:
    return [rows[start : start + LOGPROB_ROWS] for start in range(0, len(rows), LOGPROB_ROWS)]
