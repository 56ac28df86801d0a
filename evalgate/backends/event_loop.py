"""An event loop on a thread of its own, so that requests go on while the next haystack is built."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
LAST_S = 5.0
"""Seconds that connections may take to close."""


class EventLoop:
    """Runs coroutines in the background."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_all, name="requests", daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin ``work`` and return at once."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for what ``work`` returns, or raises."""
        return self.start(work).result()

    def close(self, last: Callable[[], Awaitable[None]]) -> None:
        """Give up what is under way, do ``last``, and end."""
        self._loop.call_soon_threadsafe(lambda: self._loop.create_task(self._end(last)))
        # Whoever drops the last reference may be the loop itself, which cannot wait for its own end.
        if threading.current_thread() is not self._thread:
            self._thread.join(LAST_S)

    async def _end(self, last: Callable[[], Awaitable[None]]) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await last()
        self._loop.stop()

    def _run_all(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()
