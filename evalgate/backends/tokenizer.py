"""The model's own tokenizer and chat template, from its folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evalgate.backends.base import ChatPieces
from evalgate.errors import CheckpointError, UnsupportedError

SENTINEL = "⟦content⟧"
"""Stands for the user's text while a template is rendered."""
IDENTITY_FILES = ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "chat_template*", "vocab*", "merges*")


class ModelTokenizer:
    """Text <-> token ids through transformers; never truncates, pads or adds a token by itself."""

    def __init__(self, folder: Path) -> None:
        """Load it; raises CheckpointError when the folder has no usable tokenizer."""
        # Imported here: it takes a second, which `--help` need not wait for.
        from transformers import AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except Exception as error:  # transformers raises whatever the file made it raise
            raise CheckpointError(f"{folder}: no usable tokenizer ({_first_line(error)}); restore its files") from error
        self._core: Any = getattr(self._tokenizer, "backend_tokenizer", None)
        if self._core is not None:
            self._core.no_truncation()
            self._core.no_padding()
        if not self.encode("The context."):
            raise CheckpointError(f"{folder}: the tokenizer encodes text to 0 tokens; restore its files")
        self.sha256 = _digest(folder)
        self.special_ids = frozenset(self._tokenizer.all_special_ids)
        self.eos_ids = _eos_ids(folder, self._tokenizer.eos_token_id)

    def encode(self, text: str) -> list[int]:
        """Token ids; special tokens written in the text count, none are added."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """Token ids of each text."""
        if self._core is None:
            return [list(self._tokenizer.encode(text, add_special_tokens=False)) for text in texts]
        return [item.ids for item in self._core.encode_batch_fast(texts, add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        """Text without special tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def decode_whole(self, ids: Sequence[int]) -> str:
        """Text with special tokens, to the last blank."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def render_messages(self, messages: list[dict[str, str]], *, answer: bool = True) -> str:
        """A whole conversation by the chat template; with ``answer`` up to where the next answer begins."""
        if not self._tokenizer.chat_template:
            raise UnsupportedError("the tokenizer has no chat template; ask without one")
        return str(
            self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=answer, continue_final_message=not answer
            )
        )

    @property
    def chat_template(self) -> str | None:
        """The template itself; None: there is none."""
        return self._tokenizer.chat_template or None

    @property
    def first_id(self) -> int | None:
        """The token that begins a text: BOS, else EOS; None: the tokenizer has neither."""
        bos, eos = self._tokenizer.bos_token_id, self._tokenizer.eos_token_id
        found = eos if bos is None else bos
        return None if found is None else int(found)

    def render_chat(self, user_content: str = "", system: str | None = None) -> ChatPieces:
        """The chat template around one user message, with the generation prompt; ``system`` is a message before it.

        A model without a template gets what :meth:`render_base` gives.
        Raises UnsupportedError for a template that does not leave the text as it is, or leaves ``system`` out.
        """
        if not self._tokenizer.chat_template:
            return self.render_base(system)
        before = [] if system is None else [{"role": "system", "content": system}]
        head, _, tail = self._render([*before, _said("user", SENTINEL)]).partition(SENTINEL)
        if SENTINEL in tail or self._render([*before, _said("user", user_content or SENTINEL)]) != (
            head + (user_content or SENTINEL) + tail
        ):
            raise UnsupportedError("the chat template changes or repeats the user's text; positions would be wrong")
        if system is not None and system not in head:
            raise UnsupportedError("the chat template has no place for a system prompt; leave prompting.system out")
        return ChatPieces(head, tail, self._turn(before))

    def render_base(self, system: str | None = None) -> ChatPieces:
        """A text that goes on: the first token, if the tokenizer has one, and a line end after each part."""
        return ChatPieces((self._tokenizer.bos_token or "") + ("" if system is None else f"{system}\n"), "\n", "\n")

    def _turn(self, before: list[dict[str, str]]) -> str | None:
        """What stands between an answer and the next question; None where the template takes no second question."""
        answer = f"{SENTINEL}1"
        conversation = [*before, _said("user", f"{SENTINEL}0"), _said("assistant", answer), _said("user", SENTINEL)]
        try:
            _, _, rest = self._render(conversation).partition(answer)
        except CheckpointError:
            return None
        turn, found, _ = rest.partition(SENTINEL)
        return turn if found else None

    def _render(self, messages: list[dict[str, str]]) -> str:
        try:
            return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        except Exception as error:  # a template is a program of the checkpoint's; anything may come out of it
            raise CheckpointError(f"the chat template cannot be rendered: {_first_line(error)}") from error


def _said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _eos_ids(folder: Path, of_tokenizer: int | None) -> frozenset[int]:
    """Every id that ends an answer, from the tokenizer, generation_config.json and config.json."""
    found: set[int] = set() if of_tokenizer is None else {of_tokenizer}
    for name in ("generation_config.json", "config.json"):
        try:
            stated = json.loads((folder / name).read_text(encoding="utf-8")).get("eos_token_id")
        except (OSError, ValueError, AttributeError):
            continue
        found.update(stated if isinstance(stated, list) else [] if stated is None else [stated])
    return frozenset(found)


def _digest(folder: Path) -> str:
    names = sorted({path for pattern in IDENTITY_FILES for path in folder.glob(pattern) if path.is_file()})
    lines = "".join(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n" for path in names)
    return hashlib.sha256(lines.encode()).hexdigest()


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
