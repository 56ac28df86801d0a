"""Which stored prefixes a prompt begins with: a radix tree over token ids, a block of the grid an edge.

Edges are compared token by token (their bytes are the keys of a dict), so two prompts that hash alike never meet.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """A stored prefix; nothing in it ever changes.

    State and latents stand at the same token, a multiple of the grid, and no page of it is partly filled.
    """

    id: int
    tokens: int
    slot: int
    """Slot in the snapshot pool: recurrent state and convolution tail."""
    pages: tuple[int, ...]
    """Pages of the page pool, in order; 0 stands for one that a window had let go."""
    floor: int
    """First latent row that is still seen."""


class Node:
    """A point on the grid that some stored prefix passes or ends at."""

    __slots__ = ("block", "children", "parent", "pins", "prefix", "priority", "tokens", "used")

    def __init__(self, parent: Node | None, block: bytes, tokens: int) -> None:
        self.parent = parent
        self.block = block
        self.tokens = tokens
        self.children: dict[bytes, Node] = {}
        self.prefix: Prefix | None = None
        self.priority = 0
        self.used = 0
        """When the prefix was last consumed, in lookups."""
        self.pins = 0
        """How often somebody asked that it stay."""


class Match(NamedTuple):
    """How far a prompt is known: ``tokens`` on stored paths, and the deepest ``node`` with a prefix, if any."""

    tokens: int
    node: Node | None


class PrefixIndex:
    """The tree; ``grid`` is the length of a block in tokens."""

    def __init__(self, grid: int) -> None:
        self.grid = grid
        self.root = Node(None, b"", 0)

    def match(self, tokens: Sequence[int], limit: int) -> Match:
        """Follow ``tokens`` as far as stored prefixes go, at most to ``limit``."""
        node, deepest = self.root, None
        for block in self._blocks(tokens, limit):
            child = node.children.get(block)
            if child is None:
                break
            node = child
            if node.prefix is not None:
                deepest = node
        return Match(node.tokens, deepest)

    def place(self, tokens: Sequence[int], count: int) -> Node:
        """The node after the first ``count`` tokens, made where it is not there yet."""
        assert count % self.grid == 0, f"{count} tokens end off the grid of {self.grid}"
        node = self.root
        for block in self._blocks(tokens, count):
            node = node.children.setdefault(block, Node(node, block, node.tokens + self.grid))
        assert node.tokens == count, f"{count} tokens wanted, {node.tokens} given"
        return node

    def prune(self, node: Node) -> None:
        """Drop a node that holds nothing and leads nowhere, and such nodes above it."""
        while node.parent is not None and node.prefix is None and not node.children:
            del node.parent.children[node.block]
            node = node.parent

    def nodes(self) -> Iterator[Node]:
        """Every node but the root."""
        open_ = list(self.root.children.values())
        while open_:
            node = open_.pop()
            open_ += node.children.values()
            yield node

    def _blocks(self, tokens: Sequence[int], limit: int) -> Iterator[bytes]:
        for start in range(0, min(limit, len(tokens)) - self.grid + 1, self.grid):
            yield array("q", tokens[start : start + self.grid]).tobytes()
