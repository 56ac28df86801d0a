"""One language's sentences as templates, so that what a line may take in any tokenizer can be bounded.

A template names its slots in braces; every slot is filled from a list, so the longest line is the base line plus the
most that each slot can add (:meth:`Phrases.variants`).
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from evalgate.tasks.draw import Draw
from evalgate.tasks.names import Key, ValueKind, draw_uuids

SAMPLE_NUMBERS = range(100_000, 1_000_000, 3_701)
SAMPLE_UUIDS = 256
SAMPLE_SENTENCES = 1_000


class Slots(NamedTuple):
    """What a template is filled with; a slot that a template does not name may hold anything."""

    form: int = 0
    key: Key = Key(0, 0)
    other: Key = Key(0, 0)
    keys: tuple[Key, ...] = ()
    value: str = "100000"
    nth: int = 1
    kind: ValueKind = "number"
    place: int = 0
    region: int = 0
    copies: int = 1
    noun: str = ""
    before: str = ""
    after: str = ""
    """Whole sentences of filler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phrases:
    """The words and templates of one language."""

    adjectives: tuple[str, ...]
    nouns: tuple[str, ...]
    forms: tuple[str, ...]
    code_words: tuple[str, ...]
    kinds: Mapping[ValueKind, str]
    """What a value is called: number, word, id."""
    ordinals: tuple[str, ...]
    """First, second ...: as many as ``ordinal`` has rungs."""
    roles: tuple[str, ...]
    """Who speaks in a chat and signs in a log."""
    places: tuple[tuple[str, str], ...]
    """(a place, the region that it lies in, by another name)"""
    key: str
    """How adjective and noun stand together."""
    and_: tuple[str, str]
    """Between keys of a list, and before the last."""
    article: str
    """Before each key of a list."""
    templates: Mapping[str, str]
    filler: Callable[[Draw], str]
    """A sentence that holds no key, no form and no digit."""
    polish: Callable[[str], str] = field(default=str)
    """Last touch to a sentence, such as particles that depend on the sound before them."""

    def say(self, template: str, slots: Slots) -> str:
        """The sentence of ``template``: a name, or the template itself, which has a blank."""
        return self.polish(self._template(template).format_map(self._fill(slots)))

    def name(self, key: Key) -> str:
        """A key in words."""
        return self.key.format(adjective=self.adjectives[key.adjective], noun=self.nouns[key.noun])

    @property
    def regions(self) -> tuple[str, ...]:
        """The regions of all places, each once."""
        return tuple(dict.fromkeys(region for _, region in self.places))

    def variants(self, template: str, base: Slots) -> list[tuple[int, list[str]]]:
        """For each slot of ``template``: how often it stands there, and the sentence with each of its fillings."""
        named = [name for _, name, _, _ in string.Formatter().parse(self._template(template)) if name is not None]
        out = []
        for name in dict.fromkeys(named):
            count = named.count(name) * (len(base.keys) if name == "keys" else 1)
            out += [
                (count, [self.say(template, base._replace(**change)) for change in changes])  # type: ignore[arg-type]  # each change names a slot and fits it
                for changes in self._fillings(name, base)
            ]
        return out

    def _template(self, template: str) -> str:
        return template if " " in template else self.templates[template]

    def _fill(self, slots: Slots) -> dict[str, str]:
        names = [self.article + self.name(key) for key in slots.keys]
        between, last = self.and_
        key = self.name(slots.key)
        return {
            "form": self.forms[slots.form],
            "key": key,
            "other": self.name(slots.other),
            "keys": last.join([between.join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names),
            "value": slots.value,
            "nth": self.ordinals[slots.nth - 1],
            "kind": self.kinds[slots.kind],
            "place": self.places[slots.place][0],
            "region": self.regions[slots.region],
            "copies": str(slots.copies),
            "noun": slots.noun,
            "before": slots.before,
            "after": slots.after,
            "slug": f"{key} {self.forms[slots.form]}".replace(" ", "_"),
        }

    def _fillings(self, name: str, base: Slots) -> list[list[dict[str, object]]]:
        """Ways to vary one slot, each a list of changes; a key varies in its two words apart."""
        adjectives = [Key(a, 0) for a in range(len(self.adjectives))]
        nouns = [Key(0, n) for n in range(len(self.nouns))]
        if name in ("key", "other", "slug"):
            field_name = "other" if name == "other" else "key"
            ways: list[list[dict[str, object]]] = [[{field_name: k} for k in keys] for keys in (adjectives, nouns)]
            return [*ways, *self._fillings("form", base)] if name == "slug" else ways
        if name == "keys":
            rest = base.keys[1:]
            return [[{"keys": (k, *rest)} for k in keys] for keys in (adjectives, nouns)]
        if name == "value":
            samples: dict[ValueKind, list[str]] = {
                "number": [str(number) for number in SAMPLE_NUMBERS],
                "word": list(self.code_words),
                "uuid": draw_uuids(Draw("uuid samples"), SAMPLE_UUIDS),
            }
            return [[{"value": value} for value in samples[base.kind]]]
        if name in ("before", "after"):
            draw = Draw("sentences")
            return [[{name: self.filler(draw)} for _ in range(SAMPLE_SENTENCES)]]
        spans = {
            "form": len(self.forms),
            "place": len(self.places),
            "region": len(self.regions),
        }
        if name in spans:
            return [[{name: i} for i in range(spans[name])]]
        return [[{"nth": i} for i in range(1, len(self.ordinals) + 1)]] if name == "nth" else []
