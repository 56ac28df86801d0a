"""Haystacks: the same bytes everywhere, needles where they are said to be, and nothing shared that must not be."""

from __future__ import annotations

import hashlib
import itertools
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from evalgate.errors import DoesNotFitError, RefusedError, UnsupportedError
from evalgate.tasks import names, words
from evalgate.tasks.haystack import Builder, Haystack
from evalgate.tasks.packing import Budget, Entry, pack
from evalgate.tasks.phrases import LANGUAGES, Slots
from evalgate.tasks.suite import Suite, band_of, load_suite

ENGLISH = LANGUAGES["en"]
SUITES = ("smoke", "demo", "retrieval", "needle")
DIGEST_PROGRAM = """
import hashlib, json, sys
from evalgate.backends.models import find_model
from evalgate.backends.tokenizer import ModelTokenizer
from evalgate.tasks.haystack import Builder
from evalgate.tasks.suite import load_suite
builder = Builder(load_suite("needle"), ModelTokenizer(find_model("builtin:hybrid")), "main")
haystack = builder.build(7, builder.streams[0])
body = [haystack.tokens, [probe._asdict() for probe in haystack.probes]]
print(hashlib.sha256(json.dumps(body, default=str).encode()).hexdigest())
"""


def change(suite: Suite, **fields: Any) -> Suite:
    """A suite with other fields, validated."""
    return Suite.model_validate(suite.model_dump(by_alias=True) | fields)


def digest(haystack: Haystack) -> str:
    """sha256 of everything a haystack says."""
    body = [haystack.tokens, [probe._asdict() for probe in haystack.probes]]
    return hashlib.sha256(json.dumps(body, default=str).encode()).hexdigest()


@pytest.fixture(scope="module")
def needle_builder(builtin_tokenizer: Any) -> Builder:
    """Builder of the release suite."""
    return Builder(load_suite("needle"), builtin_tokenizer, "main")


@pytest.mark.parametrize("name", SUITES)
def test_every_needle_is_where_the_trial_says(name: str, builtin_tokenizer: Any) -> None:
    """Depth, band, form counts and budgets hold for every probe, measured in the final prompt's tokens."""
    suite = load_suite(name)
    builder = Builder(suite, builtin_tokenizer, "main")
    cells = []
    for seed, stream in itertools.product(range(8), builder.streams):
        haystack = builder.build(seed, stream)
        for probe in haystack.probes:
            end, length = haystack.ends[probe.cell.length], probe.cell.length
            room = length - builder.reserve
            assert 0.98 * room <= end - haystack.context_start <= room
            assert end + len(probe.tail) + suite.decoding.max_tokens <= length
            assert probe.depth == (probe.start - haystack.context_start) / (end - haystack.context_start)
            assert band_of(probe.depth, suite.bands) == probe.cell.band
            assert probe.end <= end
            line = builtin_tokenizer.decode(haystack.tokens[probe.start : probe.end])
            question = builtin_tokenizer.decode(probe.tail)
            assert line == f"The {question.removeprefix('What is the ').removesuffix('?')} is {probe.wanted}.\n"
            assert line.startswith(f"The {probe.form} number of the ")
            expected = {"single": 1, "multikey@8": 8, "overwrite@3": 9}[probe.cell.task]
            assert probe.same_form == expected
        cells += [(seed, probe.cell) for probe in haystack.probes]

    assert Counter(cells) == Counter((seed, cell) for seed in range(8) for cell in suite.cells())


def test_the_prompt_is_what_the_tokenizer_makes_of_its_text(needle_builder: Builder, builtin_tokenizer: Any) -> None:
    """Prompts are built line by line, yet equal the rendered text encoded in one go."""
    haystack = needle_builder.build(0, needle_builder.streams[0])
    probe = haystack.probes[0]
    prompt = haystack.tokens[: haystack.ends[probe.cell.length]] + probe.tail
    context = builtin_tokenizer.decode(haystack.tokens[haystack.context_start : haystack.ends[probe.cell.length]])
    question = builtin_tokenizer.decode(probe.tail)
    chat = builtin_tokenizer.render_chat("MARK")
    instruction = ENGLISH.say("instruct_number", Slots(noun="report")) + "\n"
    text = chat.head + instruction + context + question + chat.tail

    assert builtin_tokenizer.encode(text) == prompt


def test_a_haystack_depends_on_nothing_else(needle_builder: Builder, builtin_tokenizer: Any) -> None:
    """Built alone, after others, or in another process: the same haystack."""
    stream = needle_builder.streams[0]
    first = digest(needle_builder.build(7, stream))
    fresh = Builder(load_suite("needle"), builtin_tokenizer, "main")
    for seed in (3, 9):
        fresh.build(seed, fresh.streams[1])
    other = subprocess.run([sys.executable, "-c", DIGEST_PROGRAM], capture_output=True, text=True, check=True)

    assert digest(fresh.build(7, stream)) == first
    assert other.stdout.strip() == first


def test_changed_identity_changes_every_haystack(needle_builder: Builder, builtin_tokenizer: Any) -> None:
    """Another seed, seed set, stream or suite gives another text."""
    stream = needle_builder.streams[1]
    base = needle_builder.build(0, stream).tokens
    suite = load_suite("needle")
    others = [
        needle_builder.build(1, stream),
        Builder(suite, builtin_tokenizer, "second").build(0, stream),
        Builder(change(suite, version="1.0.1"), builtin_tokenizer, "main").build(0, stream),
    ]

    assert all(other.tokens != base for other in others)


def test_seeds_share_no_window(needle_builder: Builder) -> None:
    """Two seeds share no 64 tokens in a row outside the template."""
    stream = needle_builder.streams[0]
    haystacks = [needle_builder.build(seed, stream) for seed in range(3)]
    windows = []
    for haystack in haystacks:
        tokens = haystack.tokens[haystack.context_start :]
        windows.append({tuple(tokens[i : i + 64]) for i in range(len(tokens) - 63)})

    assert all(not a & b for a, b in itertools.combinations(windows, 2))


def test_lines_are_distinct(needle_builder: Builder, builtin_tokenizer: Any) -> None:
    """At least 95% of the lines of an 8k haystack occur once."""
    haystack = needle_builder.build(0, needle_builder.streams[0])
    lines = builtin_tokenizer.decode(haystack.tokens[haystack.context_start :]).splitlines()

    assert len(haystack.tokens) > 8000
    assert len(set(lines)) / len(lines) >= 0.95


def test_overwritten_keys_end_with_the_asked_value(needle_builder: Builder, builtin_tokenizer: Any) -> None:
    """Of all lines about an asked key in its context, the last states the expected value."""
    for seed in range(4):
        for stream in needle_builder.streams:
            haystack = needle_builder.build(seed, stream)
            for probe in haystack.probes:
                end = haystack.ends[probe.cell.length]
                text = builtin_tokenizer.decode(haystack.tokens[haystack.context_start : end])
                stem = builtin_tokenizer.decode(haystack.tokens[probe.start : probe.end]).partition(" is ")[0]
                lines = [line for line in text.splitlines() if line.startswith(stem)]
                assert len(lines) == (3 if probe.cell.task == "overwrite@3" else 1)
                assert lines[-1].endswith(f" {probe.wanted}.")


def test_positions_are_uniform_in_their_band(needle_builder: Builder) -> None:
    """Over many seeds each tenth of a band holds about a tenth of its needles (chi-square, 9 degrees, p > 1e-4)."""
    bands = needle_builder.suite.bands
    (stream,) = (s for s in needle_builder.streams if Entry("single", 1024) in s.entries)
    counts = [0] * 10
    for seed in range(200):
        for probe in needle_builder.build(seed, stream).probes:
            low, high = bands[probe.cell.band]
            counts[min(9, int(10 * (probe.depth - low) / (high - low)))] += 1
    mean = sum(counts) / 10

    assert sum((count - mean) ** 2 / mean for count in counts) < 33.7


def test_keys_and_values_of_suites_are_never_trained_on(needle_builder: Builder, builtin_tokenizer: Any) -> None:
    """No needle of any seed uses the quarter of keys and values that training draws from."""
    adjectives = {word: i for i, word in enumerate(words.ADJECTIVES)}
    nouns = {word: i for i, word in enumerate(words.NOUNS)}
    for seed in range(20):
        for stream in needle_builder.streams:
            for probe in needle_builder.build(seed, stream).probes:
                adjective, noun = builtin_tokenizer.decode(probe.tail).removesuffix("?").split()[-2:]
                assert not words.reserved_key(adjectives[adjective], nouns[noun])
                assert not words.reserved_value(int(str(probe.wanted)))
    draw = needle_builder.root
    assert names.GENERATOR_VERSION in draw


def test_training_seed_set_is_refused(builtin_tokenizer: Any) -> None:
    """Nobody measures on the seeds that models are trained with."""
    with pytest.raises(RefusedError, match="reserved"):
        Builder(load_suite("smoke"), builtin_tokenizer, "train")


@pytest.mark.parametrize("name", SUITES)
def test_needles_never_fill_more_than_the_cap(name: str, builtin_tokenizer: Any) -> None:
    """Every asked context of every stream keeps its needles under the density cap, and forms are never shared."""
    suite = load_suite(name)
    builder = Builder(suite, builtin_tokenizer, "main")
    for seed, stream in itertools.product(range(6), builder.streams):
        for context in builder.build(seed, stream).contexts:
            spans = json.loads(context.needle_spans)
            assert sum(span[1] - span[0] for span in spans) <= suite.streams.density_cap * context.context_tokens
            owners: dict[str, set[tuple[str, int]]] = {}
            for span in spans:
                owners.setdefault(span[5], set()).add((span[2], span[3]))
            assert all(len(entries) == 1 for entries in owners.values())


def test_packing_is_that_of_the_largest_load() -> None:
    """Packing is a function of suite and budget alone, holds each entry once, and splits what would overflow."""
    suite = load_suite("needle")
    streams = pack(suite, Budget(57, dict.fromkeys(suite.tasks, 16)))
    entries = [entry for stream in streams for entry in stream.entries]

    assert Counter(entries) == Counter(Entry(task, length) for task in suite.tasks for length in suite.lengths)
    assert sum(stream.longest for stream in streams) <= 17_000
    assert len(pack(suite, Budget(57, dict.fromkeys(suite.tasks, 20)))) >= len(streams)


def test_another_tokenizer_gets_the_same_lengths(coarse_tokenizer: Any, builtin_tokenizer: Any) -> None:
    """Contexts come within 2% of their budget in either tokenizer."""
    suite = load_suite("retrieval")
    for tokenizer in (coarse_tokenizer, builtin_tokenizer):
        builder = Builder(suite, tokenizer, "main")
        for stream in builder.streams:
            haystack = builder.build(0, stream)
            for length, end in haystack.ends.items():
                assert 0.98 * (length - builder.reserve) <= end - haystack.context_start <= length - builder.reserve


@pytest.mark.parametrize(
    ("lengths", "tasks"), [([128], ["single"]), ([300, 1024], ["single"]), ([512], ["multikey@8"])]
)
def test_too_short_is_said_before_anything_is_built(
    lengths: list[int], tasks: list[str], builtin_tokenizer: Any
) -> None:
    """A length that cannot hold its needles is refused, with what would fit."""
    suite = change(load_suite("smoke"), lengths=lengths, tasks=tasks)

    with pytest.raises(DoesNotFitError, match="length"):
        Builder(suite, builtin_tokenizer, "main")


def test_tokenizer_that_merges_over_line_ends_is_refused(coarse_tokenizer: Any) -> None:
    """Positions would be wrong, so such a tokenizer is named and refused."""

    class Merging:
        special_ids: frozenset[int] = frozenset()

        def encode_batch(self, texts: list[str]) -> list[list[int]]:
            return [ids[:-1] for ids in coarse_tokenizer.encode_batch(texts)]

        def render_chat(self, user_content: str = "", system: str | None = None) -> Any:
            return coarse_tokenizer.render_chat(user_content, system)

        def render_base(self, system: str | None = None) -> Any:
            return coarse_tokenizer.render_base(system)

    with pytest.raises(UnsupportedError, match="line ends"):
        Builder(load_suite("smoke"), Merging(), "main")


def test_tokenizer_that_encodes_to_nothing_is_refused(coarse_tokenizer: Any) -> None:
    """Zero tokens is a broken tokenizer, not an empty prompt."""

    class Empty:
        special_ids: frozenset[int] = frozenset()

        def encode_batch(self, texts: list[str]) -> list[list[int]]:
            return [[] for _ in texts]

        def render_chat(self, user_content: str = "", system: str | None = None) -> Any:
            return coarse_tokenizer.render_chat(user_content, system)

        def render_base(self, system: str | None = None) -> Any:
            return coarse_tokenizer.render_base(system)

    with pytest.raises(UnsupportedError, match="0 tokens"):
        Builder(load_suite("smoke"), Empty(), "main")


def test_training_text_draws_only_what_suites_never_hold(repository: Path) -> None:
    """The lessons of the embedded models use reserved keys and values alone."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        "from builtin_lessons import STATE, Rung, Teacher; from builtin_tokenizer import make_tokenizer;"
        "import pathlib, tempfile; tok = make_tokenizer(pathlib.Path(tempfile.mkdtemp()));"
        "lesson = Teacher(tok, 0, 0.1).lesson(Rung(512, 12, 1, (6, 16), 8, STATE), 0);"
        "print('\\n'.join(tok.decode(row) for row in lesson.inputs))"
    )
    out = subprocess.run(
        [sys.executable, "-c", program, str(repository / "tools")], capture_output=True, text=True, check=True
    )
    adjectives = {word: i for i, word in enumerate(words.ADJECTIVES)}
    nouns = {word: i for i, word in enumerate(words.NOUNS)}
    found = [line.split() for line in out.stdout.splitlines() if line.startswith("The ") and " number of the " in line]
    facts = [parts for parts in found if len(parts) == 9 and parts[8].rstrip(".").isdigit()]

    assert len(facts) >= 40
    for parts in facts:
        assert words.reserved_key(adjectives[parts[5]], nouns[parts[6]])
        assert words.reserved_value(int(parts[8].rstrip(".")))
