"""Where sessions live: slots of the state pool and pages of the page pool, opened, forked, trimmed and released.

The two pools know nothing of each other; a session ties one slot to one row of pages, and a stored prefix does so too.
What a session takes from a stored prefix is a copy of the state and a reference to whole pages.
"""

from __future__ import annotations

import itertools

import torch

from evalgate.engine.compression import Compression, StateCodec
from evalgate.engine.counters import Counters
from evalgate.engine.page_pool import PagePool, Rows
from evalgate.engine.prefix_cache import PrefixCache
from evalgate.engine.prefix_index import Prefix
from evalgate.engine.session import Session, SessionBytes
from evalgate.engine.state_pool import StatePool
from evalgate.engine.visibility import ContextSpan, Visibility, middle_hole
from evalgate.errors import DoesNotFitError


class SessionMemory:
    """All live sessions of one engine, and the prefixes kept for later ones."""

    def __init__(
        self, states: StatePool, pages: PagePool, prefixes: PrefixCache, compression: Compression, counters: Counters
    ) -> None:
        self.states = states
        self.pages = pages
        self.prefixes = prefixes
        self.compression = compression
        self.codec = StateCodec(compression)
        self.sessions: dict[int, Session] = {}
        self._counters = counters
        self._ids = itertools.count(1)

    def open(self) -> Session:
        """A session without tokens."""
        number = next(self._ids)
        visibility = Visibility(window=self.compression.kv_window)
        session = Session(id=number, slot=self.states.allocate(number), visibility=visibility)
        self.sessions[number] = session
        return session

    def restore(self, prefix: Prefix) -> Session:
        """A session that goes on from a stored prefix, which stays as it is."""
        session = self.open()
        self.prefixes.snapshots.restore(prefix.slot, prefix.id, prefix.tokens, session.slot)
        self.pages.retain([page for page in prefix.pages if page])
        session.pages = list(prefix.pages)
        session.tokens = session.cached = prefix.tokens
        session.floor = prefix.floor
        self._counters.add("copied_bytes", self.states.slot_bytes)
        return session

    def turn(self, session: Session, context: ContextSpan | None) -> None:
        """From here on the session is asked: a codec that acts once acts, and ``context`` places hole and window."""
        self._round_once(session)
        if context is not None:
            session.visibility = self._visibility(context)

    def _round_once(self, session: Session) -> None:
        if not self.codec.lossless and self.codec.every is None:
            self.round(session)

    def round(self, session: Session) -> None:
        """Compress a session's state where it stands."""
        self.codec.round_slots(self.states.recurrent, self.states.errors, slice(session.slot, session.slot + 1))

    def fork(self, parent: Session, count: int, context: ContextSpan | None) -> list[Session]:
        """Sessions that go on from where the parent stands, each with a state of its own.

        Full pages are shared, the partly filled one is copied.  ``context`` is what the forks will be asked about: it
        places the hole and the end of the window.  A codec that acts once acts here.
        """
        self.check(parent)
        forks: list[Session] = []
        try:
            for _ in range(count):
                fork = self.open()
                forks.append(fork)
                # What a codec does once is the same for all forks.
                self.states.copy(forks[0].slot if len(forks) > 1 else parent.slot, fork.slot)
                if len(forks) == 1:
                    self._round_once(fork)
                self._counters.add("forks")
                self._counters.add("copied_bytes", self.states.slot_bytes)
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
            fork.pages += self._take_pages(1)
            self._counters.add("copied_bytes", self.pages.page_bytes * rest // self.pages.page)
            self.pages.copy_rows(
                self.pages.locate(parent.pages, full * self.pages.page, rest),
                self.pages.locate(fork.pages, full * self.pages.page, rest),
            )

    def reserve(self, session: Session, tokens: int) -> Rows:
        """Pages for that many more tokens; returns the rows where their latents go."""
        session.pages += self._take_pages(self.pages_wanted(session, tokens))
        return self.pages.locate(session.pages, session.cached, tokens)

    def pages_wanted(self, session: Session, tokens: int) -> int:
        """Pages that so many more tokens need beyond those that the session has."""
        return max(0, -(-(session.cached + tokens) // self.pages.page) - len(session.pages))

    def pages_for(self, tokens: int, parent: Session | None) -> bool:
        """Whether a session of so many tokens can have its pages without any other session losing some."""
        page = self.pages.page
        wanted = -(-tokens // page) - (0 if parent is None else parent.cached // page)
        if wanted <= self.pages.free:
            return True
        kept = {page for session in self.sessions.values() for page in session.pages}
        kept |= {page for prefix in self.prefixes.pinned() for page in prefix.pages}
        return wanted <= self.pages.size - len(kept - {0})

    def pages_to_copy(self, parent: Session | None) -> int:
        """Pages that a fork of ``parent`` takes at once."""
        return 0 if parent is None else int(parent.cached % self.pages.page > 0)

    def _take_pages(self, count: int) -> list[int]:
        """Free pages, for which stored prefixes are let go; raises DoesNotFitError when those do not suffice."""
        if count > self.pages.free:
            self.prefixes.free_pages(count)
        return self.pages.allocate(count)

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
        del self.sessions[session.id]
        self.states.release(session.slot, session.id)
        self.pages.release(session.pages)
        session.pages = []

    def measure(self, session: Session) -> SessionBytes:
        """Bytes of the session's encoded state, of its convolution state, and of the pages that it refers to."""
        self.check(session)
        recurrent, conv, *errors = self.states.parts(session.slot)
        kept = [*self.codec.encode(recurrent).tensors, *errors]
        held = sum(1 for page in session.pages if page)
        return SessionBytes(
            state=sum(part.nbytes for part in kept),
            conv=conv.nbytes,
            kv=held * self.pages.page_bytes,
        )
