"""A profile's sections as settings that an engine can apply; whatever it cannot is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn, TypeVar, get_args

from evalgate.engine.compression import Compression, KvDtype, StateDtype
from evalgate.errors import UnsupportedError, nearest

Sections = Mapping[str, Mapping[str, object]]

KNOWN: dict[str, dict[str, object]] = {
    "state": {"dtype": "fp32", "scales": None, "rank": None, "codec_every": None, "error_feedback": False},
    "snapshot": {"dtype": "fp32"},
    "kv": {"dtype": "auto", "keep": 1.0, "window": None},
    "cache": {
        "prefix": True,
        "snapshot_interval": 8192,
        "eviction": "priority-lru-cost",
        "page": 64,
        "prefill_chunk": 1024,
    },
}
"""Every setting there is, with the value that changes nothing."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the sections ask of the native engine."""

    compression: Compression
    prefix: bool
    """Whether questions about one context fork from a shared prefix, and requests start from stored ones."""
    snapshot_interval: int
    """Least distance in tokens between two stored prefixes of one path."""
    page: int
    prefill_chunk: int


def parse_settings(sections: Sections, profile: str, dtype: str) -> Settings:
    """Read the sections of profile ``profile`` for an engine that computes in ``dtype``.

    Raises UnsupportedError, naming the setting, for one that is unknown or that the native engine cannot do.
    """
    _check_names(sections, profile)
    read = _Reader(sections, profile)
    scales = read("state", "scales", str, None)
    state_dtype = read.among("state", "dtype", get_args(StateDtype))
    if (scales == "per-channel") != (state_dtype in {"int8", "int4"}):
        read.refuse("state", "scales", "per-channel with int8 or int4, null with anything else")
    kv_dtype = read.among("kv", "dtype", get_args(KvDtype))
    interval = read("cache", "snapshot_interval", int, 8192)
    if interval < 1:
        read.refuse("cache", "snapshot_interval", "at least 1")
    read.only("cache", "eviction")
    page = read("cache", "page", int, 64)
    if page < 1:
        read.refuse("cache", "page", "at least 1")
    return Settings(
        compression=Compression(
            state_dtype=state_dtype,
            state_rank=read("state", "rank", int, None),
            codec_every=read("state", "codec_every", int, None),
            error_feedback=read("state", "error_feedback", bool, False),
            snapshot_dtype=read.among("snapshot", "dtype", get_args(StateDtype)),
            kv_dtype="auto" if kv_dtype == dtype else kv_dtype,
            kv_keep=float(read("kv", "keep", (int, float), 1.0)),
            kv_window=read("kv", "window", int, None),
        ),
        prefix=read("cache", "prefix", bool, True),
        snapshot_interval=interval,
        page=page,
        prefill_chunk=read("cache", "prefill_chunk", int, 1024),
    )


def require_uncompressed(sections: Sections, profile: str, backend: str) -> None:
    """Raise UnsupportedError for any setting that is not the one that changes nothing."""
    _check_names(sections, profile)
    for section, settings in sections.items():
        for name, value in settings.items():
            if section != "cache" and value != KNOWN[section][name]:
                raise UnsupportedError(
                    f"profile {profile}: backend {backend} cannot do {section}.{name} {value!r}; use backend native, "
                    "or profile full"
                )


def _check_names(sections: Sections, profile: str) -> None:
    for section, settings in sections.items():
        if section not in KNOWN:
            raise UnsupportedError(f"profile {profile}: unknown section {section!r}{nearest(section, list(KNOWN))}")
        for name in settings:
            if name not in KNOWN[section]:
                raise UnsupportedError(
                    f"profile {profile}: unknown setting {section}.{name}{nearest(name, list(KNOWN[section]))}"
                )


class _Reader:
    """Typed access to the sections."""

    def __init__(self, sections: Sections, profile: str) -> None:
        self._sections = sections
        self._profile = profile

    def value(self, section: str, name: str) -> object:
        return self._sections.get(section, {}).get(name, KNOWN[section][name])

    def __call__(self, section: str, name: str, kind: type[T] | tuple[type[T], ...], default: T | None) -> T:
        value = self.value(section, name)
        if value is None and default is None:
            return None  # type: ignore[return-value]  # None is what such a setting may be
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            self.refuse(section, name, f"a {kind.__name__ if isinstance(kind, type) else 'number'}")
        return value

    def among(self, section: str, name: str, allowed: tuple[T, ...]) -> T:
        value = self.value(section, name)
        if value not in allowed:
            self.refuse(section, name, " or ".join(map(str, allowed)))
        return allowed[allowed.index(value)]

    def only(self, section: str, name: str) -> None:
        expected = KNOWN[section][name]
        if self.value(section, name) != expected:
            self.refuse(section, name, f"{expected!r}: the native engine does nothing else yet")

    def refuse(self, section: str, name: str, expected: str) -> NoReturn:
        found = self.value(section, name)
        raise UnsupportedError(f"profile {self._profile}: {section}.{name} is {found!r}, expected {expected}")
