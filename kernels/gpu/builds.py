"""Building many launches for many chips, in processes of their own.

A compiler may abort its process, and Triton decides when a kernel is imported whether it is compiled or interpreted: so
the compilers run in workers, which never see ``TRITON_INTERPRET``.  This module needs no triton where it is asked; the
worker is the same file, run as a script.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, NamedTuple, Self

from evalgate.kernels.gpu.chips import CHIPS, Chip

IMPORTING = "(import)"
"""Stands for the launch in the row of a module that could not be imported."""
LAST_WORDS = 300
"""Characters of what a compiler said before it died."""


class Row(NamedTuple):
    """One launch on one chip: what it is, and either its build or what was wrong."""

    module: str
    name: str
    chip: str
    grid: str = ""
    num_warps: int = 0
    num_stages: int = 0
    spill_reason: str = ""
    build: dict[str, Any] | None = None
    """Fields of :class:`~evalgate.kernels.gpu.aot.Build`; None: it did not compile."""
    error: str = ""
    """Why it did not compile."""
    seconds: float = 0.0

    @property
    def fault(self) -> str:
        """What must not be: no machine code, registers spilled without a reason, a block that fits nowhere."""
        if self.build is None:
            return self.error
        if not self.build["warps"]:
            return f"a block does not fit: {self.build['limit']} of {self.chip} do not suffice"
        if self.build["spilled"] and not self.spill_reason:
            return f"spills {self.build['spilled']} bytes a thread, and its launch names no reason"
        return ""


class Task(NamedTuple):
    """What a worker is asked for."""

    module: str
    chip: str
    skip: list[str]
    """Names of launches that are done, or that killed a worker."""


def build_all(
    modules: Sequence[str], chips: Sequence[str], on_task: Callable[[], None] = lambda: None, workers: int = 0
) -> list[Row]:
    """Build every launch of ``modules`` for every chip: rows by module, launch and chip; faults are rows too.

    ``workers`` processes are used, by default as many as there are cores; ``on_task`` is called each time that a
    module is done for a chip, by one thread or another.
    """
    tasks: queue.SimpleQueue[Task] = queue.SimpleQueue()
    for module in modules:
        for chip in chips:
            tasks.put(Task(module, chip, []))
    count = min(workers or cores(), len(modules) * len(chips))
    crew = Crew()
    with ThreadPoolExecutor(count) as pool:
        gathered = [pool.submit(_drain, tasks, crew, on_task) for _ in range(count)]
        try:
            rows = [row for rows in gathered for row in rows.result()]
        except BaseException:  # Ctrl-C, mostly; the threads would go on until all is built
            crew.stop()
            raise
    order: dict[tuple[str, str], int] = {}
    for row in rows:
        order.setdefault((row.module, row.name), len(order))
    at = {chip: number for number, chip in enumerate(chips)}
    return sorted(rows, key=lambda row: (modules.index(row.module), order[row.module, row.name], at[row.chip]))


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _drain(tasks: queue.SimpleQueue[Task], crew: Crew, on_task: Callable[[], None]) -> list[Row]:
    """Do tasks until none is left; a worker that died is named in a row, and another goes on after what it was at."""
    rows: list[Row] = []
    with contextlib.ExitStack() as stack:
        worker = None
        while True:
            try:
                task = tasks.get_nowait()
            except queue.Empty:
                break
            worker = worker or stack.enter_context(crew.hire())
            for row in worker.rows(task):
                rows.append(row)
                task.skip.append(row.name)
            if crew.stopped:
                break
            if not worker.died or task.skip[-1] == IMPORTING:
                on_task()
            else:
                tasks.put(task)
            if worker.died:
                worker = None
    return rows


class Crew:
    """The workers of one call, and whether they are to stop."""

    def __init__(self) -> None:
        self.stopped = False
        self._workers: list[Worker] = []

    def hire(self) -> Worker:
        """One more; of no use once all are to stop."""
        worker = Worker()
        self._workers.append(worker)
        if self.stopped:
            worker.kill()
        return worker

    def stop(self) -> None:
        """End all; whoever waits for one sees that it died."""
        self.stopped = True
        for worker in self._workers:
            worker.kill()


class Worker:
    """A process that builds; a context manager that ends it."""

    def __init__(self) -> None:
        self._words: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(  # noqa: S603 - this very file
            [sys.executable, "-P", "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
            env=environment,
            text=True,
            process_group=0,  # Ctrl-C is for whoever asked
        )
        self.died = False

    def __enter__(self) -> Self:
        return self

    def kill(self) -> None:
        """End the process, whatever it is at."""
        self._process.kill()

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._process.communicate()
        self._words.close()

    def rows(self, task: Task) -> Iterator[Row]:
        """The rows of a task; the last is that of the launch during which the worker died, if it did."""
        at = IMPORTING
        with contextlib.suppress(BrokenPipeError):
            assert self._process.stdin is not None, "opened as a pipe"
            self._process.stdin.write(json.dumps(task) + "\n")
            self._process.stdin.flush()
        assert self._process.stdout is not None, "opened as a pipe"
        for line in self._process.stdout:
            told = json.loads(line)
            if "end" in told:
                return
            if "at" in told:
                at = told["at"]
            else:
                at = IMPORTING
                yield Row(**told)
        self.died = True
        self._words.seek(0)
        words = " ".join(self._words.read().decode(errors="replace").split())[-LAST_WORDS:]
        yield Row(task.module, at, task.chip, error=f"the compiler died ({self._process.wait()}): {words}")


def _serve() -> None:
    """Answer tasks, a line of JSON each, until standard input ends; what libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        for told in _answer(Task(*json.loads(line))):
            answers.write(json.dumps(told) + "\n")
        answers.write('{"end": true}\n')


def _answer(task: Task) -> Iterator[dict[str, Any]]:
    from evalgate.kernels.gpu.published import launches

    try:
        found = launches(task.module)
    except Exception as error:  # noqa: BLE001 - a kernel that cannot be imported may raise anything
        yield Row(task.module, IMPORTING, task.chip, error=_words(error))._asdict()
        return
    for launch in found:
        if launch.name not in task.skip and task.chip in (launch.chips or CHIPS):
            yield {"at": launch.name}
            yield _row(task, launch, CHIPS[task.chip])._asdict()


def _row(task: Task, launch: Any, chip: Chip) -> Row:
    from evalgate.kernels.gpu.build_cache import cached_build

    started = time.perf_counter()
    build, error = None, ""
    try:
        build = cached_build(launch, chip)._asdict()
    except Exception as fault:  # noqa: BLE001 - a compiler may raise anything
        error = _words(fault)
    facts = (launch.grid, launch.num_warps, launch.num_stages, launch.spill_reason)
    seconds = round(time.perf_counter() - started, 3)
    return Row(task.module, launch.name, task.chip, *facts, build, error, seconds)


def _words(error: BaseException) -> str:
    """The error with its kind, and with what caused it: Triton's names only the line."""
    told = f"{type(error).__name__}: {error}".strip()
    return told if error.__cause__ is None else f"{told} ({error.__cause__})"


if __name__ == "__main__":
    _serve()
