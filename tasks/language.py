"""The sentences of a haystack: needle lines, questions, filler lines and the instruction before them.

Every line ends with a line break and starts with a letter, so that tokenizers split at line ends.
A needle and its question share their words; what makes a task hard is where the needle lies and what lies beside it.
"""

from __future__ import annotations

from typing import NamedTuple

from evalgate.tasks import words
from evalgate.tasks.draw import Draw

GENERATOR_VERSION = "1"
"""Raised whenever the same seed would give other text."""

INSTRUCTION = (
    "Read the report and answer the question after it with the number alone. "
    "If a number was given more than once, the last one counts.\n"
)

DISTINCT_VALUES = 80
"""How many numbers share no pair of digits; leading pairs run from 10 to 99."""

MAX_NEEDLE_TOKENS = 20
MAX_FILLER_TOKENS = 16


class Key(NamedTuple):
    """Who a needle is about: indices into the adjectives and the nouns."""

    adjective: int
    noun: int

    def __str__(self) -> str:
        return f"{words.ADJECTIVES[self.adjective]} {words.NOUNS[self.noun]}"


def needle_line(form: int, key: Key, value: int) -> str:
    """The line that states a fact; ``form`` is an index into the attributes."""
    return f"The {words.ATTRIBUTES[form]} number of the {key} is {value}.\n"


def question_line(form: int, key: Key) -> str:
    """The question that asks for the fact of :func:`needle_line`."""
    return f"What is the {words.ATTRIBUTES[form]} number of the {key}?"


def filler_line(draw: Draw) -> str:
    """One line of a report; it holds no key, no attribute and no digit."""
    shape = draw.below(4)
    role, verb, thing = draw.choice(words.ROLES), draw.choice(words.VERBS), draw.choice(words.THINGS)
    place = draw.choice(words.PLACES)
    if shape == 0:
        return f"The {role} {verb} {draw.choice(words.COUNTS)} {thing} near the {place}.\n"
    if shape == 1:
        return f"Before {draw.choice(words.TIMES)} the {role} {verb} the {draw.choice(words.QUALITIES)} {thing}.\n"
    if shape == 2:
        count, time = draw.choice(words.COUNTS), draw.choice(words.TIMES)
        return f"At the {place} a {role} {verb} {count} {thing} until {time}.\n"
    quality, time = draw.choice(words.QUALITIES), draw.choice(words.TIMES)
    return f"Some {quality} {thing} stood behind the {place} after {time}.\n"


def draw_keys(draw: Draw, count: int, *, reserved: bool = False) -> list[Key]:
    """``count`` keys whose nouns differ as long as there are nouns; pairs never repeat.

    ``reserved`` draws from the quarter that is kept for training.  Raises ValueError past what the lists hold.
    """
    keys: list[Key] = []
    taken: set[Key] = set()
    while len(keys) < count:
        before = len(keys)
        for noun in draw.permutation(range(len(words.NOUNS)))[: count - before]:
            fitting = [
                key
                for a in range(len(words.ADJECTIVES))
                if words.reserved_key(a, noun) == reserved and (key := Key(a, noun)) not in taken
            ]
            if fitting:
                keys.append(draw.choice(fitting))
                taken.add(keys[-1])
        if len(keys) == before:
            raise ValueError(f"{count} keys asked for, the word lists hold {before}")
    return keys


def draw_values(draw: Draw, count: int, *, reserved: bool = False) -> list[int]:
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
