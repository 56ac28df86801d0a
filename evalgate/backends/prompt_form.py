"""How a prompt goes to a server: as token ids, as text, or as the user's words of a chat."""

from __future__ import annotations

from evalgate.backends.completion import Api
from evalgate.backends.http_client import ServerError
from evalgate.backends.salt import Salt
from evalgate.backends.tokenizer import ModelTokenizer


class PromptForm:
    """Turns the token ids of a whole prompt into what is sent for it."""

    def __init__(self, tokenizer: ModelTokenizer, api: Api) -> None:
        self._tokenizer = tokenizer
        self._api = api
        pieces = tokenizer.render_chat() if api == "chat" else None
        self._head, self._tail = (pieces.head, pieces.tail) if pieces else ("", "")
        self.as_ids = False
        """Whether the server takes token ids."""
        self.salt = Salt(tokenizer.encode)
        self.salt_at = len(tokenizer.encode(self._head)) if pieces else 1
        """Tokens that stay before a salt: a first special one, or what the template puts before the user's words."""

    def __call__(self, ids: list[int]) -> object:
        """What is sent for ``ids``.  Raises ServerError where it would become other tokens, or is no one user's."""
        if self.as_ids:
            return ids
        text = self._tokenizer.decode_whole(ids)
        if self._tokenizer.encode(text) != ids:
            raise ServerError("other-tokens", "the prompt as text would become other tokens")
        if self._api == "completions":
            return text
        if not (text.startswith(self._head) and text.endswith(self._tail)) or len(text) < len(self._head + self._tail):
            raise ServerError(
                "no-chat", "the prompt is not one message of a user in the model's template; ask without --api chat"
            )
        return text[len(self._head) : len(text) - len(self._tail)]

    def framed(self, text: str) -> list[int]:
        """The whole prompt around ``text``, as token ids."""
        return self._tokenizer.encode(self._head + text + self._tail)

    def salted(self, ids: list[int]) -> list[int]:
        """``ids`` with a salt after its first tokens; drawn again where the text would be split in another way."""
        at = self.salt_at if self._api == "chat" or ids[0] in self._tokenizer.special_ids else 0
        while True:
            salted = ids[:at] + self.salt.draw() + ids[at:]
            if self.as_ids or self._tokenizer.encode(self._tokenizer.decode_whole(salted)) == salted:
                return salted
