"""Fixtures: records of a few small haystacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from evalgate.gates.profile import Profile, load_profile
from evalgate.records import Cell, Context, DocumentId, EngineId, Manifest, ModelId, Outcome, Trial

MakeHaystack = Callable[..., tuple[list[Context], list[Trial]]]
MakeManifest = Callable[..., Manifest]

BANDS = {"front": 0.1, "middle": 0.5, "back": 0.9}
"""Band -> depth of its needle."""


@pytest.fixture
def make_haystack() -> MakeHaystack:
    """``make(seed, stream=0, lost=frozenset())``: records of one haystack; bands in ``lost`` are answered wrong."""

    def make(seed: int, stream: int = 0, *, lost: frozenset[str] = frozenset()) -> tuple[list[Context], list[Trial]]:
        context = Context(
            context_id=f"context-{seed}-{stream}",
            seed=seed,
            stream=stream,
            length=1024,
            context_start=4,
            context_tokens=980,
            needle_spans="[]",
        )
        trials = [
            Trial(
                trial_id=f"trial-{seed}-{stream}-{band}",
                context_id=context.context_id,
                seed=seed,
                stream=stream,
                task="single",
                form="code",
                length=1024,
                band=band,
                depth=depth,
                needle_start=4 + int(980 * depth),
                needle_end=20 + int(980 * depth),
                arm="default",
                same_form_in_context=1,
                facts_in_context=3,
                prompt_sha256=f"{seed:032x}{stream:032x}",
                expected="amber tower",
                answer="wrong" if band in lost else "amber tower",
                outcome=Outcome.WRONG if band in lost else Outcome.CORRECT,
                prompt_tokens=1000,
                cached_tokens=960,
                completion_tokens=4,
                finish_reason="stop",
                latency_s=0.25,
                batch_id="0",
                attempt=1,
            )
            for band, depth in BANDS.items()
        ]
        return [context], trials

    return make


@pytest.fixture
def make_manifest() -> MakeManifest:
    """``make(seeds=3)``: a manifest whose status is ``running``."""

    def make(seeds: int = 3) -> Manifest:
        return build_manifest(load_profile("full"), seeds, [Cell("single", 1024, band) for band in BANDS])

    return make


def build_manifest(profile: Profile, seeds: int, cells: Iterable[Cell], **fields: Any) -> Manifest:
    """Manifest of a running run whose engine runs what ``profile`` asks; ``fields`` take the place of the usual."""
    usual: dict[str, Any] = {
        "run_id": "run-1",
        "status": "running",
        "suite": DocumentId(name="smoke", version="1.0.0", digest="5" * 64),
        "suite_body": {"name": "smoke", "lengths": [1024]},
        "profile": profile.id,
        "profile_body": profile.model_dump(mode="json", exclude_unset=True),
        "model": ModelId(
            name="builtin:hybrid",
            architecture="KimiLinearForCausalLM",
            parameters=1_000_000,
            weights_sha256="1" * 64,
            config_sha256="2" * 64,
            tokenizer_sha256="3" * 64,
        ),
        "engine": EngineId(
            backend="native",
            version="0",
            dtype="fp32",
            arm_paths={"default": "fork"},
            effective_profile=dict(profile.sections),
            bytes_per_session={"state": 1024, "total": 4096},
        ),
        "generator_version": "1",
        "reserve_tokens": 44,
        "seed_set": "main",
        "seeds": seeds,
        "haystacks": seeds,
        "cells": [tuple(cell) for cell in cells],
        "data_class": "public",
        "versions": {"evalgate": "0.1.0"},
        "hardware": {"cpu": "one"},
        "started": "2026-01-01T00:00:00Z",
    }
    return Manifest(**usual | fields)
