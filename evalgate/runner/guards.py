"""Guard cells: lm-eval's tasks asked of the same engine under the same profile, a document as one independent trial.

Short-context quality must not fall while compression is tuned.  A document is right where the task's own metric gives
1 and wrong where it gives 0, so that the exact rules hold; any other value is refused.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from evalgate.backends.base import Backend
from evalgate.backends.native import NativeBackend
from evalgate.errors import RefusedError, UnsupportedError
from evalgate.records import Context, Outcome, Trial
from evalgate.tasks.draw import Draw
from evalgate.tasks.packing import Entry, Stream
from evalgate.tasks.suite import GUARD, GUARD_SCORER, Guarding, Suite

METRICS = ("acc", "exact_match", "em", "correct")
"""Taken in this order where the suite names none and the task has several."""


class _Said(NamedTuple):
    """What the model gave for one document."""

    text: str
    right: bool


class Guards:
    """The lm-eval tasks of one suite, open on one backend."""

    def __init__(self, suite: Suite, backend: Backend, seed_set: str, first: int) -> None:
        """Open the tasks; their streams are numbered from ``first``.

        Raises UnsupportedError (a backend that gives no likelihoods) or RefusedError (a task that is not there, or
        cannot be read).
        """
        guarding = suite.lm_eval
        assert guarding is not None, "opened where a suite has guards"
        if not isinstance(backend, NativeBackend):
            raise UnsupportedError(f"tasks of lm-eval ({guarding.tasks[0]} ...) are asked of --backend native only")
        from evalgate.backends.lm_eval_model import EngineLM

        self._suite, self._guarding = suite, guarding
        self._lm = EngineLM(backend)
        self._tasks = _open(guarding)
        self._name = (suite.digest, seed_set)
        self._orders = {
            name: Draw(*self._name, GUARD, name).permutation(range(len(task.eval_docs)))
            for name, task in self._tasks.items()
        }
        self.streams = [
            Stream(first + i, (Entry(GUARD + name, suite.lengths[0]),)) for i, name in enumerate(self._tasks)
        ]

    @property
    def most_seeds(self) -> int:
        """Documents of the smallest task."""
        return min(map(len, self._orders.values()))

    def ask(self, seed: int, stream: Stream) -> tuple[list[Context], list[Trial]]:
        """Ask one document.  Raises UnsupportedError where the task's metric is neither 0 nor 1."""
        entry = stream.entries[0]
        name = entry.task.removeprefix(GUARD)
        task, started = self._tasks[name], time.perf_counter()
        doc_id = self._orders[name][seed]
        task.build_all_requests(
            samples=[doc_id],
            apply_chat_template=self._guarding.chat,
            chat_template=self._lm.apply_chat_template if self._guarding.chat else None,
            tokenizer_name=self._lm.tokenizer_name,
        )
        instances = list(task.instances)
        said = self._said(name, instances)
        prompt = json.dumps([[instance.request_type, *map(str, instance.args)] for instance in instances])
        tokens = len(self._lm.tok_encode(str(instances[0].args[0])))
        context = Context(
            context_id=_short(*self._name, "context", stream.index, seed),
            seed=seed,
            stream=stream.index,
            length=entry.length,
            context_start=0,
            context_tokens=tokens,
            needle_spans="[]",
        )
        trial = Trial(
            trial_id=_short(*self._name, seed, stream.index, entry.task),
            context_id=context.context_id,
            seed=seed,
            stream=stream.index,
            task=entry.task,
            form="",
            length=entry.length,
            band="all",
            depth=0.0,
            needle_start=0,
            needle_end=tokens,
            arm=self._suite.arms[0],
            same_form_in_context=0,
            facts_in_context=0,
            prompt_sha256=hashlib.sha256(prompt.encode()).hexdigest(),
            expected=str(task.doc_to_target(instances[0].doc)),
            answer=said.text,
            outcome=Outcome.CORRECT if said.right else Outcome.WRONG,
            prompt_tokens=tokens,
            cached_tokens=0,
            completion_tokens=0,
            finish_reason="stop",
            latency_s=time.perf_counter() - started,
            batch_id="lm-eval",
            attempt=1,
            scorer=GUARD_SCORER,
        )
        return [context], [trial]

    def _said(self, name: str, instances: Sequence[Any]) -> _Said:
        task = self._tasks[name]
        kinds = list(dict.fromkeys(instance.request_type for instance in instances))
        for kind in kinds:
            same = [instance for instance in instances if instance.request_type == kind]
            for instance, answer in zip(same, getattr(self._lm, kind)(same), strict=True):
                instance.resps.append(answer)
        task.apply_filters()
        first = next(iter(instances[0].filtered_resps))
        marks = task.process_results(instances[0].doc, [instance.filtered_resps[first] for instance in instances])
        value = marks.get(self._metric(name, marks))
        if value not in (0, 1):
            raise UnsupportedError(
                f"lm-eval task {name!r}: its metric gave {value!r}, expected 0 or 1, so that a document is one trial; "
                f"name another as lm_eval.metric (it has {', '.join(map(str, marks))})"
            )
        answers = [instance.resps[0] for instance in instances]
        return _Said(str(answers[0]) if len(answers) == 1 else json.dumps(answers), bool(value))

    def _metric(self, name: str, marks: dict[str, Any]) -> str:
        wanted = self._guarding.metric
        if wanted is None:
            return next((metric for metric in METRICS if metric in marks), next(iter(marks)))
        if wanted not in marks:
            raise RefusedError(f"lm-eval task {name!r} has no metric {wanted!r}; it has {', '.join(map(str, marks))}")
        return wanted


def _open(guarding: Guarding) -> dict[str, Any]:
    from lm_eval.tasks import TaskManager, get_task_dict

    path = guarding.include_path
    found: dict[str, Any] = {}
    for default in (False, True) if path else (True,):
        missing = [name for name in guarding.tasks if name not in found]
        if not missing:  # lm-eval's own are thousands of files
            break
        manager = TaskManager(include_path=path, include_defaults=default)
        known = [name for name in missing if name in manager.all_tasks]
        if known:
            found |= _loaded(known, manager, get_task_dict)
    for name in guarding.tasks:
        task = found.get(name)
        if task is None or not hasattr(task, "build_all_requests"):
            raise RefusedError(f"lm-eval has no single task {name!r}; look with `lm_eval ls tasks`")
        task.set_config(key="num_fewshot", value=guarding.num_fewshot)
    return {name: found[name] for name in guarding.tasks}


def _loaded(names: list[str], manager: Any, get_task_dict: Any) -> dict[str, Any]:
    try:
        return dict(get_task_dict(names, manager))
    except Exception as error:  # reading a task reads data sets, which may fail in any way
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise RefusedError(
            f"lm-eval tasks {', '.join(names)} cannot be read ({first}); check them there first"
        ) from error


def _short(*parts: str | int) -> str:
    return hashlib.sha256("\x1f".join(map(str, parts)).encode()).hexdigest()[:16]
