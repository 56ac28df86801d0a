"""Filler from documents: a folder of texts, or a dataset, as lines that no question can be answered from.

The same files give the same lines whatever order the disk lists them in.  What the lines are made of is named by one
digest, which is part of a haystack's name.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from evalgate.errors import RefusedError, UnsupportedError
from evalgate.records import CorpusId
from evalgate.tasks.draw import Draw
from evalgate.tasks.finding import FINDERS
from evalgate.tasks.scoring import normalise

KINDS = (".txt", ".md", ".jsonl", ".pdf")
LONGEST = 120
"""Characters of a line; longer ones are split, at a sentence's end where there is one."""
FEWEST = 50
"""Distinct lines under which a corpus repeats itself too soon."""
_SENTENCE = re.compile(r"(?<=[.!?。！？])\s*")
_JOINED = {"\u200d", "\ufe0e", "\ufe0f"}
"""Characters that belong to the one before them, beside combining marks."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """Documents as lines."""

    documents: tuple[tuple[str, ...], ...]
    distinct_share: float
    """Lines that are kept, of all: the rest were said before."""
    sha256: str

    @property
    def lines(self) -> int:
        """Lines of all documents."""
        return sum(map(len, self.documents))

    @property
    def identity(self) -> CorpusId:
        """What a manifest says of it."""
        return CorpusId(
            sha256=self.sha256,
            documents=len(self.documents),
            lines=self.lines,
            distinct_share=round(self.distinct_share, 4),
        )

    def sentences(self, draw: Draw) -> Iterator[str]:
        """Lines without end: documents in random order, each from its start but the first, again and again."""
        first = True
        while True:
            for document in draw.permutation(self.documents):
                yield from document[draw.below(len(document)) if first else 0 :]
                first = False


def from_folder(path: str) -> Corpus:
    """Every text, Markdown, JSON lines (field ``text``) and PDF file under a folder.

    Raises RefusedError (no folder, nothing usable in it, a file that cannot be read) or UnsupportedError (a PDF without
    the extra that reads it).
    """
    root = Path(path)
    if not root.is_dir():
        raise RefusedError(f"haystack.path {path!r} is no folder; name one with {', '.join(KINDS)} files")
    files = sorted(
        (f for f in root.rglob("*") if f.suffix.lower() in KINDS), key=lambda f: f.relative_to(root).as_posix()
    )
    if not files:
        raise RefusedError(f"haystack.path {path!r} holds no file that ends in {', '.join(KINDS)}")
    return corpus_of((text for file in files for text in _texts(file)), f"haystack.path {path!r}")


def from_dataset(path: str, split: str, column: str) -> Corpus:
    """A column of a Hugging Face dataset, by id or from a folder that ``save_to_disk`` wrote.

    Raises RefusedError where there is none, or no such split or column.
    """
    import datasets

    try:
        if Path(path).is_dir() and not any(Path(path).glob("*.parquet")):
            found = datasets.load_from_disk(path)
            rows = found[split] if isinstance(found, datasets.DatasetDict) else found
        else:
            rows = datasets.load_dataset(path, split=split)
        texts = rows[column]
    except Exception as error:  # the library raises whatever its readers and the network made it raise
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise RefusedError(
            f"dataset {path!r}, split {split!r}, column {column!r} cannot be read ({first}); check the three, or save "
            "it to a folder first"
        ) from error
    return corpus_of((str(text) for text in texts), f"dataset {path!r}")


def corpus_of(texts: Iterable[str], where: str) -> Corpus:
    """A corpus of ``texts``, one document each; raises RefusedError where too little is left of them."""
    seen: set[str] = set()
    documents, total = [], 0
    for text in texts:
        lines = []
        for line in split_lines(text):
            total += 1
            key = normalise(line)
            if key not in seen and not FINDERS["key"](key):
                seen.add(key)
                lines.append(line)
        if lines:
            documents.append(tuple(lines))
    kept = sum(map(len, documents))
    if kept < FEWEST:
        raise RefusedError(f"{where} leaves {kept} distinct lines, expected at least {FEWEST}; add documents")
    digest = hashlib.sha256("\x1e".join("\n".join(document) for document in documents).encode()).hexdigest()
    return Corpus(tuple(documents), kept / total, digest)


def split_lines(text: str, longest: int = LONGEST) -> list[str]:
    """Lines of at most ``longest`` characters; no character is parted from its marks, nothing is lost but blanks."""
    lines = []
    for raw in text.splitlines():
        line = " ".join("".join(c if c.isprintable() or c in _JOINED else " " for c in raw).split())
        while len(line) > longest:
            at = _break(line, longest)
            lines.append(line[:at].rstrip())
            line = line[at:].lstrip()
        if line:
            lines.append(line)
    return lines


def _break(line: str, longest: int) -> int:
    """Where to part a long line: after a sentence, else at a blank, else between two characters."""
    ends = [match.end() for match in _SENTENCE.finditer(line, 1, longest) if match.end() <= longest]
    blanks = [at for at in range(1, longest) if line[at] == " "]
    if ends and ends[-1] >= longest // 3:
        return ends[-1]
    if blanks:
        return blanks[-1] + 1
    at = longest
    while at > 1 and (unicodedata.combining(line[at]) or line[at] in _JOINED or line[at - 1] == "\u200d"):
        at -= 1
    return at


def _texts(file: Path) -> Iterator[str]:
    try:
        if file.suffix.lower() == ".pdf":
            yield _pdf(file)
        elif file.suffix.lower() == ".jsonl":
            for line in file.read_text(encoding="utf-8").splitlines():
                if line.strip():
                    yield str(json.loads(line)["text"])
        else:
            yield file.read_text(encoding="utf-8-sig")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RefusedError(
            f"{file}: cannot be read as {file.suffix} ({error!r}); mend it, or take it out of the folder"
        ) from error


def _pdf(file: Path) -> str:
    try:
        import pypdf
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            f"{file}: reading PDF takes `pip install evalgate-longctx[pdf]`, or take it out of the folder"
        ) from error
    try:
        return "\n".join(page.extract_text() for page in pypdf.PdfReader(file).pages)
    except pypdf.errors.PyPdfError as error:
        raise ValueError(str(error)) from error
