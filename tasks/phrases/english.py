"""English."""

from __future__ import annotations

from evalgate.tasks import words
from evalgate.tasks.draw import Draw
from evalgate.tasks.phrases.phrases import Phrases


def _filler(draw: Draw) -> str:
    shape = draw.below(4)
    role, verb, thing = draw.choice(words.ROLES), draw.choice(words.VERBS), draw.choice(words.THINGS)
    place = draw.choice(words.PLACES)
    if shape == 0:
        return f"The {role} {verb} {draw.choice(words.COUNTS)} {thing} near the {place}."
    if shape == 1:
        return f"Before {draw.choice(words.TIMES)} the {role} {verb} the {draw.choice(words.QUALITIES)} {thing}."
    if shape == 2:
        count, time = draw.choice(words.COUNTS), draw.choice(words.TIMES)
        return f"At the {place} a {role} {verb} {count} {thing} until {time}."
    quality, time = draw.choice(words.QUALITIES), draw.choice(words.TIMES)
    return f"Some {quality} {thing} stood behind the {place} after {time}."


TEMPLATES = {
    # The instruction of suites whose every question asks for one number, and of all others.
    "instruct_number": "Read the {noun} and answer the question after it with the number alone. "
    "If a number was given more than once, the last one counts.",
    "instruct": "Read the {noun} and answer the question after it with what it asks for alone. "
    "If something was given more than once, the last one counts, unless all are asked for. "
    "If it was not given, answer none.",
    "fact": "The {form} {kind} of the {key} is {value}.",
    "ask": "What is the {form} {kind} of the {key}?",
    "one_of": "One {form} {kind} of the {key} is {value}.",
    "ask_all": "What are all the {form} numbers of the {key}?",
    "ask_many": "What are the {form} numbers of {keys}?",
    "ask_nth": "What was the {nth} {form} number given for the {key}?",
    "ask_count": "How many {form} numbers were given for the {key}?",
    "same_as": "The {form} number of the {key} is that of the {other}.",
    "partner": "The {form} partner of the {key} is the {other}.",
    "ask_partner": "What is the {form} number of the partner of the {key}?",
    "seen": "The {key} was last seen in {place}.",
    "ask_seen": "Which of them was last seen in {region}?",
    "ask_every": "Sum up the {noun}: which {form} numbers does it give?",
    "function": "def {slug}(): return {value}",
    "ask_function": "What does {slug}() return?",
    "claim": "{key}: my {form} number is {value}.",
    "correction": "{key}: sorry, my {form} number is {value}.",
    "ask_claim": "What does the {key} say is their {form} number?",
    "ask_speaker": "Who says that their {form} number is {value}?",
    "ask_frequent": "Which {copies} words stand there most often?",
    "file": "File on the {key}. {before} Its {form} number is {value}. {after}",
    "keeper_file": "File on the {key}. {before} Its keeper is the {other}. {after}",
    "ask_file": "What {form} number does the file on the {key} give?",
    "ask_keeper_file": "What {form} number does the file on the keeper of the {key} give?",
    "none": "none",
}

ENGLISH = Phrases(
    adjectives=words.ADJECTIVES,
    nouns=words.NOUNS,
    forms=words.ATTRIBUTES,
    code_words=words.CODE_WORDS,
    kinds={"number": "number", "word": "word", "uuid": "id"},
    ordinals=words.ORDINALS,
    roles=words.ROLES,
    places=words.CITIES,
    key="{adjective} {noun}",
    and_=(", ", " and "),
    article="the ",
    templates=TEMPLATES,
    filler=_filler,
)
