"""Sentences by language: what facts, questions, fillers and instructions say."""

from __future__ import annotations

from typing import Literal

from evalgate.tasks.phrases.english import ENGLISH
from evalgate.tasks.phrases.korean import KOREAN
from evalgate.tasks.phrases.phrases import Phrases, Slots

__all__ = ["LANGUAGES", "Language", "Phrases", "Slots"]

Language = Literal["en", "ko"]

LANGUAGES: dict[Language, Phrases] = {"en": ENGLISH, "ko": KOREAN}
