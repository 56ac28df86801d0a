"""Prefixes kept for later requests: looked up, admitted, pinned, and let go when slots or pages run short.

A request admits at most two snapshots, where it leaves a known path and at its last grid point: states are large and
do not grow with the prefix, so one at every page would fill the memory with states (Marconi, arXiv 2411.19379).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from evalgate.engine.counters import Counters
from evalgate.engine.page_pool import PagePool
from evalgate.engine.prefix_index import Node, Prefix, PrefixIndex
from evalgate.engine.session import Session
from evalgate.engine.snapshot_pool import SnapshotPool
from evalgate.kernels.kda_prefill import CHUNK


class Hit(NamedTuple):
    """What a lookup found: the stored prefix, and ``branch``, how far the prompt lies on known paths."""

    prefix: Prefix | None
    branch: int


class PrefixCache:
    """``interval`` is the least distance in tokens between two snapshots of one path."""

    def __init__(self, pages: PagePool, snapshots: SnapshotPool, counters: Counters, *, interval: int) -> None:
        self.pages, self.snapshots, self.interval = pages, snapshots, interval
        self.grid = math.lcm(CHUNK, pages.page)
        self.index = PrefixIndex(self.grid)
        self._counters = counters
        self._ids = itertools.count(1)
        self._now = 0

    def lookup(self, tokens: Sequence[int], limit: int, priority: int) -> Hit:
        """The longest stored prefix of ``tokens`` that ends at or before ``limit``.

        State and latents are stored as one object, so the length that both kinds can serve is that object's; where
        latents alone are known further on, those tokens are counted as lost to clamping.
        """
        match = self.index.match(tokens, limit)
        found = 0 if match.node is None else match.node.tokens
        self._counters.add("prefix.queries")
        self._counters.add("prefix.tokens_asked", len(tokens))
        self._counters.add("prefix.kv_tokens_matched", match.tokens)
        self._counters.add("prefix.state_tokens_matched", found)
        self._counters.add("prefix.tokens_lost_to_clamping", match.tokens - found)
        if match.node is None:
            return Hit(None, match.tokens)
        # Only what is consumed is refreshed: prefixes that were merely passed age on.
        match.node.used = self._tick()
        match.node.priority = max(match.node.priority, priority)
        self._counters.add("prefix.hits")
        self._counters.add("prefix.tokens_reused", found)
        return Hit(match.node.prefix, match.tokens)

    def store(self, session: Session, tokens: Sequence[int], *, priority: int, pin: bool) -> bool:
        """Keep what ``session`` has taken in, which is ``tokens``; returns whether it is kept now."""
        assert session.tokens == session.cached == len(tokens), "a prefix is stored whole, at its own token count"
        count = len(tokens)
        if count % self.grid or not count:
            return self._skip("short")
        known = self.index.match(tokens, count).node
        before = 0 if known is None else known.tokens
        if before == count:
            self._skip("present")
        elif not self._admit(count - before if before else None, priority, pin=pin):
            return False
        # Placed only now: making room may have pruned the path.
        node = self.index.place(tokens, count)
        if node.prefix is None:
            self._keep(node, session)
        node.priority = max(node.priority, priority)
        node.pins += pin
        return True

    def _keep(self, node: Node, session: Session) -> None:
        number = next(self._ids)
        self.pages.retain([page for page in session.pages if page])
        node.prefix = Prefix(
            id=number,
            tokens=node.tokens,
            slot=self.snapshots.take(session.slot, number, node.tokens),
            pages=tuple(session.pages),
            floor=session.floor,
        )
        node.used = self._tick()
        self._counters.add("store.kept")
        self._counters.add("copied_bytes", self.snapshots.slot_bytes)

    def _admit(self, distance: int | None, priority: int, *, pin: bool) -> bool:
        """Whether a snapshot ``distance`` tokens after another is worth a slot, which is free afterwards."""
        if distance is not None and distance < self.interval and not pin:
            return self._skip("near")
        if not self.snapshots.free:
            victims = [other for other in self._victims() if other.priority <= priority]
            if not victims:
                return self._skip("protected")
            self._evict(min(victims, key=self._worth), "states.slots")
        return True

    def _skip(self, reason: str) -> bool:
        self._counters.add(f"store.skipped.{reason}")
        return False

    def free_pages(self, wanted: int) -> None:
        """Let prefixes go until ``wanted`` pages are free or nothing more can be let go."""
        while self.pages.free < wanted:
            victims = [node for node in self._victims() if self._own_pages(node)]
            if not victims:
                return
            self._evict(min(victims, key=self._worth), "pages.pages")

    def evict(self, count: int) -> int:
        """Let the ``count`` least valuable prefixes go; returns how many there were."""
        for done in range(count):
            victims = self._victims()
            if not victims:
                return done
            self._evict(min(victims, key=self._worth), "states.asked")
        return count

    def unpin(self, tokens: Sequence[int]) -> None:
        """Take one pin off the stored prefix that ``tokens`` are, if there is one."""
        match = self.index.match(tokens, len(tokens))
        if match.node is not None and match.node.tokens == len(tokens):
            match.node.pins = max(0, match.node.pins - 1)

    def stored(self) -> list[Node]:
        """Nodes with a prefix."""
        return [node for node in self.index.nodes() if node.prefix is not None]

    def pinned(self) -> list[Prefix]:
        """Prefixes that somebody asked to keep."""
        return [node.prefix for node in self.stored() if node.pins and node.prefix is not None]

    def _victims(self) -> list[Node]:
        return [node for node in self.stored() if not node.pins]

    def _worth(self, node: Node) -> tuple[int, int, float]:
        """Least first: priority, then how long it was not used, then tokens to compute again for each byte it holds.

        How long is told in powers of two: no two prefixes are used at the same moment, and a little more or less of
        a long time says nothing, where their cost may differ a hundred times.
        """
        held = self.snapshots.slot_bytes + self._own_pages(node) * self.pages.page_bytes
        unused = (self._now - node.used).bit_length()
        return node.priority, -unused, (node.tokens - self._before(node)) / held

    def _tick(self) -> int:
        self._now += 1
        return self._now

    def _own_pages(self, node: Node) -> int:
        """Pages that would be free without this prefix."""
        assert node.prefix is not None, "only stored prefixes hold pages"
        return sum(self.pages.references(page) == 1 for page in node.prefix.pages if page)

    def _before(self, node: Node) -> int:
        """Tokens of the nearest stored prefix that this one begins with; 0 without one."""
        above = node.parent
        while above is not None and above.prefix is None:
            above = above.parent
        return 0 if above is None else above.tokens

    def _evict(self, node: Node, kind_and_reason: str) -> None:
        prefix = node.prefix
        assert prefix is not None, "only stored prefixes are evicted"
        node.prefix = None
        self.snapshots.release(prefix.slot, prefix.id)
        self.pages.release(list(prefix.pages))
        self.index.prune(node)
        self._counters.add(f"evicted.{kind_and_reason}")
