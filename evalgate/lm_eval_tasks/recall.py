"""A suite as one task of lm-evaluation-harness: its questions are the documents, its bands and cells the metrics.

Prompts, scoring and the names of trials are those of `evalgate run`, so the two agree trial by trial.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import datasets
from lm_eval.api.metrics import mean
from lm_eval.api.task import ConfigurableTask

from evalgate.backends.models import find_model
from evalgate.backends.tokenizer import ModelTokenizer
from evalgate.errors import RefusedError, UnsupportedError
from evalgate.records import Outcome
from evalgate.runner.request import check_seed_set, open_source
from evalgate.tasks.haystack import Haystack, Probe
from evalgate.tasks.scoring import SCORER_VERSION, score
from evalgate.tasks.source import Source
from evalgate.tasks.stopping import cut
from evalgate.tasks.suite import Suite, load_suite

SEEDS = 20
"""Haystacks per stream where the metadata does not say."""
MODEL_KEYS = ("tokenizer", "pretrained", "model")
"""Under which lm-eval's backends name a model."""
CHANGES = ("lengths", "tasks", "arms", "prompting", "decoding")
"""Fields of a suite that the metadata may change; its digest changes with them."""
ARMS = ("default", "isolated")
"""Others are ways of an engine to the answer, or take a conversation."""


class Recall(ConfigurableTask):  # type: ignore[misc]  # lm-eval is read without types
    """Recall by band.  ``--metadata`` takes suite, seeds, seed_set, lengths, tasks, arms,
    prompting and decoding as JSON.

    A band's metric is the share of right answers; its stderr is that of Agresti and Coull (1998), which is not zero
    where all answers are right.
    """

    VERSION = SCORER_VERSION

    def __init__(self, config: dict[str, Any]) -> None:
        """Raises EvalgateError for what no suite, tokenizer or arm can do."""
        given = dict(config.get("metadata") or {})
        self._suite, ref = _suite(given, config["task"].removeprefix("evalgate_"))
        self._given, self._ref = given, ref
        kept = {key: value for key, value in config.items() if key not in ("class", "metadata")}
        super().__init__(
            config={
                **kept,
                "output_type": "generate_until",
                "test_split": "test",
                "custom_dataset": self._documents,
                "doc_to_text": "text",
                "doc_to_target": "expected",
                "gen_prefix": "{{gen_prefix}}",
                "generation_kwargs": {
                    "do_sample": False,
                    "temperature": 0.0,
                    "max_gen_toks": self._suite.decoding.thinking_tokens + self._suite.decoding.max_tokens,
                    "until": [],
                },
                "metric_list": [{"metric": "recall", "aggregation": mean, "higher_is_better": True}],
                "process_results": self._judged,
                "metadata": given | {"version": f"{self._suite.version}+scorer{SCORER_VERSION}"},
            }
        )

    def fewshot_context(self, doc: dict[str, Any], num_fewshot: int, *rest: Any, **named: Any) -> Any:
        """The prompt.  Raises RefusedError for examples, which a suite has none of, and for a template left out."""
        if num_fewshot:
            raise RefusedError(f"--num_fewshot {num_fewshot}: a suite has no examples; leave it out")
        if self._suite.prompting.template == "chat" and not named.get("apply_chat_template"):
            raise RefusedError(
                f"suite {self._suite.ref} asks through the chat template; add --apply_chat_template, or "
                """--metadata '{"prompting": {"template": "base"}}'"""
            )
        return super().fewshot_context(doc, num_fewshot, *rest, **named)

    def aggregation(self) -> dict[str, Callable[[Sequence[float]], float]]:
        """How each metric is pooled."""
        return {name: stderr if name.endswith("_stderr") else mean for name in self._metrics()}

    def higher_is_better(self) -> dict[str, bool]:
        """All but errors."""
        return {name: not name.endswith("_stderr") for name in self._metrics()}

    def _metrics(self) -> Iterator[str]:
        cells = [_cell_name(cell) for cell in self._suite.cells()]
        for name in ("recall", *self._suite.bands, "all", *cells):
            yield name
            yield f"{name}_stderr"

    def _documents(self, **_: Any) -> dict[str, datasets.Dataset]:
        model = next((self._given[key] for key in MODEL_KEYS if isinstance(self._given.get(key), str)), None)
        if model is None:
            raise RefusedError("the suite is built in a model's tokens; name it as --model_args pretrained=MODEL")
        seed_set = str(self._given.get("seed_set", "main"))
        check_seed_set(seed_set)
        self._tokenizer = ModelTokenizer(find_model(model))
        source = open_source(self._ref, self._suite, self._tokenizer, seed_set)
        rows = list(_rows(source, self._tokenizer, int(self._given.get("seeds", SEEDS))))
        return {"test": datasets.Dataset.from_list(rows, split=datasets.Split.TEST)}

    def _judged(self, doc: dict[str, Any], results: Sequence[str]) -> dict[str, float]:
        # lm-eval does not say how an answer ended; one that took all its tokens was cut.
        room = self._suite.decoding.thinking_tokens + self._suite.decoding.max_tokens
        ended = "length" if len(self._tokenizer.encode(results[0])) >= room else "stop"
        said = cut(results[0], ended, self._suite.stops)
        right = float(score(*said, doc["expected"], doc["scorer"]) is Outcome.CORRECT)
        marks: dict[str, float] = {}
        for name in ("recall", doc["band"], doc["cell"]):
            # lm-eval writes "N/A" under this name for a metric that it knows no error of, and then takes ours.
            marks |= {name: right, f"{name}_stderr": right}
        return marks


def stderr(marks: Sequence[float]) -> float:
    """Standard error of a share by Agresti and Coull: two right and two wrong answers are added."""
    n = len(marks) + 4
    share = (sum(marks) + 2) / n
    return math.sqrt(share * (1 - share) / n)


def _suite(given: dict[str, Any], name: str) -> tuple[Suite, str]:
    """The suite that the metadata asks for, and what it was called."""
    ref = str(given.get("suite", name))
    suite = load_suite(ref)
    changes = {field: given[field] for field in CHANGES if field in given}
    if changes:
        suite = Suite.model_validate(suite.model_dump(by_alias=True, exclude_unset=True) | changes)
    unable = [arm for arm in suite.arms if arm not in ARMS]
    if unable:
        raise UnsupportedError(f"arm {unable[0]!r} of suite {suite.ref} cannot be asked through lm-eval; name others")
    return suite, ref


def _rows(source: Source, tokenizer: ModelTokenizer, seeds: int) -> Iterator[dict[str, Any]]:
    """One document for each trial."""
    prompting = source.suite.prompting
    render = tokenizer.render_chat if prompting.template == "chat" else tokenizer.render_base
    chat = render(system=prompting.system)
    ends = chat.head, chat.tail + prompting.answer_prefix
    for seed, stream in itertools.product(range(seeds), source.streams):
        haystack = source.build(seed, stream)
        for probe in haystack.probes:
            yield {
                "trial_id": probe.trial_id,
                "text": _text(haystack, probe, tokenizer, ends),
                "gen_prefix": prompting.answer_prefix,
                "expected": str(probe.wanted),
                "scorer": probe.wanted.scorer,
                "band": probe.cell.band,
                "cell": _cell_name(probe.cell),
                "seed": seed,
                "prompt_sha256": probe.prompt_sha256,
            }


def _text(haystack: Haystack, probe: Probe, tokenizer: ModelTokenizer, ends: tuple[str, str]) -> str:
    """What the user says; raises UnsupportedError where it would not become the same tokens again."""
    ids = haystack.tokens[: haystack.ends[probe.cell.length]] + probe.tail
    whole = tokenizer.decode_whole(ids)
    head, tail = ends
    if not (whole.startswith(head) and whole.endswith(tail)) or tokenizer.encode(whole) != ids:
        raise UnsupportedError("this tokenizer does not give back the text of its tokens; run the suite by evalgate")
    return whole[len(head) : len(whole) - len(tail)]


def _cell_name(cell: Any) -> str:
    arm = "" if cell.arm == "default" else f"/{cell.arm}"
    return f"{cell.task}/{cell.length}/{cell.band}{arm}"
