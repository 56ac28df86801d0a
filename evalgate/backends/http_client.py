"""One server over HTTP: pooled, bounded, retried with jitter under a deadline, and silent about keys."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self

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


class ServerError(Exception):
    """What a server did instead of answering; the message has no key in it."""


class PassingError(ServerError):
    """A fault that may be gone at the next try."""

    def __init__(self, message: str, wait_s: float | None = None) -> None:
        super().__init__(message)
        self.wait_s = wait_s
        """Seconds that the server asked to be left alone for."""


class HttpClient:
    """JSON requests to one base address; an async context, whose connections end with it."""

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
        self._key = key
        self._deadline = deadline_s
        self._counters = counters
        self._free = asyncio.Semaphore(concurrency)
        sent = {**headers, **({"Authorization": f"Bearer {key}"} if key else {})}
        limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
        self._client = httpx.AsyncClient(headers=sent, limits=limits, timeout=httpx.Timeout(deadline_s, connect=10.0))

    async def get(self, path: str) -> Any:
        """The JSON of one page.  Raises ServerError."""
        return await self._tried(lambda: self._client.get(self.base_url + path))

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The JSON that comes back for ``body``.  Raises ServerError."""
        return await self._tried(lambda: self._client.post(self.base_url + path, json=body))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def _tried(self, send: Callable[[], Awaitable[httpx.Response]]) -> Any:
        async with self._free:
            started = time.monotonic()
            tries = AsyncRetrying(
                retry=retry_if_exception_type(PassingError),
                stop=stop_after_delay(self._deadline),
                wait=_wait,
                reraise=True,
            )
            async for attempt in tries:
                with attempt:
                    left = self._deadline - (time.monotonic() - started)
                    self._counters["requests"] += 1
                    self._counters["retries"] += attempt.retry_state.attempt_number > 1
                    return await self._once(send, max(left, 0.01))
        raise AssertionError("a try ends with an answer or an error")

    async def _once(self, send: Callable[[], Awaitable[httpx.Response]], left: float) -> Any:
        try:
            response = await asyncio.wait_for(send(), left)
        except TimeoutError as error:
            raise PassingError(f"no answer within {self._deadline:g} s") from error
        except (httpx.TransportError, httpx.DecodingError) as error:
            raise PassingError(self._plain(f"{type(error).__name__}: {error}")) from error
        if response.status_code in RETRIED:
            raise PassingError(self._said(response), _asked_wait(response))
        if response.status_code >= 400:
            raise ServerError(self._said(response))
        try:
            return response.json()
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            # A proxy's page or a torn body; the next try may reach the server itself.
            raise PassingError(f"no JSON but {self._plain(response.text[:SHOWN])!r}") from error

    def _said(self, response: httpx.Response) -> str:
        return f"HTTP {response.status_code}: {self._plain(response.text[:SHOWN])!r}"

    def _plain(self, text: str) -> str:
        return text.replace(self._key, "[key]") if self._key else text


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
