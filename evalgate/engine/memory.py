"""Where sessions live: slots of the state pool and pages of the page pool, opened, forked, trimmed and released.

The two pools know nothing of each other; a session ties one slot to one row of pages.
"""

from __future__ import annotations

import itertools

import torch

from evalgate.engine.compression import Compression, StateCodec
from evalgate.engine.page_pool import PagePool, Rows
from evalgate.engine.session import Session, SessionBytes
from evalgate.engine.state_pool import StatePool
from evalgate.engine.visibility import ContextSpan, Visibility, middle_hole
from evalgate.errors import DoesNotFitError


class SessionMemory:
    """All live sessions of one engine."""

    def __init__(self, states: StatePool, pages: PagePool, compression: Compression) -> None:
        self.states = states
        self.pages = pages
        self.compression = compression
        self.codec = StateCodec(compression)
        self._ids = itertools.count(1)

    def open(self) -> Session:
        """A session without tokens."""
        number = next(self._ids)
        visibility = Visibility(window=self.compression.kv_window)
        return Session(id=number, slot=self.states.allocate(number), visibility=visibility)

    def fork(self, parent: Session, count: int, context: ContextSpan | None) -> list[Session]:
        """Sessions that go on from where the parent stands, each with a state of its own.

        Full pages are shared, the partly filled one is copied.  ``context`` is what the forks will be asked about: it
        places the hole and the end of the window.  A codec that acts once acts here.
        """
        self.check(parent)
        state = self.states.recurrent[:, parent.slot]
        once = not self.codec.lossless and self.codec.every is None
        rounded = self.codec.round_trip(state) if once else None
        forks: list[Session] = []
        try:
            for _ in range(count):
                fork = self.open()
                forks.append(fork)
                self.states.copy(parent.slot, fork.slot)
                if rounded is not None:
                    self.states.recurrent[:, fork.slot] = rounded
                fork.tokens, fork.cached, fork.floor, fork.last = (
                    parent.tokens,
                    parent.cached,
                    parent.floor,
                    parent.last,
                )
                fork.visibility = parent.visibility if context is None else self._visibility(context)
                self._share_pages(parent, fork)
        except DoesNotFitError:
            for fork in forks:
                self.release(fork)
            raise
        return forks

    def _visibility(self, context: ContextSpan) -> Visibility:
        hole = middle_hole(context, self.compression.kv_keep) if self.compression.kv_keep < 1.0 else None
        return Visibility(window=self.compression.kv_window, context_end=context.end, hole=hole)

    def _share_pages(self, parent: Session, fork: Session) -> None:
        full, rest = divmod(parent.cached, self.pages.page)
        shared = parent.pages[:full]
        self.pages.retain([page for page in shared if page])
        fork.pages = list(shared)
        if rest:
            fork.pages += self.pages.allocate(1)
            self.pages.copy_rows(
                self.pages.locate(parent.pages, full * self.pages.page, rest),
                self.pages.locate(fork.pages, full * self.pages.page, rest),
            )

    def reserve(self, session: Session, tokens: int) -> Rows:
        """Pages for that many more tokens; returns the rows where their latents go."""
        wanted = -(-(session.cached + tokens) // self.pages.page)
        session.pages += self.pages.allocate(max(0, wanted - len(session.pages)))
        return self.pages.locate(session.pages, session.cached, tokens)

    def check(self, session: Session) -> None:
        """Assert that a session is alive and that its state has seen exactly its tokens."""
        assert not session.released, f"session {session.id} is used after it was released"
        self.states.check(session.slot, session.id, session.tokens)

    def advance(self, session: Session, tokens: int) -> None:
        """Record tokens that state and cache have taken in, and let go of what the window has passed."""
        self.states.advance(session.slot, tokens)
        session.tokens += tokens
        session.cached += tokens
        session.floor = max(session.floor, session.visibility.floor(session.tokens - 1))
        passed = session.floor // self.pages.page
        self.pages.release(session.pages[:passed])
        session.pages[:passed] = [0] * passed

    def cut_hole(self, session: Session) -> None:
        """Gather the latents that a fork keeps into pages of its own, once its question has been taken in."""
        hole = session.visibility.hole
        if hole is None:
            return
        kept = [range(hole.start), range(hole.stop, session.cached)]
        old, rows = session.pages, torch.tensor([row for part in kept for row in part], dtype=torch.int64)
        session.pages, session.cached = [], 0
        target = self.reserve(session, len(rows))
        source = self.pages.locate(old, 0, hole.stop + len(kept[1]))
        flat = source[rows] if isinstance(source, torch.Tensor) else rows + source.start
        self.pages.copy_rows(flat, target)
        self.pages.release(old)
        session.cached = len(rows)
        session.visibility = Visibility()

    def release(self, session: Session) -> None:
        """Give slot and pages back; doing it twice is harmless."""
        if session.released:
            return
        session.released = True
        self.states.release(session.slot, session.id)
        self.pages.release(session.pages)
        session.pages = []

    def measure(self, session: Session) -> SessionBytes:
        """Bytes of the session's encoded state, of its convolution state, and of the pages that it refers to."""
        self.check(session)
        encoded = self.codec.encode(self.states.recurrent[:, session.slot])
        held = sum(1 for page in session.pages if page)
        return SessionBytes(
            state=encoded.nbytes,
            conv=self.states.conv[:, session.slot].nbytes,
            kv=held * self.pages.page_bytes,
        )
