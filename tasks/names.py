"""What needles are about and what they say: keys, and values that are numbers, words or identifiers.

A quarter of all keys and values is kept for training models, and no suite can hold it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from evalgate.tasks import words
from evalgate.tasks.draw import Draw

GENERATOR_VERSION = "1"
"""Raised whenever the same seed would give other text."""

ValueKind = Literal["number", "word", "uuid"]

DISTINCT_VALUES = 80
"""How many numbers share no pair of digits; leading pairs run from 10 to 99."""


class Key(NamedTuple):
    """Who a needle is about: indices into the adjectives and the nouns."""

    adjective: int
    noun: int


def draw_keys(draw: Draw, count: int, *, reserved: bool = False) -> list[Key]:
    """``count`` keys whose nouns differ as long as there are nouns; pairs never repeat.

    ``reserved`` draws from the quarter that is kept for training.  Raises ValueError past what the lists hold.
    """
    keys: list[Key] = []
    taken: set[Key] = set()
    while len(keys) < count:
        before = len(keys)
        for noun in draw.permutation(range(len(words.NOUNS)))[: count - before]:
            fitting = [key for key in _of_noun(noun, reserved=reserved) if key not in taken]
            if fitting:
                keys.append(draw.choice(fitting))
                taken.add(keys[-1])
        if len(keys) == before:
            raise ValueError(f"{count} keys asked for, the word lists hold {before}")
    return keys


def siblings(draw: Draw, key: Key, count: int) -> list[Key]:
    """``count`` keys of the noun of ``key``, which differ in the adjective alone; the first is ``key``.

    All are kept for training, or none, as ``key`` is.  Raises ValueError where the noun has fewer.
    """
    others = [other for other in _of_noun(key.noun, reserved=words.reserved_key(*key)) if other != key]
    if count > 1 + len(others):
        raise ValueError(f"{count} keys of one noun asked for, the word lists hold {1 + len(others)}")
    return [key, *draw.permutation(others)[: count - 1]]


def _of_noun(noun: int, *, reserved: bool) -> list[Key]:
    return [Key(a, noun) for a in range(len(words.ADJECTIVES)) if words.reserved_key(a, noun) == reserved]


def draw_numbers(draw: Draw, count: int, *, reserved: bool = False) -> list[int]:
    """``count`` different six-digit numbers; ``reserved`` draws from the quarter that is kept for training.

    As long as there are pairs of digits, no two numbers share a pair at the same place: the first digits of an answer
    already tell which fact was recalled, and none can be finished from another's.
    """
    values: list[int] = []
    taken: set[tuple[int, int]] = set()
    while len(values) < count:
        value = 100_000 + draw.below(900_000)
        pairs = {(place, value // 100**place % 100) for place in range(3)}
        distinct = value not in values if len(values) >= DISTINCT_VALUES else not pairs & taken
        if distinct and words.reserved_value(value) == reserved:
            taken |= pairs
            values.append(value)
    return values


def draw_words(draw: Draw, count: int) -> list[str]:
    """``count`` code words, all different as long as there are words."""
    drawn: list[str] = []
    while len(drawn) < count:
        drawn += draw.permutation(words.CODE_WORDS)[: count - len(drawn)]
    return drawn


def draw_uuids(draw: Draw, count: int) -> list[str]:
    """``count`` random identifiers in the form of RFC 9562, version 4."""
    return [_uuid(draw) for _ in range(count)]


def _uuid(draw: Draw) -> str:
    digits = f"{draw.bits():016x}{draw.bits():016x}"
    variant = "89ab"[int(digits[16], 16) % 4]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


def draw_values(draw: Draw, kind: ValueKind, count: int, *, reserved: bool = False) -> list[str]:
    """``count`` different values of one kind, as texts; ``reserved`` is for numbers, the other kinds have no such part.

    Words are few, and a model that never wrote one could not; identifiers are too many to meet twice.
    """
    if kind == "number":
        return [str(value) for value in draw_numbers(draw, count, reserved=reserved)]
    return draw_words(draw, count) if kind == "word" else draw_uuids(draw, count)
