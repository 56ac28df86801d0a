"""What a server publishes of itself beside its answers: its card of the model, version, settings and counters."""

from __future__ import annotations

import json
import re
import time
from typing import Any

from evalgate.backends.http_client import HttpClient

CARD = ("id", "owned_by", "root", "parent", "max_model_len")
"""What of a model's card makes it what it is; the rest is drawn anew at each start, or at each look."""
SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(\{.*\})? ([-+.\deE]+)$")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
SETTINGS = "cache_config_info"
"""Ends the name of the metric whose labels are the settings of vLLM's cache."""
COUNTED = ("prefix_cache_hits", "prefix_cache_queries", "cached_tokens", "preemptions", "evict", "retract")
"""Parts of the names of counters that say what became of caches (vLLM, SGLang)."""
LOOK_S = 2.0
"""Seconds between two looks at the metrics of a server that is being asked."""
GAUGES = ("cache_usage_perc", "token_usage")
"""Ends of the names of gauges of how full a cache is, 0 to 1."""


class ServerFacts:
    """What was read so far; every page may be missing, and none is asked twice in vain."""

    def __init__(self, http: HttpClient) -> None:
        self._http = http
        self._root = http.base_url.removesuffix("/v1")
        self._has_metrics = True
        self._looked = 0.0
        self._before: dict[str, float] | None = None
        self._after: dict[str, float] = {}
        self._fullest: dict[str, float] = {}
        self.settings: dict[str, str] = {}
        """Of its cache, where ``/metrics`` has them."""
        self.version: str | None = None

    async def read(self) -> None:
        """The version, and the first look at the metrics."""
        page = await self._http.peek(f"{self._root}/version")
        self.version = _version(page)
        await self.look()

    async def glance(self) -> None:
        """Look, unless that was done a moment ago: the page is long, and questions wait for it."""
        if time.monotonic() - self._looked >= LOOK_S:
            await self.look()

    async def look(self) -> None:
        """Look at the metrics, where there are any."""
        self._looked = time.monotonic()
        page = await self._http.peek(f"{self._root}/metrics") if self._has_metrics else None
        if page is None:
            self._has_metrics = False
            return
        counted, gauges, settings = read_metrics(page)
        self._before = counted if self._before is None else self._before
        self._after = counted
        self.settings = self.settings or settings
        for name, value in gauges.items():
            self._fullest[name] = max(value, self._fullest.get(name, 0.0))

    def counters(self) -> dict[str, int]:
        """What its counters rose by, and the fullest that its caches were seen, in thousandths."""
        before = self._before or {}
        rose = {name: int(value - before.get(name, 0.0)) for name, value in self._after.items()}
        return rose | {f"{name}.most_permille": round(1000 * value) for name, value in self._fullest.items()}


def card_of(listed: Any, model: str) -> dict[str, Any]:
    """What ``/models`` says of ``model``, without what changes from look to look; empty where it says nothing."""
    cards = listed.get("data") if isinstance(listed, dict) else None
    known = {str(card.get("id")): card for card in cards or [] if isinstance(card, dict)}
    return {name: value for name, value in known.get(model, {}).items() if name in CARD}


def names_of(listed: Any) -> list[str]:
    """The names in ``/models``."""
    cards = listed.get("data") if isinstance(listed, dict) else None
    return [str(card.get("id")) for card in cards or [] if isinstance(card, dict)]


def read_metrics(page: str) -> tuple[dict[str, float], dict[str, float], dict[str, str]]:
    """Counters and gauges of caches, each summed over its labels, and the settings of the cache."""
    counted: dict[str, float] = {}
    gauges: dict[str, float] = {}
    settings: dict[str, str] = {}
    for line in page.splitlines():
        found = SAMPLE.match(line)
        if not found:
            continue
        name, labels, value = found[1], found[2] or "", float(found[3])
        if name.endswith(SETTINGS):
            settings = dict(LABEL.findall(labels))
        elif name.endswith("_total") and any(part in name for part in COUNTED):
            counted[name] = counted.get(name, 0.0) + value
        elif name.endswith(GAUGES):
            gauges[name] = max(value, gauges.get(name, 0.0))
    return counted, gauges, settings


def _version(page: str | None) -> str | None:
    try:
        found = json.loads(page or "")
    except ValueError:
        return None
    version = found.get("version") if isinstance(found, dict) else None
    return version if isinstance(version, str) else None
