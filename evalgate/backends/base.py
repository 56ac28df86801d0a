"""The port that every backend speaks: groups of questions about one growing context in, answers out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple, Protocol

from evalgate.records import EngineId, ModelId

PROMPT_ARMS = ("isolated", "turns")
"""Arms that change what is asked and not the way to the answer: one needle alone, questions in one conversation.

Every backend can do them; it is asked as under ``default``.
"""


class Question(NamedTuple):
    """One question: its token ids with the template's tail, after the context."""

    tail: list[int]
    expected_prompt_tokens: int
    """Tokens that the whole prompt must have; another number is an error, never a silent cut."""
    trial_id: str


class Ask(NamedTuple):
    """Questions about the context that ends at ``context_end``: prompt = tokens[:context_end] + question.tail."""

    context_end: int
    questions: list[Question]
    arm: str = "default"
    """The way to the answer; one of those that the backend says it can do."""


class Group(NamedTuple):
    """Everything that is asked of one haystack."""

    tokens: list[int]
    """Template head and context, up to the longest length that is asked."""
    context_start: int
    """Tokens before the context."""
    asks: list[Ask]
    """By ascending ``context_end``."""
    max_tokens: int
    stop_ids: frozenset[int]


class Answer(NamedTuple):
    """What came back for one question."""

    trial_id: str
    token_ids: list[int]
    """Without the stop token."""
    text: str
    finish_reason: Literal["stop", "length", "error"]
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens that were not computed for this question alone."""
    latency_s: float
    """Seconds from the fork (or the request) to the end of the answer's batch."""
    batch_id: str
    """Questions that were answered together share it."""
    error: str | None = None
    error_code: str = ""
    """What went wrong in a word, without anything of the prompt; empty where nothing is known or nothing did."""
    first_token_s: float = 0.0
    """Seconds from the request to the answer's first words; 0: not measured."""


class ChatPieces(NamedTuple):
    """What a chat template puts before and after the user's text."""

    head: str
    tail: str
    turn: str | None = None
    """Between an answer and the user's next question; None where the template takes no second question."""


class TokenizerPort(Protocol):
    """Text <-> token ids, as the model was trained to see them."""

    @property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end an answer."""

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids that no text of a prompt may turn into."""

    @property
    def sha256(self) -> str:
        """Digest of the files that define it."""

    def encode(self, text: str) -> list[int]:
        """Token ids; special tokens written in the text count, none are added."""

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """Token ids of each text, as :meth:`encode` does."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text without special tokens."""

    def render_chat(self, user_content: str = "", system: str | None = None) -> ChatPieces:
        """The chat template around one user message, with the generation prompt."""

    def render_base(self, system: str | None = None) -> ChatPieces:
        """What stands around a text that goes on, without a template."""


class Backend(Protocol):
    """A model that answers, with the settings of one profile."""

    @property
    def tokenizer(self) -> TokenizerPort:
        """The model's own."""

    @property
    def window(self) -> int:
        """Most tokens that a prompt and its answer may have."""

    @property
    def model_window(self) -> int | None:
        """Most tokens that the model was made for, whatever was asked of this backend; None: it does not say."""

    def identity(self) -> ModelId:
        """Which weights and tokenizer."""

    def engine_id(self, longest: int, arms: Sequence[str]) -> EngineId:
        """Settings as read back, and bytes per session measured at ``longest`` tokens.

        Raises UnsupportedError for an arm that the backend cannot do and DoesNotFitError for a length that does not
        fit.
        """

    def arms(self) -> dict[str, str]:
        """Arms that the backend can do -> path taken."""

    def answer(self, group: Group) -> list[Answer]:
        """Answers in the order of the questions; raises DoesNotFitError before the first token."""

    def answer_all(self, groups: Iterable[Group]) -> Iterator[list[Answer]]:
        """As :meth:`answer` for each, in their order; a backend may take several before the first is done."""

    def counters(self) -> dict[str, int]:
        """What was done so far."""


def check_arms(arms: Sequence[str], able: dict[str, str]) -> dict[str, str]:
    """The paths of ``arms``; raises UnsupportedError for one that is not in ``able``."""
    from evalgate.errors import UnsupportedError, nearest

    for arm in arms:
        if arm not in able and arm not in PROMPT_ARMS:
            raise UnsupportedError(f"arm {arm!r} cannot be done by this backend{nearest(arm, list(able))}")
    return {arm: able["default" if arm in PROMPT_ARMS else arm] for arm in arms}
