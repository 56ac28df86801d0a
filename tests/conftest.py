"""Fixtures that several test files share."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from evalgate.gates.policy import Policy, load_policy
from evalgate.gates.profile import Profile, load_profile
from evalgate.gates.rules import judge
from evalgate.gates.verdict import Verdict
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


class ReportCase(NamedTuple):
    """What one report is made from."""

    run: Source
    verdict: Verdict | None
    baseline: Source | None


HOSTILE_ANSWERS = (
    "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>",
    "\x00\x1b[31mred\x1b[0m \u202egnp.exe \ufeff\u200b \udcff line\none\ttab",
    "amber " * 4000,
    '"><svg onload=alert(1)><style>*{display:none}</style><a href="https://example.com">',
    "{{ 7*7 }} {% include '/etc/passwd' %} javascript:alert(1)",
)
"""What a broken or malicious model may answer; a report shows them and none of them acts."""


@pytest.fixture(scope="session")
def make_report_source(make_judged_run: Callable[..., tuple[Manifest, list[Trial]]]) -> Callable[..., Source]:
    """``make(policy, ...)`` as ``make_judged_run``, with needles at every depth and hostile wrong answers."""
    bands = {"front": (0.0, 0.3333), "middle": (0.3333, 0.6667), "back": (0.6667, 1.0)}

    def spread(trial: Trial) -> Trial:
        low, high = bands[trial.band]
        depth = low + (high - low) * (trial.seed * 0.618034 % 1)
        start = 12 + int(depth * (trial.length - 60))
        wrong = trial.outcome is Outcome.WRONG
        answer = HOSTILE_ANSWERS[trial.seed % len(HOSTILE_ANSWERS)] if wrong else trial.answer
        return dataclasses.replace(trial, depth=depth, needle_start=start, needle_end=start + 16, answer=answer)

    def make(policy: Policy, *, total: int = 135_168, **asked: Any) -> Source:
        manifest, trials = make_judged_run(policy, **asked)
        measured = {"bytes_per_session": {"state": total - 4096, "total": total}}
        named = {
            "suite_body": {"bands": {band: list(edges) for band, edges in bands.items()}},
            "engine": manifest.engine.model_copy(update=measured),
            "hardware": {"cpu": "2 cores <img src=x onerror=alert(1)>"},
        }
        return Source(manifest.model_copy(update=named), [spread(trial) for trial in trials], [])

    return make


@pytest.fixture(scope="session")
def report_cases(make_report_source: Callable[..., Source]) -> dict[str, ReportCase]:
    """One report of each kind: ``pass``, ``block`` (the middle of two tasks), ``open``, ``error``, ``plain``."""
    policy, full, int8 = load_policy("serving-default"), load_profile("full"), load_profile("state-int8")
    base = make_report_source(policy, run_id="baseline", answers={("back",): {Outcome.WRONG: range(3)}})

    def case(name: str, answers: Mapping[Any, dict[Outcome, range]], *, alone: bool = False) -> ReportCase:
        run = make_report_source(policy, run_id=name, profile="state-int8", answers=answers, total=66_000)
        pair = None if alone else (base.manifest, base.trials)
        verdict = judge(run.manifest, run.trials, policy, pair, profile=int8, baseline_profile=None if alone else full)
        return ReportCase(run, verdict, None if alone else base)

    wrong, losing = Outcome.WRONG, ("multikey@8", "overwrite@3")
    lost = {(task, n, "middle"): {wrong: range(5, n // 30)} for task in losing for n in (4096, 8192)}
    block = case("block", lost)
    return {
        "pass": case("pass", {("front",): {wrong: range(2)}}),
        "block": block,
        "open": case("open", {("multikey@8", 8192, "middle"): {wrong: range(35)}}, alone=True),
        "error": case("error", {("single", 1024): {Outcome.ERROR: range(20)}}),
        "plain": ReportCase(block.run, None, block.baseline),
    }


# --- checkpoints for the engine ---------------------------------------------------------------------------------

TINY = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "linear_head_dim": 16,
    "linear_num_heads": 2,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "mlp_layer_types": ["dense"] * 4,
    "initializer_range": 0.06,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "max_position_embeddings": 16384,
}
"""A KDA, KDA, KDA, MLA model that runs in milliseconds."""
TINY_SHAPES: dict[str, dict[str, object]] = {
    "hybrid": {},
    "mostly-attention": {
        "layer_types": ["linear_attention"] + ["full_attention"] * 3,
        "linear_num_heads": 1,
    },
    "experts": {"mlp_layer_types": ["dense", "sparse", "sparse", "dense"], "q_lora_rank": 24},
}


def save_tiny_model(folder: Path, shape: str) -> Path:
    """Save a random model and a byte tokenizer to ``folder`` as transformers does."""
    import torch
    from transformers import KimiLinearConfig, KimiLinearForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.manual_seed(7)
    model = KimiLinearForCausalLM(KimiLinearConfig(**(TINY | TINY_SHAPES[shape])))
    for name, weight in model.named_parameters():
        # As initialised, most channels forget within a dozen tokens, and lost state would go unseen.
        if name.endswith("A_log"):
            torch.nn.init.uniform_(weight, -6.0, -1.0)
        elif name.endswith("norm.weight"):
            torch.nn.init.uniform_(weight, 0.5, 1.5)
    model.save_pretrained(folder)
    save_byte_tokenizer(folder)
    return folder


def save_byte_tokenizer(folder: Path) -> None:
    """A tokenizer whose tokens are bytes and five markers, with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    markers = ["<pad>", "<bos>", "<eos>", "<user>", "<reply>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(markers + alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",  # noqa: S106 - a word of a vocabulary
        bos_token="<bos>",  # noqa: S106 - as above
        eos_token="<eos>",  # noqa: S106 - as above
        additional_special_tokens=["<user>", "<reply>"],
        chat_template="{{ bos_token }}{% for m in messages %}<user>{{ m['content'] }}{% endfor %}<reply>",
    )
    tokenizer.save_pretrained(folder)


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of random checkpoints: ``hybrid``, ``mostly-attention``, ``experts``. Copy before changing one."""
    root = tmp_path_factory.mktemp("models")
    return {shape: save_tiny_model(root / shape, shape) for shape in TINY_SHAPES}


@pytest.fixture(scope="session", params=list(TINY_SHAPES))
def trained_or_random(request: pytest.FixtureRequest, tiny_models: dict[str, Path], repository: Path) -> Path:
    """An embedded model where there is one of that shape, else a random one."""
    embedded = repository / "evalgate" / "assets" / str(request.param)
    return embedded if (embedded / "config.json").is_file() else tiny_models[request.param]


CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
collect_ignore = [] if CHROMIUM else ["test_report_browser.py"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say why the report was not tried in a browser, where it was not."""
    if not CHROMIUM:
        terminalreporter.write_line("test_report_browser.py not collected: no chromium; install it or set CHROMIUM")


# --- the command line -------------------------------------------------------------------------------------------


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def evalgate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """``evalgate("gate", run, "--policy", "demo")``: run a command in this process."""
    from evalgate.cli import main

    def call(*arguments: object) -> Ended:
        monkeypatch.setattr("sys.argv", ["evalgate", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        told = capsys.readouterr()
        assert isinstance(end.value.code, int)
        return Ended(int(end.value.code), told.out, told.err)

    return call


def keep_run(path: Path, manifest: Manifest, trials: Iterable[Trial]) -> Path:
    """Write a complete run folder of ``trials``, with a context for each that they name."""
    from evalgate.store import RunFolder

    folder = RunFolder.create(path, manifest.model_copy(update={"status": "running"}))
    haystacks: dict[int, list[Trial]] = {}
    for trial in trials:
        haystacks.setdefault(trial.seed, []).append(trial)
    for seed, asked in haystacks.items():
        contexts = {
            trial.context_id: Context(
                context_id=trial.context_id,
                seed=seed,
                stream=trial.stream,
                length=trial.length,
                context_start=4,
                context_tokens=980,
                needle_spans="[]",
            )
            for trial in asked
        }
        folder.write_part(seed, 0, list(contexts.values()), asked)
    folder.finish(manifest, {"prefilled_tokens": 1})
    return path


@pytest.fixture(scope="session")
def kept_runs(
    tmp_path_factory: pytest.TempPathFactory, make_judged_run: Callable[..., tuple[Manifest, list[Trial]]]
) -> dict[str, Path]:
    """Run folders to read, not to change: ``good`` passes policy demo, ``bad`` loses the middle, ``tiny`` is smoke."""
    demo, smoke = load_policy("demo"), load_policy("smoke")
    root = tmp_path_factory.mktemp("runs")
    lost = {("multikey@8", "middle"): {Outcome.WRONG: range(40)}}
    return {
        "good": keep_run(root / "good", *make_judged_run(demo, run_id="good")),
        "bad": keep_run(root / "bad", *make_judged_run(demo, run_id="bad", profile="state-int8", answers=lost)),
        "tiny": keep_run(root / "tiny", *make_judged_run(smoke, run_id="tiny")),
    }


@pytest.fixture(scope="session")
def builtin_tokenizer() -> Any:
    """The embedded models' tokenizer behind the backends' port."""
    from evalgate.backends.models import find_model
    from evalgate.backends.tokenizer import ModelTokenizer

    return ModelTokenizer(find_model("builtin:hybrid"))


@pytest.fixture(scope="session")
def coarse_tokenizer() -> Any:
    """Another tokenizer: every word is one token, line breaks and full stops are their own."""

    class Coarse:
        def encode_batch(self, texts: list[str]) -> list[list[int]]:
            pieces = [re.findall(r"<\|\w+\|>|\w+|[^\w\s]|\n", text) for text in texts]
            return [[int(hashlib.sha256(p.encode()).hexdigest()[:7], 16) for p in words] for words in pieces]

        def render_chat(self, user_content: str = "") -> Any:
            return Pieces(f"<|user|>{user_content}", "<|model|>")

    return Coarse()


class Pieces(NamedTuple):
    """Head and tail of a chat template."""

    head: str
    tail: str
