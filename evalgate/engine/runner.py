"""Forward passes over sessions: cut to the grid, laid out as batches, run, and recorded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from evalgate.engine.batch import DecodeBatch, PrefillBatch
from evalgate.engine.decode_graphs import DecodeGraphs
from evalgate.engine.memory import SessionMemory
from evalgate.engine.model import HybridModel
from evalgate.engine.page_pool import Rows, indices
from evalgate.engine.session import Session
from evalgate.kernels.kda_prefill import CHUNK


class Runner:
    """Runs a model over sessions; ``chunk`` is the most tokens of a row in one pass, a multiple of 64."""

    def __init__(self, model: HybridModel, memory: SessionMemory, chunk: int) -> None:
        self.model = model
        self.memory = memory
        self.chunk = chunk
        self._acts_on_grid = model.device.kda.acts_on_grid
        record = model.device.record if model.recordable and memory.codec.recordable else None
        self._decode = self._step if record is None else DecodeGraphs(self._step, record)

    def prefill(self, sessions: Sequence[Session], stretches: Sequence[Sequence[int]]) -> None:
        """Take stretches of tokens in, one for each session; all must stand at the same position."""
        for _ in self._passes(sessions, stretches, whole=False):
            pass

    def hidden(self, session: Session, tokens: Sequence[int]) -> Iterator[Tensor]:
        """Take a stretch in and give what the last layer made of it, ``[some tokens, hidden]`` at a time."""
        for rows in self._passes([session], [tokens], whole=True):
            yield rows[0]

    def _passes(
        self, sessions: Sequence[Session], stretches: Sequence[Sequence[int]], *, whole: bool
    ) -> Iterator[dict[int, Tensor]]:
        """Pass by pass, the hidden states of the rows that took part, as :meth:`prefill_pass` returns them.

        Passes end at absolute multiples of ``chunk``, counted from prompt token 0; a stretch that starts off the
        64-grid first goes up to it.
        """
        start = sessions[0].tokens
        longest, done = max(map(len, stretches)), 0
        while done < longest:
            end = self.pass_end(start + done) - start
            live = [row for row, stretch in enumerate(stretches) if len(stretch) > done]
            rows = [stretches[row][done:end] for row in live]
            outputs = self.prefill_pass([sessions[row] for row in live], rows, whole=whole)
            yield dict(zip(live, outputs, strict=True))
            done = end

    def pass_end(self, position: int) -> int:
        """Where a pass that starts at ``position`` ends at the latest."""
        step = self.chunk if position % CHUNK == 0 else CHUNK
        end = (position // step + 1) * step
        every = self.memory.codec.every
        if self._acts_on_grid or every is None or self.memory.codec.lossless:
            return end
        return min(end, (position // every + 1) * every)

    def prefill_pass(
        self, sessions: Sequence[Session], rows: Sequence[Sequence[int]], *, whole: bool = False
    ) -> list[Tensor]:
        """One pass over stretches that start at the same position.

        Returns the hidden states of each row, ``[tokens, hidden]`` with ``whole``, else ``[1, hidden]``, the last.
        """
        start = sessions[0].tokens
        for session in sessions:
            self.memory.check(session)
            assert session.tokens == start, f"sessions at {start} and {session.tokens} tokens cannot share a pass"
        states, pages, codec = self.memory.states, self.memory.pages, self.memory.codec
        hidden = self.model.prefill(self._layout(sessions, rows), states, pages, codec, whole=whole)
        outputs = [out[: len(tokens)] for out, tokens in zip(hidden, rows, strict=True)]
        for session, tokens, output in zip(sessions, rows, outputs, strict=True):
            between = session.tokens % CHUNK or not self._acts_on_grid
            self.memory.advance(session, len(tokens))
            # A copy: a view would keep the whole pass in memory.
            session.last = output[-1].clone()
            if between and codec.every is not None and session.tokens % codec.every == 0:
                # The kernel has not acted: it sees whole chunks only, and this stretch has just completed one that
                # began before it; or it acts on none.
                self.memory.round(session)
        return outputs

    def _layout(self, sessions: Sequence[Session], rows: Sequence[Sequence[int]]) -> PrefillBatch:
        first = sessions[0]
        for session in sessions:
            assert (session.cached, session.visibility) == (first.cached, first.visibility), "unlike rows share a pass"
        lengths = [len(tokens) for tokens in rows]
        longest = max(lengths)
        return PrefillBatch(
            sessions=sessions,
            pool=self.memory.pages,
            tokens=self._ids([[*row, *[0] * (longest - len(row))] for row in rows]),
            counts=lengths,
            slots=self._ids([session.slot for session in sessions]),
            targets=self._placed([self.memory.reserve(s, count) for s, count in zip(sessions, lengths, strict=True)]),
        )

    def decode(self, sessions: Sequence[Session], tokens: Sequence[int], shared: int) -> None:
        """Take in one token for each session; the first ``shared`` cached rows are the same for all of them."""
        pages = self.memory.pages
        for session in sessions:
            self.memory.check(session)
        targets = self._placed([self.memory.reserve(session, 1) for session in sessions])
        batch = DecodeBatch(
            sessions=sessions,
            pool=pages,
            tokens=self._ids(tokens),
            slots=self._ids([session.slot for session in sessions]),
            targets=targets,
            # The window slides before the new token looks.
            floors=[max(session.floor, session.visibility.floor(session.tokens)) for session in sessions],
            common=shared,
        )
        hidden = self._decode(batch)
        for session, last in zip(sessions, hidden, strict=True):
            self.memory.advance(session, 1)
            session.last = last

    def _ids(self, numbers: Sequence[object]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self.model.device.place)

    def _placed(self, rows: Sequence[Rows]) -> Rows:
        """As one selection, on the device where layer after layer writes there."""
        selection = joined(rows)
        return selection if isinstance(selection, slice) else selection.to(self.model.device.place)

    def _step(self, batch: DecodeBatch) -> Tensor:
        return self.model.decode(batch, self.memory.states, self.memory.pages, self.memory.codec)

    def logits(self, sessions: Sequence[Session]) -> Tensor:
        """``[B, vocab]`` after the last token of each session, in at least float32."""
        last = []
        for session in sessions:
            assert session.last is not None, f"session {session.id} has no tokens yet"
            last.append(session.last)
        return self.model.logits(torch.stack(last))

    def common_rows(self, sessions: Sequence[Session]) -> int:
        """Cached rows that all sessions share page by page, and see from the same floor on."""
        if len(sessions) < 2 or any(session.visibility.window is not None for session in sessions):
            return 0
        page = self.memory.pages.page
        full = [session.pages[: session.cached // page] for session in sessions]
        alike = [len(set(column)) == 1 for column in zip(*full, strict=False)]
        return (alike.index(False) if False in alike else len(alike)) * page


def joined(rows: Sequence[Rows]) -> Rows:
    """One after another as a single selection."""
    if len(rows) == 1:
        return rows[0]
    return torch.cat([indices(r) for r in rows])
