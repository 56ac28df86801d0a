"""Tables: what goes in comes out, and what was damaged does not."""

from __future__ import annotations

import random
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evalgate.records import Context, Trial
from evalgate.tables import Part, UnreadableTableError, pack, pack_part, unpack, unpack_part

MakeHaystack = Callable[..., tuple[list[Context], list[Trial]]]
RUN = "run-1"


def test_packing_is_the_same_every_time(make_haystack: MakeHaystack) -> None:
    """Equal records give equal bytes, and come back equal."""
    part = Part(*make_haystack(1))

    assert pack_part(part, RUN) == pack_part(part, RUN)
    assert unpack_part(pack_part(part, RUN), RUN) == part
    assert unpack(Trial, pack(Trial, part.trials)) == part.trials


def test_strange_answers_come_back(make_haystack: MakeHaystack) -> None:
    """Any text that a model can write survives the table: empty, line breaks, NUL, other scripts."""
    contexts, trials = make_haystack(1)
    fields = {name: getattr(trials[0], name) for name in trials[0].__dataclass_fields__}
    texts = ["", "\n\r\t", "a\x00b", "деньги 钱 💰", "</script>", "\u202e", "x" * 100_000]
    strange = [Trial(**{**fields, "trial_id": str(i), "answer": text}) for i, text in enumerate(texts)]

    assert unpack_part(pack_part(Part(contexts, strange), RUN), RUN).trials == strange


def test_lone_surrogates_are_marked(make_haystack: MakeHaystack) -> None:
    """Half a character, which a broken server may send, is kept as a question mark and loses no haystack."""
    contexts, trials = make_haystack(1)
    fields = {name: getattr(trials[0], name) for name in trials[0].__dataclass_fields__}
    broken = Trial(**{**fields, "answer": "amber\udcff tower"})

    assert unpack_part(pack_part(Part(contexts, [broken]), RUN), RUN).trials[0].answer == "amber? tower"


def test_flipped_bits_are_seen(make_haystack: MakeHaystack) -> None:
    """A table with any one bit changed in its data pages is refused, not read with a wrong answer."""
    whole = pack_part(Part(*make_haystack(1)), RUN)
    expected = unpack_part(whole, RUN)
    place = random.Random(7)
    refused = 0

    for _ in range(60):
        content = bytearray(whole)
        content[place.randrange(4, len(whole) // 4)] ^= 1 << place.randrange(8)
        try:
            assert unpack_part(bytes(content), RUN) == expected
        except UnreadableTableError:
            refused += 1
    assert refused > 30


def test_tables_of_before_a_column_was_there(make_haystack: MakeHaystack) -> None:
    """Columns that came later have the value that they stand for; one that is missing without such a value is told."""
    _, trials = make_haystack(1)
    table = pq.read_table(pa.BufferReader(pack(Trial, trials)))

    def without(*names: str) -> bytes:
        sink = pa.BufferOutputStream()
        pq.write_table(table.drop_columns(list(names)), sink, write_page_checksum=True)
        return bytes(sink.getvalue())

    assert unpack(Trial, without("error", "first_token_s")) == trials
    with pytest.raises(UnreadableTableError, match="missing \\['answer'\\]"):
        unpack(Trial, without("answer", "error"))
