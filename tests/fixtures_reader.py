"""A reader that answers English questions from the text alone: what a perfect model would say."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

from evalgate.tasks import words

FACT = re.compile(r"(?:The|One) (\w+) (number|word|id) of the ([a-z]+ [a-z]+) is ([0-9a-z-]+)\.")
LINK = re.compile(r"The (\w+) number of the ([a-z]+ [a-z]+) is that of the ([a-z]+ [a-z]+)\.")
PARTNER = re.compile(r"The (\w+) partner of the ([a-z]+ [a-z]+) is the ([a-z]+ [a-z]+)\.")
SEEN = re.compile(r"The ([a-z]+ [a-z]+) was last seen in ([\w ]+)\.")
FUNCTION = re.compile(r"def (\w+)\(\): return (\d+)")
CLAIM = re.compile(r"^([a-z]+ [a-z]+): (?:sorry, )?my (\w+) number is (\d+)\.", re.MULTILINE)
FILE = re.compile(r"File on the ([a-z]+ [a-z]+)\. [^.\n]+\. Its (\w+) number is (\d+)\.")
KEEPER = re.compile(r"File on the ([a-z]+ [a-z]+)\. [^.\n]+\. Its keeper is the ([a-z]+ [a-z]+)\.")


class Reader:
    """Everything that a text states, in its order."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.facts: dict[tuple[str, str, str], list[str]] = defaultdict(list)
        for form, kind, key, value in FACT.findall(text):
            self.facts[form, kind, key].append(value)
        self.links = {(form, key): other for form, key, other in LINK.findall(text)}
        self.partners = {(form, key): other for form, key, other in PARTNER.findall(text)}
        self.claims: dict[tuple[str, str], list[str]] = defaultdict(list)
        for key, form, value in CLAIM.findall(text):
            self.claims[form, key].append(value)

    def number(self, form: str, key: str) -> str | None:
        """The last number that was given, or that of whom it is passed on from."""
        while (form, key) in self.links:
            key = self.links[form, key]
        given = self.facts.get((form, "number", key))
        return given[-1] if given else None

    def answer(self, question: str) -> set[str]:  # noqa: C901, PLR0911, PLR0912 - one branch for each kind of question
        """The values that answer ``question``; {"none"} where the text does not say."""
        if found := re.fullmatch(r"What is the (\w+) (number|word|id) of the ([a-z]+ [a-z]+)\?", question):
            form, kind, key = found.groups()
            if kind == "number":
                return {self.number(form, key) or "none"}
            return {self.facts[form, kind, key][-1]}
        if found := re.fullmatch(r"What are all the (\w+) numbers of the ([a-z]+ [a-z]+)\?", question):
            return set(self.facts[found[1], "number", found[2]])
        if found := re.fullmatch(r"What are the (\w+) numbers of (.+)\?", question):
            keys = re.split(r", | and ", found[2])
            return {self.number(found[1], key.removeprefix("the ")) or "none" for key in keys}
        if found := re.fullmatch(r"What was the (\w+) (\w+) number given for the ([a-z]+ [a-z]+)\?", question):
            return {self.facts[found[2], "number", found[3]][words.ORDINALS.index(found[1])]}
        if found := re.fullmatch(r"How many (\w+) numbers were given for the ([a-z]+ [a-z]+)\?", question):
            return {str(len(self.facts[found[1], "number", found[2]]))}
        if found := re.fullmatch(r"What is the (\w+) number of the partner of the ([a-z]+ [a-z]+)\?", question):
            return {self.number(found[1], self.partners[found[1], found[2]]) or "none"}
        if found := re.fullmatch(r"Which of them was last seen in ([\w ]+)\?", question):
            return {key for key, city in SEEN.findall(self.text) if (city, found[1]) in words.CITIES}
        if found := re.fullmatch(r"Sum up the \w+: which (\w+) numbers does it give\?", question):
            return {value for (form, _, _), given in self.facts.items() if form == found[1] for value in given}
        if found := re.fullmatch(r"What does (\w+)\(\) return\?", question):
            return {value for name, value in FUNCTION.findall(self.text) if name == found[1]}
        if found := re.fullmatch(r"What does the ([a-z]+ [a-z]+) say is their (\w+) number\?", question):
            return {self.claims[found[2], found[1]][-1]}
        if found := re.fullmatch(r"Who says that their (\w+) number is (\d+)\?", question):
            return {key for (form, key), given in self.claims.items() if form == found[1] and found[2] in given}
        if found := re.fullmatch(r"What (\w+) number does the file on the (keeper of the )?([a-z ]+) give\?", question):
            form, hop, key = found.groups()
            if hop:
                (key,) = (keeper for name, keeper in KEEPER.findall(self.text) if name == key)
            return {value for name, of, value in FILE.findall(self.text) if (name, of) == (key, form)}
        if found := re.fullmatch(r"Which (\d+) words stand there most often\?", question):
            counts = Counter(re.findall(r"[a-z]+", self.text))
            most = counts.most_common(int(found[1]) + 1)
            assert most[-1][1] < most[-2][1], "a tie at the edge has no answer"
            return {word for word, _ in most[:-1]}
        raise AssertionError(f"no reader for {question!r}")
