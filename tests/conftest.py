"""Fixtures that several test files share."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from evalgate.gates.policy import Policy
from evalgate.gates.profile import Profile, load_profile
from evalgate.records import Cell, Context, DocumentId, EngineId, Manifest, ModelId, Outcome, Trial
from evalgate.reports.source import Source

# Tests share a small machine with each other's subprocesses, and no test may reach for a network.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


MakeHaystack = Callable[..., tuple[list[Context], list[Trial]]]
MakeManifest = Callable[..., Manifest]


@pytest.fixture(scope="session")
def repository() -> Path:
    """Root of the checkout."""
    return Path(__file__).parent.parent


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
            for band, depth in (("front", 0.1), ("middle", 0.5), ("back", 0.9))
        ]
        return [context], trials

    return make


@pytest.fixture
def make_manifest() -> MakeManifest:
    """``make(seeds=3)``: a manifest whose status is ``running``."""

    def make(seeds: int = 3) -> Manifest:
        document = DocumentId(name="smoke", version="1.0.0", digest="0" * 64)
        return Manifest(
            run_id="run-1",
            status="running",
            suite=document,
            suite_body={"name": "smoke", "lengths": [1024]},
            profile=document.model_copy(update={"name": "full"}),
            model=ModelId(
                name="builtin:hybrid",
                architecture="KimiLinearForCausalLM",
                parameters=1_000_000,
                weights_sha256="1" * 64,
                config_sha256="2" * 64,
                tokenizer_sha256="3" * 64,
            ),
            engine=EngineId(
                backend="native",
                version="0",
                dtype="fp32",
                arm_paths={"default": "fork"},
                effective_profile={"state": {"dtype": "fp32", "rank": None}},
                bytes_per_session={"state": 1024, "total": 4096},
            ),
            generator_version="1",
            reserve_tokens=44,
            seed_set="main",
            seeds=seeds,
            cells=[("single", 1024, band, "default") for band in ("front", "middle", "back")],
            data_class="public",
            versions={"evalgate": "0.1.0"},
            hardware={"cpu": "one"},
            started="2026-01-01T00:00:00Z",
        )

    return make


MakeReportRun = Callable[..., Source]

HOSTILE_ANSWERS = (
    "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>",
    "\x00\x1b[31mred\x1b[0m \u202egnp.exe \ufeff\u200b \udcff line\none\ttab",
    "amber " * 4000,
    '"><svg onload=alert(1)><style>*{display:none}</style>',
    "{{ 7*7 }} {% include '/etc/passwd' %} javascript:alert(1) https://example.com/pixel.gif",
    "",
)
"""What a broken or malicious model may answer; a report shows them and none of them acts."""


@pytest.fixture(scope="session")
def make_report_run() -> MakeReportRun:
    """``make(run_id, profile, recall, ...)``: a run in memory, drawn with a seeded generator, for reports.

    ``recall`` gives the chance of a right answer for (cell, depth). Two runs share prompts and depths, so they pair.
    """

    def make(
        run_id: str,
        profile: str,
        recall: Callable[[Cell, float], float],
        *,
        suite: str = "needle",
        tasks: tuple[str, ...] = ("single", "multikey@8", "overwrite@3"),
        lengths: tuple[int, ...] = (1024, 2048, 4096, 8192),
        seeds: int = 400,
        total_bytes: int = 135_168,
        error_share: float = 0.0,
    ) -> Source:
        bands = {"front": (0.0, 0.3333), "middle": (0.3333, 0.6667), "back": (0.6667, 1.0)}
        cells = [Cell(task, length, band) for task in tasks for length in lengths for band in bands]
        places = np.random.default_rng(7).random((len(cells), seeds))
        luck = np.random.default_rng(len(run_id)).random((2, len(cells), seeds))
        trials = [
            _report_trial(cell, seed, bands[cell.band], places[at, seed], recall, luck[:, at, seed], error_share)
            for at, cell in enumerate(cells)
            for seed in range(seeds)
        ]
        contexts = [
            Context(
                context_id=f"context-{seed}-{length}",
                seed=seed,
                stream=0,
                length=length,
                context_start=12,
                context_tokens=length - 60 - seed % 7,
                needle_spans="[]",
            )
            for seed in range(seeds)
            for length in lengths
        ]
        return Source(_report_manifest(run_id, profile, suite, cells, bands, seeds, total_bytes), trials, contexts)

    return make


def _report_trial(
    cell: Cell,
    seed: int,
    edges: tuple[float, float],
    place: float,
    recall: Callable[[Cell, float], float],
    luck: npt.NDArray[np.float64],
    error_share: float,
) -> Trial:
    depth = edges[0] + (edges[1] - edges[0]) * float(place)
    number = seed * 7919 + cell.length + sum(cell.task.encode())
    right, failed = luck[0] < recall(cell, depth), luck[1] < error_share
    answer = "amber tower 42" if right else HOSTILE_ANSWERS[number % len(HOSTILE_ANSWERS)]
    outcome = Outcome.CORRECT if right else Outcome.WRONG if answer else Outcome.EMPTY
    key = f"{seed}-{cell}"
    return Trial(
        trial_id=hashlib.sha256(key.encode()).hexdigest()[:16],
        context_id=f"context-{seed}-{cell.length}",
        seed=seed,
        stream=0,
        task=cell.task,
        form="badge",
        length=cell.length,
        band=cell.band,
        depth=depth,
        needle_start=12 + int(depth * (cell.length - 60)),
        needle_end=28 + int(depth * (cell.length - 60)),
        arm=cell.arm,
        same_form_in_context=1,
        facts_in_context=8,
        prompt_sha256=hashlib.sha256(f"prompt {key}".encode()).hexdigest(),
        expected="amber tower 42",
        answer="" if failed else answer,
        outcome=Outcome.ERROR if failed else outcome,
        prompt_tokens=cell.length - 20,
        cached_tokens=cell.length - 80,
        completion_tokens=5,
        finish_reason="error" if failed else "stop",
        latency_s=0.01,
        batch_id="0",
        attempt=1,
    )


def _report_manifest(
    run_id: str,
    profile: str,
    suite: str,
    cells: list[Cell],
    bands: dict[str, tuple[float, float]],
    seeds: int,
    total_bytes: int,
) -> Manifest:
    document = load_profile(profile)
    state = total_bytes // 2
    return Manifest(
        run_id=run_id,
        status="complete",
        suite=DocumentId(name=suite, version="1.0.0", digest="5" * 64),
        suite_body={"name": suite, "bands": {band: list(edges) for band, edges in bands.items()}},
        profile=DocumentId(name=document.name, version=document.version, digest=document.digest),
        model=ModelId(
            name="builtin:hybrid",
            architecture="KimiLinearForCausalLM",
            parameters=1_412_608,
            weights_sha256=hashlib.sha256(b"weights").hexdigest(),
            config_sha256=hashlib.sha256(b"config").hexdigest(),
            tokenizer_sha256=hashlib.sha256(b"tokenizer").hexdigest(),
        ),
        engine=EngineId(
            backend="native",
            version="0.1.0",
            dtype="fp32",
            arm_paths={"default": "fork"},
            effective_profile=document.model_dump(mode="json", include={"state", "snapshot", "kv", "cache"}),
            bytes_per_session={"state": state, "conv": 4096, "kv": total_bytes - state - 4096, "total": total_bytes},
        ),
        generator_version="1",
        reserve_tokens=48,
        seed_set="main",
        seeds=seeds,
        cells=[(cell.task, cell.length, cell.band, cell.arm) for cell in cells],
        data_class="public",
        versions={"evalgate": "0.1.0", "python": "3.11.9", "torch": "2.13.0"},
        hardware={"cpu": "2 cores <img src=x onerror=alert(1)>", "memory": "8 GiB"},
        started="2026-01-01T00:00:00Z",
        finished="2026-01-01T00:02:11Z",
        wall_s=131.0,
        files={"trials.parquet": hashlib.sha256(run_id.encode()).hexdigest()},
    )


@pytest.fixture(scope="session")
def make_judged_run() -> Callable[..., tuple[Manifest, list[Trial]]]:
    """``make(policy, run_id="run", profile="full", seeds=None, answers={})``: a complete run of the policy's cells.

    Everything is correct but for ``answers``: {parts of a cell: {outcome: seeds}}, such as
    ``{("single", "middle"): {Outcome.WRONG: range(29)}}``; a cell matches where it has all the parts.
    """

    def make(
        policy: Policy,
        *,
        run_id: str = "run",
        profile: str = "full",
        seeds: int | None = None,
        answers: Mapping[tuple[str | int, ...], Mapping[Outcome, Iterable[int]]] | None = None,
    ) -> tuple[Manifest, list[Trial]]:
        planned = policy.looks[0] if seeds is None else seeds
        trials = []
        for cell in policy.rules:
            outcomes = dict.fromkeys(range(planned), Outcome.CORRECT)
            for parts, changes in (answers or {}).items():
                if set(parts) <= set(cell):
                    outcomes |= {seed: outcome for outcome, at in changes.items() for seed in at}
            trials += [judged_trial(cell, seed, outcome) for seed, outcome in outcomes.items()]
        return judged_manifest(policy, run_id, load_profile(profile), planned), trials

    return make


def judged_manifest(policy: Policy, run_id: str, profile: Profile, seeds: int) -> Manifest:
    """Manifest of a complete run of ``policy``'s suite whose engine ran what ``profile`` asks."""
    name, _, version = policy.suite.partition("@")
    return Manifest(
        run_id=run_id,
        status="complete",
        suite=DocumentId(name=name, version=version, digest="5" * 64),
        suite_body={"name": name},
        profile=profile.id,
        model=ModelId(
            name="builtin:hybrid",
            architecture="KimiLinearForCausalLM",
            parameters=1_000_000,
            weights_sha256="1" * 64,
            config_sha256="2" * 64,
            tokenizer_sha256="3" * 64,
        ),
        engine=EngineId(
            backend="native",
            version="0",
            dtype="fp32",
            arm_paths={"default": "fork"},
            effective_profile=dict(profile.sections),
            bytes_per_session={"total": 4096},
        ),
        generator_version="1",
        reserve_tokens=44,
        seed_set="main",
        seeds=seeds,
        cells=[(cell.task, cell.length, cell.band, cell.arm) for cell in policy.rules],
        data_class="public",
        versions={"evalgate": "0.1.0"},
        hardware={"cpu": "one"},
        started="2026-01-01T00:00:00Z",
    )


def judged_trial(cell: Cell, seed: int, outcome: Outcome) -> Trial:
    """One trial of ``cell`` on haystack ``seed``; its prompt depends on nothing else."""
    correct = outcome is Outcome.CORRECT
    return Trial(
        trial_id=hashlib.sha256(f"{seed} {cell}".encode()).hexdigest()[:16],
        context_id=f"context-{seed}-{cell.length}",
        seed=seed,
        stream=0,
        task=cell.task,
        form="code",
        length=cell.length,
        band=cell.band,
        depth={"front": 0.1, "middle": 0.5}.get(cell.band, 0.9),
        needle_start=500,
        needle_end=512,
        arm=cell.arm,
        same_form_in_context=1,
        facts_in_context=3,
        prompt_sha256=hashlib.sha256(f"prompt {seed} {cell}".encode()).hexdigest(),
        expected="amber tower",
        answer={Outcome.CORRECT: "amber tower", Outcome.EMPTY: "", Outcome.ERROR: ""}.get(outcome, "wrong"),
        outcome=outcome,
        prompt_tokens=1000,
        cached_tokens=960,
        completion_tokens=4 if correct else 12,
        finish_reason={Outcome.TRUNCATED: "length", Outcome.ERROR: "error"}.get(outcome, "stop"),
        latency_s=0.25,
        batch_id="0",
        attempt=1,
    )
