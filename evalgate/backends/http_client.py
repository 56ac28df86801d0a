"""One server over HTTP: pooled, bounded, retried with jitter under a deadline, and silent about keys."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar

import httpx
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    stop_after_delay,
    wait_exponential,
    wait_random,
)

RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
"""HTTP states of a server that may do better a moment later."""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.25, 15.0
WAITS = wait_exponential(multiplier=FIRST_WAIT_S, max=LONGEST_WAIT_S) + wait_random(0, FIRST_WAIT_S)
"""Between tries: longer each time, and never the same for two requests."""
SHOWN = 200
"""Characters of a server's words that an error repeats."""
PEEK_S = 5.0
"""Seconds for a page that may not be there."""
END = "[DONE]"
"""What a stream says after its last event."""
T = TypeVar("T")


class ServerError(Exception):
    """What a server did instead of answering; the message has no key in it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        """Short and without anything of the prompt: what a trial keeps of it."""


class PassingError(ServerError):
    """A fault that may be gone at the next try."""

    def __init__(self, code: str, message: str, wait_s: float | None = None) -> None:
        super().__init__(code, message)
        self.wait_s = wait_s
        """Seconds that the server asked to be left alone for."""


class Streamed(NamedTuple):
    """The events of a stream that ended, and when the first came that ``begun`` held for."""

    events: list[Any]
    first_s: float
    """Seconds from sending; 0: there was none."""


class HttpClient:
    """JSON requests to one base address, from one event loop."""

    def __init__(
        self,
        base_url: str,
        *,
        headers: Mapping[str, str],
        key: str | None,
        concurrency: int,
        deadline_s: float,
        counters: Counter[str],
    ) -> None:
        """``key`` goes as a bearer token; ``deadline_s`` bounds one request with all its tries."""
        self.base_url = base_url.rstrip("/")
        self.deadline_s = deadline_s
        self._key = key
        self._counters = counters
        self._free = asyncio.Semaphore(concurrency)
        sent = {**headers, **({"Authorization": f"Bearer {key}"} if key else {})}
        limits = httpx.Limits(max_connections=concurrency + 1, max_keepalive_connections=concurrency + 1)
        self._client = httpx.AsyncClient(headers=sent, limits=limits, timeout=httpx.Timeout(deadline_s, connect=10.0))

    async def get(self, path: str) -> Any:
        """The JSON of one page.  Raises ServerError."""
        return await self._tried(lambda: self._json("GET", path, None), self.deadline_s)

    async def post(self, path: str, body: Mapping[str, Any], read: Callable[[Any], T], deadline_s: float) -> T:
        """What ``read`` makes of the JSON that comes back; it may raise PassingError, for another try.

        Raises ServerError.
        """

        async def once() -> T:
            return read(await self._json("POST", path, body))

        return await self._tried(once, deadline_s)

    async def stream(
        self, path: str, body: Mapping[str, Any], read: Callable[[Streamed], T], begun: Begun, deadline_s: float
    ) -> T:
        """As :meth:`post`, of the events of a stream; ``begun`` says which carry words of the answer."""

        async def once() -> T:
            return read(await self._events(path, body, begun))

        return await self._tried(once, deadline_s)

    async def peek(self, url: str) -> str | None:
        """The text of a page that may not be there: one short try; None where it is not."""
        try:
            response = await self._client.get(url, timeout=PEEK_S)
        except httpx.HTTPError:
            return None
        return response.text if response.status_code == 200 else None

    async def close(self) -> None:
        """End all connections."""
        await self._client.aclose()

    async def _tried(self, once: Callable[[], Awaitable[T]], deadline_s: float) -> T:
        async with self._free:
            started = time.monotonic()
            tries = AsyncRetrying(
                retry=retry_if_exception_type(PassingError),
                stop=stop_after_delay(deadline_s),
                wait=_wait,
                reraise=True,
            )
            async for attempt in tries:
                with attempt:
                    left = deadline_s - (time.monotonic() - started)
                    self._counters["requests"] += 1
                    self._counters["retries"] += attempt.retry_state.attempt_number > 1
                    try:
                        return await asyncio.wait_for(once(), max(left, 0.01))
                    except TimeoutError as error:
                        raise PassingError("timeout", f"no answer within {deadline_s:g} s") from error
        raise AssertionError("a try ends with an answer or an error")

    async def _json(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        async with self._sent(method, path, body) as response:
            await response.aread()
            try:
                return response.json()
            except (json.JSONDecodeError, UnicodeDecodeError) as error:
                # A proxy's page or a torn body; the next try may reach the server itself.
                raise PassingError("no-json", f"no JSON but {self._plain(response.text[:SHOWN])!r}") from error

    async def _events(self, path: str, body: Mapping[str, Any], begun: Begun) -> Streamed:
        started, first_s, events = time.perf_counter(), 0.0, []
        async with self._sent("POST", path, body) as response:
            async for line in response.aiter_lines():
                data = line.removeprefix("data:").strip()
                if data == line.strip() or data == END:  # blank, a comment, or the end
                    continue
                try:
                    event = json.loads(data)
                except json.JSONDecodeError as error:
                    raise PassingError("no-json", f"no JSON but {self._plain(data[:SHOWN])!r}") from error
                if not first_s and begun(event):
                    first_s = time.perf_counter() - started
                events.append(event)
        return Streamed(events, first_s)

    @asynccontextmanager
    async def _sent(self, method: str, path: str, body: Mapping[str, Any] | None) -> AsyncIterator[httpx.Response]:
        """A response of state 2xx whose body is still to come; what goes wrong until then or after is told by code."""
        try:
            async with self._client.stream(method, self.base_url + path, json=body) as response:
                if response.status_code >= 400:
                    await response.aread()
                    kind = PassingError if response.status_code in RETRIED else ServerError
                    error = kind(f"http-{response.status_code}", self._said(response))
                    if isinstance(error, PassingError):
                        error.wait_s = _asked_wait(response)
                    raise error
                yield response
        except (httpx.TransportError, httpx.DecodingError) as error:
            raise PassingError("connection", self._plain(f"{type(error).__name__}: {error}")) from error

    def _said(self, response: httpx.Response) -> str:
        return f"HTTP {response.status_code}: {self._plain(response.text[:SHOWN])!r}"

    def _plain(self, text: str) -> str:
        return text.replace(self._key, "[key]") if self._key else text


Begun = Callable[[Any], bool]
"""Whether an event carries the first words of an answer."""


def _wait(state: RetryCallState) -> float:
    """Exponential with jitter, or as long as the server asked for."""
    error = state.outcome.exception() if state.outcome else None
    asked = error.wait_s if isinstance(error, PassingError) else None
    if asked is not None:
        return min(asked, LONGEST_WAIT_S)
    return float(WAITS(state))


def _asked_wait(response: httpx.Response) -> float | None:
    try:
        return max(0.0, float(response.headers["retry-after"]))
    except (KeyError, ValueError):
        return None
