"""Whether the engine's memory adds up: every slot and page is either free or held by who says so, and by no other."""

from __future__ import annotations

from collections import Counter

from evalgate.engine.memory import SessionMemory
from evalgate.engine.state_pool import FREE


def check_integrity(memory: SessionMemory) -> None:
    """Assert that pools, sessions and stored prefixes agree.

    free + held = total for live slots, snapshots and pages; each reference of a page has a holder that can be reached;
    tags say the owner and the token count that the holder says; scratch is held by nobody; the tree has no dead ends.
    """
    _check_slots(memory)
    _check_snapshots(memory)
    _check_pages(memory)
    _check_tree(memory)


def _check_slots(memory: SessionMemory) -> None:
    states = memory.states
    held = [session.slot for session in memory.sessions.values()]
    _check_partition("slot", held, states.free, states.size)
    for session in memory.sessions.values():
        memory.check(session)
    owned = sum(states.tag(slot).owner != FREE for slot in range(states.size + 1))
    assert owned == len(held), f"{owned} slots are owned, {len(held)} sessions are alive"


def _check_snapshots(memory: SessionMemory) -> None:
    snapshots = memory.prefixes.snapshots
    stored = [node.prefix for node in memory.prefixes.stored() if node.prefix is not None]
    _check_partition("snapshot", [prefix.slot for prefix in stored], snapshots.free, snapshots.size)
    for prefix in stored:
        found = snapshots.tag(prefix.slot)
        assert found == (prefix.id, prefix.tokens), f"snapshot {prefix.slot} holds {found}, its prefix is {prefix}"


def _check_pages(memory: SessionMemory) -> None:
    pages = memory.pages
    holders: Counter[int] = Counter()
    for session in memory.sessions.values():
        assert len(session.pages) * pages.page >= session.cached, f"session {session.id} has too few pages"
        holders.update(page for page in session.pages if page)
    for node in memory.prefixes.stored():
        if node.prefix is not None:
            assert len(node.prefix.pages) * pages.page == node.prefix.tokens, f"{node.prefix} has a partly filled page"
            holders.update(page for page in node.prefix.pages if page)
    for page in range(1, pages.size + 1):
        found, expected = pages.references(page), holders[page]
        assert found == expected, f"page {page} counts {found} references, {expected} are reachable"
    assert pages.free + len(holders) == pages.size, f"{pages.free} free + {len(holders)} held is not {pages.size}"
    _check_partly_filled(memory)


def _check_partly_filled(memory: SessionMemory) -> None:
    """No page that a session still writes to has a second holder."""
    for session in memory.sessions.values():
        for page in session.pages[session.cached // memory.pages.page :]:
            assert memory.pages.references(page) == 1, f"session {session.id} shares its partly filled page {page}"


def _check_tree(memory: SessionMemory) -> None:
    for node in memory.prefixes.index.nodes():
        assert node.prefix is not None or node.children, f"the tree ends at {node.tokens} tokens without a prefix"
        if node.prefix is not None:
            assert node.prefix.tokens == node.tokens, f"{node.prefix} is stored at {node.tokens} tokens"


def _check_partition(kind: str, held: list[int], free: int, total: int) -> None:
    assert 0 not in held, f"{kind} 0 is scratch and yet held"
    assert len(set(held)) == len(held), f"a {kind} is held twice: {sorted(held)}"
    assert free + len(held) == total, f"{kind}s: {free} free + {len(held)} held is not {total}"
