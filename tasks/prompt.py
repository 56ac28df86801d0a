"""How a prompt is put together in token ids: head, context lines, question, tail.

Prompts are built line by line, so the tokenizer must split at line ends: encoding two lines together must give the
same ids as encoding them apart.  :class:`Wording` checks that and measures the longest needle, filler and question.
This module knows how a tokenizer is called, not which one it is.
"""

from __future__ import annotations

from typing import Protocol

from evalgate.errors import DoesNotFitError, UnsupportedError
from evalgate.tasks import language, words
from evalgate.tasks.draw import Draw


class Chat(Protocol):
    """What a chat template puts before and after the user's text."""

    @property
    def head(self) -> str:
        """Text before the user's."""

    @property
    def tail(self) -> str:
        """Text after the user's, with the generation prompt."""


class Tokenizer(Protocol):
    """What prompt building needs of a tokenizer."""

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """Token ids of each text; special tokens written in the text count, none are added."""

    def render_chat(self, user_content: str = "") -> Chat:
        """The chat template around one user message, with the generation prompt."""


class Wording:
    """The tokenized pieces that every prompt of one tokenizer shares, and their measured bounds."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        chat = tokenizer.render_chat()
        self._tail = chat.tail
        self.head = tokenizer.encode_batch([chat.head + language.INSTRUCTION])[0]
        """Ids of the prompt before the context; its length is s."""
        if not self.head:
            raise UnsupportedError("the tokenizer encodes the instruction to 0 tokens; check the tokenizer's files")
        self._check_splits(chat)
        self.needle_tokens = self._longest_needle()
        self.question_tokens = self._longest_question()
        self._check_limits()

    def lines(self, texts: list[str]) -> list[list[int]]:
        """Ids of context lines."""
        return self._tokenizer.encode_batch(texts)

    def questions(self, texts: list[str]) -> list[list[int]]:
        """Ids of each question together with the template's tail."""
        return self._tokenizer.encode_batch([text + self._tail for text in texts])

    def reserve(self, max_tokens: int) -> int:
        """R: template, longest question and answer budget, in tokens."""
        return len(self.head) + self.question_tokens + max_tokens

    def _check_splits(self, chat: Chat) -> None:
        draw = Draw("splits")
        key = language.draw_keys(draw, 1)[0]
        lines = [language.filler_line(draw) for _ in range(12)] + [language.needle_line(0, key, 123_456)]
        question = language.question_line(0, key) + chat.tail
        parts = [chat.head + language.INSTRUCTION, *lines, question]
        apart = [i for ids in self._tokenizer.encode_batch(parts) for i in ids]
        together = self._tokenizer.encode_batch(["".join(parts)])[0]
        if apart != together:
            raise UnsupportedError(
                f"this tokenizer does not split at line ends ({len(together)} tokens together, {len(apart)} line by "
                "line), so positions would be wrong; use the model's own fast tokenizer"
            )

    def _longest_needle(self) -> int:
        """An upper bound on any needle line: the base line plus the most that each part can add."""
        base = language.Key(0, 0)
        variants = [language.needle_line(0, base, 100_000)]
        groups = [
            [language.needle_line(f, base, 100_000) for f in range(len(words.ATTRIBUTES))],
            [language.needle_line(0, language.Key(a, 0), 100_000) for a in range(len(words.ADJECTIVES))],
            [language.needle_line(0, language.Key(0, n), 100_000) for n in range(len(words.NOUNS))],
            [language.needle_line(0, base, value) for value in range(100_000, 1_000_000, 3_701)],
        ]
        return self._bound(variants[0], groups)

    def _longest_question(self) -> int:
        base = language.Key(0, 0)
        groups = [
            [language.question_line(f, base) + self._tail for f in range(len(words.ATTRIBUTES))],
            [language.question_line(0, language.Key(a, 0)) + self._tail for a in range(len(words.ADJECTIVES))],
            [language.question_line(0, language.Key(0, n)) + self._tail for n in range(len(words.NOUNS))],
        ]
        return self._bound(language.question_line(0, base) + self._tail, groups)

    def _bound(self, base: str, groups: list[list[str]]) -> int:
        start = len(self.lines([base])[0])
        return start + sum(max(len(ids) for ids in self.lines(group)) - start for group in groups)

    def _check_limits(self) -> None:
        draw = Draw("limits")
        filler = max(len(ids) for ids in self.lines([language.filler_line(draw) for _ in range(2000)]))
        for what, found, most in (
            ("needle", self.needle_tokens, language.MAX_NEEDLE_TOKENS),
            ("filler", filler, language.MAX_FILLER_TOKENS),
        ):
            if found > most:
                raise DoesNotFitError(
                    f"a {what} line can take {found} tokens in this tokenizer, expected at most {most}; "
                    "use a tokenizer with a larger English vocabulary"
                )
