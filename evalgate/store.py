"""The run folder: what a run leaves on the disk, whole at every moment.

    RUN/manifest.json       identity and status; carries the digest of its own fields
    RUN/parts/3-0.parquet   one haystack (seed 3, stream 0) while running: trials, contexts in the metadata
    RUN/contexts.parquet    merged when the run completes
    RUN/trials.parquet
    RUN/counters.json
    RUN/verdicts/NAME.json  what gates said of it; RUN/digests/ has the digest of each

A haystack is the unit of commit: its part is there whole or not at all, so a run killed at any moment resumes
and no trial is lost or counted twice. The manifest is written last and names the digest of each result file.
The store does not know what a suite asks, what a model is, or what a verdict means.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from evalgate import disk, manifest_file, parts
from evalgate.errors import InvalidRunError, MismatchError, TamperedError
from evalgate.records import Context, Manifest, Trial
from evalgate.tables import Part, UnreadableTableError, pack, unpack

__all__ = ["RunFolder"]

MANIFEST = "manifest.json"
CONTEXTS = "contexts.parquet"
TRIALS = "trials.parquet"
COUNTERS = "counters.json"
PARTS = "parts"
LOCK = ".lock"
BEFORE = "before/"
"""Before a file's name in the manifest: its digest until it is replaced."""


class RunFolder:
    """A run folder at ``path``. Nothing is cached: every method reads the disk.

    Every method may raise StorageError when the disk refuses.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, manifest: Manifest) -> Self:
        """Make the folder with ``manifest``. Raises MismatchError where a run is there already."""
        if (path / MANIFEST).exists():
            raise MismatchError(f"{path} already holds a run; resume it with its own command, or choose another --out")
        folder = cls(path)
        disk.make_folder(path / PARTS)
        folder.write_manifest(manifest)
        return folder

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a folder that is there. Raises InvalidRunError: no such folder, or no run in it."""
        if not path.is_dir():
            raise InvalidRunError(f"run folder {path} does not exist; make it with `evalgate run SUITE --out {path}`")
        if not (path / MANIFEST).is_file():
            raise InvalidRunError(f"{path} is not a run folder: found no {MANIFEST} in it")
        return cls(path)

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the folder for one writing process; the hold ends with the process, however it dies."""
        with disk.hold(self.path / LOCK):
            disk.sweep(self.path)
            parts.sweep(self.path / PARTS)
            yield

    def state(self) -> str:
        """The manifest's status; a run that was begun is ``running`` only while its process lives.

        Else it is ``interrupted``. Raises as ``manifest``.
        """
        status = self.manifest().status
        return "interrupted" if status == "running" and not disk.is_held(self.path / LOCK) else status

    def manifest(self) -> Manifest:
        """Read the manifest. Raises InvalidRunError (missing, unparsable) or TamperedError (its digest differs)."""
        return manifest_file.read(self.path / MANIFEST)

    def write_manifest(self, manifest: Manifest) -> None:
        """Write the manifest whole, with the digest of its fields."""
        manifest_file.write(self.path / MANIFEST, manifest)

    def write_part(self, seed: int, stream: int, contexts: Sequence[Context], trials: Sequence[Trial]) -> None:
        """Commit one haystack, in place of one that is there. Raises InvalidRunError: not this haystack's records."""
        part = Part(list(contexts), list(trials))
        fault = part.fault(seed, stream)
        if fault:
            raise InvalidRunError(f"haystack {seed}-{stream} was not written: {fault}")
        parts.write(self.path / PARTS, (seed, stream), part, self.manifest().run_id)

    def done(self) -> set[tuple[int, int]]:
        """(seed, stream) of every haystack that is kept; a part that is torn or says another haystack is deleted.

        Raises TamperedError where merged results or parts were changed by hand: a resumed run must not wash them clean.
        """
        return self._haystacks(drop_torn=True)

    def finish(self, manifest: Manifest, counters: dict[str, int]) -> Manifest:
        """Merge all parts, record the digests in the manifest, written last, and drop the parts.

        Returns the manifest as written: ``manifest`` with status ``complete`` and ``files``.
        Raises InvalidRunError (no trials at all, or a trial twice) or TamperedError (a part, or an earlier result, was
        changed by hand).
        """
        kept = self._kept()
        if not kept.trials:
            raise InvalidRunError(f"{self.path} holds no trials, so it cannot be completed; {_RERUN}")
        contents = {
            CONTEXTS: pack(Context, kept.contexts),
            TRIALS: pack(Trial, kept.trials),
            COUNTERS: _json(counters),
        }
        files = {name: _sha256(content) for name, content in contents.items()}
        recorded = self.manifest().files
        if recorded:
            # A process that dies while results are replaced leaves some old and some new: either is as it was written.
            old = {BEFORE + name: _sha256(self._result(name, recorded)) for name in contents}
            self.write_manifest(manifest.model_copy(update={"status": "running", "files": files | old}))
        for name, content in contents.items():
            disk.replace(self.path / name, content)
        complete = manifest.model_copy(update={"status": "complete", "files": files})
        self.write_manifest(complete)
        parts.drop(self.path / PARTS)
        return complete

    def rewrite_answers(self, rewrite: Callable[[str], str], at: str) -> None:
        """Replace every answer of a complete run by what ``rewrite`` makes of it; the manifest notes when.

        A process that dies meanwhile leaves the old table or the new one, and a manifest that knows both.
        Raises as ``verify``.
        """
        manifest = self.verify()
        trials = [dataclasses.replace(trial, answer=rewrite(trial.answer)) for trial in self._merged().trials]
        content = pack(Trial, trials)
        kept = {name: digest for name, digest in manifest.files.items() if not name.startswith(BEFORE)}
        files = kept | {TRIALS: _sha256(content)}
        old = {BEFORE + TRIALS: _sha256(self._result(TRIALS, manifest.files))}
        self.write_manifest(manifest.model_copy(update={"files": files | old, "text_removed": at}))
        disk.replace(self.path / TRIALS, content)
        self.write_manifest(manifest.model_copy(update={"files": files, "text_removed": at}))

    def answers_rewritten(self) -> bool:
        """Whether ``rewrite_answers`` was here and came to its end. Raises as ``manifest``."""
        manifest = self.manifest()
        return manifest.text_removed is not None and not any(name.startswith(BEFORE) for name in manifest.files)

    def trials(self) -> list[Trial]:
        """All kept trials by seed, stream and trial id; of a run that is not complete, those committed so far."""
        return self._kept().trials

    def contexts(self) -> list[Context]:
        """All kept contexts by seed, stream and length."""
        return self._kept().contexts

    def counters(self) -> dict[str, int]:
        """Backend counters of a complete run; empty before. Raises InvalidRunError: unparsable."""
        content = disk.read(self.path / COUNTERS)
        return {} if content is None else _parse_counters(self.path / COUNTERS, content)

    def verify(self) -> Manifest:
        """Return the manifest of a complete run whose files are all as they were written.

        Raises InvalidRunError (not complete, empty, a file missing or unparsable) or TamperedError (a file that
        still parses but whose digest differs).
        """
        manifest = self.manifest()
        if manifest.status != "complete":
            raise InvalidRunError(f"{self.path} is {self._progress(manifest)}")
        _parse_counters(self.path / COUNTERS, self._result(COUNTERS, manifest.files))
        if not self._merged().trials:
            raise InvalidRunError(f"{self.path} is empty: a complete run has at least one trial; {_RERUN}")
        return manifest

    def write_verdict(self, name: str, body: dict[str, Any]) -> Path:
        """Write ``verdicts/NAME.json`` whole, its digest beside it, and return its path."""
        assert re.fullmatch(r"[\w@.+-]+", name), f"a verdict's name is a file name, not {name!r}"
        path, digest = self._verdict_paths(name)
        content = _json(body)
        for folder, file, written in ((path.parent, path, content), (digest.parent, digest, _sha256(content).encode())):
            disk.make_folder(folder)
            disk.replace(file, written)
        return path

    def verdicts(self) -> dict[str, bytes]:
        """JSON of every verdict by name, the one written last at the end.

        Raises TamperedError: changed after it was written.
        """
        folder = self.path / "verdicts"
        with disk.told("list", folder):
            paths = sorted(folder.glob("[!.]*.json"), key=lambda path: (path.stat().st_mtime_ns, path.name))
        return {path.stem: self._verdict(path.stem) for path in paths}

    def _verdict(self, name: str) -> bytes:
        path, digest = self._verdict_paths(name)
        content, recorded = disk.read(path) or b"", disk.read(digest) or b"none"
        if _sha256(content).encode() != recorded:
            raise TamperedError(
                f"{path} was changed after it was written: sha256 {_sha256(content)[:12]}, "
                f"recorded {recorded.decode(errors='replace')[:12]}; judge again with `evalgate gate`"
            )
        return content

    def _verdict_paths(self, name: str) -> tuple[Path, Path]:
        return self.path / "verdicts" / f"{name}.json", self.path / "digests" / f"{name}.json.sha256"

    def _progress(self, manifest: Manifest) -> str:
        """How far a run is that is not complete, and what to do."""
        state, kept = self.state(), len(self._haystacks())
        planned = "" if manifest.haystacks is None else f" of {manifest.haystacks}"
        advice = "wait for it" if state == "running" else "finish it with the same `evalgate run` command"
        return f"{state}: {kept}{planned} haystacks are kept; {advice}"

    def _haystacks(self, *, drop_torn: bool = False) -> set[tuple[int, int]]:
        merged = {(trial.seed, trial.stream) for trial in self._merged().trials}
        return merged | self._parts(drop_torn=drop_torn).keys()

    def _kept(self) -> Part:
        """Merged results and parts together, sorted. Raises InvalidRunError: a trial twice."""
        merged = self._merged()
        # Parts of a haystack that is merged are leftovers of a process killed between the manifest and the clean-up.
        merged_keys = {(trial.seed, trial.stream) for trial in merged.trials}
        fresh = [part for key, part in self._parts().items() if key not in merged_keys]
        trials = [*merged.trials, *(trial for part in fresh for trial in part.trials)]
        contexts = [*merged.contexts, *(context for part in fresh for context in part.contexts)]
        _refuse_duplicates(self.path, "trial", [trial.trial_id for trial in trials])
        _refuse_duplicates(self.path, "context", [context.context_id for context in contexts])
        trials.sort(key=lambda t: (t.seed, t.stream, t.trial_id))
        contexts.sort(key=lambda c: (c.seed, c.stream, c.length, c.context_id))
        return Part(contexts, trials)

    def _merged(self) -> Part:
        """Merged results; nothing before the first merge is recorded, as the parts hold all until then."""
        recorded = self.manifest().files
        if not recorded:
            return Part([], [])
        trials = _unpacked(self.path / TRIALS, Trial, self._result(TRIALS, recorded))
        contexts = _unpacked(self.path / CONTEXTS, Context, self._result(CONTEXTS, recorded))
        # A process killed while results are replaced may have left more contexts than trials; parts hold those.
        keys = {(trial.seed, trial.stream) for trial in trials}
        return Part([context for context in contexts if (context.seed, context.stream) in keys], trials)

    def _result(self, name: str, recorded: dict[str, str]) -> bytes:
        """Bytes of a result file, equal to what the manifest recorded."""
        path = self.path / name
        content = disk.read(path)
        if content is None:
            raise InvalidRunError(f"{path} is missing; put it back, or {_RERUN}")
        actual = _sha256(content)
        if actual in {recorded.get(name), recorded.get(BEFORE + name)}:
            return content
        if name == COUNTERS:
            _parse_counters(path, content)
        else:
            _unpacked(path, Trial if name == TRIALS else Context, content)
        raise TamperedError(
            f"{path} was changed after it was written: sha256 {actual[:12]}, "
            f"recorded {recorded.get(name, 'none')[:12]}; put it back, or {_RERUN}"
        )

    def _parts(self, *, drop_torn: bool = False) -> dict[tuple[int, int], Part]:
        return parts.read(self.path / PARTS, self.manifest().run_id, drop_torn=drop_torn)


_RERUN = "run again into a new folder"


def _unpacked(path: Path, kind: type[Any], content: bytes) -> list[Any]:
    try:
        return unpack(kind, content)
    except UnreadableTableError as error:
        raise InvalidRunError(f"{path}: {error}; put it back, or {_RERUN}") from error


def _parse_counters(path: Path, content: bytes) -> dict[str, int]:
    try:
        body = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InvalidRunError(f"{path}: not JSON ({error}); put it back, or {_RERUN}") from error
    if not isinstance(body, dict):
        raise InvalidRunError(f"{path}: expected a JSON object of counters; put it back, or {_RERUN}")
    return body


def _refuse_duplicates(path: Path, what: str, ids: Sequence[str]) -> None:
    repeated = [name for name, times in Counter(ids).items() if times > 1]
    if repeated:
        raise InvalidRunError(f"{path} holds {what} {repeated[0]} more than once; {_RERUN}")


def _json(body: dict[str, Any]) -> bytes:
    return (json.dumps(body, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n").encode()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
