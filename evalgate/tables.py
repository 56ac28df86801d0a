"""Trials and contexts as parquet, and back; every value checked on the way in.

A table knows its columns and their types, not where it is kept or what run it belongs to.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import typing
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.lib import StringBuilder

from evalgate.records import Context, Outcome, Trial

__all__ = ["ChangedTableError", "Part", "UnreadableTableError", "pack", "pack_part", "unpack", "unpack_part"]

CONTEXTS_KEY = b"evalgate.contexts"
"""Schema metadata of a part: its contexts as JSON, so that a part is one file and one rename."""
SEAL_KEY = b"evalgate.seal"
"""Schema metadata of a part: sha256 over its run, its contexts and its trials."""

Row = TypeVar("Row", Trial, Context)

_ARROW = {str: pa.string(), int: pa.int64(), float: pa.float64(), Outcome: pa.string()}


class UnreadableTableError(ValueError):
    """Bytes that are not the table they should be; the message says what was found."""


class ChangedTableError(ValueError):
    """A table that is whole, and not as it was written; the message says what was found."""


class Part(NamedTuple):
    """What one haystack left behind."""

    contexts: list[Context]
    trials: list[Trial]

    def fault(self, seed: int, stream: int) -> str | None:
        """What is wrong with this part as the part of haystack (seed, stream), or None."""
        if not self.trials:
            return "it holds no trials"
        records: list[Trial | Context] = [*self.trials, *self.contexts]
        strangers = {(record.seed, record.stream) for record in records} - {(seed, stream)}
        if strangers:
            return f"it holds records of other haystacks: {sorted(strangers)}"
        if len({trial.trial_id for trial in self.trials}) < len(self.trials):
            return "it holds a trial twice"
        orphans = {trial.context_id for trial in self.trials} - {context.context_id for context in self.contexts}
        if orphans:
            return f"it holds trials of contexts that it lacks: {sorted(orphans)}"
        return None


def pack(kind: type[Row], rows: Sequence[Row]) -> bytes:
    """Parquet bytes of ``rows``, with a checksum on every page."""
    return _encode(_table(rows, _schema(kind)))


def unpack(kind: type[Row], content: bytes) -> list[Row]:
    """Rows of ``content``; columns that ``kind`` got later, with a value for those before, may be missing.

    Raises UnreadableTableError: not parquet, truncated, or other columns than ``kind`` has.
    """
    return _rows(kind, _decode(kind, content))


def pack_part(part: Part, run_id: str) -> bytes:
    """Parquet bytes of the trials, with the contexts in the schema's metadata, sealed as a part of run ``run_id``."""
    contexts = json.dumps([dataclasses.asdict(context) for context in part.contexts], allow_nan=False).encode()
    table = _table(part.trials, _schema(Trial))
    metadata = {CONTEXTS_KEY: contexts, SEAL_KEY: _seal(run_id, contexts, table)}
    return _encode(table.replace_schema_metadata(metadata))


def unpack_part(content: bytes, run_id: str) -> Part:
    """Reverse of ``pack_part``.

    Raises UnreadableTableError (torn, or no part) or ChangedTableError (another value than was written, or a part of
    another run).
    """
    table = _decode(Trial, content)
    metadata = table.schema.metadata or {}
    try:
        seal, listed = metadata[SEAL_KEY], json.loads(metadata[CONTEXTS_KEY])
        contexts = [_row(Context, fields) for fields in listed]
    except (KeyError, TypeError, ValueError) as error:
        raise UnreadableTableError(f"the part's contexts or seal are missing or not readable ({error})") from error
    actual = _seal(run_id, metadata[CONTEXTS_KEY], table)
    if actual != seal:
        raise ChangedTableError(f"digest {actual[:12].decode()}, recorded {seal[:12].decode(errors='replace')}")
    return Part(contexts, _rows(Trial, table))


def _seal(run_id: str, contexts: bytes, table: pa.Table) -> bytes:
    # Over what the columns hold, not over the records: a character that has no UTF-8 is another one in the table.
    sealed = json.dumps([run_id, contexts.decode(), table.to_pydict()])
    return hashlib.sha256(sealed.encode()).hexdigest().encode()


def _schema(kind: type[Row]) -> pa.Schema:
    hints = typing.get_type_hints(kind)
    return pa.schema([pa.field(f.name, _ARROW[hints[f.name]], nullable=False) for f in dataclasses.fields(kind)])


def _table(rows: Sequence[Trial | Context], schema: pa.Schema) -> pa.Table:
    columns = [_column(field.type, [getattr(row, field.name) for row in rows]) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _column(kind: pa.DataType, values: list[Any]) -> pa.Array:
    # From buffers, because pa.array imports pandas, which costs every command that writes a third of a second.
    if kind == pa.string():
        builder = StringBuilder()
        # A lone surrogate, which a broken server may send, is no character and has no UTF-8.
        builder.append_values([str(value).encode("utf-8", "replace").decode() for value in values])
        return builder.finish()
    packed = array("q" if kind == pa.int64() else "d", values)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(packed)])


def _encode(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    return sink.getvalue()


def _decode(kind: type[Row], content: bytes) -> pa.Table:
    try:
        table = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True).read()
    except (pa.ArrowException, OSError, ValueError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UnreadableTableError(f"not a whole parquet file ({first})") from error
    expected = _schema(kind)
    later = {f.name for f in dataclasses.fields(kind) if f.default is not dataclasses.MISSING}
    there = pa.schema([field for field in expected if field.name in table.schema.names or field.name not in later])
    if not table.schema.equals(there, check_metadata=False):
        found, wanted = set(table.schema.names), set(there.names)
        raise UnreadableTableError(
            f"other columns than a table of {kind.__name__.lower()}s has: "
            f"missing {sorted(wanted - found) or 'none'}, unknown {sorted(found - wanted) or 'none'}, or other types"
        )
    return table


def _rows(kind: type[Row], table: pa.Table) -> list[Row]:
    try:
        return [_row(kind, fields) for fields in table.to_pylist()]
    except (TypeError, ValueError) as error:
        raise UnreadableTableError(f"a row that is not a {kind.__name__.lower()} ({error})") from error


def _row(kind: type[Row], fields: dict[str, Any]) -> Row:
    if kind is Trial:
        fields = {**fields, "outcome": Outcome(fields["outcome"])}
    return kind(**fields)
