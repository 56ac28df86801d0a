"""Training text for the embedded models: the suite's own language, with keys and values that no suite can hold."""

from __future__ import annotations

from typing import NamedTuple

import torch
from builtin_tokenizer import ASSISTANT, BOS, EOS, USER
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from evalgate.tasks import language, words
from evalgate.tasks.draw import Draw

LINE, TURN = 15, 19
"""Most tokens of a needle line, and of a question with its answer and turn tokens, in the embedded tokenizer."""


class Rung(NamedTuple):
    """One step of the curriculum."""

    tokens: int
    batch: int
    steps: int
    needles: tuple[int, int]
    """Fewest and most keys in one context."""
    questions: int
    overwritten: float
    """Share of keys that are set two or three times."""


class Lesson(NamedTuple):
    """``inputs`` ``[B, T]``, the next-token ``targets`` and their ``weights`` (answers 1, the rest less)."""

    inputs: Tensor
    targets: Tensor
    weights: Tensor


class Teacher:
    """Draws lessons; the same (seed, step) gives the same batch."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: int, rest_weight: float) -> None:
        self._tokenizer = tokenizer
        self._seed = seed
        self._rest = rest_weight
        self._special = {t: tokenizer.convert_tokens_to_ids(t) for t in (BOS, USER, ASSISTANT, EOS)}
        self._instruction = self._encode([language.INSTRUCTION])[0]

    def _encode(self, texts: list[str]) -> list[list[int]]:
        return [e.ids for e in self._tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False)]

    def lesson(self, rung: Rung, step: int) -> Lesson:
        """A batch of ``rung.batch`` sequences of ``rung.tokens`` tokens."""
        rows = [self._row(rung, Draw("train", self._seed, rung.tokens, step, row)) for row in range(rung.batch)]
        ids = torch.tensor([row[0] for row in rows])
        weights = torch.tensor([row[1] for row in rows])
        return Lesson(ids[:, :-1], ids[:, 1:], weights[:, 1:])

    def _row(self, rung: Rung, draw: Draw) -> tuple[list[int], list[float]]:
        special = self._special
        low, high = rung.needles
        keys = language.draw_keys(draw, low + draw.below(high - low + 1), reserved=True)
        forms = draw.permutation(range(len(words.ATTRIBUTES)))
        form_count = 1 + draw.below(min(len(keys), len(forms)))
        room = rung.tokens - rung.questions * TURN - (len(self._instruction) if rung.tokens >= 128 else 0)
        spare = room // LINE - len(keys)  # settings beyond one a key, so that filler has room too
        facts = []
        for key in keys[: room // LINE]:
            settings = 2 + draw.below(2) if draw.unit() < rung.overwritten else 1
            settings = max(1, min(settings, 1 + spare))
            spare -= settings - 1
            values = language.draw_values(draw, settings, reserved=True)
            facts.append((forms[draw.below(form_count)], key, values))

        asked = draw.permutation(facts)[: rung.questions]
        questions = self._encode([language.question_line(form, key) for form, key, _ in asked])
        answers = self._encode([f" {values[-1]}" for _, _, values in asked])
        ids, weights = [special[BOS], special[USER]], [0.0, 0.0]
        if rung.tokens > 256 or (rung.tokens == 256 and draw.below(2) == 0):
            ids += self._instruction
        room = rung.tokens + 1 - len(ids) - sum(len(q) + len(a) + 3 for q, a in zip(questions, answers, strict=True))
        ids += self._context(draw, facts, room)
        weights = [self._rest] * len(ids)
        for i, (question, answer) in enumerate(zip(questions, answers, strict=True)):
            ask = ([special[USER]] if i else []) + question + [special[ASSISTANT]]
            ids += [*ask, *answer, special[EOS]]
            weights += [0.0] * len(ask) + [1.0] * (len(answer) + 1)
        short = rung.tokens + 1 - len(ids)
        return ids + [0] * short, weights + [0.0] * short

    def _context(self, draw: Draw, facts: list[tuple[int, language.Key, list[int]]], room: int) -> list[int]:
        settings = [(form, key, value) for form, key, values in facts for value in values]
        lines = self._encode([language.needle_line(*s) for s in settings])
        places = sorted((draw.unit(), i) for i in range(len(settings)))
        order = [i for _, i in places]
        # Settings of one key must keep their order: the k-th place that a key got takes its k-th value.
        by_key: dict[language.Key, list[int]] = {}
        for i, (_, key, _) in enumerate(settings):
            by_key.setdefault(key, []).append(i)
        needles = [lines[by_key[settings[i][1]].pop(0)] for i in order]
        spare = room - sum(len(line) for line in needles)
        if spare < 0:
            raise ValueError(f"{len(needles)} needles do not fit into {room} tokens")
        filler: list[list[int]] = []
        while spare > 7:
            block = self._encode([language.filler_line(draw) for _ in range(1 + spare // 9)])
            for line in block:
                if len(line) <= spare:
                    filler.append(line)
                    spare -= len(line)
            if not any(len(line) <= spare for line in block):
                break
        slots = sorted(draw.below(len(filler) + 1) for _ in needles)
        ids: list[int] = []
        at = 0
        for slot, needle in zip(slots, needles, strict=True):
            for line in filler[at:slot]:
                ids += line
            at = slot
            ids += needle
        for line in filler[at:]:
            ids += line
        return ids
