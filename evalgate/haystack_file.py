"""A compiled suite on the disk: one parquet file with a header and a row group for each haystack.

Rows are written and read one by one, so that memory holds one haystack however many there are.  The file's name for
its content is one digest over the header and the digest of each row; it is the same wherever and in whatever order
the rows were made.  This module does not know what a haystack says.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from evalgate.disk import make_folder, told
from evalgate.errors import InvalidDocumentError, RefusedError, TamperedError

HEADER_KEY, DIGEST_KEY = b"evalgate.header", b"evalgate.sha256"
SCHEMA = pa.schema(
    [
        pa.field("seed", pa.int64(), nullable=False),
        pa.field("stream", pa.int64(), nullable=False),
        pa.field("sha256", pa.string(), nullable=False),
        pa.field("tokens", pa.binary(), nullable=False),  # uint32, little-endian
        pa.field("body", pa.string(), nullable=False),
    ]
)

SETTINGS: dict[str, Any] = {
    "compression": "zstd",
    "write_page_checksum": True,
    # Statistics and dictionaries would hold each haystack twice more: every value is met once.
    "write_statistics": False,
    "use_dictionary": False,
}


class Row(NamedTuple):
    """One haystack."""

    seed: int
    stream: int
    tokens: Sequence[int]
    """Token ids, each under 2**32."""
    body: str
    """All else, as JSON."""


class Writer:
    """Writes rows in ascending order of (seed, stream); the file appears when all of them are there."""

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self._path = path
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}.writing")
        self._header = _canonical(header)
        self._digest = hashlib.sha256(self._header)
        self._last = (-1, -1)
        self._writer: pq.ParquetWriter | None = None

    def write(self, row: Row) -> int:
        """Append one haystack; returns its tokens."""
        assert (row.seed, row.stream) > self._last, f"rows ascend: {self._last} before {(row.seed, row.stream)}"
        self._last = row.seed, row.stream
        tokens = _packed(row.tokens)
        sha256 = _digest(row.seed, row.stream, tokens, row.body)
        self._digest.update(sha256.encode())
        columns: list[list[Any]] = [[row.seed], [row.stream], [sha256], [tokens], [row.body]]
        with told("write", self._path):
            if self._writer is None:
                self._writer = pq.ParquetWriter(self._temporary, SCHEMA, **SETTINGS)
            arrays = [_column(field.type, values) for field, values in zip(SCHEMA, columns, strict=True)]
            self._writer.write_table(pa.Table.from_arrays(arrays, schema=SCHEMA))
        return len(row.tokens)

    def finish(self) -> str:
        """Put the file in its place; returns its digest."""
        assert self._writer is not None, "a suite has a haystack"
        digest = self._digest.hexdigest()
        with told("write", self._path):
            self._writer.add_key_value_metadata({HEADER_KEY: self._header, DIGEST_KEY: digest})
            self._writer.close()
            self._temporary.replace(self._path)
        return digest

    def discard(self) -> None:
        """Leave nothing behind; after :meth:`finish` there is nothing to leave."""
        with contextlib.suppress(OSError, pa.ArrowException):
            if self._writer is not None:
                self._writer.close()
            self._temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def writing(path: Path, header: Mapping[str, Any]) -> Iterator[Writer]:
    """A writer for ``path``, of which nothing stays where it did not finish.  Raises RefusedError: it is there."""
    if path.exists():
        raise RefusedError(f"{path} is there already; choose another --out, or remove it")
    make_folder(path.parent)
    writer = Writer(path, header)
    try:
        yield writer
    finally:
        writer.discard()


class HaystackFile:
    """A compiled suite that is there; nothing but header and index is held."""

    def __init__(self, path: Path) -> None:
        """Raises InvalidDocumentError (no such file, or another kind of file) or TamperedError (digest differs)."""
        self.path = path
        try:
            self._file = pq.ParquetFile(path, page_checksum_verification=True)
            metadata = self._file.metadata.metadata or {}
            self.header: dict[str, Any] = json.loads(metadata[HEADER_KEY])
            self.sha256 = metadata[DIGEST_KEY].decode()
            index = self._file.read(columns=["seed", "stream", "sha256"]).to_pydict()
        except (OSError, KeyError, ValueError, pa.ArrowException) as error:
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InvalidDocumentError(
                f"{path}: not a compiled suite ({first}); make one with `evalgate suite compile`"
            ) from error
        self._digests = index["sha256"]
        places = zip(index["seed"], index["stream"], strict=True)
        self._groups = {place: group for group, place in enumerate(places)}
        found = hashlib.sha256(metadata[HEADER_KEY] + "".join(self._digests).encode()).hexdigest()
        if found != self.sha256:
            raise TamperedError(f"{path}: digest {found[:12]}, recorded {self.sha256[:12]}; compile the suite again")

    def read(self, seed: int, stream: int) -> Row:
        """One haystack.  Raises RefusedError: not in the file; TamperedError: not as it was written."""
        group = self._groups.get((seed, stream))
        if group is None:
            raise RefusedError(f"{self.path} holds no seed {seed}; compile the suite with more --seeds")
        try:
            (fields,) = self._file.read_row_group(group).to_pylist()
        except (OSError, ValueError, pa.ArrowException) as error:
            raise TamperedError(
                f"{self.path}: seed {seed} cannot be read ({error}); compile the suite again"
            ) from error
        tokens = fields["tokens"]
        if _digest(seed, stream, tokens, fields["body"]) != self._digests[group]:
            raise TamperedError(f"{self.path}: seed {seed} is not as it was written; compile the suite again")
        return Row(seed, stream, _unpacked(tokens), fields["body"])


def _canonical(header: Mapping[str, Any]) -> bytes:
    return json.dumps(header, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _packed(tokens: Sequence[int]) -> bytes:
    packed = array("I", tokens)
    return packed.tobytes()


def _unpacked(content: bytes) -> list[int]:
    return array("I", content).tolist()


def _digest(seed: int, stream: int, tokens: bytes, body: str) -> str:
    found = hashlib.sha256(f"{seed} {stream} {len(tokens)}\n".encode())
    found.update(tokens)
    found.update(body.encode())
    return found.hexdigest()


def _column(kind: pa.DataType, values: list[Any]) -> pa.Array:
    # From buffers, as in tables: pa.array imports pandas.
    if kind == pa.int64():
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(array("q", values))])
    (value,) = values
    content = value.encode() if isinstance(value, str) else value
    offsets = pa.py_buffer(array("i", [0, len(content)]))
    return pa.Array.from_buffers(kind, 1, [None, offsets, pa.py_buffer(content)])
