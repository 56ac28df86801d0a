"""How a prompt is put together in token ids: head, context lines, question, tail.

Prompts are built line by line, so the tokenizer must split at line ends: encoding two lines together must give the
same ids as encoding them apart.  :class:`Wording` checks that and measures the longest line, question and answer.
This module knows how a tokenizer is called, not which one it is.
"""

from __future__ import annotations

import itertools
from typing import Protocol

from evalgate.errors import DoesNotFitError, RefusedError, UnsupportedError
from evalgate.tasks.corpus import Corpus
from evalgate.tasks.draw import Draw
from evalgate.tasks.families.family import Line
from evalgate.tasks.items import Items
from evalgate.tasks.names import Key, draw_uuids
from evalgate.tasks.phrases import LANGUAGES, Slots
from evalgate.tasks.registers import REGISTERS, RegisterName, Taken, filler_sentence
from evalgate.tasks.suite import Suite
from evalgate.tasks.task import Task

OWN_SAMPLES = 32
"""Questions of the user's own that are tried for how the tokenizer splits."""
SAMPLES = 2000
"""Lines that are tried where no list says how long one can be."""
MOST_NEEDLE_TOKENS, MOST_FILLER_TOKENS = 20, 16
"""Of lines of the English report: a tokenizer that makes more of them was not made for English."""
LONG_NEEDLE_TOKENS, LONG_FILLER_TOKENS = 64, 48
"""Of lines that say more, in another register or another language."""
DOCUMENT_LINE_TOKENS = 160
"""Of lines of documents, which are at most 120 characters."""


class Chat(Protocol):
    """What a chat template puts before and after the user's text."""

    @property
    def head(self) -> str:
        """Text before the user's."""

    @property
    def tail(self) -> str:
        """Text after the user's, with the generation prompt."""

    @property
    def turn(self) -> str | None:
        """Text between an answer and the user's next question; None where there can be none."""


class Tokenizer(Protocol):
    """What prompt building needs of a tokenizer."""

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """Token ids of each text; special tokens written in the text count, none are added."""

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids that no text may turn into."""

    def render_chat(self, user_content: str = "", system: str | None = None) -> Chat:
        """The chat template around one user message, with the generation prompt."""

    def render_base(self, system: str | None = None) -> Chat:
        """The same without a template: a text that goes on."""


class Wording:
    """The tokenized pieces that every prompt of one suite and tokenizer shares, and their measured bounds."""

    def __init__(
        self, suite: Suite, tokenizer: Tokenizer, corpus: Corpus | None = None, items: Items | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._corpus = corpus
        self._items = () if items is None else items.items
        self._suite = suite
        self._tasks = [Task(name) for name in suite.tasks]
        self.phrases = LANGUAGES[suite.haystack.language]
        self.noun = REGISTERS[suite.haystack.register_].nouns[suite.haystack.language]
        prompting = suite.prompting
        self._check_plain(
            {"prompting.system": prompting.system or "", "prompting.answer_prefix": prompting.answer_prefix}
        )
        render = tokenizer.render_chat if prompting.template == "chat" else tokenizer.render_base
        chat = render(system=prompting.system)
        self._tail = chat.tail + prompting.answer_prefix
        if "turns" in suite.arms and chat.turn is None:
            raise UnsupportedError("arm 'turns': the chat template takes no second question; leave the arm out")
        self._turn = chat.turn or ""
        plain = all(task.family.asks_one_number for task in self._tasks)
        instruction = self.phrases.say("instruct_number" if plain else "instruct", Slots(noun=self.noun)) + "\n"
        self._head_text = chat.head + instruction
        self.head = tokenizer.encode_batch([self._head_text])[0]
        """Ids of the prompt before the context; its length is s."""
        if not self.head:
            raise UnsupportedError("the tokenizer encodes the instruction to 0 tokens; check the tokenizer's files")
        for i, item in enumerate(self._items, 1):
            self._check_plain({f"questions {i}": f"{item.text}\n{item.question}"})
        self._check_splits()
        self.statement_tokens = {task.name: self._longest_statement(task) for task in self._tasks}
        """task -> the longest line that it states anything with."""
        self.question_tokens = max(self._longest_question(task) for task in self._tasks)
        self.answer_tokens = max(self._longest_answer(task) for task in self._tasks)
        self.filler_tokens = max(self._longest_filler(register) for register in self._registers())
        self._check_limits()

    @property
    def needle_tokens(self) -> int:
        """The longest line that any task states anything with."""
        return max(self.statement_tokens.values())

    def lines(self, texts: list[str]) -> list[list[int]]:
        """Ids of context lines."""
        return self._tokenizer.encode_batch(texts)

    def fillers(self, texts: list[str]) -> list[list[int]]:
        """The same of filler lines; one of a document that would hold a special token is left empty."""
        found = self.lines(texts)
        if self._corpus is None:
            return found
        special = self._tokenizer.special_ids
        return [ids if special.isdisjoint(ids) else [] for ids in found]

    def questions(self, texts: list[str]) -> list[list[int]]:
        """Ids of each question together with the template's tail."""
        return self._tokenizer.encode_batch([text + self._tail for text in texts])

    def turns(self, asked: list[tuple[str, str]], question: str) -> list[int]:
        """Ids of a conversation that goes on: questions with their answers, then ``question`` with the tail."""
        before = "".join(text + self._tail + answer + self._turn for text, answer in asked)
        return self.questions([before + question])[0]

    def reserve(self) -> int:
        """R: template, longest question and answer budget, in tokens."""
        decoding = self._suite.decoding
        return len(self.head) + self.tail_tokens + decoding.thinking_tokens + decoding.max_tokens

    @property
    def tail_tokens(self) -> int:
        """The longest that can stand between the context and the answer."""
        if "turns" not in self._suite.arms:
            return self.question_tokens
        asked = sum(len(task.family.asked(self._suite.bands)) for task in self._tasks)
        turn = len(self._tokenizer.encode_batch([self._turn])[0]) if self._turn else 0
        return asked * (self.question_tokens + self.answer_tokens + turn)

    def _check_plain(self, texts: dict[str, str]) -> None:
        """Raise RefusedError where a text of the suite would turn into a special token, or end or start a turn."""
        for name, text in texts.items():
            if text and not self._tokenizer.special_ids.isdisjoint(self.lines([text])[0]):
                raise RefusedError(
                    f"{name} {text[:60]!r} holds a special token of this tokenizer, which would end or start a "
                    "turn; write it in plain words"
                )

    def _registers(self) -> list[RegisterName]:
        return list(dict.fromkeys(task.register or self._suite.haystack.register_ for task in self._tasks))

    def _check_splits(self) -> None:
        draw = Draw("splits")
        lines = [line for register in self._registers() for line in self._samples(register, draw, 12)]
        questions = []
        for task in self._tasks:
            told, asked = task.family.lines(task.rung)
            lines += [self._framed(task, line, draw) for line in told]
            questions += [self.phrases.say(line.template, line.slots) for line in asked]
        lines += [item.text + "\n" for item in self._items[:OWN_SAMPLES]]
        questions += [item.question for item in self._items[:OWN_SAMPLES]]
        parts = [self._head_text, *lines, questions[0] + self._tail]
        apart = [i for ids in self._tokenizer.encode_batch(parts) for i in ids]
        together = self._tokenizer.encode_batch(["".join(parts)])[0]
        if apart != together:
            raise UnsupportedError(
                f"this tokenizer does not split at line ends ({len(together)} tokens together, {len(apart)} line by "
                "line), so positions would be wrong; use the model's own fast tokenizer"
            )

    def _framed(self, task: Task, line: Line, draw: Draw) -> str:
        register = REGISTERS[task.register or self._suite.haystack.register_]
        return register.line(draw, self.phrases, self.phrases.say(line.template, line.slots))

    def _samples(self, register: RegisterName, draw: Draw, count: int) -> list[str]:
        """``count`` filler lines."""
        if self._corpus is not None and register == self._suite.haystack.register_:
            return [sentence + "\n" for sentence in itertools.islice(self._corpus.sentences(draw), count)]
        return [self._filler(register, draw) for _ in range(count)]

    def _filler(self, register: RegisterName, draw: Draw) -> str:
        language = self._suite.haystack.language
        return REGISTERS[register].line(
            draw, self.phrases, filler_sentence(register, language, self.phrases, draw, Taken())
        )

    def _longest_statement(self, task: Task) -> int:
        """An upper bound on any line that states anything: the base line plus the most that each part can add."""
        if task.family.own_items:
            return self._longest_part([item.text + "\n" for item in self._items])
        told, _ = task.family.lines(task.rung)
        return max((self._bound(line, "\n") for line in told), default=0) + self._frame_tokens(task)

    def _frame_tokens(self, task: Task) -> int:
        """The most that the look of a register adds to a sentence."""
        register = REGISTERS[task.register or self._suite.haystack.register_]
        draw, bare = Draw("frames"), "Sentence.\n"
        framed = {register.line(draw, self.phrases, bare[:-1]) for _ in range(SAMPLES)}
        longest = max(len(ids) for ids in self.lines(sorted(framed)))
        return longest - len(self.lines([bare])[0])

    def _longest_question(self, task: Task) -> int:
        if task.family.own_items:
            return self._longest_part([item.question + self._tail for item in self._items])
        return max(self._bound(line, self._tail) for line in task.family.lines(task.rung)[1])

    def _longest_answer(self, task: Task) -> int:
        """The most tokens of a right answer, with its end."""
        if task.family.own_items:
            answers = [self.lines([" " + answer for answer in item.answers]) for item in self._items]
            return max(min(map(len, each)) for each in answers) + 1
        kind = task.family.needs(task.rung, self._suite.bands).kind
        samples = {
            "number": [f", {value}" for value in range(100_000, 1_000_000, 3_701)],
            "word": [f", {word}" for word in self.phrases.code_words],
            "uuid": [f", {value}" for value in draw_uuids(Draw("answers"), 256)],
        }[kind]
        longest = max(len(ids) for ids in self.lines(samples))
        names = [self._longest_part([self.phrases.name(Key(a, 0)) for a in range(len(self.phrases.adjectives))])]
        names.append(self._longest_part([self.phrases.name(Key(0, n)) for n in range(len(self.phrases.nouns))]))
        return task.family.answers(task.rung) * max(longest, sum(names)) + 1

    def _longest_part(self, texts: list[str]) -> int:
        return max(len(ids) for ids in self.lines(texts))

    def _bound(self, line: Line, ending: str) -> int:
        base = len(self.lines([self.phrases.say(line.template, line.slots) + ending])[0])
        groups = self.phrases.variants(line.template, line.slots)
        return base + sum(
            count * (self._longest_part([text + ending for text in texts]) - base) for count, texts in groups
        )

    def _longest_filler(self, register: RegisterName) -> int:
        draw = Draw("limits")
        return self._longest_part(self._samples(register, draw, SAMPLES))

    def _check_limits(self) -> None:
        most_filler = LONG_FILLER_TOKENS if self._corpus is None else DOCUMENT_LINE_TOKENS
        plain = self._suite.haystack.language == "en" and self._registers() == ["report"]
        limits = [
            (
                f"{task.name}: a needle line",
                self.statement_tokens[task.name],
                MOST_NEEDLE_TOKENS if plain and not task.family.long_lines else LONG_NEEDLE_TOKENS,
            )
            for task in self._tasks
            if not task.family.own_items
        ]
        limits.append(("a filler line", self.filler_tokens, MOST_FILLER_TOKENS if plain else most_filler))
        for what, found, most in limits:
            if found > most:
                raise DoesNotFitError(
                    f"{what} can take {found} tokens in this tokenizer, expected at most {most}; "
                    f"use a tokenizer with a larger vocabulary of the suite's language"
                )
        if self.answer_tokens > self._suite.decoding.max_tokens:
            raise DoesNotFitError(
                f"decoding.max_tokens {self._suite.decoding.max_tokens} is less than the {self.answer_tokens} tokens "
                "that a right answer can take in this tokenizer; raise it in a new version of the suite"
            )
